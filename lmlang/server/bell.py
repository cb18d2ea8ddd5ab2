"""How other threads wake the event loop: once for all that moves meanwhile, not once for each."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class Bell:
    """Sets events of one event loop from any thread.

    A step of the engine moves many streams; to wake the loop takes a system call, in which the
    engine's thread would lose its turn.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved: deque[asyncio.Event] = deque()
        self._rung = False

    def hang(self) -> None:
        """Belong to the running loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._rung = loop, False

    def ring(self, event: asyncio.Event) -> None:
        """Have the loop set an event soon; from any thread."""
        self._moved.append(event)
        if not self._rung and self._loop is not None:
            self._rung = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._rung = False  # first: whoever comes from now on rings again
        while self._moved:
            self._moved.popleft().set()
