"""Exact sets of decimal numbers: bounds, steps and exceptions, or a list of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import TypeAlias

from lmlang.errors import GrammarTooLarge

MAX_DIGITS = 400
"""Digits of a number before its point, and behind it."""

FREE_PLACES = 20
"""Digits behind the point where nothing that the schema says needs more."""

MANY = 10**18
"""Whole numbers below this have few digits."""

Exact: TypeAlias = int | Decimal | Fraction


def exact(value: Exact) -> Fraction:
    """A number as a fraction.

    Raises:
        GrammarTooLarge: It has more than `MAX_DIGITS` digits before its point or behind it.
    """
    if isinstance(value, Decimal):
        before, behind = value.adjusted() + 1, -int(value.as_tuple().exponent)
        if value and (before > MAX_DIGITS or behind > 2 * MAX_DIGITS):
            raise _too_long(str(value))
        if not value:
            return Fraction(0)
    found = Fraction(value)
    if found.denominator == 1 and abs(found.numerator) < MANY:
        return found
    if abs(found) >= 10**MAX_DIGITS or places_of(found) > MAX_DIGITS:
        raise _too_long(str(value) if isinstance(value, Decimal) else "this number")
    return found


def _too_long(what: str) -> GrammarTooLarge:
    return GrammarTooLarge(
        f"{what[:80]} in a schema needs more digits than the {MAX_DIGITS} before the point and "
        f"{MAX_DIGITS} behind it that an output may have: use a number of fewer digits."
    )


@lru_cache(maxsize=1024)
def places_of(value: Fraction) -> int:
    """The digits behind the point of a decimal number."""
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1:
        raise ValueError(f"{value} is no decimal number")
    return max(twos, fives)


def spell(value: Fraction) -> bytes:
    """A decimal number in its one spelling: no exponent and no more digits than it needs."""
    if value.denominator == 1:
        return b"%d" % value.numerator
    places = places_of(value)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :]
    return f"{'-' if value < 0 else ''}{whole}{'.' if places else ''}{fraction}".encode()


@dataclass(frozen=True, slots=True)
class Grid:
    """A set of numbers in whole multiples of a small unit.

    Args:
        places: The unit is 10 to the power of minus these.
        low: The least that a member may be, in units; at least 1 - 10**(`MAX_DIGITS` + places).
        high: The greatest.
        step: Every member is a multiple of this.
        gaps: No member is a multiple of any of these.
        holes: No member is one of these.
    """

    places: int
    low: int
    high: int
    step: int
    gaps: tuple[int, ...]
    holes: frozenset[int]

    def contains(self, size: int, negative: bool) -> bool:
        """Whether plus or minus a number of units is a member."""
        units = -size if negative else size
        return (
            self.low <= units <= self.high
            and units % self.step == 0
            and units not in self.holes
            and all(units % gap for gap in self.gaps)
        )

    def nearest(self, first: int, last: int, negative: bool, every: int = 1) -> int | None:
        """The member nearest to zero with a size in a range.

        Args:
            first: The least size, not negative.
            last: The greatest.
            negative: Whether the sizes are of negative numbers.
            every: Only multiples of this.

        Returns:
            Its size; None where there is none.
        """
        low, high = (-self.high, -self.low) if negative else (self.low, self.high)
        first, last = max(first, low), min(last, high)
        step = self.step if every == 1 else lcm(self.step, every)
        if any(step % gap == 0 for gap in self.gaps):
            return None
        size = -(-first // step) * step
        while size <= last:
            if all(size % gap for gap in self.gaps) and (
                (-size if negative else size) not in self.holes
            ):
                return size
            size += step
        return None


@dataclass(frozen=True, slots=True)
class Numbers:
    """A set of decimal numbers; all of them where nothing is given.

    Args:
        low: The lower bound; None: there is none.
        high: The upper one.
        low_open: Whether the lower bound itself is left out.
        high_open: The upper one.
        step: All are multiples of this; None: of anything.
        not_steps: None is a multiple of one of these.
        not_values: None is one of these.
        values: The members in ascending order, and then nothing else is given; None: many.
    """

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    step: Fraction | None = None
    not_steps: frozenset[Fraction] = frozenset()
    not_values: frozenset[Fraction] = frozenset()
    values: tuple[Fraction, ...] | None = None

    @classmethod
    def at_least(cls, bound: Exact, *, exclusive: bool = False) -> Numbers:
        """All from a bound up."""
        return cls(low=exact(bound), low_open=exclusive)

    @classmethod
    def at_most(cls, bound: Exact, *, exclusive: bool = False) -> Numbers:
        """All up to a bound."""
        return cls(high=exact(bound), high_open=exclusive)

    @classmethod
    def multiples_of(cls, step: Exact) -> Numbers:
        """All multiples of a number above 0."""
        return cls(step=exact(step))

    @classmethod
    def of_values(cls, values: Iterable[Exact]) -> Numbers:
        """These values alone."""
        found = {exact(value) for value in values}
        if all(value.denominator == 1 for value in found):
            return cls(values=tuple(sorted(found, key=lambda value: value.numerator)))
        return cls(values=tuple(sorted(found)))

    def __and__(self, other: Numbers) -> Numbers:
        """What is in both."""
        if self.values is not None:
            return Numbers(values=tuple(value for value in self.values if other.contains(value)))
        if other.values is not None:
            return other & self
        low, low_open = max(
            ((n.low, n.low_open) for n in (self, other) if n.low is not None),
            default=(None, False),
        )
        high, closed = min(
            ((n.high, not n.high_open) for n in (self, other) if n.high is not None),
            default=(None, True),
        )
        step = self.step or other.step
        if self.step is not None and other.step is not None:
            step = _common_multiple(self.step, other.step)
        not_steps, not_values = self.not_steps | other.not_steps, self.not_values | other.not_values
        return Numbers(low, high, low_open, not closed, step, not_steps, not_values)

    def complement(self) -> list[Numbers]:
        """All other numbers, as a union."""
        if self.values is not None:
            return [Numbers(not_values=frozenset(self.values))]
        found = []
        if self.low is not None:
            found.append(Numbers(high=self.low, high_open=not self.low_open))
        if self.high is not None:
            found.append(Numbers(low=self.high, low_open=not self.high_open))
        if self.step is not None:
            found.append(Numbers(not_steps=frozenset({self.step})))
        found += [Numbers(step=step) for step in sorted(self.not_steps)]
        if self.not_values:
            found.append(Numbers(values=tuple(sorted(self.not_values))))
        return found

    def contains(self, value: Exact) -> bool:
        """Whether a number is a member, whatever the number of its digits."""
        number = Fraction(value)
        if self.values is not None:
            return number in self.values
        if self.low is not None and (number < self.low or (self.low_open and number == self.low)):
            return False
        if self.high is not None and (
            number > self.high or (self.high_open and number == self.high)
        ):
            return False
        if self.step is not None and (number / self.step).denominator != 1:
            return False
        if any((number / step).denominator == 1 for step in self.not_steps):
            return False
        return number not in self.not_values

    def is_empty(self) -> bool:
        """Whether there is no member that an output could have."""
        return not self.first(1)

    def size(self, limit: int) -> int:
        """The number of members, or the limit where there are more."""
        return min(len(self.values), limit) if self.values is not None else len(self.first(limit))

    def first(self, limit: int) -> list[Fraction]:
        """Members up to a limit: those of few digits behind the point first, then the smallest."""
        if self.values is not None:
            return list(self.values[:limit])
        grid = self.grid()
        found: list[Fraction] = []
        for places in range(grid.places + 1):
            for units in _outward(grid, 10 ** (grid.places - places)):
                if places and units % 10 ** (grid.places - places + 1) == 0:
                    continue
                if len(found) == limit:
                    return found
                found.append(Fraction(units, 10**grid.places))
        return found

    def shortest(self) -> bytes | None:
        """The shortest spelling of a member; None where there is no member."""
        if self.values is not None:
            return min(map(spell, self.values), key=len, default=None)
        grid = self.grid()
        if grid.contains(0, False):
            return b"0"
        found: list[bytes] = []
        for places in range(grid.places + 1):
            least = 2 + places if places else 1
            if found and min(map(len, found)) <= least:
                break
            for negative in (False, True):
                top = 10 ** (MAX_DIGITS + grid.places)
                units = grid.nearest(1, top, negative, 10 ** (grid.places - places))
                if units is not None:
                    found.append(spell(Fraction(-units if negative else units, 10**grid.places)))
        return min(found, key=len, default=None)

    def grid(self) -> Grid:
        """The same set in whole units; not for one that is given by its values."""
        return _grid(self)


ALL = Numbers()
"""All numbers."""

INTEGERS = Numbers(step=Fraction(1))
"""Whole numbers."""


def _common_multiple(one: Fraction, other: Fraction) -> Fraction:
    return Fraction(
        lcm(one.numerator, other.numerator),
        gcd(one.denominator, other.denominator),
    )


@lru_cache(maxsize=1024)
def _grid(numbers: Numbers) -> Grid:
    step = numbers.step
    if step is not None:
        places = places_of(step)
    else:
        said = [*numbers.not_steps, *numbers.not_values]
        said += [bound for bound in (numbers.low, numbers.high) if bound is not None]
        more = 1 + len(str(len(said) + 1))
        places = max([FREE_PLACES, *(places_of(value) + more for value in said)])
        places = min(places, MAX_DIGITS)
    unit = 10**places
    top = 10 ** (MAX_DIGITS + places) - 1
    low, high = -top, top
    if numbers.low is not None:
        bound = numbers.low * unit
        low = max(low, bound.__floor__() + 1 if numbers.low_open else bound.__ceil__())
    if numbers.high is not None:
        bound = numbers.high * unit
        high = min(high, bound.__ceil__() - 1 if numbers.high_open else bound.__floor__())
    gaps = tuple(sorted({(gap * unit).numerator for gap in numbers.not_steps}))
    holes = frozenset(
        (hole * unit).numerator for hole in numbers.not_values if (hole * unit).denominator == 1
    )
    return Grid(places, low, high, 1 if step is None else (step * unit).numerator, gaps, holes)


def _outward(grid: Grid, every: int) -> Iterator[int]:
    """The members on a coarser grid, from zero to both sides."""
    top = max(abs(grid.low), abs(grid.high))
    if grid.contains(0, False):
        yield 0
    sides = {negative: grid.nearest(1, top, negative, every) for negative in (False, True)}
    while any(size is not None for size in sides.values()):
        size, negative = min((size, side) for side, size in sides.items() if size is not None)
        yield -size if negative else size
        sides[negative] = grid.nearest(size + 1, top, negative, every)


def without_bounds(numbers: Numbers) -> Numbers:
    """The same steps, without bounds and single exceptions."""
    return replace(
        numbers, low=None, high=None, low_open=False, high_open=False, not_values=frozenset()
    )
