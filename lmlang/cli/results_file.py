"""Results of rows to a file: JSON lines as they come, or CSV that a spreadsheet can open safely.

{"row": 1, "input": {"country": "France"}, "variables": {"city": "Paris"}, "value": null,
 "error": null}

row,country,city,error        a text that begins with = + - @ tab or CR has a ' before it
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lmlang.cli import terminal
from lmlang.errors import LMLangError, ProgramError, quote

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Beginnings of texts that spreadsheets take for formulas, full-width ones of East Asia too, or
skip to find one."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one row.

    Args:
        row: Its number, counted from 1.
        input: Its columns, as typed values where they are parameters.
        variables: What the program set, in its order.
        value: What the function returned.
        error: Why it failed; None where it did not.
    """

    row: int
    input: Mapping[str, Any]
    variables: Mapping[str, Any] = field(default_factory=dict)
    value: Any = None
    error: str | None = None


def plain(value: object) -> Any:
    """A value as JSON has it; what has no such form as its text."""
    from pydantic_core import to_jsonable_python

    try:
        return _finite(to_jsonable_python(value, fallback=str))
    except (ValueError, TypeError, RecursionError):
        return str(value)


def _finite(value: Any) -> Any:
    """JSON has no infinite numbers, and no NaN: these as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return value


def as_json(value: object) -> str:
    """A value as JSON on one line; every character that a terminal would act on is escaped."""
    text = json.dumps(plain(value), ensure_ascii=False)
    return _BREAKS.sub(_escaped, terminal.CONTROL.sub(_escaped, text))


_BREAKS = re.compile("[\u2028\u2029]")
"""What ends a line for some readers."""


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def failure(error: BaseException) -> str:
    """An error in one line: its type and the first line of its message."""
    said = error.args[0] if isinstance(error, LMLangError) and error.args else error
    lines = str(said).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


class ResultsFile:
    """Where results go. Use it as a context manager.

    Args:
        name: The file; None or "-" for ``say``, as JSON lines. What an earlier run has left in it
            goes as the first result comes.
        say: Writes a line to standard output.
        inputs: Files that are read; the results are none of them.

    Raises:
        ProgramError: The name's end is none that is known, or the file cannot be written, which
            is also raised later, by all that writes.
    """

    def __init__(
        self, name: str | None, say: Callable[[str], None], inputs: Iterable[str] = ()
    ) -> None:
        self._say = say
        self._name = name
        self._begun = False
        self._file: IO[str] | None = None
        self._results: list[Result] | None = None
        if name is None or name == "-":
            return
        end = Path(name).suffix.lower()
        if end not in (".jsonl", ".ndjson", ".csv"):
            raise ProgramError(f"--out {quote(name)} must end with .jsonl or .csv.")
        for other in inputs:
            if _are_one(name, other):
                raise ProgramError(
                    f"--out {quote(name)} is {quote(other)}, which is read: give another file."
                )
        with self._writing():  # before anything has run
            self._file = open(name, "a", encoding="utf-8", errors="backslashreplace", newline="")  # noqa: SIM115
        self._results = [] if end == ".csv" else None

    def add(self, result: Result) -> None:
        """Take one row's result; JSON lines are written at once."""
        if self._results is not None:
            self._results.append(result)
            return
        line = as_json(
            {
                "row": result.row,
                "input": dict(result.input),
                "variables": dict(result.variables),
                "value": result.value,
                "error": result.error,
            }
        )
        if self._file is None:
            self._say(line)
        else:
            with self._writing():
                self._begin(self._file)
                self._file.write(line + "\n")
                self._file.flush()

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with self._writing(), self._file as file:  # what has ended is kept, also after Ctrl-C
                if self._results:
                    self._begin(file)
                    write_table(file, self._results)

    def _begin(self, file: IO[str]) -> None:
        """Take away what an earlier run has left; of a device or a pipe, nothing."""
        if not self._begun and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(0)
        self._begun = True

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ProgramError(
                f"--out {quote(str(self._name))} cannot be written ({error.strerror or error})."
            ) from None


def _are_one(name: str, other: str) -> bool:
    try:
        return os.path.samefile(name, other)
    except OSError:
        return False


def write_table(file: IO[str], results: Sequence[Result]) -> None:
    """Results as CSV: row, inputs, variables, value, error.

    Fields of records have columns of their own, as in ``person.name``; equal names are told apart;
    a value that is one of the variables is not written twice.
    """
    inputs = _columns([result.input for result in results])
    variables = _columns([_flat(result.variables) for result in results])
    valued = any(
        result.value is not None
        and plain(result.value) not in map(plain, result.variables.values())
        for result in results
    )
    own = ("row", "value", "error")
    taken = {*own, *inputs}
    header = ["row"]
    header += [f"input.{name}" if name in own else name for name in inputs]
    header += [f"variables.{name}" if name in taken else name for name in variables]
    header += ["value"] if valued else []
    writer = csv.writer(file, lineterminator="\r\n")  # by which a lone \r is quoted too
    writer.writerow(map(_cell, [*header, "error"]))
    for result in results:
        cells = [result.row, *map(result.input.get, inputs)]
        cells += map(_flat(result.variables).get, variables)
        cells += [result.value] if valued else []
        writer.writerow(map(_cell, [*cells, result.error]))


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All names, in the order in which they first stand."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON has them, the fields of records beside one another."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        value = plain(value)
        if isinstance(value, dict) and value:
            found |= _flat({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            found[name] = value
    return found


def _cell(value: object) -> object:
    """A value as a cell: numbers as they are, nothing as nothing, all else as safe text."""
    value = plain(value)
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    text = value if isinstance(value, str) else as_json(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
