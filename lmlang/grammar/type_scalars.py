"""What pydantic knows of a scalar type, as the JSON Schema of what is generated for it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum, Flag
from typing import Any

from lmlang.errors import SchemaUnsupported, quote
from lmlang.grammar import literals
from lmlang.grammar.patterns import spelled_out, unlike
from lmlang.grammar.type_core import Core

Schema = dict[str, Any]

EXACT_DIGITS = 15
"""Decimal digits that a double keeps: pydantic reads numbers of JSON as doubles."""
LARGEST_FLOAT = 1.7976931348623157e308
_UNTRIMMED = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space that may be stripped, as a class of a pattern."""
_TRIMMED = f"^[^{_UNTRIMMED}](?:[\\s\\S]*[^{_UNTRIMMED}])?$"


Refusal = Callable[[str, str], SchemaUnsupported]
"""What is to be raised where a type, the first text, cannot be kept for a reason, the second."""


def exactly(pattern: str) -> str:
    """A pattern for the whole of a text, as JSON Schema searches for it."""
    return f"^(?:{pattern})$"


def integer(core: Core, refusal: Refusal) -> Schema:
    """Any integer within bounds."""
    return {"type": "integer", **bounds_of(core, refusal)}


def real(core: Core, refusal: Refusal) -> Schema:
    """A finite number; bounds that exclude a number are those of its neighbours."""
    low = core.get("ge", -LARGEST_FLOAT)
    high = core.get("le", LARGEST_FLOAT)
    found: Schema = {"type": "number"}
    if core.get("gt") is not None:
        # Texts nearer than the next double are read as the bound itself; 0 has none that is
        # so near within the digits that a number gets.
        found |= {"exclusiveMinimum": 0} if not core["gt"] else {}
        low = max(low, math.nextafter(core["gt"], math.inf)) if core["gt"] else low
    if core.get("lt") is not None:
        found |= {"exclusiveMaximum": 0} if not core["lt"] else {}
        high = min(high, math.nextafter(core["lt"], -math.inf)) if core["lt"] else high
    found |= {"minimum": max(low, -LARGEST_FLOAT), "maximum": min(high, LARGEST_FLOAT)}
    if core.get("multiple_of") is not None:
        found["multipleOf"] = core["multiple_of"]
    return found


def decimal(core: Core, refusal: Refusal) -> Schema:
    """A number of digits that pydantic reads exactly, which are at most 15."""
    places, digits = core.get("decimal_places"), core.get("max_digits")
    most = min(EXACT_DIGITS, EXACT_DIGITS if digits is None else digits)
    if places is not None or digits is None:
        forms = [min(most, 6 if places is None else places)]
    else:
        forms = list(range(most + 1))
    bounds = bounds_of(core, refusal)
    for name, value in bounds.items():
        if name != "multipleOf" and abs(value) >= 10**EXACT_DIGITS:
            raise refusal(
                "Decimal", f"a bound has more digits than the {EXACT_DIGITS} that are exact"
            )
        if name != "multipleOf" and digits is None:  # leave room before the point
            forms = [min(forms[0], max(0, EXACT_DIGITS - len(str(int(abs(value))))))]
    shapes = [
        {
            "multipleOf": float(Decimal(1).scaleb(-form)) if form else 1,
            "minimum": -_number(10 ** (most - form) - Decimal(1).scaleb(-form), refusal),
            "maximum": _number(10 ** (most - form) - Decimal(1).scaleb(-form), refusal),
        }
        for form in forms
    ]
    shape: Schema = dict(shapes[0]) if len(shapes) == 1 else {"anyOf": shapes}
    if digits is not None and places is not None and digits <= places:
        shape = {**shape, "not": {"const": 0}}  # whose digit stands before the point
    return {"type": "number", "allOf": [shape, bounds]} if bounds else {
        "type": "number",
        **shape,
    }  # fmt: skip


def bounds_of(core: Core, refusal: Refusal) -> Schema:
    """Bounds of a number, and what it is a multiple of."""
    keywords = {
        "ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum",
        "multiple_of": "multipleOf",
    }  # fmt: skip
    return {
        keyword: _number(core[name], refusal)
        for name, keyword in keywords.items()
        if core.get(name) is not None
    }


def bounds_around(given: Mapping[str, Any], refusal: Refusal) -> Schema:
    """Bounds that pydantic checks behind a union, as it is one of them that has to keep them."""
    found: Schema = {}
    for name, value in given.items():
        if name in ("gt", "ge", "lt", "le", "multiple_of"):
            if not isinstance(value, (int, float, Decimal)):
                raise refusal("a union", "bounds of it cannot be kept")
            found |= {"type": "number", **_side(name, _number(value, refusal))}
        elif name in ("min_length", "max_length"):
            side = name[:3]
            found |= {f"{side}{what}": value for what in ("Length", "Items", "Properties")}
            found["type"] = ["string", "array", "object"]
    return found


def _side(name: str, value: int | float) -> Schema:
    """A bound of a number that may be a double (see `real`)."""
    keyword = {"ge": "minimum", "le": "maximum", "multiple_of": "multipleOf"}.get(name)
    if keyword is not None:
        return {keyword: value}
    if not value:
        return {"exclusiveMinimum" if name == "gt" else "exclusiveMaximum": 0}
    if name == "gt":
        return {"minimum": math.nextafter(value, math.inf)}
    return {"maximum": math.nextafter(value, -math.inf)}


def _number(value: Any, refusal: Refusal) -> int | float:
    """A number of Python as one of JSON, exactly."""
    if isinstance(value, (int, float)):
        return value
    if value == value.to_integral_value():
        return int(value)
    if Decimal(repr(float(value))) != value:
        raise refusal("Decimal", f"its bound {value} has more digits than are exact")
    return float(value)


def string(core: Core, refusal: Refusal) -> Schema:
    """A string; one that is stripped has nothing to be stripped of."""
    found: Schema = {"type": "string"}
    least, most = core.get("min_length"), core.get("max_length")
    found |= {} if least is None else {"minLength": least}
    found |= {} if most is None else {"maxLength": most}
    patterns = []
    if core.get("pattern") is not None:
        patterns.append(_pattern(core["pattern"], refusal))
    if core.get("strip_whitespace"):
        patterns.append(_TRIMMED if least else f"^$|{_TRIMMED}")
    if core.get("ascii_only"):
        patterns.append(r"^[\x00-\x7f]*$")
    if len(patterns) == 1:
        return {**found, "pattern": patterns[0]}
    return {**found, "allOf": [{"pattern": each} for each in patterns]} if patterns else found


def _pattern(pattern: Any, refusal: Refusal) -> str:
    """A pattern of which JSON Schema's reading lets through no more than pydantic's."""
    if isinstance(pattern, re.Pattern):
        if pattern.flags & ~re.UNICODE:
            raise refusal("str", "its pattern has flags, which JSON Schema has not")
        pattern = pattern.pattern
    written = spelled_out(str(pattern))
    found = unlike(written)
    if found is not None:
        raise refusal(
            f"str with the pattern {quote(pattern)}",
            f"{quote(found)} in it means other texts in JSON Schema (write out the characters)",
        )
    return written


def boolean(core: Core, refusal: Refusal) -> Schema:
    """True or False."""
    return {"type": "boolean"}


def none(core: Core, refusal: Refusal) -> Schema:
    """None."""
    return {"type": "null"}


def text(core: Core, refusal: Refusal, once: bool = False) -> Schema:
    """A string that is a date, a time, a duration or a UUID; ``once`` as in `spelling`."""
    patterns = spelling(core, refusal, once)
    found: Schema = {"type": "string", "pattern": exactly(patterns[0])}
    more = [{"pattern": exactly(each)} for each in patterns[1:]]
    return {**found, "allOf": more} if more else found


def spelling(core: Core, refusal: Refusal, once: bool = False) -> list[str]:
    """Patterns that a date, a time, a duration or a UUID matches as a whole, all of them.

    Args:
        core: What pydantic knows of it.
        refusal: Of what cannot be kept.
        once: Whether each value has one spelling, as where so many different ones are needed.
    """
    kind = core["type"]
    if core.get("now_op") is not None:
        raise refusal(kind, f"whether it is {core['now_op']} depends on when that is asked")
    said = ("ge", "gt", "le", "lt")
    bounds = {name: core[name] for name in said if core.get(name) is not None}
    if kind == "timedelta" and set(bounds) <= {"ge", "gt"} and not any(bounds.values()):
        nonzero = ".*[1-9].*" if "gt" in bounds else ".*"
        found = [literals.DURATION_ONCE if once else literals.DURATION]
        return [*found, f"P{nonzero}"] if bounds else found
    if bounds and (kind != "date" or any(isinstance(b, datetime) for b in bounds.values())):
        raise refusal(kind, "bounds of it cannot be kept")
    aware = {"aware": True, "naive": False}.get(str(core.get("tz_constraint")))
    if kind == "date":
        found = [literals.DATE]
        for name, bound in bounds.items():
            side = literals.from_day if name in ("ge", "gt") else literals.to_day
            found.append(side(bound, name in ("ge", "le")))
        return found
    if kind == "uuid":
        return [literals.uuid(core.get("version"))]
    return [literals.moment(aware, once) if kind == "datetime" else literals.time(aware, once)]


def url(core: Core, refusal: Refusal) -> Schema:
    """A URL with a host name, of one of the schemes that are allowed; "https" or "http" of all."""
    schemes = core.get("allowed_schemes") or ("https", "http")
    found: Schema = {"type": "string", "pattern": exactly(literals.url(schemes))}
    most = core.get("max_length")
    return found if most is None else {**found, "maxLength": most}


def email(core: Core, refusal: Refusal) -> Schema:
    """An address that pydantic takes."""
    return {
        "type": "string",
        "pattern": exactly(literals.EMAIL),
        "not": {"pattern": exactly(literals.SPECIAL)},
    }


def literal(core: Core, refusal: Refusal) -> Schema:
    """One of some values, members of Enums by theirs."""
    return {"enum": [value for value, _ in members(core, refusal)]}


def members(core: Core, refusal: Refusal) -> list[tuple[Any, Any]]:
    """The values of a Literal or an Enum as JSON has them, each with what it stands for."""
    cls = core.get("cls")
    if isinstance(cls, type) and issubclass(cls, Flag):
        raise refusal(cls.__name__, "members of a Flag can be added up")
    found: list[tuple[Any, Any]] = []
    for member in core.get("members") or core["expected"]:
        value = member.value if isinstance(member, Enum) else member
        if (
            core["type"] == "literal"
            and isinstance(member, Enum)
            and member is not value
            and (not isinstance(member, (int, str)))
        ):
            raise refusal(
                f"Literal with the member {quote(repr(member))[1:-1]}",
                "pydantic reads no JSON as it alone: take all of the Enum, or one of str or int",
            )
        if not (value is None or isinstance(value, (bool, int, float, str))) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise refusal(
                f"{type(member).__name__} with the member {quote(repr(member))[1:-1]}",
                "JSON has no such value",
            )
        if isinstance(value, str):
            value = str.__str__(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            value = int(value) if isinstance(value, int) else float(value)
        if not any(value == known and type(value) is type(known) for known, _ in found):
            found.append((value, member))
    return found


KINDS: Mapping[str, Callable[[Core, Refusal], Schema]] = {
    "none": none,
    "bool": boolean,
    "int": integer,
    "float": real,
    "decimal": decimal,
    "str": string,
    "date": text,
    "datetime": text,
    "time": text,
    "timedelta": text,
    "uuid": text,
    "url": url,
    "literal": literal,
    "enum": literal,
}
"""By pydantic's names."""
