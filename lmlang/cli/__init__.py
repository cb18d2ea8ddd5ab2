"""The command line: ``lmlang COMMAND``; one registry of commands, each in a module of its own."""

from __future__ import annotations

import argparse
import difflib
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn

from lmlang import __version__
from lmlang.cli import terminal
from lmlang.cli.arguments import signature_of
from lmlang.cli.bench import BENCH
from lmlang.cli.chat import CHAT
from lmlang.cli.command import FAILED, INTERRUPTED, MISUSED, UNREAD, Command, Misused
from lmlang.cli.completion import COMPLETE, COMPLETION
from lmlang.cli.demo import DEMO
from lmlang.cli.doctor import DOCTOR
from lmlang.cli.look import CHECK, PREVIEW, TRACE
from lmlang.cli.models import FETCH_MODEL, MODELS
from lmlang.cli.run import RUN
from lmlang.cli.serve import SERVE
from lmlang.cli.target import load
from lmlang.errors import LMLangError

COMMANDS = (
    *(RUN, CHECK, PREVIEW, TRACE, CHAT, SERVE, BENCH, DOCTOR, MODELS, FETCH_MODEL, DEMO),
    COMPLETION,
)
"""In the order of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (`lmlang.cli.command.EXIT_CODES`)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    terminal.prepare()
    word = given[0] if given and not given[0].startswith("-") else ""
    try:
        if word == COMPLETE:
            from lmlang.cli.completion import complete

            return complete(parser_of(), given[1:])
        parser = parser_of(given)
        if not given:
            parser.print_help(sys.stderr)
            return MISUSED
        options, unknown = parser.parse_known_args(given)
        if unknown:
            _refuse(parser, options, unknown)
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except LMLangError as error:
        terminal.tell(f"lmlang {word}: {error}")
        return MISUSED if isinstance(error, Misused) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        terminal.abandon()
        return UNREAD
    except OSError as error:
        of = "" if error.filename is None else f": {error.filename}"
        terminal.tell(f"lmlang {word}: {error.strerror or error}{of}")
        terminal.settle()
        return FAILED
    except Exception as error:
        users = _users_part(error.__traceback__)
        if users is None and not isinstance(error, SyntaxError):  # whose place is its own part
            raise
        told = traceback.format_exception(type(error), error, users)
        terminal.tell("".join(told).rstrip("\n"))
        return FAILED


def _refuse(
    parser: argparse.ArgumentParser, options: argparse.Namespace, unknown: Sequence[str]
) -> NoReturn:
    """End with what is unknown, the option that was meant, and the program's signature."""
    words = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    command: argparse.ArgumentParser = words.choices[options.command]
    said = f"unrecognized arguments: {' '.join(unknown)}"
    name = unknown[0].partition("=")[0]
    near = difflib.get_close_matches(name, command._option_string_actions, n=1)
    said += f" (did you mean {near[0]}?)" if near else ""
    if hasattr(options, "arg"):
        said += f"; the program is {signature_of(load(options.target))}"
    command.error(terminal.shown(said))


def _users_part(found: TracebackType | None) -> TracebackType | None:
    """A traceback from the first line outside of lmlang on; None where there is none."""
    while found is not None:
        module = str(found.tb_frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in ("lmlang", "importlib", "_frozen_importlib"):
            return found
        found = found.tb_next
    return None


def parser_of(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command line.

    Args:
        arguments: What will be parsed: commands that take a program then have its options.
    """
    parser = argparse.ArgumentParser(
        prog="lmlang",
        description="Structured-generation programs around language models.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lmlang {__version__}")
    words = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        _add(words, command, arguments)
    return parser


def _add(
    words: argparse._SubParsersAction[argparse.ArgumentParser],
    command: Command,
    arguments: Sequence[str],
) -> None:
    parser = words.add_parser(
        command.name,
        help=command.summary,
        description=command.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # Of a shortened --api-key-file, --api-key KEY would show the key to others.
        allow_abbrev=False,
    )
    command.add(parser)
    if command.extend is not None and arguments and arguments[0] == command.name:
        command.extend(parser, arguments[1:])
    parser.set_defaults(run=command.run)
