"""The rules of text, in the automaton that all grammars share."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from lmlang.errors import Unsatisfiable
from lmlang.grammar.automaton import Automaton
from lmlang.grammar.language import NOTHING, matching, of_texts
from lmlang.grammar.text_rules import TextRules
from tests.grammar.patterns import PATTERNS, TEXTS


@settings(max_examples=100, deadline=None, derandomize=True)
@given(PATTERNS, TEXTS)
def test_the_automaton_accepts_what_the_pattern_matches(pattern: str, text: str) -> None:
    try:
        automaton = Automaton(TextRules(matching(pattern)))
    except Unsatisfiable:
        assert re.fullmatch(pattern, text) is None
        return
    state = automaton.start
    for byte in text.encode():
        onward = automaton.push(state, byte)
        assert (onward is not None) == (byte in automaton.following(state))
        if onward is None:
            assert re.fullmatch(pattern, text) is None
            return
        state = onward
    assert state.accepting == (re.fullmatch(pattern, text) is not None)
    assert (text.encode() + automaton.completion(state)).decode() is not None
    assert re.fullmatch(pattern, (text.encode() + automaton.completion(state)).decode())


def test_a_choice_is_forced_where_there_is_one_way() -> None:
    automaton = Automaton(TextRules(of_texts(["yes, please", "yes, thanks", "né"])))
    assert automaton.forced(automaton.start) == b""
    state = automaton.push(automaton.start, ord("y"))
    assert state is not None
    assert automaton.forced(state) == b"es, "
    other = automaton.push(automaton.start, ord("n"))
    assert other is not None
    assert automaton.forced(other) == "é".encode()
    assert automaton.rules.pointer(state.key) == ""
    ((table, key),) = automaton.rules.contents(state.key)
    assert table.following(key) == b"e"


def test_nothing_has_no_rules() -> None:
    with pytest.raises(Unsatisfiable):
        TextRules(NOTHING)
