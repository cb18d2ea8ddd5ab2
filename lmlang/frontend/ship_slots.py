"""What a server has told of a generation or select, and the handle that gets it once asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeAlias

from lmlang.errors import Cancelled, WireError
from lmlang.protocol import Event, Generation, Output, Scores

Handle: TypeAlias = Generation | Future[Scores]
Outcome: TypeAlias = Output | Scores | BaseException


class Slot:
    """The place of one answer, whichever comes first: what is told, or the asking. Thread-safe.

    A program that is sent again is told again; what is known of it already is passed over.

    Attributes:
        outcome: What it came to; None before.
    """

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self._lock = threading.RLock()
        self._events: list[Event] = []
        self._tokens = 0
        self._finished = False
        self._handle: Handle | None = None
        self._step: Callable[[], Handle] | None = None

    @property
    def waits(self) -> bool:
        """Whether it has been asked for, and nothing has come of it yet."""
        return self._handle is not None and self.outcome is None

    def ask(self, handle: Handle, step: Callable[[], Handle]) -> None:
        """Fill this handle from here on.

        Args:
            handle: What the program waits for.
            step: Asks a backend for this alone.
        """
        with self._lock:
            self._handle, self._step = handle, step
            if isinstance(handle, Generation):
                for event in self._events:
                    handle.push(event)
            self._events.clear()
            outcome = self.outcome
        if outcome is not None:
            _end(handle, outcome)

    def take(self, item: Event | Outcome) -> bool:
        """Take something that was told; whether it was new."""
        with self._lock:
            if self.outcome is not None:
                return False
            if isinstance(item, Event):
                return self._take(item)
            self.outcome, handle = item, self._handle
        if handle is not None:  # not under the lock: to end one may cancel others
            _end(handle, item)
        return True

    def _take(self, event: Event) -> bool:
        behind = event.index + len(event.ids)
        if self._finished or (event.ids and behind <= self._tokens):
            return False
        if event.index != self._tokens:
            raise WireError(
                f"the server told tokens from number {event.index:,} on, and those from number "
                f"{self._tokens:,} on were due: it lost some, or told some twice."
            )
        self._tokens, self._finished = behind, event.finish is not None
        if isinstance(self._handle, Generation):
            self._handle.push(event)
        else:
            self._events.append(event)
        return True

    def step(self) -> None:
        """Have a backend answer this alone; a second call does nothing."""
        with self._lock:
            handle, begin, self._step = self._handle, self._step, None
        if handle is None or begin is None:
            return
        try:
            inner = begin()
        except Exception as error:  # a backend that cannot even begin
            self.take(error)
            return
        if isinstance(inner, Generation):
            self._follow(inner, handle)
        else:
            inner.add_done_callback(lambda done: self.take(_outcome(done)))
            if isinstance(handle, Future):
                handle.add_done_callback(lambda done: inner.cancel() if done.cancelled() else None)

    def _follow(self, inner: Generation, handle: Handle) -> None:
        passed = 0

        def pass_on() -> None:
            nonlocal passed
            with self._lock:
                for event in inner.events_from(passed):
                    passed += 1
                    self.take(event)

        def ended(_: Generation) -> None:
            pass_on()
            self.take(inner.outcome())

        inner.watch(pass_on)
        inner.add_done_callback(ended)
        if isinstance(handle, Generation):
            handle.add_done_callback(lambda _: inner.cancel())  # nothing, where it has ended


def _outcome(future: Future[Scores]) -> Outcome:
    if future.cancelled():
        return Cancelled("the scoring of choices was cancelled.")
    return future.exception() or future.result()


def _end(handle: Handle, outcome: Outcome) -> None:
    """End a handle with what has come, or with the error that it is none of its kind."""
    if isinstance(outcome, BaseException):
        error: BaseException | None = outcome
    else:
        fits = isinstance(outcome, Output if isinstance(handle, Generation) else Scores)
        error = None if fits else WireError("the server answered a generation as a select.")
    if isinstance(handle, Generation):
        if error is not None:
            handle.fail(error)
        elif isinstance(outcome, Output):
            handle.complete(outcome)
        return
    with suppress(InvalidStateError):  # nobody waits any more
        if error is not None:
            handle.set_exception(error)
        elif isinstance(outcome, Scores):
            handle.set_result(outcome)
