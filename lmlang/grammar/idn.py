"""The characters of internationalised host names, and names made of them: fewer than IDNA has.

    label   letters of scripts that are written from left to right, their marks, digits, hyphens
            or letters that are written from right to left

What needs more than a look at each character is left out: characters that are allowed beside some
others only, marks that would be composed or sorted, labels as they are sent (``xn--``), and names
so long that those could be too long. Characters are those that Unicode 3.2 has, whose rules no
later version has changed.
Source: RFC 5891 to 5893, with the categories of RFC 5892, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from unicodedata import bidirectional, category, combining, decomposition, normalize, ucd_3_2_0

MOST_OF_LABEL = 11
"""Characters of a label that is not ASCII: no more than 63 as it is sent."""
MOST_OF_NAME = 40
"""Characters of a name that is not ASCII: no more than 253 as it is sent."""

_CODES = (range(0x80, 0x3400), range(0x4E00, 0x9FA6), range(0xAC00, 0xD7A4))
_LEFT_OUT = frozenset({
    0xB7, 0x34F, 0x375, 0x5F3, 0x5F4, 0x640, 0x7FA, 0x17B4, 0x17B5, 0x302E, 0x302F, 0x303B, 0x30FB,
    0x3164, *range(0x660, 0x66A), *range(0x6F0, 0x6FA), *range(0x1100, 0x1200),
    *range(0x180B, 0x1810), *range(0x200C, 0x200E), *range(0x20D0, 0x2100), *range(0x3031, 0x3036),
})  # fmt: skip
"""What is disallowed though its category is not, and what is allowed in some places only."""


@lru_cache(maxsize=1)
def _classes() -> tuple[str, str, str, str]:
    """Parts of classes: letters from the left, from the right, marks that stay, others."""
    composed = {
        ord(normalize("NFD", chr(code))[-1])
        for codes in _CODES[:1]
        for code in codes
        if " " in decomposition(chr(code))
    }
    found: tuple[list[int], ...] = ([0xDF, 0x3C2], [], [], [])
    for code in (code for codes in _CODES for code in codes):
        char = chr(code)
        kind, way = category(char), bidirectional(char)
        stays = char == normalize("NFKC", normalize("NFKC", char).casefold())
        if not stays or code in _LEFT_OUT or ucd_3_2_0.category(char) == "Cn":
            continue
        if kind in ("Ll", "Lo", "Lm", "Nd") and code not in composed:
            if way in ("L", "R", "AL"):
                found[way != "L"].append(code)
        elif kind in ("Mn", "Mc") and way in ("L", "NSM") and code not in composed:
            found[2 + (combining(char) > 0)].append(code)
    left, right, still, sorted_ = map(_ranges, found)
    return left, right, still, sorted_


def _ranges(codes: Iterable[int]) -> str:
    """Characters as parts of a class."""
    found: list[list[int]] = []
    for code in sorted(codes):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in found)


def letters() -> str:
    """Parts of a class: the letters of all scripts but ASCII's."""
    left, right, _, _ = _classes()
    return left + right


def host_name() -> str:
    """A pattern of names of which each label has a letter that is not ASCII or is ASCII."""
    left, right, still, moved = _classes()
    marks = f"[{still}]*(?:[{moved}][{still}]*)?"
    alphanumeric = "[0-9a-z]"
    unit = f"(?:[{left}]{marks}|{alphanumeric})"
    # A hyphen stands between two units, and not in the third and fourth place at once.
    wide = f"{unit}(?:-?{unit})*"
    lettered = f"(?:[{left}]{marks}|[a-z])(?:{unit})*"
    backward = f"[{right}]+"
    short = f"(?=[^.]{{1,{MOST_OF_LABEL}}}(?:[.]|$))"
    label, either = f"{short}{wide}", f"{short}(?:{lettered}|{backward})"
    whole = f"(?=.{{1,{MOST_OF_NAME}}}$)"
    return rf"{whole}(?:{label}(?:\.{label})*|{either}(?:\.{either})*)"
