"""What a validator of the program's own said of an output: of which part, and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmlang.grammar.quotes import SAID
from lmlang.grammar.type_core import Core, function_of


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a value was refused.

    Args:
        steps: The way to the part that was refused, as pydantic tells it.
        message: What the validator said.
    """

    steps: tuple[str | int, ...]
    message: str


def refusal_of(error: BaseException) -> Refusal | None:
    """What pydantic found first, where an error comes of that."""
    cause: Any = error.__cause__
    if type(cause).__name__ != "ValidationError" or not hasattr(cause, "errors"):
        return None
    first = cause.errors(include_url=False, include_context=False, include_input=False)[0]
    message = str(first["msg"])
    for said in ("Value error, ", "Assertion failed, "):
        message = message.removeprefix(said)
    return Refusal(tuple(first["loc"]), message)


def has_validators(core: Core) -> bool:
    """Whether functions of the program's own read the values of a core schema, or may refuse them.

    These are validators, ``__post_init__`` and ``model_post_init``, and an ``__init__`` of one's
    own.
    """
    todo: list[Any] = [core]
    while todo:
        here = todo.pop()
        if isinstance(here, (list, tuple)):
            todo += here
        elif isinstance(here, Mapping):
            if str(here.get("type")).startswith("function-"):
                if function_of(here) is None and not _is_known(here):
                    return True
            elif here.get("post_init") or here.get("custom_init"):
                return True
            todo += [inner for name, inner in here.items() if name not in _ELSEWHERE]
    return False


_ELSEWHERE = frozenset(
    ("metadata", "serialization", "config", "cls", "function", "ref", "python_schema")
) | {"strict_schema"}


def _is_known(core: Core) -> bool:
    """Whether a function is ours, or a class of the standard library that reads its own texts."""
    function = core["function"]
    function = function["function"] if isinstance(function, Mapping) else function
    module = str(getattr(function, "__module__", "")).split(".")[0]
    standard = isinstance(function, type) and module in sys.stdlib_module_names
    return standard or SAID in (core.get("metadata") or {})
