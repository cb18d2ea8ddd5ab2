"""The result of a batch as a table: plain text of 80 columns, dicts, pandas and Arrow.

row  country  city   error                  arguments, then variables, then what went wrong
0    France   Paris
1    Oz              KeyError: 'Oz'
"""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from lmlang.errors import LMLangError, ProgramError, ProgramTypeError, quote
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.reuse import BatchUsage
from lmlang.frontend.variables import variables_of
from lmlang.markup import counted, line, plain, table

if TYPE_CHECKING:
    import pandas
    import pyarrow

_UNNAMED = re.compile(r"_[0-9]+")
_WIDTH = 80
_MOST_ROWS = 20
"""Rows of the text; of more, the first and the last."""
_LEAST = 6
"""Characters of the narrowest column that is cut."""
_MOST_COLUMNS = (_WIDTH + 2) // (_LEAST + 2)
"""Columns of the text; of more, the first, and what went wrong."""
_ALIKE = (int, float, str, bool)
"""Types of which pandas has columns."""


class Batch(Protocol):
    """What is shown: a `BatchResult`."""

    indices: tuple[int, ...]
    arguments: tuple[Mapping[str, object], ...]

    @property
    def errors(self) -> dict[int, BaseException]:
        """By the rows' numbers."""
        ...

    @property
    def usage(self) -> BatchUsage:
        """Of all rows."""
        ...

    def __iter__(self) -> Iterator[ProgramState]: ...
    def __len__(self) -> int: ...


def dicts(result: Batch) -> list[dict[str, Any]]:
    """A dict for each row (see `BatchResult.to_dicts`); all have the same keys."""
    found = columns(result)
    return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


def columns(result: Batch) -> dict[str, list[Any]]:
    """The values of each column, one for each row: arguments, variables, error."""
    rows = [
        dict(arguments) | _named(variables_of(state))
        for state, arguments in zip(result, result.arguments, strict=True)
    ]
    names = list(dict.fromkeys([*chain(*result.arguments), *chain(*rows)]))
    found: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in names}
    failures = result.errors
    found["row_error" if "error" in found else "error"] = [
        _failure(failures[index]) if index in failures else None for index in result.indices
    ]
    return found


def _named(variables: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in variables.items() if not _UNNAMED.fullmatch(name)}


def _failure(error: BaseException) -> str:
    # Without the context of our own errors: a cell has one line.
    try:
        message = Exception.__str__(error) if isinstance(error, LMLangError) else str(error)
    except Exception:
        message = "(its message cannot be read)"
    return f"{type(error).__name__}: {message}"


# ------------------------------------------------------------------------------ pandas


def to_pandas(result: Batch) -> pandas.DataFrame:
    """A DataFrame (see `BatchResult.to_pandas`)."""
    try:
        import pandas
    except ImportError:
        raise _missing("pandas", "to_pandas()") from None
    index = list(result.indices)
    made = {name: _series(pandas, values, index) for name, values in columns(result).items()}
    return pandas.DataFrame(made, index=index)


def _series(pandas: Any, values: list[Any], index: list[int]) -> Any:
    """A column; of objects, unless all are of one plain type and fit one."""
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and kinds <= set(_ALIKE):
        try:
            return pandas.Series(values, index)
        except (OverflowError, UnicodeEncodeError):  # more than 64 bits; a lone surrogate
            pass
    return pandas.Series(values, index, dtype=object)


# ------------------------------------------------------------------------------ Arrow


def to_arrow(result: Batch) -> pyarrow.Table:
    """An Arrow table (see `BatchResult.to_arrow`)."""
    try:
        import pyarrow
    except ImportError:
        raise _missing("pyarrow", "to_arrow()") from None
    made: dict[str, Any] = {}
    for name, values in columns(result).items():
        try:
            made[name] = pyarrow.array([_plain(value) for value in values])
        except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
            kinds = sorted({type(value).__name__ for value in values if value is not None})
            raise ProgramTypeError(
                f"the column {quote(name)} has values of {', '.join(kinds[:8])}, which Arrow has "
                f"in no one column ({quote(str(error))[1:-1]}): take to_dicts() or to_pandas()."
            ) from None
    return pyarrow.table(made)


def _plain(value: Any) -> Any:
    """A value in the types that Arrow has."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, UUID):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    fields = getattr(type(value), "__pydantic_fields__", None)
    if isinstance(fields, dict):
        return {name: _plain(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value]
    return value


def _missing(package: str, call: str) -> ProgramError:
    return ProgramError(
        f"{call} needs {package}, which is not installed: pip install 'lmlang[tables]', or take "
        "to_dicts()."
    )


# ------------------------------------------------------------------------------ text


def text(result: Batch) -> str:
    """The table for people: a line of counts, then rows, cut to 80 columns."""
    found = {"row": list(result.indices), **columns(result)}
    *most, last = found  # the last is what went wrong
    ends = [last] if result.errors else []
    names = [*most[: _MOST_COLUMNS - len(ends)], *ends]
    rows = list(zip(*[found[name] for name in names], strict=True))
    half = _MOST_ROWS // 2
    kept = rows if len(rows) <= _MOST_ROWS else [*rows[:half], *rows[-half:]]
    shown = table([[_cell(cell) for cell in each] for each in (names, *kept)], (), _WIDTH)
    if len(kept) < len(rows):
        shown.insert(1 + half, f"… {counted(len(rows) - len(kept), 'more row')}")
    if hidden := len(most) + len(ends) - len(names):
        shown.append(f"… {counted(hidden, 'more column')}")
    return "\n".join([textwrap.fill(head(result), _WIDTH), *shown])


def head(result: Batch) -> str:
    """The counts of a batch on one line."""
    usage, failed = result.usage, len(result.errors)
    parts = [counted(len(result), "row")]
    if failed:
        parts.append(f"{failed:,} failed")
    parts.append(f"{usage.prompt_tokens:,} prompt tokens ({usage.cached_tokens:,} cached)")
    parts.append(f"{usage.generated_tokens:,} generated")
    if usage.scored_tokens:
        parts.append(f"{usage.scored_tokens:,} scored")
    if usage.forced_closes:
        parts.append(f"{counted(usage.forced_closes, 'output')} closed to fit max_tokens")
    had = reuse(usage)
    return ", ".join([*parts, had] if had else parts)


def reuse(usage: BatchUsage) -> str:
    """What a journal had of a batch; "" where that is nothing."""
    if usage.reused_rows:
        had = counted(usage.reused_rows, "row")
        return f"{had} ({counted(usage.reused_tokens, 'token')}) from the journal"
    if usage.reused_generations:
        had = counted(usage.reused_generations, "generation")
        return f"{had} ({counted(usage.reused_tokens, 'token')}) from the journal"
    return ""


def told(value: object) -> str:
    """A value as people read it: texts as they are, objects as JSON, None as nothing."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Enum):
        return value
    try:
        kept = _plain(value)
        if isinstance(kept, (dict, list)):
            return json.dumps(kept, ensure_ascii=False, default=str)
        return str(kept)
    except Exception:
        return f"<{type(value).__name__}>"


def _cell(value: object) -> str:
    """A value on one line, with everything escaped that a line cannot show."""
    shown = told(value)[: 4 * _WIDTH]
    return line(shown) if isinstance(value, str) else plain(shown).replace("\n", "\\n")
