"""Rows of a batch: one run each, in their order, on as many threads as rows are in flight."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, overload

from lmlang import limits
from lmlang.errors import Cancelled, ProgramError, ProgramTypeError, fresh, quote
from lmlang.frontend import draws
from lmlang.frontend.call import Call
from lmlang.frontend.recorder import ProgramState

AUTO_THREADS = 64
"""Rows in flight with num_threads="auto": what a runtime batches well; a thread costs little."""
MAX_THREADS = 1_024

OnError = Literal["raise", "return"]


class BatchResult(Sequence[ProgramState]):
    """The states of a batch in the order of its rows.

    Attributes:
        indices: The row number of each state: all rows, or the finished ones in ``.partial``.
    """

    def __init__(self, states: Sequence[ProgramState], indices: Sequence[int]) -> None:
        self._states = tuple(states)
        self.indices = tuple(indices)

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ProgramState]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | Sequence[ProgramState]:
        return self._states[index]

    def __repr__(self) -> str:
        return f"<BatchResult of {len(self)} rows>"


def row_arguments(index: int, row: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A row as positional and keyword arguments."""
    if isinstance(row, Mapping):
        if not all(isinstance(name, str) for name in row):
            raise ProgramTypeError(f"row {index} has keys that are no strings: name parameters.")
        return (), dict(row)
    if isinstance(row, tuple):
        return row, {}
    raise ProgramTypeError(
        f"row {index} is a {type(row).__name__}: rows are dicts of arguments or tuples of them; "
        "for one argument write [(x,) for x in rows]."
    )


def listed(rows: object) -> list[object]:
    """All rows."""
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise ProgramTypeError(
            f"rows are a list of dicts or tuples, one for each run, not {type(rows).__name__}."
        )
    return list(rows)


def row_keys(
    rows: Sequence[object],
    arguments: Sequence[object],
    key: Callable[[Any], object] | None,
) -> list[bytes]:
    """Each row's key: of ``key(row)``, else of its arguments and how often they came before.

    Arguments without canonical form: the row's index.
    """
    if key is not None:
        return [_given_key(index, key(row)) for index, row in enumerate(rows)]
    seen: Counter[bytes] = Counter()
    keys = []
    for index, bound in enumerate(arguments):
        try:
            body = draws.digest(bound)
        except draws.NoCanonicalForm:
            keys.append(draws.numbered("index", b"", index))
            continue
        keys.append(draws.numbered("arguments", body, seen[body]))
        seen[body] += 1
    return keys


def _given_key(index: int, value: object) -> bytes:
    try:
        return draws.numbered("given", draws.digest(value), 0)
    except draws.NoCanonicalForm as error:
        raise ProgramTypeError(
            f"key(row) of row {index} cannot be a key: {error}. Return a string, a number or a "
            "tuple of such."
        ) from None


def threads(num_threads: object, rows: int) -> int:
    """Worker threads for so many rows."""
    if num_threads == "auto":
        return max(1, min(AUTO_THREADS, rows))
    if isinstance(num_threads, str):
        raise ProgramError(f'num_threads={quote(num_threads)}: give "auto" or a number.')
    return min(max(1, rows), limits.integer("num_threads", num_threads, 1, MAX_THREADS))


def execute(calls: Sequence[Call], workers: int, on_error: OnError) -> BatchResult:
    """Execute calls on worker threads; returns when no thread of them is left.

    Raises:
        Exception: With on_error="raise" the first row's error (the lowest row's, where several
            failed before they could be cancelled); the finished rows are its ``.partial``.
    """
    return _Batch(calls, on_error).execute(workers) if calls else BatchResult((), ())


class _Batch:
    """The rows of one batch on their way, and what stops them."""

    def __init__(self, calls: Sequence[Call], on_error: OnError) -> None:
        self._calls = calls
        self._on_error = on_error
        self._lock = threading.Lock()
        self._stopped = False
        self._errors: dict[int, BaseException] = {}

    def execute(self, workers: int) -> BatchResult:
        pool = ThreadPoolExecutor(workers, thread_name_prefix="lmlang-row")
        try:
            futures = [
                pool.submit(contextvars.copy_context().run, self._row, index)
                for index in range(len(self._calls))
            ]
            concurrent.futures.wait(futures)
        except BaseException:
            self._stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        finished = [index for index, future in enumerate(futures) if not future.exception()]
        for index, error in sorted(self._errors.items()):
            if self._on_error == "raise" or not isinstance(error, Exception):
                self._raise(self._errors[index], finished)
        return BatchResult([call.state for call in self._calls], range(len(self._calls)))

    def _row(self, index: int) -> None:
        try:
            self._calls[index].execute()
        except BaseException as error:
            with self._lock:
                if not self._stopped or not isinstance(error, Cancelled):
                    self._errors[index] = error  # its own, and not that we cancelled it
            if self._on_error == "raise":
                self._stop()
            raise

    def _stop(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        for call in self._calls:
            call.cancel()

    def _raise(self, error: BaseException, finished: Sequence[int]) -> None:
        raised = fresh(error)
        with contextlib.suppress(AttributeError):  # an exception with slots takes no attribute
            raised.partial = BatchResult(  # type: ignore[attr-defined]
                [self._calls[index].state for index in finished], finished
            )
        raise raised
