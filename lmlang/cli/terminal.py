"""What the command line writes: plain text without control bytes, results on stdout alone."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator

Say = Callable[[str], None]

CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls besides tab and newline (so no escape sequence begins), and marks of direction."""


def shown(text: str) -> str:
    """A text from a model, a file or an error as a terminal may have it."""
    return CONTROL.sub("", text)


def say(text: str, end: str = "\n") -> None:
    """Write to standard output at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def tell(text: str) -> None:
    """Write a line to standard error; one that nobody reads is no fault."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(shown(text) + "\n")
        sys.stderr.flush()


def prepare() -> None:
    """Have characters that the streams' encoding lacks escaped, not raised.

    Streams that were closed are opened: standard output so that writing raises, as nobody would
    have the results, and standard error on nothing. No file of ours then takes their numbers, by
    which libraries would write into it.
    """
    for number, name, reads in ((0, "stdin", True), (1, "stdout", True), (2, "stderr", False)):
        if getattr(sys, name) is None and _is_closed(number):
            opened = os.open(os.devnull, os.O_RDONLY if reads else os.O_WRONLY)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        change = getattr(stream, "reconfigure", None)
        if change is not None:
            with contextlib.suppress(OSError, ValueError):
                change(errors="backslashreplace")


def _is_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False


@contextlib.contextmanager
def results() -> Iterator[Say]:
    """Yields what writes a line of results; what programs print goes to standard error."""
    out = sys.stdout

    def write(text: str) -> None:
        out.write(text + "\n")
        out.flush()

    with contextlib.redirect_stdout(sys.stderr):
        yield write


def settle() -> None:
    """Give up a standard output that takes nothing more."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        abandon()


def abandon() -> None:
    """Give up a standard output that nobody reads, so that the end of Python does not complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
