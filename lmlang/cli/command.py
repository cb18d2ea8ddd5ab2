"""What a command of the command line is, and the exit codes that all of them share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmlang.errors import LMLangError

DONE, FAILED, MISUSED, PARTLY, INTERRUPTED, UNREAD = 0, 1, 2, 3, 130, 141
EXIT_CODES = {
    DONE: "done",
    FAILED: "it could not be done; standard error says why",
    MISUSED: "the command line is wrong: an unknown option, a value of the wrong type",
    PARTLY: "done, but not all of it was well: rows or questions that failed, warnings of `check`, "
    "something that `doctor` says to mend",
    INTERRUPTED: "Ctrl-C",
    UNREAD: "whoever read the output closed it, as `head` does",
}
"""Every exit code and what it means; the documentation has this table."""


class Misused(LMLangError):
    """The command line is wrong, which only a program or a file could tell."""


@dataclass(frozen=True, slots=True)
class Command:
    """One word behind ``lmlang``.

    Args:
        name: The word.
        summary: One line, for the list of commands.
        description: What ``--help`` begins with; shown as it is written.
        add: Adds its options to its parser.
        run: Does it; returns the exit code. Library errors become a message and `FAILED`,
            `Misused` one and `MISUSED`.
        extend: Adds options that depend on what stands behind the word, such as a program's own.
    """

    name: str
    summary: str
    description: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    extend: Callable[[argparse.ArgumentParser, Sequence[str]], None] | None = None


def nothing(parser: argparse.ArgumentParser) -> None:
    """Add no options."""
