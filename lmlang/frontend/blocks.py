"""The with blocks of the language: turns, scopes and copies."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Block(Generic[T]):
    """A with block; what it ends with it ends on exceptions too.

    Args:
        inside: What ``as`` names.
        enter: Begins it.
        leave: Ends it; takes the body's error, which passes on as itself.
    """

    def __init__(
        self,
        inside: T,
        enter: Callable[[], None],
        leave: Callable[[BaseException | None], None],
    ) -> None:
        self._inside = inside
        self._enter = enter
        self._leave = leave

    def __enter__(self) -> T:
        self._enter()
        return self._inside

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(error)
