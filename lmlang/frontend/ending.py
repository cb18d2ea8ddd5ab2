"""How a run ends with its body: by its deadline, by what the body raises, by its own event loop.

body returns                 the run goes on to its end
body raises an Exception     the run has failed with it
body raises anything else    the run is cancelled, and the cause is kept
the run ends before          an ``async def`` body is cancelled, a plain one runs on
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

from lmlang.errors import (
    Cancelled,
    DeadlineExceeded,
    fresh,
    raisable,
    with_context,
    with_partial,
)
from lmlang.frontend.dispatcher import Alarm, dispatcher
from lmlang.frontend.expression import hint_at_join
from lmlang.frontend.observing import Observed
from lmlang.frontend.run import Run
from lmlang.frontend.source import line_of, raised_at
from lmlang.frontend.waiting import in_async_body
from lmlang.protocol import RunAware

T = TypeVar("T")

GRACE = 0.1
"""Seconds that an ``async def`` body has to notice by itself that its run has ended."""


class Ending:
    """Around a run: its deadline, and its end by whatever the body raises.

    Args:
        run: The run, which begins with the block.
        deadline: Seconds after which it is ended.
        state: Its own state, which library errors that leave the block then lead to.
    """

    def __init__(self, run: Run, deadline: float | None, state: object = None) -> None:
        self._run = run
        self._deadline = deadline
        self._state = state
        self._alarm: Alarm | None = None

    def __enter__(self) -> None:
        if self._run.ended is not None:
            raise fresh(self._run.ended)
        self._observed = Observed(self._run)
        self._run.start()
        if self._deadline is not None:
            self._alarm = dispatcher().after(self._deadline, self._too_late)

    # A class, since a generator's context manager assigns to the exception, which may be frozen.
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if isinstance(error, Exception):
            if isinstance(error, TypeError):
                hint_at_join(error)
            with_context(error, program=self._run.name, source=raised_at(error))
            self._run.abort(error)
        elif error is not None:  # an interrupt, or the cancelling of a task
            name = type(error).__name__
            cancelled = Cancelled(f"the run was cancelled: its body was ended by {name}.")
            cancelled.__cause__ = error
            self._run.abort(cancelled)
        if error is not None:
            with_partial(error, self._state)
        if isinstance(self._run.backend, RunAware):  # after what was under way has been cancelled
            self._run.backend.end_run(self._run.id)
        self._observed.end()

    def _too_late(self) -> None:
        error = DeadlineExceeded(
            f"the program did not end within deadline={self._deadline:g} s, so it was cancelled: "
            "give it more seconds, or less to generate."
        )
        self._run.abort(with_context(error, program=self._run.name))


async def until_ended(run: Run, body: Awaitable[T]) -> T:
    """Await an ``async def`` body; where its run ends before it, cancel it and raise that end."""
    guard = _Guard(run)
    with run.ringing(guard.ring):
        guard.ring()  # it may have ended by now
        try:
            return await in_async_body(body)
        except RuntimeError as error:
            if type(error) is RuntimeError and str(error).startswith("coroutine raised Stop"):
                raise raisable(error.__cause__ or error) from error.__cause__
            raise
        except asyncio.CancelledError as cancelled:
            if not guard.cancels_alone() or run.ended is None:
                raise
            raise with_context(fresh(run.ended), source=line_of(cancelled)) from None
        finally:
            guard.close()


class _Guard:
    """Cancels the running task once a run has ended. `ring` is for any thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._before = self._cancels()
        self._rung = self._cancelled = self._closed = False

    def ring(self) -> None:
        """The run has changed."""
        if self._run.ended is not None and not self._rung:
            self._rung = True
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits
                self._loop.call_soon_threadsafe(self._loop.call_later, GRACE, self._cancel)

    def _cancel(self) -> None:
        if not self._closed and self._task is not None:
            self._cancelled = True
            self._task.cancel()

    def cancels_alone(self) -> bool:
        """Whether nobody else has asked the task to end."""
        return self._cancelled and self._cancels() <= self._before + 1

    def close(self) -> None:
        """Cancel no more, and take back what was asked."""
        self._closed = True
        if self._cancelled and self._task is not None and sys.version_info >= (3, 11):
            self._task.uncancel()

    def _cancels(self) -> int:
        """How often the task has been asked to end; Python 3.10 does not count."""
        if self._task is not None and sys.version_info >= (3, 11):
            return self._task.cancelling()
        return 0
