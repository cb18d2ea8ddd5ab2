"""Values of variables as JSON and back, of their own types: for rows that a journal keeps whole.

    7, "a", None, [1, 2], {"a": 1}          themselves
    (1, 2), date, Decimal, b"…", 1e400      {"$": "tuple", "of": [1, 2]}
    Person(name="Ann"), Color.RED           {"$": "module:Person", "of": {"name": "Ann"}}

A class is looked for among the modules that this process has loaded, and is a dataclass, a
pydantic model or an Enum: reading imports nothing and calls nothing else.
"""

from __future__ import annotations

import base64
import dataclasses
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any
from uuid import UUID

from lmlang.errors import WireError, an, quote
from lmlang.grammar.quotes import Quote, again

MAX_DEPTH = 100
_TAG, _OF = "$", "of"
_LONG = 2**63
_SECOND = " again"
"""Behind a time of day that comes twice, as clocks are put back, and is the second of these."""


class NotKept(Exception):
    """A value that has no JSON to be kept as; the message says what it is."""


def to_json(value: Any, depth: int = 0) -> Any:
    """A value as JSON.

    Raises:
        NotKept: It has none, or holds what has none.
    """
    if depth > MAX_DEPTH:
        raise NotKept("is nested too deep")
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if isinstance(value, Flag):  # of which one value may be no member or several
        return {_TAG: _named(kind), _OF: to_json(value.value, depth + 1)}
    if isinstance(value, Enum):
        return {_TAG: _named(kind), _OF: value.name}
    if kind is int and -_LONG <= value < _LONG:
        return value
    if kind is float and value - value == 0:
        return value
    if kind is list:
        return [to_json(each, depth + 1) for each in value]
    if kind is dict and all(type(name) is str and name != _TAG for name in value):
        return {name: to_json(each, depth + 1) for name, each in value.items()}
    if kind in _SPELT:
        spell, _ = _SPELT[kind]
        return {_TAG: kind.__name__, _OF: spell(value)}
    if kind in _HELD:
        items: list[Any] = list(value.items() if kind is dict else value)
        return {_TAG: kind.__name__, _OF: [to_json(each, depth + 1) for each in items]}
    if isinstance(value, Quote):
        return {_TAG: "Quote", _OF: [kind.source, kind.min_length, kind.max_length, str(value)]}
    fields = _fields(value)
    return {_TAG: _named(kind), _OF: to_json(fields, depth + 1)}


def from_json(value: Any) -> Any:
    """The value that `to_json` wrote.

    Raises:
        WireError: It is something else, or of a class that this process has not loaded.
    """
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {name: from_json(each) for name, each in value.items()}
    name, held = value[_TAG], value.get(_OF, "")
    try:
        for kind, (_, read) in _SPELT.items():
            if name == kind.__name__:
                return read(held)
        for kind in _HELD:
            if name == kind.__name__:
                return kind(from_json(held))
        if name == "Quote":
            return again(*held)
        return _made(_loaded(str(name)), held)
    except WireError:
        raise
    except Exception as error:  # constructors are the user's own
        raise WireError(
            f"{quote(str(name))}: {type(error).__name__}: {quote(str(error))}"
        ) from None


_SPELT: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    int: (hex, lambda text: int(text, 16)),
    float: (repr, float),
    bytes: (lambda value: base64.b64encode(value).decode(), base64.b64decode),
    date: (date.isoformat, date.fromisoformat),
    datetime: (lambda value: _clock(value), lambda text: _read_clock(datetime, text)),
    time: (lambda value: _clock(value), lambda text: _read_clock(time, text)),
    timedelta: (
        lambda value: f"{value.days} {value.seconds} {value.microseconds}",
        lambda text: timedelta(*map(int, text.split())),
    ),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
}
"""Types that are written as a text: how that is spelt and read."""
_HELD: tuple[type, ...] = (tuple, set, frozenset, dict)
"""Containers that JSON has not, or not with such keys."""


def _clock(value: datetime | time) -> str:
    return value.isoformat() + _SECOND * value.fold


def _read_clock(kind: Any, text: str) -> Any:
    return kind.fromisoformat(text.removesuffix(_SECOND)).replace(fold=int(text.endswith(_SECOND)))


def _fields(value: object) -> dict[str, object]:
    """What an object of a class of the user's is made of."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    fields = getattr(type(value), "__pydantic_fields__", None)
    if isinstance(fields, dict):
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return {name: getattr(value, name) for name in fields} | extra
    raise NotKept(f"is {an(type(value).__name__)}")


def _named(kind: type) -> str:
    """A class by where it is found again."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        if _loaded(name) is kind:
            return name
    except WireError:
        pass
    raise NotKept(
        f"is of the class {kind.__name__}, which is defined in a function, where nobody finds it "
        "again"
    )


def _loaded(name: str) -> type:
    """A class of a module that is loaded, by its name."""
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    is_model = isinstance(found, type) and "__pydantic_fields__" in vars(found)
    is_enum = isinstance(found, type) and issubclass(found, Enum)
    if isinstance(found, type) and (is_model or is_enum or dataclasses.is_dataclass(found)):
        return found
    raise WireError(f"there is no class {quote(name)} any more, of which a value was kept.")


def _made(kind: type, held: Any) -> Any:
    if issubclass(kind, Enum):
        return kind(held) if issubclass(kind, Flag) and isinstance(held, int) else kind[held]
    given = from_json(held)
    if not dataclasses.is_dataclass(kind):
        fields = kind.__pydantic_fields__  # type: ignore[attr-defined]
        # By alias: one field's may be another one's name.
        aliases = {name: field.alias or name for name, field in fields.items()}
        given = {aliases.get(name, name): value for name, value in given.items()}
        return kind.model_construct(**given)  # type: ignore[attr-defined]  # it was valid
    made = object.__new__(kind)
    for name, value in given.items():
        object.__setattr__(made, name, value)  # as it was, whatever its constructor would do
    return made
