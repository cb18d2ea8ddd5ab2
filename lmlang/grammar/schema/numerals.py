"""Numbers byte by byte: which digits may come next so that a member of a set is still reached.

    "-"  ->  "-1"  ->  "-12"  ->  "-12."  ->  "-12.5"      a numeral: how a text of a set began

There is no automaton of all digits: exact arithmetic says whether a beginning can be completed.
Where bounds cannot matter any more a numeral forgets its digits, so that others share it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from math import lcm
from typing import NamedTuple

from lmlang.grammar.schema.numbers import MAX_DIGITS, Grid, Numbers, spell, without_bounds

MAX_KEPT = 4_096
"""Numerals of a spelling that are kept, each with a byte behind it."""
BYTES = b"-.0123456789"
"""What numbers are written with, in ascending order."""


class Part(IntEnum):
    """Where in its text a numeral ends."""

    NOTHING, MINUS, ZERO, WHOLE, POINT, FRACTION, TRAILING = range(7)
    """`TRAILING`: behind the point, with a 0 at the end that must not stay the last digit."""


class Numeral(NamedTuple):
    """The beginning of a number's text; equal ones have the same future.

    Attributes:
        digits: Those written so far as one number, or one of the same remainder.
        length: Digits of the part that it ends in.
    """

    spelling: Spelling
    part: Part
    negative: bool
    digits: int
    length: int

    def push(self, byte: int) -> Numeral | None:
        """The numeral behind one more byte; None where no member goes on so."""
        return self.spelling.push(self, byte)

    def accepting(self) -> bool:
        """Whether it is a member as it stands."""
        return self.spelling.accepting(self)

    def completion(self) -> bytes:
        """The fewest bytes that make it a member."""
        return b"" if self.spelling.accepting(self) else self.spelling.completion(self)

    def following(self) -> bytes:
        """The bytes that may come next, in ascending order."""
        return self.spelling.following(self)


class Entry(NamedTuple):
    """The beginning of the text of one of a few numbers."""

    texts: tuple[bytes, ...]
    """All texts in ascending order."""
    typed: bytes

    def push(self, byte: int) -> Entry | None:
        """As for `Numeral`."""
        typed = self.typed + bytes((byte,))
        at = bisect_left(self.texts, typed)
        found = at < len(self.texts) and self.texts[at].startswith(typed)
        return Entry(self.texts, typed) if found else None

    def accepting(self) -> bool:
        """As for `Numeral`."""
        at = bisect_left(self.texts, self.typed)
        return at < len(self.texts) and self.texts[at] == self.typed

    def completion(self) -> bytes:
        """As for `Numeral`."""
        first = bisect_left(self.texts, self.typed)
        last = bisect_left(self.texts, self.typed + b"\xff")
        return min(self.texts[first:last], key=len)[len(self.typed) :]

    def following(self) -> bytes:
        """As for `Numeral`."""
        return bytes(byte for byte in BYTES if self.push(byte) is not None)


class Texts(tuple[bytes, ...]):
    """Texts in ascending order, compared as one object."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


@lru_cache(maxsize=4096)
def numeral(numbers: Numbers, canonical: bool) -> Numeral | Entry:
    """The empty beginning of the texts of a set that is not empty.

    Args:
        numbers: The set.
        canonical: Whether each number has one text, without zeros that it does not need.
    """
    if numbers.values is not None:
        return Entry(Texts(sorted(map(spell, numbers.values))), b"")
    return Numeral(_spelling(numbers, canonical), Part.NOTHING, False, 0, 0)


@lru_cache(maxsize=4096)
def _spelling(numbers: Numbers, canonical: bool) -> Spelling:
    grid = numbers.grid()
    bare = without_bounds(numbers)
    if bare == numbers:
        return _shared(grid, canonical)
    top = 10 ** (MAX_DIGITS + grid.places) - 1
    unbounded = Grid(grid.places, -top, top, grid.step, grid.gaps, frozenset())
    return Spelling(grid, canonical, _shared(unbounded, canonical))


@lru_cache(maxsize=4096)
def _shared(grid: Grid, canonical: bool) -> Spelling:
    return Spelling(grid, canonical, None)


class Spelling:
    """The texts of a set of numbers.

    Args:
        grid: The set.
        canonical: Whether each number has one text.
        beyond: The same without bounds and single exceptions; None: it has none.
    """

    def __init__(self, grid: Grid, canonical: bool, beyond: Spelling | None) -> None:
        self._grid = grid
        self._canonical = canonical
        self._beyond = beyond
        self._modulus = lcm(grid.step, *grid.gaps)
        self._any = beyond is None and self._modulus == 1
        self._tens = [10**n for n in range(MAX_DIGITS + grid.places + 2)]
        self._holes = sorted(map(abs, grid.holes))
        self._pushed: dict[tuple[Numeral, int], Numeral | None] = {}
        self._following: dict[Numeral, bytes] = {}

    def push(self, known: Numeral, byte: int) -> Numeral | None:
        """The numeral behind one more byte of one of this spelling."""
        pushed = self._pushed
        try:
            return pushed[known, byte]
        except KeyError:
            if len(pushed) >= MAX_KEPT:
                pushed.clear()
            found = pushed[known, byte] = self._push(known, byte)
            return found

    def _push(self, known: Numeral, byte: int) -> Numeral | None:
        _, part, negative, digits, count = known
        if 48 <= byte <= 57:
            digit = byte - 48
            if part <= Part.MINUS:
                return self._met(Part.WHOLE if digit else Part.ZERO, negative, digit, 1)
            if part is Part.ZERO:
                return None
            if part is Part.WHOLE:
                if count == MAX_DIGITS:
                    return None
                return self._met(Part.WHOLE, negative, digits * 10 + digit, count + 1)
            if count == self._grid.places:
                return None
            onward = Part.FRACTION if digit or not self._canonical else Part.TRAILING
            return self._met(onward, negative, digits * 10 + digit, count + 1)
        if byte == 45 and part is Part.NOTHING:
            return self._met(Part.MINUS, True, 0, 0)
        if byte == 46 and part in (Part.ZERO, Part.WHOLE) and self._grid.places:
            return self._met(Part.POINT, negative, digits, 0)
        return None

    def following(self, known: Numeral) -> bytes:
        """The bytes that may come behind a numeral of this spelling, in ascending order."""
        found = self._following.get(known)
        if found is None:
            if len(self._following) >= MAX_KEPT:
                self._following.clear()
            found = bytes(byte for byte in BYTES if self.push(known, byte) is not None)
            self._following[known] = found
        return found

    def accepting(self, known: Numeral) -> bool:
        """Whether a numeral of this spelling is a member."""
        _, part, negative, digits, count = known
        if part not in (Part.ZERO, Part.WHOLE, Part.FRACTION):
            return False
        places = self._grid.places - (count if part is Part.FRACTION else 0)
        size = digits * self._tens[places]
        return not (negative and not size) and (self._any or self._grid.contains(size, negative))

    def completion(self, known: Numeral) -> bytes:
        """The fewest bytes that make a numeral of this spelling a member."""
        best: bytes | None = None
        signs = (False, True) if known.part is Part.NOTHING else (known.negative,)
        for negative in signs:
            sign = b"-" if negative and known.part is Part.NOTHING else b""
            for more, first, last in self._ranges(known, negative):
                if best is not None and len(best) <= len(sign) + more:
                    break
                found = self._ending(known, negative, more, first, last)
                if found is not None and (best is None or len(sign + found) < len(best)):
                    best = sign + found
        assert best is not None, "no member goes on so"
        return best

    def _met(self, part: Part, negative: bool, digits: int, count: int) -> Numeral | None:
        made = Numeral(self, part, negative, digits, count)
        if self._any:
            if part in (Part.POINT, Part.TRAILING) and count == self._grid.places:
                return None
            if not (negative and not digits):
                return made._replace(negative=False, digits=1)
        if not any(
            self._grid.nearest(a, b, negative) is not None
            for _, a, b in self._ranges(made, negative)
        ):
            return None
        if negative and not digits:
            return made
        if self._beyond is None:
            return self._forgetful(made)
        if self._is_inside(made):
            if self._beyond._any:
                return Numeral(self._beyond, part, False, 1, count)
            return self._beyond._forgetful(made)
        return made

    def _forgetful(self, made: Numeral) -> Numeral:
        modulus, digits = self._modulus, made.digits
        if digits >= 2 * modulus:
            digits = digits % modulus + modulus
        return Numeral(self, made.part, False, digits, made.length)

    def _is_inside(self, made: Numeral) -> bool:
        """Whether all that a numeral can become is within the bounds and no exception."""
        grid, digits = self._grid, made.digits
        top = self._tens[MAX_DIGITS + grid.places] - 1
        if made.part is Part.WHOLE:
            first, last = digits * self._tens[grid.places], top
        else:
            count = 0 if made.part in (Part.ZERO, Part.POINT) else made.length
            unit = self._tens[grid.places - count]
            first, last = digits * unit, digits * unit + unit - 1
        low, high = (-last, -first) if made.negative else (first, last)
        if low < grid.low or high > grid.high:
            return False
        at = bisect_left(self._holes, first)
        return at == len(self._holes) or self._holes[at] > last

    def _ranges(self, known: Numeral, negative: bool) -> Iterator[tuple[int, int, int]]:
        """What a numeral can become: digits more before the point, the least and greatest size."""
        _, part, _, digits, count = known
        places, tens = self._grid.places, self._tens
        least = 1 if negative else 0
        if part <= Part.MINUS:
            yield 1, least, tens[places] - 1
            for more in range(1, MAX_DIGITS + 1):
                yield more, tens[more - 1 + places], tens[more + places] - 1
        elif part is Part.WHOLE:
            far = max(abs(self._grid.low), abs(self._grid.high))
            for more in range(MAX_DIGITS - count + 1):
                unit = tens[more + places]
                if digits * unit > far:
                    return
                yield more, digits * unit, digits * unit + unit - 1
        else:
            unit = tens[places - (0 if part is Part.ZERO else count)]
            first, last = digits * unit, digits * unit + unit - 1
            if part is Part.TRAILING or (part is Part.POINT and self._canonical):
                first += 1
            if part is not Part.POINT or places:
                yield 0, max(first, least), last

    def _ending(
        self, known: Numeral, negative: bool, more: int, first: int, last: int
    ) -> bytes | None:
        """The fewest bytes from a numeral to a member in one of its ranges."""
        grid, tens, count = self._grid, self._tens, known.length
        behind = known.part >= Part.POINT
        fewest = max(count, 1) if behind else 0
        for places in range(fewest, grid.places + 1):
            size = grid.nearest(first, last, negative, tens[grid.places - places])
            if size is None:
                continue
            digits = size // tens[grid.places - places]
            if behind:
                return str(digits % tens[places - count]).rjust(places - count, "0").encode()
            whole, fraction = divmod(digits, tens[places])
            text = ""
            if more:
                text = str(whole % tens[more]).rjust(more, "0")
            if places:
                text += "." + str(fraction).rjust(places, "0")
            return text.encode()
        return None
