"""lmlang: structured-generation programs around language models, with a runtime built for them.

The face: names only. Each is loaded when it is first used, so that importing lmlang costs little
and loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lmlang.frontend import defaults as _defaults

if TYPE_CHECKING:
    from lmlang import testing
    from lmlang.errors import (
        BackendError,
        Cancelled,
        CaptureError,
        ContextOverflow,
        LimitExceeded,
        LMLangError,
        ModelError,
        ProgramError,
        ProgramTypeError,
    )
    from lmlang.frontend.choices import joint
    from lmlang.frontend.defaults import flush_cache, set_default_backend, use
    from lmlang.frontend.dsl import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        select,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from lmlang.frontend.meta import Meta
    from lmlang.frontend.program import function
    from lmlang.frontend.recorder import ProgramState
    from lmlang.frontend.rows import BatchResult
    from lmlang.protocol import Backend
    from lmlang.runtime.local import Runtime
    from lmlang.runtime.local import Runtime as Engine

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "BackendError",
    "BatchResult",
    "Cancelled",
    "CaptureError",
    "ContextOverflow",
    "Engine",
    "LMLangError",
    "LimitExceeded",
    "Meta",
    "ModelError",
    "ProgramError",
    "ProgramState",
    "ProgramTypeError",
    "Runtime",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "joint",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "testing",
    "use",
    "user",
    "user_begin",
    "user_end",
]

_ROOMS = {
    "errors": (
        "BackendError",
        "Cancelled",
        "CaptureError",
        "ContextOverflow",
        "LMLangError",
        "LimitExceeded",
        "ModelError",
        "ProgramError",
        "ProgramTypeError",
    ),
    "protocol": ("Backend",),
    "frontend.choices": ("joint",),
    "frontend.defaults": ("flush_cache", "set_default_backend", "use"),
    "frontend.dsl": (
        "assistant",
        "assistant_begin",
        "assistant_end",
        "gen",
        "select",
        "system",
        "system_begin",
        "system_end",
        "user",
        "user_begin",
        "user_end",
    ),
    "frontend.meta": ("Meta",),
    "frontend.program": ("function",),
    "frontend.recorder": ("ProgramState",),
    "frontend.rows": ("BatchResult",),
    "runtime.local": ("Runtime",),
}
_HOME = {name: (room, name) for room, names in _ROOMS.items() for name in names}
_HOME["Engine"] = ("runtime.local", "Runtime")


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module("lmlang.testing")
    if name not in _HOME:
        raise AttributeError(f"module 'lmlang' has no attribute {name!r}")
    room, attribute = _HOME[name]
    value = getattr(importlib.import_module(f"lmlang.{room}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _default_runtime() -> Backend:
    from lmlang.runtime.local import Runtime

    return Runtime()


_defaults.set_factory(_default_runtime)
