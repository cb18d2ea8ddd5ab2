"""A bell that is rung at every change of a run, as long as somebody reads it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType


class Ringing:
    """A ``with`` block in which ``ring()`` is among the rings.

    Args:
        lock: Guards ``rings``.
        rings: All that are called at a change.
        ring: The block's own.
    """

    __slots__ = ("_lock", "_ring", "_rings")

    def __init__(
        self,
        lock: AbstractContextManager[object],
        rings: list[Callable[[], None]],
        ring: Callable[[], None],
    ) -> None:
        self._lock = lock
        self._rings = rings
        self._ring = ring

    def __enter__(self) -> None:
        with self._lock:
            self._rings.append(self._ring)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if sys.is_finalizing():  # a thread that is no more may hold the lock
            return
        with self._lock:
            self._rings.remove(self._ring)
