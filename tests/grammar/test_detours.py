"""Fewer tokens than a completion has: found as by looking at all ways one by one."""

from __future__ import annotations

import heapq
import json
import random
from functools import cache
from itertools import permutations
from typing import Any

import pytest

from lmlang.grammar import detours
from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.compiler import Grammar, compile_spec
from lmlang.grammar.detours import AT_A_PLACE, AT_A_TRY, WIDE, Detours
from lmlang.grammar.fewest import NONE, Spelled, Tokens, reach
from lmlang.grammar.spec import Ebnf, JsonSchema, Regex, Spec
from lmlang.grammar.vocabulary import Vocabulary
from tests.grammar.byte_sets import grammar_of, vocabulary_of
from tests.grammar.real import real_vocabulary

SHAPE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["intern", "interim", "a b", 7, None]},
        "born": {"type": "string", "format": "date"},
        "tag": {"const": "a"},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", "abc"]}, "uniqueItems": True},
        "size": {"type": "number"},
        "any": {},
    },
    "required": ["kind", "born", "tags"],
}
SPECS: dict[str, Spec] = {
    "open": JsonSchema(json.dumps(SHAPE), "line"),
    "closed": JsonSchema(json.dumps({**SHAPE, "additionalProperties": False}), "compact"),
    "mail": JsonSchema('{"properties": {"to": {"format": "email"}}, "required": ["to"]}', "line"),
    "anything": JsonSchema("{}", "line"),
    "regex": Regex(r"(ab|a{3}[b-e]{2,5}|[0-9]{1,4}é)+(end|fin)"),
    "wide": Regex(r"[ -~]{2}(44|4xQ|Q#4|qq+)"),
    "ebnf": Ebnf('root ::= "(" (root | "x" | "xy" | "yyy") ")" | "[" [0-9]+ "]"'),
}
OUTPUTS = {
    "open": '{"kind": 7, "born": "2024-02-29", "tags": ["a", "abc"], "size": -3.5, '
    '"any": {"x": [1, -2.5, {"y": "z"}], "b": true}, "more": {"": null, "x": ["y"]}}',
    "closed": '{"kind":"interim","born":"1970-12-31","tags":["abc","ab"],"any":[[{"a":"b"}],-1]}',
    "mail": '{"to": "ab.c@de.fg", "a": "b", "c": {"d": [null]}}',
    "anything": '[{"a": [[1, "x", {}]], "b": {"c": {"d": false}}}, -7, "text"]',
    "regex": "abaaabcd12éab907éfin",
    "wide": "abqqqqqqqq",
    "ebnf": "((((((xy))))))",
}


@cache
def some_tokens() -> Vocabulary:
    """Some real ones; a few bytes are held by longer ones alone, and some by none."""
    pieces = real_vocabulary().pieces
    marks = set(b'":,{}[]')
    kept = [
        p
        for n, p in enumerate(pieces)
        if n % 41 == 0 or (len(p) < 4 and marks & set(p) and b"4" not in p)
    ]
    letters = [bytes([byte]) for byte in range(0x20, 0x7F) if byte not in b"4xQ#"]
    return vocabulary_of(sorted({*kept, *letters} - {b""}))


@cache
def grammar(name: str, real: bool) -> Grammar:
    return compile_spec(SPECS[name], real_vocabulary() if real else some_tokens())


def fewest(vocabulary: Vocabulary, data: bytes) -> Tokens | None:
    return Spelled(vocabulary.trie, data).tokens()


def one_by_one(
    vocabulary: Vocabulary, automaton: Automaton, state: State, tried: dict[bytes, int]
) -> Tokens | None:
    """What is found where each way is walked and spelled anew; notes the tokens of each."""
    data = automaton.completion(state)
    best = fewest(vocabulary, data)
    left = detours.MAX_TRIED_AT_START if state is automaton.start else detours.MAX_TRIED
    if best is None:
        left = detours.MAX_TRIED_TO_SPELL
    tried[data] = len(best) if best is not None else NONE
    open_ = [(tried[data], len(data), data, 0)]
    while open_ and left > 0 and (best is None or len(best) > 1):
        _, _, data, first = heapq.heappop(open_)
        spells = fewest(vocabulary, data) is not None
        reached = len(data) if spells else reach(vocabulary.trie, data)
        here = state
        for byte in data[:first]:
            here = pushed(automaton, here, byte)
        for at in range(first, min(len(data), reached + 1)):
            left -= AT_A_PLACE
            if left <= 0:
                break
            following = automaton.following(here)
            for byte in following if len(following) <= WIDE or best is None else b"":
                if byte == data[at] or byte in vocabulary.missing_bytes:
                    continue
                rest = automaton.completion(pushed(automaton, here, byte))
                whole = data[:at] + bytes([byte]) + rest
                tokens = fewest(vocabulary, whole)
                if tokens is not None and (best is None or len(tokens) < len(best)):
                    best = tokens
                count = NONE if tokens is None else len(tokens)
                tried[whole] = count
                heapq.heappush(open_, (count, len(whole), whole, at + 1))
                left -= AT_A_TRY + len(whole) // 16
            here = pushed(automaton, here, data[at])
    return best


def pushed(automaton: Automaton, state: State, byte: int) -> State:
    onward = automaton.push(state, byte)
    assert onward is not None
    return onward


def check(grammar: Grammar, state: State, draws: random.Random) -> int:
    """Ask a state for everything; how many tokens less there are than its completion has."""
    vocabulary, automaton = grammar.vocabulary, grammar.automaton
    tried = dict[bytes, int]()
    due = one_by_one(vocabulary, automaton, state, tried)
    first = Spelled(vocabulary.trie, automaton.completion(state))
    plain = first.tokens()
    search = Detours(vocabulary, automaton, state, first, plain)
    assert search.look(1)
    assert search.best == due
    seen = {item[2]: item[0] for item in search._open}
    assert seen.items() <= tried.items()
    if search._left <= 0:
        assert seen.keys() | search._looked_at == tried.keys()
    count = NONE if due is None else len(due)
    near = [budget for budget in range(count - 2, count + 4) if budget >= 0]
    for budget in draws.sample(near, len(near)) if due is not None else [0, 99]:
        assert grammar.closings.fits(state, budget) == (count <= budget), budget
    if due is None:
        return 0
    pieces = grammar.vocabulary.pieces
    found = grammar.closings.tokens(state)
    assert b"".join([pieces[index] for index in found]) == b"".join([pieces[i] for i in due])
    assert len(found) == count
    return 0 if plain is None else len(plain) - count


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("name", SPECS)
def test_all_that_is_asked_of_a_state_is_what_looking_one_by_one_finds(
    name: str, real: bool
) -> None:
    whole, draws = grammar(name, real), random.Random(len(name) + real)
    output, saved = OUTPUTS[name].encode(), 0
    for size in draws.sample(range(len(output)), 8):
        state = whole.automaton.run(whole.automaton.start, output[:size])
        assert state is not None
        saved += check(whole, state, draws)
    assert saved or name not in {"open", "anything"}


@pytest.mark.parametrize("effort", [20, 40, 60, 90, 130, 180, 260, 400])
@pytest.mark.parametrize("name", SPECS)
def test_as_much_is_looked_at(name: str, effort: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = [
        compile_spec(SPECS[name], vocabulary()) for vocabulary in (real_vocabulary, some_tokens)
    ]
    monkeypatch.setattr(detours, "MAX_TRIED", effort)
    monkeypatch.setattr(detours, "MAX_TRIED_TO_SPELL", 4 * effort)
    draws, output = random.Random(effort), OUTPUTS[name].encode()
    for whole in fresh:
        for size in draws.sample(range(1, len(output)), 6):
            state = whole.automaton.run(whole.automaton.start, output[:size])
            assert state is not None
            check(whole, state, draws)


@pytest.mark.parametrize("effort", [9, 20, 30, 50, 90, 200, 2048])
def test_few_texts_and_tokens(effort: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detours, "MAX_TRIED", effort)
    monkeypatch.setattr(detours, "MAX_TRIED_AT_START", 3 * effort)
    monkeypatch.setattr(detours, "MAX_TRIED_TO_SPELL", 2 * effort)
    draws, saved = random.Random(effort), 0
    for _ in range(60):
        texts = ["".join(draws.choices("abc", k=draws.randrange(2, 12))) for _ in range(12)]
        parts = [text[draws.randrange(len(text)) :][:5] for text in texts for _ in range(2)]
        singles = draws.sample("abc", draws.choice([2, 3, 3, 3]))
        pieces = sorted({part.encode() for part in (*parts, *singles)})
        whole = grammar_of([text.encode() for text in texts], vocabulary_of(pieces))
        state: State = whole.automaton.start
        for byte in texts[0].encode():
            saved += check(whole, state, draws)
            state = pushed(whole.automaton, state, byte)
    assert saved


@pytest.mark.parametrize("budgets", list(permutations([1, 2, 3, 4])))
def test_what_is_enough_is_not_yet_the_fewest(budgets: tuple[int, ...]) -> None:
    whole = grammar_of(
        {b"abab", b"cccab", b"abccc", b"cccccc"}, vocabulary_of([b"a", b"b", b"c", b"ccc"])
    )
    start = whole.automaton.start
    assert [whole.closings.fits(start, each) for each in budgets] == [each > 1 for each in budgets]
    assert whole.closings.tokens(start) == (3, 3)


def test_what_is_asked_of_others_in_between_changes_nothing() -> None:
    whole, draws = compile_spec(SPECS["open"], real_vocabulary()), random.Random(5)
    automaton = whole.automaton
    states = [automaton.start]
    for size in range(8, len(OUTPUTS["open"]), 16):
        state = automaton.run(automaton.start, OUTPUTS["open"][:size].encode())
        assert state is not None
        states.append(state)
    due = [one_by_one(whole.vocabulary, automaton, state, {}) for state in states]
    counts = [len(tokens) for tokens in due if tokens is not None]
    for _ in range(120):
        number = draws.randrange(len(states))
        budget = counts[number] + draws.randrange(-1, 3)
        assert whole.closings.fits(states[number], budget) == (counts[number] <= budget)
    assert [len(whole.closings.tokens(state)) for state in states] == counts
