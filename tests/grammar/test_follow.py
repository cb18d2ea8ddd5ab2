"""What may follow is told as the automaton does, and what is found of it is the same for all."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lmlang.grammar import follow as module
from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.compiler import rules_of
from lmlang.grammar.follow import Answers, Follow
from lmlang.grammar.grammar import Grammar
from lmlang.grammar.spec import Choice, JsonSchema, Regex, Spec
from tests.grammar.real import real_vocabulary

NAMED = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["person", "personal", "or", "Zoë", 7, None]},
        "name": {"type": "string", "minLength": 1, "maxLength": 9},
        "born": {"type": "string", "format": "date"},
        "size": {"type": "number"},
        "parts": {"type": "array", "items": {"enum": [True, False, "a,b"]}, "uniqueItems": True},
        "like": {"anyOf": [{"$ref": "#"}, {"type": "string"}, {"type": "integer", "minimum": 12}]},
    },
    "required": ["kind"],
    "additionalProperties": False,
}
FREE = {
    "type": "object",
    "properties": {"kind": {"const": "é"}, "kinds": {"type": "boolean"}},
    "additionalProperties": {"anyOf": [{"type": "string", "pattern": "^[a-c]*$"}, NAMED]},
}
SPECS: list[Spec] = [
    *(
        JsonSchema(json.dumps(schema), style)
        for schema in (NAMED, FREE, {"type": "array", "items": {}}, {})
        for style in ("compact", "line")
    ),
    Regex(r"(ab|a[0-9]+é)*x?"),
    Choice(("sea", "seal", "land")),
]


def fresh(spec: Spec) -> Grammar:
    return Grammar(spec, real_vocabulary(), Automaton(rules_of(spec)[0]))


def wandered(automaton: Automaton, draws: random.Random, most: int) -> State:
    """Some state, behind some bytes at most."""
    state = automaton.start
    for _ in range(draws.randrange(most)):
        following = automaton.following(state)
        if not following:
            break
        onward = automaton.push(state, draws.choice(following))
        assert onward is not None
        state = onward
    return state


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_it_follows_what_the_automaton_lets_follow(spec: Spec) -> None:
    automaton, draws = Automaton(rules_of(spec)[0]), random.Random(5)
    for _ in range(150):
        state = wandered(automaton, draws, 40)
        follow = Follow(automaton, state)
        assert follow.accepting == state.accepting
        place = follow.start
        for _ in range(draws.randrange(1, 14)):
            following = automaton.following(state)
            told = follow.following(place)
            assert not set(following) - set(told)
            dead = set(told) - set(following)  # a key that has been written must not end again
            assert all(byte == 0x22 and automaton.push(state, byte) is None for byte in dead)
            if not following:
                break
            byte = draws.choice(following)
            onward = automaton.push(state, byte)
            assert onward is not None
            known = follow.step(place, byte)
            place, state = follow.push(place, byte), onward
            assert known in (None, place)
        begun = follow.begun(24, 8)
        assert all(place == follow.start if not data else place[1] == data for data, place in begun)


def test_what_follows_a_key_depends_on_the_key() -> None:
    automaton = fresh(JsonSchema(json.dumps(FREE), "compact")).automaton
    begun = automaton.run(automaton.start, b'{"')
    assert begun is not None
    follow = Follow(automaton, begun)
    for key in (b'other":', b'kinds":', b'kind":', b'kin":', b'kind":"'):
        place, state = follow.start, begun
        for byte in key:
            onward = automaton.push(state, byte)
            assert onward is not None
            place, state = follow.push(place, byte), onward
        assert follow.following(place) == automaton.following(state), key


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_forced_bytes_are_those_that_come_one_by_one(spec: Spec) -> None:
    automaton, draws = Automaton(rules_of(spec)[0]), random.Random(7)
    for _ in range(150):
        state = wandered(automaton, draws, 60)
        data, end = automaton.forced_to(state, 4096)
        assert automaton.forced(state) == data
        assert automaton.forced(state, 3) == data[:3]
        for byte in data:
            assert not state.accepting
            assert automaton.following(state) == bytes((byte,))
            onward = automaton.push(state, byte)
            assert onward is not None
            state = onward
        assert state is end or not data
        assert state.accepting or len(automaton.following(state)) != 1


def told(grammar: Grammar, seed: int) -> list[tuple[int, ...]]:
    """Forced tokens of some states, behind tokens that are the tokenizer's own and others."""
    draws, found = random.Random(seed), []
    for _ in range(6):
        matcher = grammar.matcher()
        for _ in range(25):
            forced = matcher.forced_tokens()
            found.append(tuple(forced))
            taken = matcher.accept_tokens(forced)
            assert taken == len(forced)
            if matcher.is_complete():
                break
            ids = matcher.mask().ids()
            if not taken and len(ids):
                matcher.accept_token(draws.choice(ids.tolist()))
    return found


def test_what_others_have_asked_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = real_vocabulary()
    alone = []
    for spec in SPECS:
        monkeypatch.setattr(vocabulary, "answers", Answers())
        alone.append(told(fresh(spec), 3))
    monkeypatch.setattr(vocabulary, "answers", Answers())
    order = list(range(len(SPECS)))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        for number in order:
            assert told(fresh(SPECS[number]), 3) == alone[number]
    with ThreadPoolExecutor(4) as pool:
        monkeypatch.setattr(vocabulary, "answers", Answers())
        assert list(pool.map(lambda spec: told(fresh(spec), 3), SPECS)) == alone
    monkeypatch.setattr(module, "MAX_KEPT", 20)
    monkeypatch.setattr(module, "MAX_QUESTIONS", 4)
    monkeypatch.setattr(vocabulary, "answers", Answers())
    for number, spec in enumerate(SPECS):
        assert told(fresh(spec), 3) == alone[number]


def test_an_answer_is_found_again_where_the_same_follows() -> None:
    answers = Answers()

    def follow_of(schema: Any) -> Follow:
        automaton = fresh(JsonSchema(json.dumps(schema), "compact")).automaton
        return Follow(automaton, automaton.start)

    one = follow_of({"enum": ["one", "old"]})
    assert answers.find("it", one) is None
    one.ask((0, b'"o'))
    answers.keep("it", one, 1)
    again = follow_of({"enum": ["old", "one"]})
    assert answers.find("it", again) == 1
    assert again.asked == one.asked
    assert answers.find("it", follow_of({"enum": ["oak", "old"]})) is None
    assert answers.find("it", follow_of({"enum": [1, "old"]})) is None
    assert answers.find("something else", follow_of({"enum": ["one", "old"]})) is None


def test_nobody_finds_the_names_of_others() -> None:
    answers = Answers()
    schema = JsonSchema(json.dumps({"enum": ["one", "confidential"]}), "compact")
    for _ in range(2):
        automaton = fresh(schema).automaton
        follow = Follow(automaton, automaton.start)
        assert answers.find("it", follow) is None
        follow.ask((0, b'"'))
        answers.keep("it", follow, 1)
