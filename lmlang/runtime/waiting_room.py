"""Back-pressure: how many sequences may wait to run, and who waits at the door for a place.

    submitters --enter--> [ entering | waiting ]  --admitted, ended--> out
       (in order of arrival)   at most `size`

`entering` are on their way through the inbox, `waiting` are those of the loop. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque

from lmlang.errors import LMLangError, QueueFull

SIGNALS = 1.0
"""Seconds after which a waiting main thread looks for a Ctrl-C that came as it began to wait."""


class _Turn:
    """One submitter at the door."""

    __slots__ = ("called", "granted")

    def __init__(self) -> None:
        self.called = threading.Event()
        self.granted = False


class WaitingRoom:
    """Places for sequences that wait to run.

    Args:
        size: Places; more sequences than this wait only where the engine itself makes them.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        # Reentrant: a garbage collection inside may close the engine on this very thread.
        self._lock = threading.RLock()
        self._entering = 0
        self._waiting = 0
        self._turns: deque[_Turn] = deque()
        self._closed: LMLangError | None = None

    def enter(self, *, wait: bool = True, beyond: bool = False) -> LMLangError | None:
        """Take a place, waiting for one behind those who came before.

        Args:
            wait: Whether to wait; else a full room is a `QueueFull`.
            beyond: Take one in a full room too: for the thread that makes room.

        Returns:
            None with a place, or why there is none.
        """
        turn = _Turn()
        try:
            with self._lock:
                if self._closed is not None:
                    return self._closed
                if beyond or (not self._turns and self._taken < self.size):
                    self._entering += 1
                    return None
                if not wait:
                    return QueueFull(
                        f"{self._taken:,} requests wait to run, and max_queued is {self.size:,}: "
                        "try again later, or make the Runtime with a larger max_queued."
                    )
                self._turns.append(turn)
            main = threading.current_thread() is threading.main_thread()
            while not turn.called.wait(SIGNALS if main else None):
                pass
        except BaseException:  # Ctrl-C: the place goes to the next
            with self._lock:
                if turn.granted:
                    self._entering -= 1
                elif turn in self._turns:
                    self._turns.remove(turn)
                self._call()
            raise
        return None if turn.granted else self._closed

    def arrive(self) -> None:
        """One that had entered is with the loop now."""
        with self._lock:
            self._entering -= 1
            self._waiting += 1

    def update(self, waiting: int) -> None:
        """So many wait in the loop now; told by the one thread that moves them."""
        if waiting == self._waiting:  # then no place is free that was taken
            return
        with self._lock:
            self._waiting = waiting
            self._call()

    def close(self, error: LMLangError) -> None:
        """Nobody enters any more; whoever waits at the door gets the error."""
        with self._lock:
            self._closed = self._closed or error
            while self._turns:
                self._turns.popleft().called.set()

    @property
    def _taken(self) -> int:
        return self._entering + self._waiting

    def _call(self) -> None:
        """Give free places to those at the door; holds the lock."""
        while self._turns and self._taken < self.size:
            turn = self._turns.popleft()
            turn.granted = True
            self._entering += 1
            turn.called.set()
