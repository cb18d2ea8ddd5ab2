"""How pydantic writes down what it knows of a type: the core schema, read for names and layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

Core = Mapping[str, Any]
"""A node of pydantic's core schema."""

LAYERS = frozenset(
    ("function-before", "function-after", "function-wrap", "custom-error", "default", "model")
)
"""Kinds that have what counts here in ``schema``."""


def peeled(core: Core) -> Core:
    """A core schema without the layers of functions, defaults and definitions around it."""
    while core["type"] in LAYERS or core["type"] == "definitions":
        core = core["schema"]
    return core


def function_of(core: Core) -> Any:
    """The function of pydantic's own that a layer has; None for others, and where it has none."""
    function = core.get("function")
    found = function["function"] if isinstance(function, Mapping) else None
    inner = found.func if isinstance(found, partial) else found
    owner = getattr(inner, "__self__", inner)
    module = getattr(owner, "__module__", None) or type(owner).__module__
    return found if module.startswith("pydantic") else None


def name_of(core: Core) -> str:
    """A type by a name that its programmer knows."""
    cls = core.get("cls")
    if isinstance(cls, type):
        return f"type[{cls.__name__}]" if core["type"] == "is-subclass" else cls.__name__
    function = core.get("function")
    if isinstance(function, Mapping):
        inner = function["function"]
        owner = getattr(inner, "__self__", None)
        if isinstance(owner, type):
            return owner.__name__
        name = str(getattr(inner, "__name__", core["type"]))
        return _OF_FUNCTIONS.get(name, name)
    return _OF_KINDS.get(core["type"], str(core["type"]))


_OF_KINDS = {
    "callable": "Callable", "generator": "Iterable", "url": "URL", "multi-host-url": "URL",
    "json": "Json", "fraction": "Fraction", "nullable": "Optional", "union": "Union",
    "literal": "Literal",
}  # fmt: skip
_OF_FUNCTIONS = {
    "pattern_either_validator": "re.Pattern", "pattern_str_validator": "re.Pattern",
    "pattern_bytes_validator": "re.Pattern", "validate_str_is_valid_iana_tz": "ZoneInfo",
    "import_string": "ImportString",
}  # fmt: skip
