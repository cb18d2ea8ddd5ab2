"""Values as JSON and back by their forms, exactly; whatever else is read is refused by its place.

    Form       = how the values of one type stand in JSON: write, read
    record     = an object with exactly these fields, each with a form of its own

Standard JSON alone: no NaN, no infinite number, no key twice. Reading follows the form, so that no
nesting in a text can exhaust a stack.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from lmlang.errors import LMLangError, WireError, quote

_LONGEST_INTEGER = 20
"""Digits and sign: more than any number here has, and less than what is slow to read."""
_SHOWN = 40
"""Characters of what was found that a message shows."""
_OTHER_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
"""What JSON has no numbers for."""


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one type stand in JSON.

    Args:
        write: The JSON value of a value.
        read: The value of a JSON value that stands at a JSON pointer; WireError if it is none.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]


def dumps(form: Form, value: object) -> str:
    """A value as JSON, of ASCII characters."""
    return json.dumps(form.write(value), allow_nan=False, separators=(",", ":"))


def loads(text: str) -> Any:
    """The JSON value of a text.

    Raises:
        WireError: It is no JSON, or none that `dumps` could have written.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except json.JSONDecodeError as error:
        raise WireError(
            f"not JSON at line {error.lineno:,}, column {error.colno:,}: {error.msg}."
        ) from None
    except RecursionError:
        raise WireError("the JSON is nested too deep: what lmlang writes is not.") from None


def refuse(pointer: str, expected: str, found: object) -> NoReturn:
    """Raise the WireError that says where, what was expected and what stands there."""
    raise WireError(f"{pointer or 'the whole'}: expected {expected}, found {_shown(found)}.")


# ------------------------------------------------------------------------------ forms


def scalar(kind: type, expected: str, fits: Callable[[Any], bool] = lambda _: True) -> Form:
    """Values of one type of JSON, a bool being no integer."""

    def read(value: Any, pointer: str) -> Any:
        if type(value) is not kind or not fits(value):
            refuse(pointer, expected, value)
        return value

    return Form(lambda value: value, read)


TEXT = scalar(str, "a string")
FLAG = scalar(bool, "true or false")
INTEGER = scalar(int, "an integer")
COUNT = scalar(int, "an integer of at least 0", lambda value: value >= 0)


def _read_float(value: Any, pointer: str) -> float:
    if type(value) is str and value in _OTHER_FLOATS:
        return _OTHER_FLOATS[value]
    if type(value) not in (float, int):
        refuse(pointer, "a number", value)
    return float(value)


FLOAT = Form(lambda value: value if math.isfinite(value) else str(value), _read_float)


def word(*words: str) -> Form:
    """One of these words."""
    return scalar(str, f"one of {', '.join(words)}", lambda value: value in words)


def hexadecimal(digits: int) -> Form:
    """A natural number as so many hexadecimal digits: many readers of JSON have 53 bits only."""

    def read(value: Any, pointer: str) -> int:
        plain = type(value) is str and len(value) == digits
        if not plain or not set(value) <= set("0123456789abcdef"):
            refuse(pointer, f"{digits} hexadecimal digits", value)
        return int(value, 16)

    return Form(lambda value: f"{value:0{digits}x}", read)


def optional(form: Form) -> Form:
    """A value, or null for None."""
    return Form(
        lambda value: None if value is None else form.write(value),
        lambda value, pointer: None if value is None else form.read(value, pointer),
    )


def either(of_text: Form, other: Form) -> Form:
    """Strings by the first form, everything else by the second."""
    return Form(
        lambda value: (of_text if isinstance(value, str) else other).write(value),
        lambda value, at: (of_text if isinstance(value, str) else other).read(value, at),
    )


def sequence(form: Form) -> Form:
    """A tuple as a list."""

    def read(value: Any, pointer: str) -> tuple[Any, ...]:
        if type(value) is not list:
            refuse(pointer, "a list", value)
        return tuple([form.read(item, f"{pointer}/{i}") for i, item in enumerate(value)])

    return Form(lambda values: [form.write(value) for value in values], read)


def pair(first: Form, second: Form) -> Form:
    """A tuple of two as a list of two."""

    def read(value: Any, pointer: str) -> tuple[Any, Any]:
        if type(value) is not list or len(value) != 2:
            refuse(pointer, "a list of two", value)
        return first.read(value[0], f"{pointer}/0"), second.read(value[1], f"{pointer}/1")

    return Form(lambda value: [first.write(value[0]), second.write(value[1])], read)


def record(make: Callable[..., Any], fields: Mapping[str, Form]) -> Form:
    """An object of exactly these fields, which are attributes and keywords of what it stands for.

    Args:
        make: Takes the fields as keywords; a LMLangError of it is a refusal.
        fields: Their forms by their names.
    """

    def write(value: Any) -> dict[str, Any]:
        return {name: form.write(getattr(value, name)) for name, form in fields.items()}

    def read(value: Any, pointer: str) -> Any:
        if type(value) is not dict:
            refuse(pointer, "an object", value)
        if value.keys() != fields.keys():
            for name in fields:
                if name not in value:
                    refuse(pointer, f"the field {name}", value)
            unknown = next(name for name in value if name not in fields)
            raise WireError(f"{pointer or 'the whole'}: unknown field {_shown(unknown)}.")
        found = {name: form.read(value[name], f"{pointer}/{name}") for name, form in fields.items()}
        try:
            return make(**found)
        except LMLangError as error:
            raise WireError(f"{pointer}: {error}") from None

    return Form(write, read)


# ------------------------------------------------------------------------------ reading


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
        raise WireError(f"not JSON that lmlang wrote: the key {_shown(twice)} stands twice.")
    return found


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise WireError(f"not JSON that lmlang wrote: an integer of {len(digits):,} digits.")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise WireError(f"not JSON that lmlang wrote: {_shown(digits)} is no finite number.")
    return value


def _constant(name: str) -> float:
    raise WireError(f"not JSON that lmlang wrote: {name} is no number of JSON.")


def _shown(value: object) -> str:
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    if isinstance(value, str):
        return quote(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
    return json.dumps(value)
