"""``lmlang check``, ``preview`` and ``trace``: a program before its first run."""

from __future__ import annotations

import argparse

from lmlang.cli import arguments, backends, target, terminal
from lmlang.cli.command import DONE, PARTLY, Command
from lmlang.errors import ProgramError

CHECKING = """\
Look for what is likely wrong in programs, without running them on a model: names that are set
twice or read but never set, choices that can never win, a prompt that shares no beginning between
rows, loops that only a run can follow, and more. Each finding has a code, a line and a mend; the
reference of the language explains the codes. The exit code is 3 where there are warnings.

  lmlang check mail.py                 # all programs of the file
  lmlang check mail.py:triage
"""
PREVIEWING = """\
Print the exact prompt of a program up to its first generation, as the model reads it, with the
number of its tokens, and what follows. Arguments that are not given are holes. Nothing is run.

  lmlang preview mail.py:triage --email "Where is my parcel?"
  lmlang preview mail.py:triage --url http://localhost:30000      # as a server's model reads it
"""
TRACING = """\
Print what a program records, as IR, on arguments of which only some are known. Nothing is run, and
no model is needed.

  lmlang trace mail.py:triage
"""


def _check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="FILE[:FUNC]", help=target.HELP)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each finding")


def _check(options: argparse.Namespace) -> int:
    place, name = target.split(options.target)
    if name is not None:
        chosen = {name: target.load(options.target)}
    else:
        chosen = dict(target.programs(place))
        if not chosen:
            raise ProgramError(f"{place!r} has no programs (@lm.function).")
    with terminal.results() as say:
        findings = [found for program in chosen.values() for found in program.check()]
        for found in findings:
            say(found.to_json() if options.json else terminal.shown(str(found)))
    return PARTLY if any(found.level != "note" for found in findings) else DONE


def _preview_options(parser: argparse.ArgumentParser) -> None:
    arguments.add_target(parser)
    backends.add(parser)


def _preview(options: argparse.Namespace) -> int:
    program = target.load(options.target)
    known = arguments.given(program, options)
    with backends.chosen(options) as backend, terminal.results() as say:
        say(terminal.shown(str(program.options(backend=backend).preview(**known))))
    return DONE


def _trace(options: argparse.Namespace) -> int:
    from lmlang.frontend.printer import print_program

    program = target.load(options.target)
    with terminal.results() as say:
        traced = program.trace(**arguments.given(program, options))
        say(print_program(traced).rstrip("\n"))
    if traced.stopped is not None:
        terminal.tell(f"the static part ends at {traced.stopped.source}: {traced.stopped.reason}")
    return DONE


CHECK = Command("check", "find what is likely wrong in programs", CHECKING, _check_options, _check)
PREVIEW = Command(
    "preview",
    "print a program's prompt, as the model reads it",
    PREVIEWING,
    _preview_options,
    _preview,
    arguments.extend,
)
TRACE = Command(
    "trace", "print what a program records", TRACING, arguments.add_target, _trace, arguments.extend
)
