"""Batches: rows on as many threads as are in flight, all at once or a window at a time.

execute   all rows are there; returns when all have ended
lazily    rows are taken as results are; a slow row holds back those behind it, never their work
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from lmlang.errors import BatchInterrupted, Cancelled, JournalError, fresh, raisable
from lmlang.frontend import waiting
from lmlang.frontend.batch_result import BatchResult
from lmlang.frontend.interrupts import Held
from lmlang.frontend.progress import Progress
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.rows import OnError
from lmlang.frontend.workers import Workers

E = TypeVar("E", bound=BaseException)

WINDOW = 2
"""Rows begun or ended, but not taken, for each thread of a lazy batch."""

PATIENCE = 1.0
"""Seconds that a lazy batch waits, when it is left, for rows that are in code of their own."""


class RowCall(Protocol):
    """One row on its way; executed once."""

    @property
    def state(self) -> ProgramState:
        """The row's."""
        ...

    @property
    def arguments(self) -> Mapping[str, object]:
        """The program's, by their names."""
        ...

    def execute(self) -> ProgramState:
        """Run it to its end on this thread; raises what failed."""
        ...

    def cancel(self) -> None:
        """End it; from any thread."""
        ...


def execute(
    calls: Sequence[RowCall], workers: int, on_error: OnError, progress: Progress
) -> BatchResult:
    """Execute calls on worker threads; returns when no thread of them is left.

    Args:
        calls: One for each row.
        workers: Threads.
        on_error: "raise" ends the batch with the first error; a `JournalError` always does.
        progress: Told of every row that has ended.

    Raises:
        BatchInterrupted: Ctrl-C; the finished rows are its ``.partial``.
        Exception: With on_error="raise" the first row's error (the lowest row's, where several
            failed before they could be cancelled); the finished rows are its ``.partial``.
    """
    if not calls:
        return BatchResult((), (), ())
    with Held() as held:
        batch = _Batch(calls, on_error, progress)
        with progress:
            batch.execute(workers, held)
        return batch.outcome(held)


class _Batch:
    """The rows of one batch on their way, and what stops them."""

    def __init__(self, calls: Sequence[RowCall], on_error: OnError, progress: Progress) -> None:
        self._calls = calls
        self._on_error = on_error
        self._progress = progress
        self._lock = threading.Lock()
        self._stopped = False
        self._finished: set[int] = set()
        self._errors: dict[int, BaseException] = {}

    def execute(self, workers: int, held: Held) -> None:
        """Have all rows end, or be ended by an interrupt."""
        pool = Workers(workers)
        work = [partial(self._row, index) for index in range(len(self._calls))]
        try:
            _wait([pool.submit(row) for row in work], lambda: held.count > 0)
        except BaseException:
            self._stop()
            raise
        finally:
            if held.count:
                self._stop()
            pool.close(given_up=lambda: held.count > 1)

    def outcome(self, held: Held) -> BatchResult:
        """What the batch has come to; raises what ended it."""
        result = _result(list(enumerate(self._calls)))
        if held.take():
            raise interrupted(self._partial(), len(self._calls))
        for _, error in sorted(self._errors.items()):
            if _ends(error, self._on_error):
                raise _with_partial(error, self._partial())
        return result

    def _row(self, index: int) -> None:
        call, failed = self._calls[index], False
        try:
            call.execute()
            with self._lock:
                self._finished.add(index)
        except BaseException as error:
            failed = True
            with self._lock:
                if self._stopped and isinstance(error, Cancelled):
                    return  # by us: it has not ended, and has no error of its own
                self._errors[index] = error
            if _ends(error, self._on_error):
                self._stop()
        _count(call, self._progress, failed)

    def _stop(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        for call in reversed(self._calls):  # those that have not begun, before one makes room
            call.cancel()

    def _partial(self) -> BatchResult:
        return _result([(index, self._calls[index]) for index in sorted(self._finished)])


def lazily(
    calls: Iterator[RowCall], workers: int, on_error: OnError, progress: Progress
) -> Generator[ProgramState]:
    """The states of calls in their order, which are taken from ``calls`` as results are taken.

    Closing it cancels the rows that run, and waits for none that is in code of its own. Errors,
    those of ``calls`` too, come when their row's turn is; ``.partial`` is then what had finished
    behind it.

    Raises:
        BatchInterrupted: Ctrl-C while waiting; ``.partial`` is what had finished and was not
            taken yet.
    """
    pool = Workers(workers)
    window: deque[tuple[int, RowCall, Future[ProgramState]]] = deque()
    source = _Source(calls)
    index = 0
    call: RowCall | None = None  # the last: an interrupt may come before it is in the window
    pressed, left = False, threading.Event()
    try:
        while True:
            while len(window) < WINDOW * workers and (call := source.next()) is not None:
                future = pool.submit(partial(_counted, call, progress, left))
                window.append((index, call, future))
                index += 1
            if not window:
                break
            waiting.refuse_in_async_body()
            _wait([window[0][2]])
            _, call, future = window.popleft()
            error = future.exception()
            if error is not None and _ends(error, on_error):
                raise _with_partial(raisable(error), _finished(window))
            del future
            yield call.state
        if source.error is not None:
            raise source.error
    except KeyboardInterrupt:
        pressed = True
    finally:
        with Held() as held, progress:
            if not sys.is_finalizing():  # the rows are no more, nor is what they were holding
                left.set()
                _cancel(window, call)
                pool.close(None if pressed else PATIENCE, lambda: held.count > 0)
            if pressed:
                held.take()
    if pressed:
        raise interrupted(_finished(window), len(window))


def _counted(call: RowCall, progress: Progress, left: threading.Event) -> ProgramState:
    try:
        state = call.execute()
    except BaseException as error:
        if not left.is_set() or not isinstance(error, Cancelled):
            _count(call, progress, True)
        raise
    _count(call, progress, False)
    return state


def _count(call: RowCall, progress: Progress, failed: bool) -> None:
    progress.one_ended(call.state.usage(), failed, call.state._cursor.run.reused)


class _Source:
    """Calls one by one, and the error that ended them."""

    def __init__(self, calls: Iterator[RowCall]) -> None:
        self._calls = calls
        self.error: Exception | None = None

    def next(self) -> RowCall | None:
        """The next, None where there is none."""
        try:
            return None if self.error is not None else next(self._calls, None)
        except Exception as error:
            self.error = error
            return None


def _wait(futures: Sequence[Future[Any]], given_up: Callable[[], bool] = lambda: False) -> None:
    """Wait until all have ended, or nobody wants to any more."""
    for future in futures:
        while not concurrent.futures.wait([future], waiting.stretch()).done:
            if given_up():
                return


def _cancel(window: deque[tuple[int, RowCall, Future[ProgramState]]], last: RowCall | None) -> None:
    if last is not None:
        last.cancel()
    for _, call, _ in reversed(window):  # those that have not begun, before one makes room
        call.cancel()


def _finished(window: deque[tuple[int, RowCall, Future[ProgramState]]]) -> BatchResult:
    done = [
        (index, call)
        for index, call, future in window
        if future.done() and not future.cancelled() and future.exception() is None
    ]
    return _result(done)


def _result(calls: Sequence[tuple[int, RowCall]]) -> BatchResult:
    return BatchResult(
        [call.state for _, call in calls],
        [index for index, _ in calls],
        [call.arguments for _, call in calls],
    )


def _ends(error: BaseException, on_error: OnError) -> bool:
    """Whether the error of a row ends its batch."""
    always = isinstance(error, JournalError) or not isinstance(error, Exception)
    return always or on_error == "raise"


def interrupted(partial: BatchResult, begun: int) -> BatchInterrupted:
    """What to raise where Ctrl-C has ended a batch of which so many rows had begun."""
    error = BatchInterrupted(
        f"the batch was interrupted: {len(partial):,} of {begun:,} rows had finished and are in "
        ".partial; the others have been cancelled."
    )
    return _with_partial(error, partial)


def _with_partial(error: E, partial: BatchResult) -> E:
    raised = fresh(error)
    with contextlib.suppress(Exception):  # one with slots, or a frozen one, takes no attribute
        raised.partial = partial  # type: ignore[attr-defined]
    return raised
