"""The user's line: the innermost frame outside the language and what checks its values."""

from __future__ import annotations

import sys
import traceback
from types import FrameType

_OURS = ("lmlang.frontend.", "lmlang.limits", "lmlang.protocol")


def users_line() -> str:
    """Where the user's code called the language, as ``path/file.py:12``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(error: BaseException) -> str:
    """Where an error that was raised left the user's code, as ``path/file.py:12``."""
    frames = list(traceback.walk_tb(error.__traceback__))
    users = [(frame.f_code.co_filename, line) for frame, line in frames if not _is_ours(frame)]
    # The last line of the first file: what a library that it calls does is not the user's.
    path, number = next(place for place in reversed(users) if place[0] == users[0][0])
    return f"{path}:{number}"


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.startswith(_OURS)
