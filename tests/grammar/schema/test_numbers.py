"""Sets of decimals against lists of their members, and their texts against all beginnings."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import GrammarTooLarge
from lmlang.grammar.schema.numbers import ALL, FREE_PLACES, INTEGERS, Numbers, exact, spell
from lmlang.grammar.schema.numerals import BYTES, numeral

STEPS = [Fraction(step) for step in ("1", "2", "3", "7", "0.5", "0.25", "0.3", "0.01", "2.5", "20")]
decimals = st.decimals(-35, 35, places=2).map(Fraction) | st.integers(-35, 35).map(Fraction)
SMALL = [Fraction(n, 100) for n in range(-4000, 4001)]


@st.composite
def bounded(draw: st.DrawFn) -> Numbers:
    low, high = sorted([draw(decimals), draw(decimals)])
    return Numbers(
        low,
        high,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from(STEPS)),
        draw(st.frozensets(st.sampled_from(STEPS), max_size=2)),
        draw(st.frozensets(decimals, max_size=4)),
    )


@st.composite
def sets(draw: st.DrawFn) -> Numbers:
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return Numbers.of_values(draw(st.lists(decimals, min_size=1, max_size=5)))
    if kind == 1:
        return Numbers.at_least(draw(decimals), exclusive=draw(st.booleans()))
    if kind == 2:
        return Numbers.at_most(draw(decimals), exclusive=draw(st.booleans()))
    if kind == 3:
        return Numbers.multiples_of(draw(st.sampled_from(STEPS)))
    if kind == 4:
        return draw(
            st.sampled_from(Numbers.multiples_of(draw(st.sampled_from(STEPS))).complement())
        )
    return draw(bounded())


def members(numbers: Numbers) -> list[Fraction]:
    return [value for value in SMALL if numbers.contains(value)]


def texts(numbers: Numbers, canonical: bool) -> set[str]:
    """All texts of a set of few numbers."""
    found = set()
    for value in members(numbers):
        text = spell(value).decode()
        found.add(text)
        if numbers.values is None and not canonical:
            places = numbers.grid().places
            written = len(text.partition(".")[2])
            for more in range(max(written, 1), places + 1):
                stem = text if written else text + "."
                found.add(stem + "0" * (more - written))
    return found


@settings(max_examples=60, deadline=None)
@given(bounded() | st.lists(decimals, min_size=1, max_size=5).map(Numbers.of_values), st.booleans())
def test_a_beginning_is_possible_just_if_a_text_begins_so(
    numbers: Numbers, canonical: bool
) -> None:
    all_texts = texts(numbers, canonical)
    assert numbers.is_empty() == (not all_texts)
    if not all_texts:
        return
    beginnings = {text[:n] for text in all_texts for n in range(len(text) + 1)}
    for beginning in sorted(beginnings):
        at = numeral(numbers, canonical)
        for byte in beginning.encode():
            onward = at.push(byte)
            assert onward is not None, beginning
            at = onward
        assert at.accepting() == (beginning in all_texts), beginning
        follow = {
            ord(text[len(beginning)]) for text in beginnings if text[:-1] == beginning and text
        }
        assert set(at.following()) == follow, beginning
        shortest = min(len(t) for t in all_texts if t.startswith(beginning)) - len(beginning)
        assert len(at.completion()) == shortest, beginning
        assert beginning + at.completion().decode() in all_texts


@settings(max_examples=150, deadline=None)
@given(sets(), st.booleans(), st.data())
def test_walks_end_in_members_alone(numbers: Numbers, canonical: bool, data: st.DataObject) -> None:
    if numbers.is_empty():
        return
    at, text = numeral(numbers, canonical), ""
    for _ in range(data.draw(st.integers(0, 12))):
        following = at.following()
        assert list(following) == [b for b in BYTES if at.push(b) is not None]
        if not following:
            break
        byte = data.draw(st.sampled_from(list(following)))
        onward = at.push(byte)
        assert onward is not None
        at, text = onward, text + chr(byte)
        if at.accepting():
            assert numbers.contains(Decimal(text)), text
    ending = at.completion().decode()
    text += ending
    assert re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", text)
    assert not re.fullmatch(r"-0(\.0+)?", text)
    assert numbers.contains(Decimal(text)), text
    if canonical:
        assert text.encode() == spell(Fraction(text))
    for byte in ending.encode():
        onward = at.push(byte)
        assert onward is not None
        at = onward
    assert at.accepting()


@settings(max_examples=200, deadline=None)
@given(
    sets(),
    st.decimals(-1000, 1000, places=2).map(Fraction) | st.integers(-(10**9), 10**9).map(Fraction),
)
def test_a_member_can_be_written(numbers: Numbers, value: Fraction) -> None:
    if numbers.is_empty():
        return
    for canonical in (False, True):
        at = numeral(numbers, canonical)
        for byte in spell(value):
            at = at and at.push(byte)
        assert (at is not None and at.accepting()) == numbers.contains(value)


@given(sets(), sets())
def test_algebra_is_that_of_members(one: Numbers, other: Numbers) -> None:
    both = one & other
    others = one.complement()
    for value in SMALL[::7]:
        assert both.contains(value) == (one.contains(value) and other.contains(value))
        assert any(part.contains(value) for part in others) == (not one.contains(value))


@settings(max_examples=60, deadline=None)
@given(bounded())
def test_the_first_members_are_all_of_them(numbers: Numbers) -> None:
    known = members(numbers)
    assert sorted(numbers.first(10**5)) == known
    assert numbers.size(3) == min(3, len(known))
    assert numbers.shortest() == (
        None
        if not known
        else min((spell(v) for v in known), key=lambda t: (len(t), t != numbers.shortest()))
    )


def test_free_numbers_share_their_numerals() -> None:
    def after(numbers: Numbers, text: bytes) -> object:
        at = numeral(numbers, False)
        for byte in text:
            at = at.push(byte)
        return at

    assert after(ALL, b"123") == after(ALL, b"-987")
    assert after(Numbers.at_least(5), b"12.5") == after(ALL, b"80.0")
    assert after(INTEGERS & Numbers.at_least(0), b"77") == after(INTEGERS, b"-10")
    assert after(Numbers.multiples_of(7), b"12") == after(Numbers.multiples_of(7), b"82")


def test_digits_have_an_end() -> None:
    at = numeral(ALL, False)
    for byte in b"1" * 400:
        at = at.push(byte)
    assert at.following() == b"."
    at = at.push(ord("."))
    for byte in b"0" * FREE_PLACES:
        at = at.push(byte)
    assert at.following() == b""
    assert at.accepting()


def test_narrow_bounds_get_the_digits_that_they_need() -> None:
    narrow = Numbers.at_least(Decimal("1e-30"), exclusive=True) & Numbers.at_most(
        Decimal("2e-30"), exclusive=True
    )
    assert narrow.contains(Decimal(numeral(narrow, False).completion().decode()))
    assert numeral(Numbers.multiples_of(10**308) & Numbers.at_least(1), True).completion() == (
        b"1" + b"0" * 308
    )


@pytest.mark.parametrize("value", ["1e401", "-1e999999999", "1e-401", "1e-999999999"])
def test_numbers_beyond_the_digits_of_outputs_are_refused(value: str) -> None:
    with pytest.raises(GrammarTooLarge, match="400"):
        exact(Decimal(value))
