"""What outputs meet is worked out when a grammar is compiled, and nothing is changed by it."""

from __future__ import annotations

import json
import threading
import time

import pytest

from lmlang.errors import GrammarTooLarge
from lmlang.grammar.automaton import Automaton
from lmlang.grammar.compiler import Compiler, rules_of
from lmlang.grammar.grammar import Grammar
from lmlang.grammar.rehearsal import rehearse
from lmlang.grammar.spec import JsonSchema, Regex
from tests.grammar.real import real_vocabulary

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2}, "at": {"enum": ["sea", "land"]}},
    "required": ["name", "at"],
    "additionalProperties": False,
}


def fresh(text: str) -> Grammar:
    spec = JsonSchema(text, "compact")
    return Grammar(spec, real_vocabulary(), Automaton(rules_of(spec)[0]))


def test_the_states_of_the_shortest_output_have_masks_and_forced_tokens() -> None:
    known, unknown = fresh(json.dumps(SCHEMA)), fresh(json.dumps(SCHEMA))
    rehearse(known, 60)
    matcher, other = known.matcher(), unknown.matcher()
    drawn = 0
    while not matcher.is_complete():
        forced = matcher.forced_tokens()
        assert forced == other.forced_tokens()
        if forced:
            assert matcher.accept_tokens(forced) == other.accept_tokens(forced) == len(forced)
            continue
        assert matcher.state.masks is not None
        assert other.state.masks is None
        assert matcher.mask().ids().tolist() == other.mask().ids().tolist()
        rest = known.automaton.completion(matcher.state).decode()
        token = real_vocabulary().encode(rest)[0]
        assert matcher.accept_token(token)
        assert other.accept_token(token)
        drawn += 1
    assert drawn > 3


def test_it_ends_where_its_time_is_over() -> None:
    grammar = fresh(json.dumps({"type": "string", "minLength": 5_000}))
    begun = time.thread_time()
    rehearse(grammar, 0.0)
    assert grammar.automaton.start.masks is None
    rehearse(grammar, 0.05)
    assert time.thread_time() - begun < 10  # without an end it takes minutes
    rehearse(Grammar(Regex("a+"), real_vocabulary(), Automaton(rules_of(Regex("a+"))[0])), 60)


def test_what_is_too_large_is_left_to_those_that_come_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grammar = fresh(json.dumps(SCHEMA))

    def too_large(content: object) -> None:
        raise GrammarTooLarge("it has too many states.")

    monkeypatch.setattr(grammar.masks, "expect", too_large)
    rehearse(grammar, 60)
    assert grammar.matcher().mask().count > 0


def test_a_compiler_answers_first_and_rehearses_then(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on, rehearsed = threading.Event(), threading.Event(), list[Grammar]()

    def waiting(grammar: Grammar, seconds: float) -> None:
        begun.set()
        assert may_go_on.wait(60)
        rehearsed.append(grammar)
        raise ValueError("as it would be raised where an output comes there")

    monkeypatch.setattr("lmlang.grammar.compiler.rehearse", waiting)
    compiler = Compiler(max_workers=1)
    first = compiler.compile(Regex("a+"), real_vocabulary())
    assert first.matcher().accept_bytes(b"a")
    assert begun.wait(60)
    assert not rehearsed
    other = compiler.submit(Regex("b+"), real_vocabulary())
    may_go_on.set()
    assert compiler.compile(Regex("c+"), real_vocabulary()) is not first
    compiler.close()
    assert rehearsed[0] is first
    assert other.result().matcher().accept_bytes(b"b")
