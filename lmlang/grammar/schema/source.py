"""The JSON text of a schema, read exactly and within limits."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from lmlang.errors import GrammarSyntaxError, GrammarTooLarge, quote

MAX_CHARACTERS = 5_000_000
"""Characters of a schema."""
MAX_DEPTH = 256
"""Values inside of values in the text of a schema."""
MAX_DIGITS = 400
"""Digits of a number in it, and the largest exponent."""

Value: TypeAlias = Any
"""A JSON value: None, bool, int, Decimal (only what is no whole number), str, list or dict."""

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_NO_KEY = "\ud800"
"""What no schema has for a key: half of a surrogate pair."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def read(text: str) -> Value:
    """The value of a schema's text; a number that is whole is an int, every other a Decimal.

    Raises:
        GrammarSyntaxError: It is no JSON, or an object has a key twice.
        GrammarTooLarge: It is longer, deeper or has longer numbers than is allowed.
    """
    if len(text) > MAX_CHARACTERS:
        raise GrammarTooLarge(
            f"the JSON schema has {len(text):,} characters; at most {MAX_CHARACTERS:,} are "
            "allowed: leave out what the output does not need."
        )
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(text)
    try:
        value = json.loads(
            text,
            parse_float=_decimal,
            parse_int=_integer,
            parse_constant=_no_number,
            object_pairs_hook=_object,
        )
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False, default=str).encode()
    except json.JSONDecodeError as error:
        raise GrammarSyntaxError(
            f"the JSON schema is no JSON: {error.msg} at line {error.lineno:,}, "
            f"column {error.colno:,}."
        ) from None
    except UnicodeEncodeError:
        raise GrammarSyntaxError(
            "the JSON schema holds half of a surrogate pair, which no text can hold: write the "
            "character itself or both halves."
        ) from None
    except RecursionError:
        raise GrammarTooLarge(
            "the JSON schema is nested too deeply for what is left of the call stack."
        ) from None
    return value


def canonical(value: Value) -> str:
    """One text for all spellings of a value: equal exactly where JSON Schema calls them equal."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_tagged)


def _tagged(value: Decimal) -> dict[str, str]:
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    assert isinstance(exponent, int)
    return {_NO_KEY: f"{sign} {kept} {exponent + len(text) - len(kept)}"}


def _check_depth(text: str) -> None:
    depth = 0
    for found in _BRACKETS.finditer(text):
        mark = found.group()
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise GrammarTooLarge(
                    f"the JSON schema is nested more than {MAX_DEPTH} levels deep at character "
                    f"{found.start():,}: name its parts in $defs and refer to them."
                )
        elif mark in "]}":
            depth -= 1


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise GrammarSyntaxError(
                    f"the JSON schema has the key {quote(key)} twice in one object: leave one out."
                )
            seen.add(key)
    return found


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _too_long(text)
    return int(text)


def _decimal(text: str) -> int | Decimal:
    if len(text) > MAX_DIGITS:
        raise _too_long(text)
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise _too_long(text) from None  # its exponent does not fit into a Decimal
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -MAX_DIGITS or value.adjusted() >= MAX_DIGITS:
        raise _too_long(text)
    numerator, denominator = value.as_integer_ratio()
    return numerator if denominator == 1 else value


def _too_long(text: str) -> GrammarTooLarge:
    return GrammarTooLarge(
        f"the number {quote(text[:40])} in the JSON schema would need more than {MAX_DIGITS} "
        "digits: round it."
    )


def _no_number(text: str) -> Value:
    raise GrammarSyntaxError(f"{text} in the JSON schema is no JSON: leave it out.")
