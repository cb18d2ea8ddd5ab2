"""Who is told when runs begin and end: nobody, until somebody asks to be.

An observer is called on the thread of the run's body, around it; what it raises ends no run.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from lmlang.frontend.run import Run

_log = logging.getLogger("lmlang")


class Observer(Protocol):
    """Is told of runs."""

    def began(self, run: Run) -> Any:
        """A run begins; what this returns is given back at its end."""
        ...

    def ended(self, run: Run, begun: Any) -> None:
        """The run has ended; its log is complete, but for what is cancelled just now."""
        ...


_observers: tuple[Observer, ...] = ()


def observe(observer: Observer) -> None:
    """Tell it of every run that begins from now on."""
    global _observers
    _observers = (*_observers, observer)


def ignore(observer: Observer) -> None:
    """Tell it of no more runs."""
    global _observers
    _observers = tuple([each for each in _observers if each is not observer])


class Observed:
    """One run, as its observers see it."""

    __slots__ = ("_begun", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._begun: list[tuple[Observer, Any]] = []
        for observer in _observers:
            try:
                self._begun.append((observer, observer.began(run)))
            except Exception:
                _log.warning("an observer of runs has failed", exc_info=True)

    def end(self) -> None:
        """It has ended."""
        for observer, begun in reversed(self._begun):
            try:
                observer.ended(self._run, begun)
            except Exception:
                _log.warning("an observer of runs has failed", exc_info=True)
