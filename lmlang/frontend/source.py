"""The user's line: the innermost frame outside the language, and how errors are told it."""

from __future__ import annotations

import sys
import traceback
from types import FrameType, TracebackType

from lmlang.errors import E, LMLangError, fresh, raisable, with_context

_OURS = (
    "lmlang.frontend.",
    "lmlang.backends.",
    "lmlang.grammar.",
    "lmlang.runtime.",
    "lmlang.limits",
    "lmlang.protocol",
)


class Here:
    """A ``with`` block whose library errors are told their place in a program. Thread-safe.

    Args:
        program: Its name.
        branch: Of the state that is appended to or read.
    """

    __slots__ = ("_branch", "_program")

    def __init__(self, program: str, branch: int | None) -> None:
        self._program = program
        self._branch = branch

    def tell(self, error: E) -> E:
        """The error, knowing the program, the user's line that is being run, and the branch."""
        if not isinstance(error, LMLangError):
            return error
        return with_context(
            error, program=self._program, source=users_line() or None, branch=self._branch
        )

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.tell(error)


def users_line() -> str:
    """Where the user's code called the language, as ``path/file.py:12``; "" where none did.

    The programs of one-call helpers are the language's own, and may run on threads of its own.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    if frame.f_globals.get("__name__") == "threading":
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(error: BaseException) -> str:
    """Where an error that was raised left the user's code, as ``path/file.py:12``."""
    frames = list(traceback.walk_tb(error.__traceback__))
    users = [(frame.f_code.co_filename, line) for frame, line in frames if not _is_ours(frame)]
    # The last line of the first file: what a library that it calls does is not the user's.
    path, number = next(place for place in reversed(users) if place[0] == users[0][0])
    return f"{path}:{number}"


def raised_at(error: BaseException) -> str | None:
    """The user's line at which the language raised an error, as ``path/file.py:12``."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not _is_ours(frame):
            found = f"{frame.f_code.co_filename}:{line}"
    return found


def users_part(found: TracebackType | None) -> TracebackType | None:
    """A traceback from the first of the user's lines on; None where there is none.

    What is kept beside a run has this much of it: enough to find the line, and none of the
    frames that brought the program there.
    """
    while found is not None and _is_ours(found.tb_frame):
        found = found.tb_next
    return found


def stored(error: BaseException) -> BaseException:
    """A copy of a library error to be kept for readers, with the user's lines of its traceback.

    An exception that is not ours is returned as it is, if readers everywhere can raise it.
    """
    error = raisable(error)
    copied = fresh(error)
    return error if copied is error else copied.with_traceback(users_part(error.__traceback__))


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    # These call methods of ours for the user, whose line is the one before.
    return isinstance(name, str) and (name.startswith(_OURS) or name in ("copy", "os"))
