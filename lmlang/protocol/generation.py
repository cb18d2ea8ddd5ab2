"""A generation under way: a future over a stream of events. Thread-safe."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from time import perf_counter

from lmlang.errors import Cancelled, ProgramError, fresh
from lmlang.protocol.answer import Event, Output
from lmlang.protocol.request import Request

_log = logging.getLogger("lmlang")


class Generation:
    """One request's answer: a future, and a stream of events that any number may read.

    The backend calls `push`, then once `complete` or `fail`; whoever asked reads `events`,
    `result` or is called back. Thread-safe.

    Attributes:
        first_at: When the first token came, by `time.perf_counter`.
        admitted_at: When it began to run; None before, and where a backend does not say.
    """

    def __init__(
        self, request: Request, on_cancel: Callable[[Generation], None] | None = None
    ) -> None:
        self.request = request
        self._on_cancel = on_cancel
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._readers = 0
        """Threads that wait for the next event."""
        self._over = threading.Condition(self._mutex)
        self.first_at: float | None = None
        self.admitted_at: float | None = None
        self._events: list[Event] = []
        self._output: Output | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Generation], None]] = []
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._cancelled = False

    # the backend's side

    def push(self, event: Event) -> None:
        """Add one event to the stream; after the end it does nothing."""
        with self._mutex:
            if self._output is not None or self._error is not None:
                return
            if self.first_at is None and event.ids:
                self.first_at = perf_counter()
            self._events.append(event)
            if self._readers:
                self._changed.notify_all()
            watchers = self._watchers
        for watcher in watchers:
            watcher()

    def complete(self, output: Output) -> None:
        """End with an output; later calls of complete or fail do nothing."""
        self._end(output, None)

    def fail(self, error: BaseException) -> None:
        """End with an error; later calls of complete or fail do nothing."""
        self._end(None, error)

    def _end(self, output: Output | None, error: BaseException | None) -> None:
        with self._mutex:
            if self._ended():
                return
            self._output, self._error = output, error
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
            self._over.notify_all()
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Generation], None]) -> None:
        # As in concurrent.futures: whoever ends the generation is not ended by who listens.
        try:
            callback(self)
        except Exception:
            _log.exception("a callback of a generation raised")

    def _ended(self) -> bool:
        return self._output is not None or self._error is not None

    # the asker's side

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called before the end."""
        return self._cancelled

    def done(self) -> bool:
        """Whether there is an output or an error."""
        with self._mutex:
            return self._ended()

    def cancel(self) -> None:
        """Ask the backend to stop; the generation then fails with `Cancelled`, unless it ended."""
        with self._mutex:
            if self._ended() or self._cancelled:
                return
            self._cancelled = True
        if self._on_cancel is not None:
            self._on_cancel(self)
        else:
            self.fail(Cancelled("the generation was cancelled."))

    def add_done_callback(self, callback: Callable[[Generation], None]) -> None:
        """Call ``callback(self)`` at the end, on the thread that ends it; at once if it has ended.

        The callback runs on the backend's engine thread: it may hand work on, nothing else.
        """
        with self._mutex:
            if not self._ended():
                self._callbacks.append(callback)
                return
        self._call(callback)

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call ``watcher()`` after every event, on the thread that pushes it.

        Where there are events already, it is called for them at once.

        As a callback it may hand work on, nothing else.

        Returns:
            What takes it back; to be called once.
        """
        with self._mutex:
            self._watchers += (watcher,)
            told = bool(self._events)
        if told:
            watcher()

        def unwatch() -> None:
            with self._mutex:
                left = list(self._watchers)
                left.remove(watcher)
                self._watchers = tuple(left)

        return unwatch

    def events_from(self, position: int) -> list[Event]:
        """The events from number ``position`` on that are there; never waits."""
        with self._mutex:
            return self._events[position:]

    def outcome(self) -> Output | BaseException:
        """How it ended, without waiting; only for a generation that is done."""
        with self._mutex:
            ended = self._output if self._error is None else self._error
            if ended is None:
                raise ProgramError("outcome() of a generation that has not ended: wait for it.")
            return ended

    def result(self, timeout: float | None = None) -> Output:
        """Wait for the end; raises the error it ended with, or TimeoutError (seconds)."""
        with self._mutex:
            if not self._over.wait_for(self._ended, timeout):
                raise TimeoutError(f"the generation did not end within {timeout} s.")
            if self._error is not None:
                raise fresh(self._error)
            assert self._output is not None
            return self._output

    def events(self) -> Iterator[Event]:
        """All events from the first on, waiting for each; raises what the generation ended with."""
        position = 0
        while True:
            with self._mutex:
                self._readers += 1
                try:
                    while len(self._events) == position and not self._ended():
                        self._changed.wait()
                finally:
                    self._readers -= 1
                batch = self._events[position:]
                error = self._error
            yield from batch
            position += len(batch)
            if not batch:
                if error is not None:
                    raise fresh(error)
                return
