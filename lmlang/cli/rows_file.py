"""Rows for a batch from a file: CSV, TSV or JSON lines, each row checked before anything runs.

country,year          {"country": "France", "year": 1990}
France,1990           {"country": "Peru"}
Peru,x                     row 2 of the CSV: year='x' is no int; the others go on
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lmlang.cli.arguments import missing, parameters_of, signature_of
from lmlang.errors import ProgramError, quote
from lmlang.frontend.program import Function
from lmlang.markup import counted

FORMATS = ("csv", "tsv", "jsonl")
_FORMAT_OF = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
LONGEST_FIELD = 1 << 24
"""Characters of one field of a CSV file."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file.

    Args:
        number: Its number, counted from 1 without the header.
        line: The line of the file on which it begins.
        arguments: Of the program, as typed values; None where the row is bad.
        input: All its columns in their order, as typed values where they are parameters and the
            row is good.
        fault: Why it is bad.
    """

    number: int
    line: int
    arguments: Mapping[str, Any] | None
    input: Mapping[str, Any]
    fault: str | None = None


class RowsFile:
    """A file of rows for one program.

    Args:
        program: Whose parameters the columns are.
        given: Arguments that hold for every row; one in a row wins.
        name: The file, "-" for standard input.
        form: One of `FORMATS`; None: by the name's end, JSON lines from standard input.

    Raises:
        ProgramError: The file cannot be read, is empty, or lacks a column that is required.
    """

    def __init__(
        self,
        program: Function[Any, Any],
        given: Mapping[str, Any],
        name: str,
        form: str | None = None,
    ) -> None:
        self._program = program
        self._given = dict(given)
        self._name = "standard input" if name == "-" else quote(name)
        self._parameters = {each.name: each for each in parameters_of(program)}
        form = form or ("jsonl" if name == "-" else _format_of(name))
        text = self._text(name)
        self.rows = list(self._json_lines(text) if form == "jsonl" else self._table(text, form))
        if not self.rows:
            self._refuse("has no rows" if text.strip() else "is empty")

    @property
    def unused(self) -> list[str]:
        """Columns of good rows that are no parameters."""
        good = (name for row in self.rows if not row.fault for name in row.input)
        return [name for name in dict.fromkeys(good) if name not in self._parameters]

    @property
    def twice(self) -> list[str]:
        """Arguments for every row that good rows have columns for, which win."""
        columns = {name for row in self.rows if not row.fault for name in row.input}
        return [name for name in self._given if name in columns]

    def _text(self, name: str) -> str:
        try:
            data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        except OSError as error:
            raise ProgramError(
                f"the rows {self._name} cannot be read ({error.strerror or error})."
            ) from None
        data = data.removeprefix(codecs.BOM_UTF8)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            self._refuse(
                f"is not UTF-8: line {line:,} holds the byte {data[error.start]:#04x}; save it as "
                "UTF-8"
            )

    # ------------------------------------------------------------------ CSV

    def _table(self, text: str, form: str) -> Iterator[Row]:
        csv.field_size_limit(LONGEST_FIELD)
        first = text.partition("\n")[0]
        delimiter = "\t" if form == "tsv" else ";" if ";" in first and "," not in first else ","
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        lines = self._records(reader)
        _, header = next(lines, (0, []))
        header = [name.strip() for name in header]
        if not any(header):
            self._refuse("is empty: its first line names the columns")
        twice = [name for name in header if name and header.count(name) > 1]
        if twice:
            self._refuse(f"names the column {quote(twice[0])} twice: name each column once")
        lacking = missing(self._program, (*header, *self._given))
        if lacking:
            self._refuse(
                f"has no column {quote(lacking[0])} (it has {', '.join(map(quote, header))}), "
                f"which {signature_of(self._program)} needs: add it, or give "
                f"--{lacking[0].replace('_', '-')} for all rows"
            )
        for number, (line, cells) in enumerate(lines, 1):
            named = {name: cell for name, cell in zip(header, cells, strict=False) if name}
            if len(cells) != len(header):
                fault = f"it has {counted(len(cells), 'field')}, and the header has {len(header):,}"
                yield Row(number, line, None, named, fault)
            else:
                yield self._row(number, line, named, texts=True)

    def _records(self, reader: Any) -> Iterator[tuple[int, list[str]]]:
        """Records that are not blank, each with the line on which it begins."""
        line = 1
        try:
            for record in reader:
                if record:
                    yield line, record
                line = reader.line_num + 1
        except csv.Error as error:
            self._refuse(f"cannot be read as CSV from line {line:,} on ({error})")

    # ------------------------------------------------------------------ JSON lines

    def _json_lines(self, text: str) -> Iterator[Row]:
        lines = ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())
        for number, (at, line) in enumerate(lines, 1):
            try:
                value = json.loads(line, parse_constant=_no_number, object_pairs_hook=_once)
            except (ValueError, RecursionError) as error:
                yield Row(number, at, None, {}, f"it is no JSON ({error})")
                continue
            if not isinstance(value, dict):
                kind = type(value).__name__
                yield Row(number, at, None, {}, f"it is no JSON object but of type {kind}")
                continue
            lacking = missing(self._program, (*value, *self._given))
            if lacking:
                fault = f"it has no {quote(lacking[0])}, which {signature_of(self._program)} needs"
                yield Row(number, at, None, value, fault)
                continue
            yield self._row(number, at, value, texts=False)

    # ------------------------------------------------------------------ both

    def _row(self, number: int, line: int, named: Mapping[str, Any], *, texts: bool) -> Row:
        arguments = dict(self._given)
        input = dict(named)
        for name, value in named.items():
            parameter = self._parameters.get(name)
            if parameter is None:
                continue
            if texts and value == "" and not parameter.takes_text and not parameter.required:
                continue  # an empty cell
            try:
                typed = parameter.of_text(value) if texts else parameter.of_value(value)
            except (ValueError, RecursionError) as error:
                return Row(number, line, None, named, str(error))
            arguments[name] = input[name] = typed
        return Row(number, line, arguments, input)

    def _refuse(self, fault: str) -> NoReturn:
        raise ProgramError(f"the rows {self._name}: the file {fault}.")


def _format_of(name: str) -> str:
    end = Path(name).suffix.lower()
    if end not in _FORMAT_OF:
        raise ProgramError(
            f"the rows {quote(name)}: their format is not clear from {quote(end)}: give "
            f"--rows-format, one of {', '.join(FORMATS)}."
        )
    return _FORMAT_OF[end]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it names {quote(name)} twice")
        found[name] = value
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
