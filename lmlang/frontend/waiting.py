"""How readers wait for a program, and where they may not, since it would wait for them.

the dispatcher thread     brings programs on
a thread that drains      is in the middle of executing its nodes (a backend called user code)
a backend's thread        is in the middle of an answer that the program waits for
a thread of a loop        on which one of our ``async def`` bodies is running
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from lmlang.errors import ProgramError
from lmlang.frontend.dispatcher import dispatcher
from lmlang.protocol import is_answering

T = TypeVar("T")

_async_body: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "lmlang_async_body", default=None
)
"""The thread on which an ``async def`` body runs around here; a copied context names another."""
_thread = threading.local()


SIGNALS = 0.2
"""Seconds after which a waiting main thread looks for a Ctrl-C that came as it began to wait, or
that was noted."""


def stretch() -> float | None:
    """Seconds that this thread may wait without looking up; None: any number."""
    return SIGNALS if threading.current_thread() is threading.main_thread() else None


class Awaited(Protocol):
    """A run, as far as it matters here."""

    id: str


def refuse_to_wait(run: Awaited) -> None:
    """Raise ProgramError on a thread that may not wait for this run."""
    if dispatcher().is_current():
        raise ProgramError(
            "a value was read on lmlang's dispatcher thread, which brings the program on and "
            "would wait for itself: read it on a thread of your own."
        )
    if is_answering(run.id) or any(drained is run for drained in _drained()):
        raise ProgramError(
            "a value was read while this thread was executing the program for it, so it would "
            "wait for itself: a function of a backend cannot read the state that asks it."
        )
    refuse_in_async_body()


def refuse_in_async_body() -> None:
    """Raise ProgramError on a thread whose event loop is running one of our bodies."""
    if _async_body.get() == threading.get_ident():
        raise ProgramError(
            "a blocking read in an async def program would stop its event loop: write "
            'await s.aget("name") for s["name"], await s.adone() for s.sync(), '
            "await forks.ajoin() for forks.join() (afirst, abest and avote are there too), "
            "await f.arun(…) for f(…), "
            "await asyncio.to_thread(f.run_batch, rows) for f.run_batch(rows)."
        )


def begin_draining(run: object) -> None:
    """This thread executes nodes of a run, until `end_draining`; such pairs nest."""
    _drained().append(run)


def end_draining() -> None:
    """The end of what `begin_draining` began."""
    _drained().pop()


def _drained() -> list[object]:
    """The runs that this thread is draining, innermost last."""
    runs: list[object] | None = getattr(_thread, "drained", None)
    if runs is None:
        runs = _thread.drained = []
    return runs


async def in_async_body(body: Awaitable[T]) -> T:
    """Await a body of ours, in which blocking reads raise."""
    token = _async_body.set(threading.get_ident())
    try:
        return await body
    finally:
        _async_body.reset(token)


class Bell:
    """Wakes one thread. `ring` is for any thread, the rest for the one that waits."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        """Wake the waiter, now or when it next waits."""
        self._rung.set()

    def wait(self) -> None:
        """Wait for a ring since the last `wait` returned."""
        while not self._rung.wait(stretch()):
            pass
        self._rung.clear()


class LoopBell:
    """Wakes one task of the running event loop. `ring` is for any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._rung = False

    def ring(self) -> None:
        """Wake the waiter, now or when it next waits; rings in a row cost the loop one call."""
        if not self._rung:
            self._rung = True
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits
                self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        """Wait for a ring since the last `wait` returned."""
        await self._event.wait()
        self._rung = False
        self._event.clear()
