"""Time for building a grammar: what takes long asks now and then whether there is some left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

from lmlang.errors import GrammarTooLarge

STRIDE = 256
"""Units of work between two looks at the clock."""


class OutOfTime(GrammarTooLarge):
    """A grammar that was not built in its time; on a quieter machine it may be."""


class Budget:
    """Time for one piece of work. May be stopped from another thread.

    Args:
        seconds: From now on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._spent = 0

    def check(self) -> None:
        """Raises OutOfTime where none is left."""
        if time.monotonic() > self._deadline:
            raise OutOfTime(
                f"the constraint took longer than {self._seconds:g} s to compile: simplify it, or "
                "allow more time."
            )

    def spend(self, count: int) -> None:
        """Note some units of work; now and then `check`."""
        self._spent += count
        if self._spent >= STRIDE:
            self._spent = 0
            self.check()

    def stop(self) -> None:
        """Let the next `check` fail."""
        self._deadline = float("-inf")


_current: ContextVar[Budget | None] = ContextVar("lmlang_grammar_budget", default=None)


def spend(count: int = 1) -> None:
    """Note some units of work, each about a microsecond, of what is being built here and now.

    Raises:
        OutOfTime: There is no time left for it. Without a budget there always is.
    """
    budget = _current.get()
    if budget is not None:
        budget.spend(count)


@contextlib.contextmanager
def within(budget: Budget) -> Iterator[None]:
    """Work that has this budget."""
    token = _current.set(budget)
    try:
        yield
    finally:
        _current.reset(token)
