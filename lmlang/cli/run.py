"""``lmlang run FILE:FUNC``: a program on arguments given here, or on each row of a file."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from typing import Any

from lmlang.cli import arguments, backends, target, terminal
from lmlang.cli.command import DONE, PARTLY, Command
from lmlang.cli.results_file import Result, ResultsFile, as_json, failure, plain
from lmlang.cli.rows_file import FORMATS, Row, RowsFile
from lmlang.errors import ProgramError
from lmlang.frontend.estimate import Estimate
from lmlang.frontend.program import Function
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.reuse import Reused
from lmlang.frontend.variables import variables_of
from lmlang.markup import counted
from lmlang.protocol import Backend, Usage

DESCRIPTION = """\
Run a program. Its parameters are options, typed as its signature says, or as their defaults are:

  lmlang run capital.py:capital --help                     # shows them
  lmlang run capital.py:capital --country France
  lmlang run capital.py:capital --rows countries.csv --out capitals.csv --journal run.sqlite

A text is taken as it stands where the type takes it, else it is read as JSON. Standard output has
the result alone: what the function returned, else its variables; what the program prints goes to
standard error. Of rows it has a line of JSON each, and --out writes these, or CSV, to a file. A row
that is bad or fails is told with its number, and the others go on; the exit code is then 3. In CSV,
a text that begins as formulas do (= + - @ tab CR) has a ' before it.
"""
SHOWN = ("transcript", "tokens", "tree", "log")
TOLD = 10
"""Failed rows that standard error tells one by one."""
OPTIONS = ("seed", "temperature", "max_new_tokens", "deadline")


def add(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmlang run``."""
    arguments.add_target(parser)
    backends.add(parser)
    run = parser.add_argument_group("run")
    run.add_argument("--seed", type=int, metavar="N", help="of all draws; a fresh one without it")
    run.add_argument(
        "--temperature", type=float, metavar="T", help="of generations that name none; 0 is greedy"
    )
    run.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="of generations that name none"
    )
    run.add_argument("--deadline", type=float, metavar="S", help="seconds for the run, or each row")
    run.add_argument("--json", action="store_true", help="the result as one line of JSON")
    run.add_argument(
        "--show",
        choices=SHOWN,
        help="in place of the result: what was written, each token with how likely it was, the "
        "operations as a tree, or as a table",
    )
    run.add_argument(
        "--log", metavar="FILE", help="write the run log as JSON, for this user alone (mode 0600)"
    )
    rows = parser.add_argument_group("rows")
    rows.add_argument(
        "--rows",
        metavar="FILE",
        help="run once for each row of a .csv, .tsv or .jsonl file; - is standard input. Columns "
        "that are no parameters stand in the results as they are. In CSV, semicolons separate "
        "where the first line has these and no comma",
    )
    rows.add_argument(
        "--rows-format",
        choices=FORMATS,
        help="of the rows; by the end of the file's name without it, jsonl of standard input",
    )
    rows.add_argument("--out", metavar="FILE", help="results to a .jsonl or .csv file")
    rows.add_argument(
        "--journal",
        metavar="FILE",
        help="keep what is generated in this file, and do not generate it again: a run that was "
        "killed goes on",
    )
    rows.add_argument("--num-threads", type=int, metavar="N", help="rows in flight; 64 without it")
    rows.add_argument("--progress", action="store_true", help="a bar on standard error")
    rows.add_argument(
        "--estimate", action="store_true", help="print what the rows would cost, and run nothing"
    )
    rows.add_argument(
        "--usage",
        action="store_true",
        help="print at the end, on standard error, what it took beside what was forecast",
    )


def run(options: argparse.Namespace) -> int:
    """Run a program on what the command line gives."""
    program = target.load(options.target)
    given = arguments.given(program, options)
    program = program.options(
        **{name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    )
    if options.rows is not None:
        return _rows(program, given, options)
    for name in ("out", "journal", "num_threads", "rows_format", "usage"):
        if getattr(options, name) is not None and getattr(options, name) is not False:
            raise ProgramError(f"--{name.replace('_', '-')} is for rows: give --rows FILE too.")
    arguments.check_complete(program, given)
    with backends.chosen(options) as backend:
        if options.estimate:
            with terminal.results() as say:
                say(str(program.options(backend=backend).estimate([given])))
            return DONE
        return _once(program, given, options, backend)


def _once(
    program: Function[Any, Any],
    given: dict[str, Any],
    options: argparse.Namespace,
    backend: Backend | None,
) -> int:
    with terminal.results() as say:
        state = program.bind(**given).options(backend=backend).run()
        value, variables = state.ret_value, variables_of(state)
        log = state.run_log()
        if options.show is not None:
            view = log if options.show == "log" else getattr(log, options.show)()
            say(terminal.shown(str(view)))
        elif options.json:
            say(as_json({"variables": variables, "value": value}))
        elif value is not None:
            say(_text(value))
        elif variables:
            for name, found in variables.items():
                say(f"{terminal.shown(name)}: {_text(found)}")
        else:
            say(terminal.shown(state.text()))
    if options.log is not None:  # behind the result, which a disk that is full does not take away
        log.save(options.log)
    return DONE


def _text(value: object) -> str:
    value = plain(value)
    return terminal.shown(value) if isinstance(value, str) else as_json(value)


# ---------------------------------------------------------------------------- rows


def _rows(program: Function[Any, Any], given: dict[str, Any], options: argparse.Namespace) -> int:
    for name in ("json", "show", "log"):
        if getattr(options, name):
            raise ProgramError(f"--{name} is for one run: leave it out beside --rows.")
    file = RowsFile(program, given, options.rows, options.rows_format)
    if options.estimate:
        return _estimated(program, file, options)
    if file.unused:
        names = ", ".join(map(repr, file.unused))
        terminal.tell(f"columns that are no parameters of {program.__name__}, kept: {names}")
    for name in file.twice:
        terminal.tell(f"the column {name!r} goes before the argument of that name")
    told = _Told(len(file.rows), at_once=not options.progress)
    inputs = (options.rows, target.split(options.target)[0])
    with (
        terminal.results() as say,
        ResultsFile(options.out, say, inputs) as results,
        backends.chosen(options) as backend,
    ):
        forecast = _forecast(program, file.rows, options, backend) if options.usage else None
        try:
            for row, state in _ran(program, file.rows, options, backend):
                result = _result(row, state)
                told.of(row, result, state)
                results.add(result)
        except KeyboardInterrupt:
            told.interrupted(options.journal)
            raise
    if forecast is not None:
        terminal.tell(forecast.beside(told.usage))
    return told.end(options.out)


def _estimated(program: Function[Any, Any], file: RowsFile, options: argparse.Namespace) -> int:
    with backends.chosen(options) as backend, terminal.results() as say:
        say(str(_forecast(program, file.rows, options, backend)))
    bad = [row for row in file.rows if row.fault]
    for row in bad[:TOLD]:
        terminal.tell(f"row {row.number:,} (line {row.line:,}): {row.fault}")
    return PARTLY if bad else DONE


def _forecast(
    program: Function[Any, Any],
    rows: list[Row],
    options: argparse.Namespace,
    backend: Backend | None,
) -> Estimate:
    """What the rows that can be run would cost."""
    good = [row.arguments for row in rows if row.arguments is not None]
    threads = _threads(options)
    return program.options(backend=backend).estimate(good, num_threads=threads, on_error="return")


def _threads(options: argparse.Namespace) -> Any:
    return "auto" if options.num_threads is None else options.num_threads


def _ran(
    program: Function[Any, Any],
    rows: list[Row],
    options: argparse.Namespace,
    backend: Backend | None,
) -> Iterator[tuple[Row, ProgramState | None]]:
    """Rows in their order, those that can be run with their states."""
    waiting = deque(rows)
    good = [row.arguments for row in rows if row.arguments is not None]
    if good:
        states = program.run_batch(
            good,
            num_threads=_threads(options),
            progress_bar=options.progress,
            generator_style=True,
            on_error="return",
            journal=options.journal,
            backend=backend,
        )
        for state in states:
            while waiting[0].arguments is None:
                yield waiting.popleft(), None
            yield waiting.popleft(), state
    for row in waiting:
        yield row, None


def _result(row: Row, state: ProgramState | None) -> Result:
    if state is None:
        return Result(row.number, row.input, error=row.fault)
    error = state.error()
    return Result(
        row.number,
        row.input,
        variables_of(state),
        None if error is not None else state.ret_value,
        None if error is None else failure(error),
    )


class _Told:
    """What standard error is told of rows: the first failures one by one, then the sums."""

    def __init__(self, rows: int, at_once: bool) -> None:
        self._rows = rows
        self._later: list[str] | None = None if at_once else []  # behind the bar, not in it
        self._ended = self._failed = 0
        self.usage = Usage()
        self._reused = Reused()

    def of(self, row: Row, result: Result, state: ProgramState | None) -> None:
        """Take note of a row that has ended."""
        self._ended += 1
        if state is not None:
            self.usage += state.usage()
            self._reused += state._cursor.run.reused
        if result.error is not None:
            self._failed += 1
            if self._failed <= TOLD:
                said = f"row {row.number:,} (line {row.line:,}): {result.error}"
                if self._later is None:
                    terminal.tell(said)
                else:
                    self._later.append(said)

    def interrupted(self, journal: str | None) -> None:
        """Tell how far it came, and how to go on."""
        self._tell_later()
        then = "with --journal FILE a run could go on" if journal is None else "run it again: it "
        then += "" if journal is None else f"goes on from {journal}"
        terminal.tell(f"interrupted after {self._ended:,} of {counted(self._rows, 'row')}; {then}")

    def _tell_later(self) -> None:
        for said in self._later or ():
            terminal.tell(said)

    def end(self, out: str | None) -> int:
        """Tell the sums; returns the exit code."""
        self._tell_later()
        if self._failed > TOLD:
            terminal.tell(f"… and {self._failed - TOLD:,} more rows failed")
        usage = self.usage
        where = f", in {out}" if out not in (None, "-") else ""
        reused = self._reused.rows + self._reused.generations
        kept = f"; {reused:,} of the outputs were in the journal" if reused else ""
        if usage.forced_closes:
            kept = f"; {counted(usage.forced_closes, 'output')} closed to fit max_tokens{kept}"
        rows, done = counted(self._rows, "row"), self._rows - self._failed
        terminal.tell(
            f"{rows}: {done:,} done, {self._failed:,} failed"
            f"{where}; {usage.prompt_tokens:,} prompt tokens ({usage.cached_tokens:,} cached), "
            f"{usage.generated_tokens:,} generated ({usage.forced_tokens:,} forced){kept}"
        )
        return PARTLY if self._failed else DONE


RUN = Command(
    "run", "run a program, once or on rows of a file", DESCRIPTION, add, run, arguments.extend
)
