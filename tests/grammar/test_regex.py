"""Regular expressions as automata: Python's own `re` is the oracle, character for character."""

from __future__ import annotations

import re
import time
import warnings

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from lmlang.errors import GrammarSyntaxError, GrammarTooLarge
from lmlang.grammar.charset import LAST, category, class_ranges, complement, contains
from lmlang.grammar.fsm import Fsm, Place
from lmlang.grammar.regex import compile_regex
from tests.grammar.patterns import ANCHORED, CHARACTERS, PATTERNS, TEXTS

PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)


def matcher(pattern: str) -> Fsm:
    return Fsm(compile_regex(pattern))


def bytes_match(fsm: Fsm, data: bytes) -> bool:
    place: Place | None = Place(fsm.start)
    for byte in data:
        place = fsm.push(place, byte)
        if place is None:
            return False
    return place.accepting


@PROPERTY
@given(PATTERNS | ANCHORED, st.lists(TEXTS, min_size=1, max_size=8))
@example("(?i)[^k]", ["K", "K", "k", "s", "ſ"])
@example("(?i)ſ|İ", ["s", "S", "i", "I", "ı", "İ"])
@example(r"(?:^|b)*a$", ["a", "ba", "ab"])
@example(r"\B", ["", "a"])
def test_it_matches_what_python_matches(pattern: str, texts: list[str]) -> None:
    fsm, oracle = matcher(pattern), re.compile(pattern)
    for text in texts:
        expected = oracle.fullmatch(text) is not None
        assert fsm.matches(text) == expected, text
        assert bytes_match(fsm, text.encode()) == expected, text


@PROPERTY
@given(PATTERNS, st.data())
def test_what_python_finds_it_matches(pattern: str, data: st.DataObject) -> None:
    """Texts made from the pattern, as random ones seldom match."""
    text = data.draw(st.from_regex(pattern, fullmatch=True).filter(lambda t: len(t) < 60))
    assume(not any("\ud800" <= c <= "\udfff" for c in text))
    fsm = matcher(pattern)
    assert fsm.matches(text)
    assert bytes_match(fsm, text.encode())


@PROPERTY
@given(PATTERNS, TEXTS, st.integers(0, 20), st.integers(0, 255))
def test_a_byte_is_taken_where_some_match_goes_on_so(
    pattern: str, text: str, cut: int, byte: int
) -> None:
    fsm = matcher(pattern)
    data = text.encode()[:cut]
    place: Place | None = Place(fsm.start)
    for other in data:
        place = fsm.push(place, other) if place is not None else None
    assume(place is not None)
    taken = fsm.push(place, byte)
    data += bytes([byte])
    whole = data.decode("utf-8", "ignore")
    rest = data[len(whole.encode()) :]
    if taken is None:
        for character in CHARACTERS:
            if character.encode().startswith(rest) or not rest:
                for more in ("", "a", "1", "\n", "🙂"):
                    tail = (character if rest else "") + more
                    assert re.fullmatch(pattern, whole + tail) is None
    else:
        fsm_again: Place | None = Place(fsm.start)
        for other in data:
            fsm_again = fsm.push(fsm_again, other) if fsm_again is not None else None
        assert fsm_again == taken


@pytest.mark.parametrize(
    "source",
    [
        r"\d",
        r"\w",
        r"\s",
        r"[^\W\d_]",
        "[a-z]",
        "[^k]",
        "k",
        "ſ",
        "İ",
        "[µ-þ]",
        "[^Ω]",
        "ῼ",
        "[Ά-Ͽ]",
    ],
)
@pytest.mark.parametrize("flags", [0, re.IGNORECASE, re.ASCII, re.ASCII | re.IGNORECASE])
def test_a_class_holds_the_characters_that_python_says(source: str, flags: int) -> None:
    letters = "".join(c for c, on in (("i", flags & re.I), ("a", flags & re.A)) if on)
    automaton = compile_regex(f"(?{letters}:{source})" if letters else source)
    (ranges,) = automaton.sets
    found = {chr(c) for first, last in ranges for c in range(first, last + 1)}
    everything = "".join(map(chr, range(0x20000)))
    assert {c for c in found if ord(c) < 0x20000} == set(re.findall(source, everything, flags))


def test_ranges_and_their_complement_are_apart_and_whole() -> None:
    words = category("w", False)
    assert complement(complement(words)) == words
    assert sum(b - a + 1 for a, b in (*words, *complement(words))) == LAST + 1
    assert contains(class_ranges((("category", "w"),), False, True, False), ord("ſ"))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("ab[", "unterminated character set at character 2"),
        ("a)", "unbalanced parenthesis at character 1"),
        ("*a", "nothing to repeat at character 0"),
        (r"(a)b\1", "at character 4: a back-reference"),
        ("(?P<n>a)(?P=n)", "at character 8: a back-reference"),
        ("a(?<=(?=b)a)", "at character 1: a look-ahead inside of a look-behind"),
        ("(?<=a$)b", r"at character 5: \$ inside of a look-behind"),
        ("(a)?(?(1)b|c)", "at character 4: a condition on a group"),
        ("a{3,1}", "min repeat greater than max repeat at character"),
        ("a{99999999999}", "the repetition number is too large"),
        ("(?L:a)", "cannot use 'L' flag"),
        ("(?au)a", "are incompatible"),
    ],
)
def test_what_is_no_regular_pattern_is_refused_with_its_place(pattern: str, message: str) -> None:
    with pytest.raises(GrammarSyntaxError, match=message):
        compile_regex(pattern)


@pytest.mark.skipif("sys.version_info < (3, 11)", reason="new in Python 3.11")
@pytest.mark.parametrize(("pattern", "at"), [("ab++", 2), ("x(?>ab)", 1)])
def test_what_changes_how_a_search_goes_back_is_refused(pattern: str, at: int) -> None:
    with pytest.raises(GrammarSyntaxError, match=f"at character {at}: .* goes back"):
        compile_regex(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a{1,500}){1,500}",
        "(?:(?:){65535}){65535}",
        "(" * 10_000 + ")" * 10_000,
        "((a{99}){99}){99}",
        "".join(f"[\\w{chr(0x2200 + i)}]" for i in range(200)),
    ],
)
def test_bombs_are_refused_at_once(pattern: str) -> None:
    begun = time.process_time()
    with pytest.raises(GrammarTooLarge, match=r"lower its counts|at character 100: flatten"):
        compile_regex(pattern)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*b",
        "(a|aa)+$",
        "(.*)*x",
        "(a|b)*a(a|b){200}c",
        "(?:a?){300}a{300}",
        "($|a){900}",
    ],
)
def test_patterns_that_send_python_astray_cost_one_pass(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fsm = Fsm(compile_regex(pattern))
    begun = time.process_time()
    assert not fsm.matches("a" * 2_000 + "!")
    assert time.process_time() - begun < 5
