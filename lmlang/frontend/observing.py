"""Who is told when runs begin and end: nobody, until somebody asks to be.

An observer is called on the thread of the run's body, around it; what it raises ends no run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from lmlang.frontend.run import Run

_log = logging.getLogger("lmlang")
_FAILED = "an observer of runs has failed"


class Observer(Protocol):
    """Is told of runs, and of calls of tools."""

    def began(self, run: Run) -> Any:
        """A run begins; what this returns is given back at its end."""
        ...

    def ended(self, run: Run, begun: Any) -> None:
        """The run has ended; its log is complete, but for what is cancelled just now."""
        ...

    def called(self, tool: str) -> Any:
        """A tool is called; what this returns is given back at its end."""
        ...

    def returned(self, begun: Any, error: BaseException | None) -> None:
        """It has returned, or raised this."""
        ...


_observers: tuple[Observer, ...] = ()
_changing = threading.Lock()


def observe(observer: Observer) -> None:
    """Tell it of every run that begins from now on."""
    global _observers
    with _changing:
        _observers = (*_observers, observer)


def ignore(observer: Observer) -> None:
    """Tell it of no more runs."""
    global _observers
    with _changing:
        _observers = tuple([each for each in _observers if each is not observer])


class Observed:
    """One run, as its observers see it."""

    __slots__ = ("_begun", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._begun = _begun(lambda observer: observer.began(run))

    def end(self) -> None:
        """It has ended."""
        _end(self._begun, lambda observer, begun: observer.ended(self._run, begun))


class ObservedCall:
    """A ``with`` block around the call of a tool, as observers see it."""

    __slots__ = ("_begun", "_tool")

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._begun: list[tuple[Observer, Any]] = []

    def __enter__(self) -> None:
        self._begun = _begun(lambda observer: observer.called(self._tool))

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _end(self._begun, lambda observer, begun: observer.returned(begun, error))


def _begun(begin: Callable[[Observer], Any]) -> list[tuple[Observer, Any]]:
    found = []
    for observer in _observers:
        try:
            found.append((observer, begin(observer)))
        except Exception:
            _log.warning(_FAILED, exc_info=True)
    return found


def _end(begun: list[tuple[Observer, Any]], end: Callable[[Observer, Any], None]) -> None:
    for observer, held in reversed(begun):
        try:
            end(observer, held)
        except Exception:
            _log.warning(_FAILED, exc_info=True)
