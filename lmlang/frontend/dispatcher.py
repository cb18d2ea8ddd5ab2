"""The one thread per process on which programs go on after a completion.

A backend's callback only puts work here, so the engine thread is never held up; the thread takes
it in order of arrival. It starts with the first piece of work and is a daemon.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable


class Dispatcher:
    """A queue of work and the thread that does it. Thread-safe."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, work: Callable[[], None]) -> None:
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

    def is_current(self) -> bool:
        """Whether the caller is the dispatcher thread, which must never wait."""
        return threading.current_thread() is self._thread

    def _loop(self) -> None:
        while True:
            self._work.get()()


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
