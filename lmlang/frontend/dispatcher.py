"""The one thread per process on which programs go on after a completion, and which ends them late.

A backend's callback only puts work here, so the engine thread is never held up; the thread takes
it in order of arrival, and alarms when they are due. It starts with the first piece of work and
is a daemon.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable

Work = Callable[[], None]
_log = logging.getLogger("lmlang")
SWEEP = 1_024
"""So many alarms at least are kept before the cancelled ones are thrown away."""


class Alarm:
    """Work for a later time; `cancel` takes it back."""

    __slots__ = ("due", "work")

    def __init__(self, due: float, work: Work) -> None:
        self.due = due
        self.work: Work | None = work

    def cancel(self) -> None:
        """Have the work not done, and forgotten; for work that has been done, nothing."""
        self.work = None


class Dispatcher:
    """A queue of work, the alarms, and the thread that does both. Thread-safe."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._alarms: list[tuple[float, int, Alarm]] = []  # a heap; the thread's own
        self._count = itertools.count()
        self._sweep_at = SWEEP

    def put(self, work: Work) -> None:
        """Have ``work()`` done soon on the dispatcher thread; it must neither raise nor block."""
        self._work.put(work)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(
                        target=self._loop, name="lmlang-dispatcher", daemon=True
                    )
                    thread.start()
                    self._thread = thread

    def after(self, seconds: float, work: Work) -> Alarm:
        """Have ``work()`` done on the dispatcher thread in so many seconds; it is as in `put`."""
        alarm = Alarm(time.monotonic() + seconds, work)
        self.put(lambda: self._set(alarm))
        return alarm

    def is_current(self) -> bool:
        """Whether the caller is the dispatcher thread, which must never wait."""
        return threading.current_thread() is self._thread

    def _loop(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=self._until_due())
            except queue.Empty:
                continue  # an alarm is due
            _do(work)
            del work  # it may hold the last run that anyone has of it

    def _set(self, alarm: Alarm) -> None:
        heapq.heappush(self._alarms, (alarm.due, next(self._count), alarm))
        if len(self._alarms) >= self._sweep_at:  # most have been cancelled by then
            self._alarms = [entry for entry in self._alarms if entry[2].work is not None]
            heapq.heapify(self._alarms)
            self._sweep_at = max(SWEEP, 2 * len(self._alarms))

    def _until_due(self) -> float | None:
        """Do the work of alarms that are due; seconds until the next, None without one."""
        while self._alarms:
            due, _, alarm = self._alarms[0]
            work, now = alarm.work, time.monotonic()
            if work is not None and due > now:
                return min(due - now, threading.TIMEOUT_MAX)
            heapq.heappop(self._alarms)
            if work is not None:
                _do(work)
        return None


def _do(work: Work) -> None:
    try:
        work()
    except BaseException:  # a fault of ours: that of one run, and not the end of all of them
        _log.exception("what a program had to go on with raised")


_dispatcher = Dispatcher()


def dispatcher() -> Dispatcher:
    """The dispatcher of this process."""
    return _dispatcher


def _after_os_fork() -> None:
    # Threads do not survive os.fork; the child begins with a new queue and no thread.
    global _dispatcher
    _dispatcher = Dispatcher()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_os_fork)
