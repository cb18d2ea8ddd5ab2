"""One line on the standard error stream that is written anew, as its news come.

a terminal, a notebook    the line is written over, eight times a second at most
a file, a pipe            a line of its own, every ten seconds at most, and the last
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from time import monotonic
from typing import Any

from lmlang import markup

INTERVAL = 0.125
"""Seconds between two frames at least."""
PATIENCE = 10.0
"""Seconds between two lines where none can be written over."""


def notebook() -> Any:
    """The shell of the notebook that this process runs for; None: there is none."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    shell = get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


def is_terminal() -> bool:
    """Whether the standard error stream is a terminal."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _columns() -> int:
    """Columns of the terminal that is written to, which standard output need not be."""
    try:
        there = os.get_terminal_size(sys.stderr.fileno()).columns
    except (AttributeError, OSError, ValueError):  # it is none
        there = 0
    return min(there or markup.WIDEST, markup.columns())


class StatusLine:
    """Shows the newest of some texts. Thread-safe; what cannot be written is not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = is_terminal() or notebook() is not None
        self._next = 0.0 if self._over else monotonic() + PATIENCE
        self._width = 0
        self._ended = False

    @property
    def due(self) -> bool:
        """Whether a text would be shown now."""
        return monotonic() >= self._next

    def show(self, text: str) -> None:
        """Show a text, if one is due."""
        with self._lock:
            if self._ended or not self.due:
                return
            self._next = monotonic() + (INTERVAL if self._over else PATIENCE)
            self._write(text, end="" if self._over else "\n")

    def end(self, text: str) -> None:
        """Show the last text, which stays; a second call does nothing."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._write(text, end="\n")

    def _write(self, text: str, end: str) -> None:
        shown = markup.line(text)
        if self._over:
            shown = markup.start(shown, _columns() - 1)
            used = markup.width(shown)
            shown = f"\r{shown}{' ' * (self._width - used)}"
            self._width = 0 if end else used
        with contextlib.suppress(Exception):  # a closed pipe ends no program
            stream = sys.stderr
            encoding = getattr(stream, "encoding", None) or "utf-8"
            stream.write(shown.encode(encoding, "replace").decode(encoding) + end)
            stream.flush()
