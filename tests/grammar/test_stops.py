"""Stops in a stream: where the first match ends, and what may be shown, however it is cut."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from lmlang.errors import GrammarSyntaxError, ProgramError
from lmlang.grammar.search import Search
from lmlang.grammar.stops import StopMatcher
from tests.grammar.patterns import ANCHORED, PATTERNS, TEXTS

PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)


def first_match(text: str, stops: list[str], patterns: list[str]) -> tuple[int, int] | None:
    """The match that ends first, the longest of those; tried end by end and start by start."""
    compiled = [re.compile(pattern) for pattern in patterns]
    for end in range(1, len(text) + 1):
        for start in range(end):
            if text[start:end] in stops or any(p.fullmatch(text, start, end) for p in compiled):
                return start, end
    return None


def usable(patterns: list[str]) -> list[str]:
    """Those of them that a search takes."""
    found = []
    for pattern in patterns:
        try:
            Search((pattern,))
        except (ProgramError, GrammarSyntaxError):
            continue
        found.append(pattern)
    return found


@PROPERTY
@given(
    patterns=st.lists(PATTERNS | ANCHORED, max_size=3),
    stops=st.lists(st.text("abk1\n", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(TEXTS, max_size=6),
)
@example(patterns=["a.c|b"], stops=[], pieces=["xa", "b"])
@example(patterns=["a+b"], stops=["ab"], pieces=["xaa", "ab"])
@example(patterns=["aa*b"], stops=["abk"], pieces=["aaa", "1ab"])
@example(patterns=["(?m)^a"], stops=[], pieces=["ka", "\na"])
@example(patterns=[r"\ba"], stops=["k1"], pieces=["ka a"])
def test_the_first_match_is_found_and_no_part_of_it_shown(
    patterns: list[str], stops: list[str], pieces: list[str]
) -> None:
    patterns = usable(patterns)
    assume(patterns or stops)
    matcher, text = StopMatcher(stops, patterns), "".join(pieces)
    expected = first_match(text, stops, patterns)
    shown, found = "", None
    for piece in pieces:
        more, found = matcher.push(piece)
        shown += more
        if found is not None:
            break
    shown += matcher.finish()
    if expected is None:
        assert (shown, found) == (text, None)
    else:
        start, end = expected
        assert (shown, found) == (text[:start], text[start:end])


@PROPERTY
@given(pattern=PATTERNS, text=TEXTS, more=TEXTS)
def test_what_is_held_back_is_what_may_yet_match(pattern: str, text: str, more: str) -> None:
    """Nothing that is shown is ever part of a match, whatever comes."""
    assume(usable([pattern]))
    matcher = StopMatcher((), [pattern])
    shown, found = matcher.push(text)
    assume(found is None)
    later = first_match(text + more, [], [pattern])
    assert later is None or later[0] >= len(shown)


def test_only_what_may_begin_a_match_is_held_back() -> None:
    matcher = StopMatcher(["END"], [r"\n\n?User \d+:"])
    assert matcher.push("Hi.\n") == ("Hi.", None)
    assert matcher.push("Use it. E") == ("\nUse it. ", None)
    assert matcher.push(" \n\nUser 1") == ("E ", None)
    assert matcher.push("2: more") == ("", "\n\nUser 12:")
    assert matcher.push("ignored") == ("", "\n\nUser 12:")
    assert matcher.finish() == ""


def test_a_pattern_without_an_end_holds_back_all_and_gives_it_at_the_end() -> None:
    matcher = StopMatcher((), ["a.*b"])
    assert matcher.push("xa") == ("x", None)
    assert matcher.push("1" * 1000) == ("", None)
    assert matcher.push("\n") == ("a" + "1" * 1000 + "\n", None)
    assert matcher.push("a2") == ("", None)
    assert matcher.finish() == "a2"


@pytest.mark.parametrize("content", ["", "a", "\n", " a\n", "é"])
def test_what_is_skipped_is_content_but_stands_before_the_rest(content: str) -> None:
    for pattern in (r"\bk", "(?m)^k", r"\Ak", r"\Bk"):
        matcher = StopMatcher(["b"], [pattern])
        matcher.skip(content)
        expected = re.compile(pattern).search(content + "k", len(content))
        assert matcher.push("k")[1] == (expected and "k"), pattern


@pytest.mark.parametrize("pattern", ["", "a*", "a?|b", "^", r"\b", "(?:)", "(a|b*)c*", "(?m)^"])
def test_patterns_that_match_nothing_at_all_are_refused(pattern: str) -> None:
    with pytest.raises(ProgramError, match="may match no character at all"):
        Search((pattern,))


@pytest.mark.parametrize(
    ("pattern", "at"), [("END$", 3), (r"\bEND\b", 0), (r"a\Z", 1), (r"a(b|\B)", 4), ("(?m)a$", 5)]
)
def test_patterns_that_look_behind_their_end_are_refused(pattern: str, at: int) -> None:
    with pytest.raises(GrammarSyntaxError, match=f"at character {at}: .*not written yet"):
        Search((pattern,))


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$b",
        "(a|aa)+c",
        "(.*)*x",
        "(a|b)*a(a|b){300}c",
        "((aa)*|(aaa)*|(aaaaa)*|(a{7})*)cc",
        "a{2000}b",
    ],
)
def test_no_pattern_makes_a_long_text_slow(pattern: str) -> None:
    matcher = StopMatcher((), [pattern])
    begun = time.thread_time()
    for _ in range(100):
        assert matcher.push("ab" * 5 + "a" * 20)[1] is None
    assert time.thread_time() - begun < 5


def test_cutting_a_text_into_pieces_is_not_quadratic() -> None:
    matcher = StopMatcher([f"{i}x" for i in range(16)], ["a.*b"])
    begun = time.thread_time()
    matcher.push("a")
    for _ in range(20_000):
        assert matcher.push("c") == ("", None)
    assert matcher.finish() == "a" + "c" * 20_000
    assert time.thread_time() - begun < 3
