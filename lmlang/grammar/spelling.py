r"""How characters are written as bytes: as they are, or between the quotes of a JSON string.

é     C3 A9     \u00e9           🙂     F0 9F 99 82     \ud83d\ude42     a high half, a low one
"""

from __future__ import annotations

import json
from enum import Enum
from typing import TypeAlias

from lmlang.grammar.alphabet import Alphabet
from lmlang.grammar.charset import LAST

Shape: TypeAlias = tuple[int, int, int, int]
"""Classes that are possible behind some first bytes of UTF-8; the first and last byte that may
come next; how many are missing."""


class Spelling(Enum):
    """How the texts of a language are written.

    PLAIN is UTF-8. The others are what stands between the quotes of a JSON string: JSON with one
    spelling, which escapes as little as it may, JSON_FREE with every one that JSON allows.
    """

    PLAIN = "plain"
    JSON = "json"
    JSON_FREE = "json, any escapes"


ESCAPES = {ord(c): json.dumps(c)[2:-1].encode() for c in map(chr, range(0x20))}
ESCAPES |= {ord('"'): b'"', ord("\\"): b"\\"}
FREE_ESCAPES = {code: text for code, text in ESCAPES.items() if len(text) == 1} | {ord("/"): b"/"}
HEX = b"0123456789abcdefABCDEF"
PAIR = b"\\u"

NO_HALF = 0


def characters_of(value: int, missing: int, high: int) -> list[tuple[int, int]]:
    r"""The characters, in ranges, whose \u begins with some digits, behind a high half."""
    first, last = value << 4 * missing, (value + 1 << 4 * missing) - 1
    if high:
        first, last = max(first, 0xDC00), min(last, 0xDFFF)
        base = 0x10000 + (high - 0xD800 << 10) - 0xDC00
        return [(base + first, base + last)] if first <= last else []
    found = [(first, min(last, 0xD7FF)), (max(first, 0xE000), last)]
    upper, lower = max(first, 0xD800), min(last, 0xDBFF)
    found.append((0x10000 + (upper - 0xD800 << 10), 0x103FF + (lower - 0xD800 << 10)))
    return [(low, top) for low, top in found if low <= top]


def shared_digits(value: int, missing: int, high: int) -> tuple[int, int]:
    r"""The digits of \u and the high half that stand for all that go on alike.

    That is where it does not matter which character they become.
    """
    first, last = value << 4 * missing, (value + 1 << 4 * missing) - 1
    if high:
        low = first >= 0xDC00 and last <= 0xDFFF
        return (0xDC00 >> 4 * missing if low else value), 0xD800
    if last < 0xD800 or first > 0xDFFF:
        return 0, NO_HALF
    if first >= 0xD800 and last <= 0xDBFF:
        return 0xD800 >> 4 * missing, NO_HALF
    return value, NO_HALF


def leads_of(alphabet: Alphabet) -> list[tuple[Shape, list[tuple[int, int, int]]]]:
    """First bytes of UTF-8 that go on alike.

    Returns:
        The classes that are possible behind some, the first and last byte that may come next
        and how many are missing; and of each the byte, the first and the last code point.
    """
    groups: dict[Shape, list[tuple[int, int, int]]] = {}
    for lead in range(0xC2, 0xF5):
        missing = 1 + (lead >= 0xE0) + (lead >= 0xF0)
        bits = 6 * missing
        code = (lead & (0x3F >> missing)) << bits
        first = max(code, (0x80, 0x800, 0x10000)[missing - 1])
        last = min(code | (1 << bits) - 1, LAST)
        if lead == 0xED:
            last = 0xD7FF
        next_first = 0x80 | first >> bits - 6 & 0x3F
        next_last = 0x80 | last >> bits - 6 & 0x3F
        shape = (alphabet.within(first, last), next_first, next_last, missing)
        groups.setdefault(shape, []).append((lead, first, last))
    return list(groups.items())
