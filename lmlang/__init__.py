"""lmlang: structured-generation programs around language models, with a runtime built for them.

The face: names only. Each is loaded when it is first used, so that importing lmlang costs little
and loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lmlang.frontend import defaults as _defaults
from lmlang.frontend import injected as _injected

if TYPE_CHECKING:
    from lmlang import grammar, testing
    from lmlang.backends.openai import (
        OpenAI,
    )
    from lmlang.backends.remote import (
        RuntimeEndpoint,
        connect,
    )
    from lmlang.errors import (
        BackendError,
        BatchInterrupted,
        BudgetExceeded,
        Cancelled,
        CaptureError,
        ConstraintError,
        ContextOverflow,
        DeadlineExceeded,
        GrammarDeadEnd,
        GrammarSyntaxError,
        GrammarTooLarge,
        JournalError,
        LimitExceeded,
        LMLangError,
        ModelError,
        ProgramError,
        ProgramTypeError,
        QueueFull,
        ReplayError,
        SchemaUnsupported,
        Unsatisfiable,
        WireError,
    )
    from lmlang.frontend.batch_result import (
        BatchResult,
    )
    from lmlang.frontend.choices import (
        ChoicesDecision,
        greedy_token_selection,
        joint,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from lmlang.frontend.decorator import function
    from lmlang.frontend.defaults import (
        flush_cache,
        set_default_backend,
        use,
    )
    from lmlang.frontend.dsl import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        gen_int,
        gen_string,
        image,
        select,
        separate_reasoning,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from lmlang.frontend.feed import StreamEvent
    from lmlang.frontend.meta import (
        Meta,
    )
    from lmlang.frontend.oneshot import Classification, classify, extract, generate
    from lmlang.frontend.parser import parse_program
    from lmlang.frontend.partial import Partial
    from lmlang.frontend.printer import print_program
    from lmlang.frontend.recorder import (
        ProgramState,
    )
    from lmlang.frontend.runlog import (
        RunLog,
    )
    from lmlang.frontend.settings import (
        get_server_info,
        global_config,
    )
    from lmlang.frontend.telemetry import instrument
    from lmlang.frontend.tools import ToolCall
    from lmlang.frontend.view_diff import diff
    from lmlang.grammar.quotes import Quote
    from lmlang.protocol import (
        Backend,
    )
    from lmlang.runtime.chat_templates import register_chat_template
    from lmlang.runtime.local import (
        Runtime,
    )
    from lmlang.runtime.local import Runtime as Engine

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "BackendError",
    "BatchInterrupted",
    "BatchResult",
    "BudgetExceeded",
    "Cancelled",
    "CaptureError",
    "ChoicesDecision",
    "Classification",
    "ConstraintError",
    "ContextOverflow",
    "DeadlineExceeded",
    "Engine",
    "GrammarDeadEnd",
    "GrammarSyntaxError",
    "GrammarTooLarge",
    "JournalError",
    "LMLangError",
    "LimitExceeded",
    "Meta",
    "ModelError",
    "OpenAI",
    "Partial",
    "ProgramError",
    "ProgramState",
    "ProgramTypeError",
    "QueueFull",
    "Quote",
    "ReplayError",
    "RunLog",
    "Runtime",
    "RuntimeEndpoint",
    "SchemaUnsupported",
    "StreamEvent",
    "ToolCall",
    "Unsatisfiable",
    "WireError",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "classify",
    "connect",
    "diff",
    "extract",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "generate",
    "get_server_info",
    "global_config",
    "grammar",
    "greedy_token_selection",
    "image",
    "instrument",
    "joint",
    "parse_program",
    "print_program",
    "register_chat_template",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "testing",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "use",
    "user",
    "user_begin",
    "user_end",
]

_ROOMS = {
    "errors": (
        "BackendError",
        "BatchInterrupted",
        "BudgetExceeded",
        "Cancelled",
        "CaptureError",
        "ConstraintError",
        "ContextOverflow",
        "DeadlineExceeded",
        "GrammarDeadEnd",
        "GrammarSyntaxError",
        "GrammarTooLarge",
        "JournalError",
        "LMLangError",
        "LimitExceeded",
        "ModelError",
        "ProgramError",
        "ProgramTypeError",
        "QueueFull",
        "ReplayError",
        "SchemaUnsupported",
        "Unsatisfiable",
        "WireError",
    ),
    "grammar.quotes": ("Quote",),
    "protocol": ("Backend",),
    "backends.openai": ("OpenAI",),
    "backends.remote": (
        "RuntimeEndpoint",
        "connect",
    ),
    "frontend.batch_result": ("BatchResult",),
    "frontend.choices": (
        "ChoicesDecision",
        "greedy_token_selection",
        "joint",
        "token_length_normalized",
        "unconditional_likelihood_normalized",
    ),
    "frontend.decorator": ("function",),
    "frontend.defaults": (
        "flush_cache",
        "set_default_backend",
        "use",
    ),
    "frontend.dsl": (
        "assistant",
        "assistant_begin",
        "assistant_end",
        "gen",
        "gen_int",
        "gen_string",
        "image",
        "select",
        "separate_reasoning",
        "system",
        "system_begin",
        "system_end",
        "user",
        "user_begin",
        "user_end",
    ),
    "frontend.feed": ("StreamEvent",),
    "frontend.meta": ("Meta",),
    "frontend.oneshot": ("Classification", "classify", "extract", "generate"),
    "frontend.parser": ("parse_program",),
    "frontend.partial": ("Partial",),
    "frontend.printer": ("print_program",),
    "frontend.recorder": ("ProgramState",),
    "frontend.runlog": ("RunLog",),
    "frontend.settings": (
        "get_server_info",
        "global_config",
    ),
    "frontend.view_diff": ("diff",),
    "frontend.telemetry": ("instrument",),
    "frontend.tools": ("ToolCall",),
    "runtime.chat_templates": ("register_chat_template",),
    "runtime.local": ("Runtime",),
}
_HOME = {name: (room, name) for room, names in _ROOMS.items() for name in names}
_HOME["Engine"] = ("runtime.local", "Runtime")


def __getattr__(name: str) -> Any:
    if name in ("grammar", "testing"):
        return importlib.import_module(f"lmlang.{name}")
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


def _rerunning() -> _injected.Rerunning:
    from lmlang.frontend import rerun

    return rerun


_defaults.set_factory(_default_runtime)
_injected.set_rerunning(_rerunning)
