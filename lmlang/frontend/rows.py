"""Rows of a batch: their arguments and their keys."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError, an, note, quote, raisable
from lmlang.frontend import draws

AUTO_THREADS = 64
"""Rows in flight with num_threads="auto": what a runtime batches well; a thread costs little."""
MAX_THREADS = 1_024
MAX_VERSION = 256
"""Characters of the version under which a journal keeps rows whole."""

OnError = Literal["raise", "return"]
Bind = Callable[[tuple[Any, ...], dict[str, Any], str], inspect.BoundArguments]
"""Binds arguments and keywords; the text begins the message of what is wrong with them."""


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
    package, kind = type(rows).__module__.partition(".")[0], type(rows).__name__
    if kind in ("DataFrame", "Table") and package in _TABLES:
        raise ProgramTypeError(
            f"rows are dicts or tuples, and {package}'s {kind} gives columns: write "
            f"rows.{_TABLES[package]}."
        )
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise ProgramTypeError(
            f"rows are a list of dicts or tuples, one for each run, not {type(rows).__name__}."
        )
    return rows


_TABLES = {"pandas": 'to_dict("records")', "polars": "to_dicts()", "pyarrow": "to_pylist()"}
"""Packages of tables, and what gives their lines as dicts."""


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
    arguments without canonical form have the row's index, or are refused where rows are to be
    found again.

    Args:
        key: As of `Function.run_batch`.
        lasting: Whether rows are to be found again by their keys.
    """

    def __init__(
        self, key: Callable[[Any], object] | None = None, *, lasting: bool = False
    ) -> None:
        self._key = key
        self._lasting = lasting
        self._seen: Counter[bytes] = Counter()

    def next(self, index: int, row: object, arguments: Mapping[str, object]) -> bytes:
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
            given = _given_key(index, value)
            if self._lasting:
                self._check_apart(index, given, arguments)
            return given
        try:
            body = draws.digest(arguments)
        except draws.NoCanonicalForm:
            if self._lasting:
                raise _not_found_again(index, arguments) from None
            return draws.numbered("index", b"", index)
        self._seen[body] += 1
        return draws.numbered("arguments", body, self._seen[body] - 1)

    def _check_apart(self, index: int, given: bytes, arguments: Mapping[str, object]) -> None:
        """Refuse a second row of a key where arguments do not tell the two apart."""
        try:
            draws.digest(arguments)
        except draws.NoCanonicalForm as error:
            if self._seen[given]:
                raise ProgramTypeError(
                    f"key(row) of row {index} is that of a row before, and a journal cannot tell "
                    f"them apart by their arguments: {error}. Give each row a key of its own."
                ) from None
            self._seen[given] += 1


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
    bind: Bind,
    on_error: OnError,
    key: Callable[[Any], object] | None,
    *,
    lasting: bool = False,
) -> Iterator[Row]:
    """Rows with their arguments and keys; with on_error="return" wrong ones have their error.

    ``lasting`` is that of `RowKeys`.

    Raises:
        Exception: With on_error="raise", what is wrong with a row.
    """
    keys = RowKeys(key, lasting=lasting)
    for index, row in enumerate(rows):
        try:
            bound = bind(*row_arguments(index, row), f"row {index}: ")
            found = Row(bound, keys.next(index, row, bound.arguments))
        except Exception as error:
            if on_error == "raise":
                raise
            found = Row(None, draws.numbered("index", b"", index), error)
        yield found


def _not_found_again(index: int, arguments: Mapping[str, object]) -> ProgramTypeError:
    """What to raise where a row cannot be found again by its arguments; names the one to blame."""
    for name, value in arguments.items():
        try:
            draws.digest(value)
        except draws.NoCanonicalForm as error:
            return ProgramTypeError(
                f"row {index}: the argument {quote(name)} cannot be a part of the key by which a "
                f"journal finds the row again: {error}. Give plain values, or key=… a function of "
                'the row, as in key=lambda row: row["id"].'
            )
    return ProgramTypeError(f"row {index} has arguments that are nested too deep for a journal.")


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
