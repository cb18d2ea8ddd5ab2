"""The user's line: the innermost frame outside this package's frontend."""

from __future__ import annotations

import os
import sys

_FRONTEND = os.path.dirname(os.path.abspath(__file__)) + os.sep


def users_line() -> str:
    """Where the user's code called the language, as ``path/file.py:12``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FRONTEND):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
