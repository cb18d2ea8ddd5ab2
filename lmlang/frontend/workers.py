"""Threads for the rows of one batch, which keep no process alive.

    submit ──> work ──> thread, thread, …      as many as there is work for, up to ``most``

They are daemons: where the interpreter exits while a batch is open, its rows end with it.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from lmlang.frontend import waiting

T = TypeVar("T")


class Workers:
    """Does work in order of arrival, each piece in its asker's context. Thread-safe.

    Args:
        most: Threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Taken by itself: entering a condition is Python, in which a Ctrl-C leaves its lock taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._work: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have ``work()`` done; its future ends as it does, or is cancelled by `close`."""
        future: Future[T] = Future()
        context = contextvars.copy_context()

        def do() -> None:
            try:
                value = context.run(work)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)

        with self._lock:
            self._work.append((future, do))  # type: ignore[arg-type]  # only ever cancelled
            self._changed.notify()
            if len(self._work) > self._idle and len(self._threads) < self._most:
                thread = threading.Thread(target=self._loop, name="lmlang-row", daemon=True)
                thread.start()
                self._threads.append(thread)
        return future

    def close(
        self, patience: float | None = None, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Cancel what has not begun and wait for what has, so many seconds or to its end.

        At the interpreter's exit it does nothing: the threads are no more, whatever they held.

        Args:
            patience: Seconds; None: any number.
            given_up: Asked again and again whether nobody wants to wait any more.
        """
        if sys.is_finalizing():
            return
        due = None if patience is None else time.monotonic() + patience
        with self._lock:
            self._closed = True
            left, self._work = self._work, deque()
            self._changed.notify_all()
        for future, _ in left:
            future.cancel()
        threads, self._threads = self._threads, []
        for thread in threads:
            if thread is not threading.current_thread():
                _join(thread, due, given_up)

    def _loop(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                self._changed.wait_for(lambda: self._work or self._closed)
                self._idle -= 1
                if not self._work:
                    return
                future, do = self._work.popleft()
            if future.set_running_or_notify_cancel():
                do()
            del future, do  # they hold the row's run


def _join(thread: threading.Thread, due: float | None, given_up: Callable[[], bool]) -> None:
    """Wait for the end of a thread, or until a time, or until nobody wants to."""
    while thread.is_alive() and not given_up():
        left = None if due is None else due - time.monotonic()
        if left is not None and left <= 0:
            return
        at_once = waiting.stretch()
        thread.join(min((part for part in (left, at_once) if part is not None), default=None))
