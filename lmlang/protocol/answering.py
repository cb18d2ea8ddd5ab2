"""For which runs a thread is computing an answer: there it may not wait for what it owes them."""

from __future__ import annotations

import threading
from types import TracebackType

from lmlang.protocol.request import Tag

_thread = threading.local()


class Answering:
    """The block of `answering`: a class, since user's exceptions may let nothing be set on them."""

    __slots__ = ("_run_id",)

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def __enter__(self) -> None:
        _runs().append(self._run_id)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _runs().pop()


def answering(tag: Tag) -> Answering:
    """Around a user's code that a backend calls for an answer; such blocks nest."""
    return Answering(tag.run_id)


def is_answering(run_id: str) -> bool:
    """Whether this thread is in the middle of an answer for that run."""
    return run_id in _runs()


def _runs() -> list[str]:
    """The runs that this thread owes an answer, innermost last."""
    runs: list[str] | None = getattr(_thread, "runs", None)
    if runs is None:
        runs = _thread.runs = []
    return runs
