"""For which runs a thread is computing an answer: there it may not wait for what it owes them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from lmlang.protocol.request import Tag

_thread = threading.local()


@contextlib.contextmanager
def answering(tag: Tag) -> Iterator[None]:
    """Around a user's code that a backend calls for an answer; such blocks nest."""
    runs = _runs()
    runs.append(tag.run_id)
    try:
        yield
    finally:
        runs.pop()


def is_answering(run_id: str) -> bool:
    """Whether this thread is in the middle of an answer for that run."""
    return run_id in _runs()


def _runs() -> list[str]:
    """The runs that this thread owes an answer, innermost last."""
    runs: list[str] | None = getattr(_thread, "runs", None)
    if runs is None:
        runs = _thread.runs = []
    return runs
