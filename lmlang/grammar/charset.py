"""Sets of characters as Python's ``re`` understands them, as sorted ranges of code points."""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

LAST = 0x10FFFF
"""The last code point."""
SURROGATES = (0xD800, 0xDFFF)
"""Code points that stand for half of a character; no text has them."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Disjoint (first, last) pairs in ascending order, no two of them adjacent."""

Item: TypeAlias = tuple[str, int, int] | tuple[str, str]
"""A part of a class: ("range", first, last), or ("category", one of d D s S w W)."""

EVERYTHING: Ranges = ((0, LAST),)


def union(parts: Iterable[tuple[int, int]]) -> Ranges:
    """What lies in any of these ranges, which may overlap."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(parts):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    """All other code points."""
    found, start = [], 0
    for first, last in ranges:
        if first > start:
            found.append((start, first - 1))
        start = last + 1
    return (*found, (start, LAST)) if start <= LAST else tuple(found)


def contains(ranges: Ranges, code: int) -> bool:
    """Whether a code point lies in one of the ranges."""
    at = bisect_right(ranges, (code, LAST + 1)) - 1
    return at >= 0 and code <= ranges[at][1]


@lru_cache(maxsize=128)
def class_ranges(
    items: tuple[Item, ...], negated: bool, ignore_case: bool, ascii_only: bool
) -> Ranges:
    r"""The characters that a class such as ``[^a-z\d]`` matches under these flags."""
    parts: list[tuple[int, int]] = []
    for item in items:
        parts += category(item[1], ascii_only) if len(item) == 2 else [(item[1], item[2])]
    found = union(parts)
    if negated:
        found = complement(found)
    if not ignore_case:
        return found
    # What equals what in the other case is re's own knowledge, so it is asked, for these alone.
    cased = _cased()
    flags = re.IGNORECASE | (re.ASCII if ascii_only else 0)
    matched = re.compile(_source(items, negated), flags).findall(cased)
    return union([*_both(found, _uncased()), *((ord(c), ord(c)) for c in matched)])


@lru_cache(maxsize=16)
def category(name: str, ascii_only: bool) -> Ranges:
    r"""The characters of ``\d``, ``\s``, ``\w`` or, in capitals, all others."""
    if name.isupper():
        return complement(category(name.lower(), ascii_only))
    runs = re.compile(rf"\{name}+", re.ASCII if ascii_only else 0)
    lettered = _lettered()[:128] if ascii_only else _lettered()
    return tuple((run.start(), run.end() - 1) for run in runs.finditer(lettered))


@lru_cache(maxsize=1)
def _lettered() -> str:
    """The planes in which there are letters, digits and white space."""
    codes = array("I", range(0x40000))
    width = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"
    return codes.tobytes().decode(width, "surrogatepass")


def _source(items: tuple[Item, ...], negated: bool) -> str:
    parts = []
    for item in items:
        if len(item) == 2:
            parts.append(rf"\{item[1]}")
        else:  # a range of one is no character to re, which folds ranges of Deseret in ASCII too
            last = rf"-\U{item[2]:08x}" if item[2] > item[1] else ""
            parts.append(rf"\U{item[1]:08x}{last}")
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _both(one: Ranges, other: Ranges) -> list[tuple[int, int]]:
    """What lies in both."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        first, last = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if first <= last:
            found.append((first, last))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


@lru_cache(maxsize=1)
def _uncased() -> Ranges:
    """All others."""
    return complement(union((ord(character), ord(character)) for character in _cased()))


@lru_cache(maxsize=1)
def _cased() -> str:
    """Every character that has another form in some case."""
    found = []
    for start in range(0, len(_lettered()), 256):
        page = "".join(map(chr, range(start, start + 256)))
        if not page == page.lower() == page.upper():
            found += [c for c in page if not c == c.lower() == c.upper()]
    return "".join(found)
