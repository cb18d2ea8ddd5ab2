"""Rows of a batch: their arguments, their keys, and the states that come of them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError, an, note, quote, raisable
from lmlang.frontend import draws
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
        try:
            return self._states[index]
        except IndexError:
            raise IndexError(f"row {index} of a batch of {len(self):,}, counted from 0") from None

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
        f"row {index} is {an(type(row).__name__)}: rows are dicts of arguments or tuples of them; "
        "for one argument write [(x,) for x in rows]."
    )


def checked_rows(rows: object) -> Iterable[object]:
    """The same rows, if they can be rows at all."""
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise ProgramTypeError(
            f"rows are a list of dicts or tuples, one for each run, not {type(rows).__name__}."
        )
    return rows


def checked_key(key: object) -> Callable[[Any], object] | None:
    """The same ``key``, if rows can be given to it."""
    if key is None or callable(key):
        return key
    shown = quote(key) if isinstance(key, str) else type(key).__name__
    raise ProgramTypeError(
        f'key={shown} must be a function of a row, as in key=lambda row: row["id"].'
    )


class RowKeys:
    """Gives rows their keys, in their order.

    A key is that of ``key(row)``, else of the arguments and how often they came before;
    arguments without canonical form have the row's index.
    """

    def __init__(self, key: Callable[[Any], object] | None = None) -> None:
        self._key = key
        self._seen: Counter[bytes] = Counter()

    def next(self, index: int, row: object, arguments: object) -> bytes:
        """The key of the next row, which has this index."""
        if self._key is not None:
            try:
                value = self._key(row)
            except Exception as error:
                note(error, f"raised by key(row) of row {index}")
                told = raisable(error)
                if told is error:
                    raise
                raise told from error
            return _given_key(index, value)
        try:
            body = draws.digest(arguments)
        except draws.NoCanonicalForm:
            return draws.numbered("index", b"", index)
        self._seen[body] += 1
        return draws.numbered("arguments", body, self._seen[body] - 1)


@dataclass(frozen=True, slots=True)
class Row:
    """A row that has been looked at.

    Args:
        arguments: Of the program; None where they are wrong.
        key: What its draws depend on.
        error: Why it cannot be run.
    """

    arguments: inspect.BoundArguments | None
    key: bytes
    error: Exception | None = None


def rows_of(
    rows: Iterable[object],
    bind: Callable[[tuple[Any, ...], dict[str, Any], str], inspect.BoundArguments],
    on_error: OnError,
    key: Callable[[Any], object] | None,
) -> Iterator[Row]:
    """Rows with their arguments and keys; with on_error="return" wrong ones have their error.

    Raises:
        Exception: With on_error="raise", what is wrong with a row.
    """
    keys = RowKeys(key)
    for index, row in enumerate(rows):
        try:
            bound = bind(*row_arguments(index, row), f"row {index}: ")
            found = Row(bound, keys.next(index, row, bound.arguments))
        except Exception as error:
            if on_error == "raise":
                raise
            found = Row(None, draws.numbered("index", b"", index), error)
        yield found


def _given_key(index: int, value: object) -> bytes:
    try:
        return draws.numbered("given", draws.digest(value), 0)
    except draws.NoCanonicalForm as error:
        raise ProgramTypeError(
            f"key(row) of row {index} cannot be a key: {error}. Return a string, a number or a "
            "tuple of such."
        ) from None


def threads(num_threads: object, rows: int | None) -> int:
    """Worker threads for so many rows; None: nobody knows how many."""
    most = MAX_THREADS if rows is None else max(1, rows)
    if num_threads == "auto":
        return min(AUTO_THREADS, most)
    if isinstance(num_threads, str):
        raise ProgramError(f'num_threads={quote(num_threads)}: give "auto" or a number.')
    return min(most, limits.integer("num_threads", num_threads, 1, MAX_THREADS))
