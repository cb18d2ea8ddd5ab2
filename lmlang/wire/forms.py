"""Values as JSON and back by their forms, exactly; whatever else is read is refused by its place.

    Form       = how the values of one type stand in JSON: write, read
    record     = an object with these fields, each with a form of its own
    $.a.b[0]   = a place in what is read: "$" is the whole

Standard JSON alone: no NaN, no infinite number, no key twice. Reading follows the form, so that no
nesting in a text can exhaust a stack.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
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
        read: The value of a JSON value that stands at a place; WireError if it is none.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]


def dumps(value: object) -> str:
    """A JSON value as text, of ASCII characters."""
    return _ENCODER.encode(value)


def loads(text: str | bytes) -> Any:
    """The JSON value of a text, which in bytes is UTF-8.

    Raises:
        WireError: It is no JSON, or none that `dumps` could have written.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise WireError(f"not JSON: byte {error.start:,} is no UTF-8.") from None
    except json.JSONDecodeError as error:
        raise WireError(
            f"not JSON at line {error.lineno:,}, column {error.colno:,}: {error.msg}."
        ) from None
    except RecursionError:
        raise WireError("the JSON is nested too deep: what lmlang writes is not.") from None


def refuse(place: str, expected: str, found: object) -> NoReturn:
    """Raise the WireError that says where, what was expected and what stands there."""
    raise WireError(f"{place}: expected {expected}, found {_shown(found)}.")


# ------------------------------------------------------------------------------ forms


def scalar(kind: type, expected: str, fits: Callable[[Any], bool] = lambda _: True) -> Form:
    """Values of one type of JSON, a bool being no integer."""

    def read(value: Any, place: str) -> Any:
        if type(value) is not kind or not fits(value):
            refuse(place, expected, value)
        return value

    return Form(lambda value: value, read)


TEXT = scalar(str, "a string")
FLAG = scalar(bool, "true or false")
INTEGER = scalar(int, "an integer")
COUNT = scalar(int, "an integer of at least 0", lambda value: value >= 0)


def _read_number(value: Any, place: str) -> float:
    if type(value) not in (float, int):
        refuse(place, "a number", value)
    return float(value)


NUMBER = Form(lambda value: value, _read_number)
"""A finite number."""


def _read_float(value: Any, place: str) -> float:
    if type(value) is str and value in _OTHER_FLOATS:
        return _OTHER_FLOATS[value]
    return _read_number(value, place)


FLOAT = Form(lambda value: value if math.isfinite(value) else str(value), _read_float)
"""Any float."""


def word(*words: str) -> Form:
    """One of these words."""
    return scalar(str, f"one of {', '.join(words)}", lambda value: value in words)


def hexadecimal(digits: int) -> Form:
    """A natural number as so many hexadecimal digits: many readers of JSON have 53 bits only."""

    def read(value: Any, place: str) -> int:
        plain = type(value) is str and len(value) == digits
        if not plain or not set(value) <= set("0123456789abcdef"):
            refuse(place, f"{digits} hexadecimal digits", value)
        return int(value, 16)

    return Form(lambda value: f"{value:0{digits}x}", read)


def optional(form: Form) -> Form:
    """A value, or null for None."""
    return Form(
        lambda value: None if value is None else form.write(value),
        lambda value, place: None if value is None else form.read(value, place),
    )


def either(of_text: Form, other: Form) -> Form:
    """Strings by the first form, everything else by the second."""
    return Form(
        lambda value: (of_text if isinstance(value, str) else other).write(value),
        lambda value, at: (of_text if isinstance(value, str) else other).read(value, at),
    )


def sequence(form: Form) -> Form:
    """A tuple as a list."""

    def read(value: Any, place: str) -> tuple[Any, ...]:
        if type(value) is not list:
            refuse(place, "a list", value)
        return tuple([form.read(item, f"{place}[{i}]") for i, item in enumerate(value)])

    return Form(lambda values: [form.write(value) for value in values], read)


def pair(first: Form, second: Form) -> Form:
    """A tuple of two as a list of two."""

    def read(value: Any, place: str) -> tuple[Any, Any]:
        if type(value) is not list or len(value) != 2:
            refuse(place, "a list of two", value)
        return first.read(value[0], f"{place}[0]"), second.read(value[1], f"{place}[1]")

    return Form(lambda value: [first.write(value[0]), second.write(value[1])], read)


def record(make: Callable[..., Any], forms: Mapping[str, Form]) -> Form:
    """An object of exactly these fields, which are attributes and keywords of what it stands for.

    Args:
        make: Takes the fields as keywords; a LMLangError of it is a refusal.
        forms: Their forms by their names.
    """

    def write(value: Any) -> dict[str, Any]:
        return {name: form.write(getattr(value, name)) for name, form in forms.items()}

    def read(value: Any, place: str) -> Any:
        return made(make, read_fields(value, place, forms), place)

    return Form(write, read)


def short_record(make: type, forms: Mapping[str, Form]) -> Form:
    """A dataclass as an object that leaves out what has its default value.

    Args:
        make: The dataclass.
        forms: The forms of its fields by their names.
    """
    known = {field.name: field for field in fields(make)}
    defaults = {name: known[name].default for name in forms if known[name].default is not MISSING}

    def write(value: Any) -> dict[str, Any]:
        found = {name: getattr(value, name) for name in forms}
        return {
            name: forms[name].write(held)
            for name, held in found.items()
            if name not in defaults or held != defaults[name]
        }

    def read(value: Any, place: str) -> Any:
        return made(make, read_fields(value, place, forms, defaults), place)

    return Form(write, read)


def read_fields(
    value: Any, place: str, forms: Mapping[str, Form], optional: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of an object by their forms; it has no others, and all but the optional ones."""
    if type(value) is not dict:
        refuse(place, "an object", value)
    if value.keys() != forms.keys():
        for name in forms:
            if name not in value and name not in optional:
                refuse(place, f"the field {name}", value)
        unknown = next((name for name in value if name not in forms), None)
        if unknown is not None:
            raise WireError(f"{place}: unknown field {_shown(unknown)}.")
    return {name: forms[name].read(value[name], f"{place}.{name}") for name in value}


def made(make: Callable[..., Any], found: Mapping[str, Any], place: str) -> Any:
    """What ``make`` makes of fields; what it refuses is refused by its place."""
    try:
        return make(**found)
    except LMLangError as error:
        raise WireError(f"{place}: {error}") from None


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


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_float,
    parse_constant=_constant,
)


def _shown(value: object) -> str:
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    if isinstance(value, str):
        return quote(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
    return json.dumps(value)
