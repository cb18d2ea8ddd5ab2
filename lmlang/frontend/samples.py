"""n generations of one prompt under one handle: it ends when all have ended, or with an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from lmlang.protocol import Generation, Output


class Samples:
    """The answer to n requests that differ in their draw keys alone. Thread-safe.

    The first error cancels the other generations and is the outcome. Readers of a stream take
    ``generations[0]``, with which the state goes on.

    Attributes:
        generations: One for each sample, in order.
    """

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = tuple(generations)
        self._lock = threading.Lock()
        self._waiting = len(self.generations)
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Samples], None]] = []
        for generation in self.generations:
            generation.add_done_callback(self._one_ended)

    def done(self) -> bool:
        """Whether all have ended."""
        with self._lock:
            return self._waiting == 0

    def cancel(self) -> None:
        """Cancel all that have not ended."""
        for generation in self.generations:
            generation.cancel()

    def add_done_callback(self, callback: Callable[[Samples], None]) -> None:
        """Call ``callback(self)`` when all have ended, on the thread that ends the last."""
        with self._lock:
            if self._waiting:
                self._callbacks.append(callback)
                return
        callback(self)

    def outcome(self) -> tuple[Output, ...] | BaseException:
        """The outputs in order, or the error that came first; only when done."""
        if self._error is not None:
            return self._error
        outcomes = [generation.outcome() for generation in self.generations]
        return tuple(outcome for outcome in outcomes if isinstance(outcome, Output))

    def _one_ended(self, generation: Generation) -> None:
        outcome = generation.outcome()
        with self._lock:
            self._waiting -= 1
            first_error = self._error is None and isinstance(outcome, BaseException)
            if first_error and isinstance(outcome, BaseException):
                self._error = outcome
            callbacks = self._callbacks if self._waiting == 0 else []
        if first_error:
            self.cancel()
        for callback in callbacks:
            callback(self)
