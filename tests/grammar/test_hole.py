"""Holes: what is written in one makes an output of the schema, and nothing else may be written."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang import wire
from lmlang.errors import ConstraintError
from lmlang.grammar.automaton import Automaton, Swift
from lmlang.grammar.compiler import compile_spec, rules_of
from lmlang.grammar.hole import stands_apart
from lmlang.grammar.matcher import GrammarMatcher
from lmlang.grammar.spec import Choice, Either, Hole, JsonSchema, Regex
from lmlang.grammar.vocabulary import Vocabulary
from lmlang.protocol import Prompt, Request, Text

JOB = {
    "type": "object",
    "properties": {
        "start": {"type": "integer", "minimum": 1, "maximum": 40},
        "at": {"type": "string", "maxLength": 3},
        "tags": {"type": "array", "items": {"enum": ["a", "b,]", '}"']}},
    },
    "required": ["start", "at", "tags"],
    "additionalProperties": False,
}
SCHEMA = JsonSchema.of(
    {
        "type": "object",
        "properties": {"jobs": {"type": "array", "items": {"$ref": "#/$defs/job"}}},
        "required": ["jobs"],
        "additionalProperties": False,
        "$defs": {"job": JOB},
    }
)
TEXT = (
    '{"jobs": [{"start": 7, "at": "é\\"x", "tags": ["a", "b,]"]}, '
    '{"start": 1, "at": "", "tags": []}]}'
)
VALUES = (
    ("7", ("jobs", 0, "start"), ["1", "40", "39"], ["41", "0", "7,", '"7"', "7 ", "null"]),
    ('"é\\"x"', ("jobs", 0, "at"), ['""', '"abc"', '"]}"'], ['"abcd"', '"a" ', "7", '"a",']),
    ('["a", "b,]"]', ("jobs", 0, "tags"), ["[]", '["}\\""]'], ['["c"]', "[]]", '["a"], ']),
    (
        '{"start": 1, "at": "", "tags": []}',
        ("jobs", 1),
        ['{"start": 2, "at": "]", "tags": ["b,]"]}'],
        ["{}", '{"start": 2, "at": "]", "tags": []}, {"start": 3, "at": "", "tags": []}'],
    ),
)


def hole(value: str, lead: int = 0, rest: bool = False) -> Hole:
    """The hole where a value stands in the text; some of what is before it is left to write."""
    at = TEXT.index(value)
    before = TEXT[: at - lead]
    return Hole(SCHEMA, before, TEXT[at - lead : at], None if rest else TEXT[at + len(value) :])


def fits(spec: Hole, text: str) -> bool:
    automaton = Automaton(rules_of(spec)[0])
    end = automaton.run(automaton.start, text.encode())
    return end is not None and end.accepting


@pytest.mark.parametrize("lead", [0, 1, 5])
@pytest.mark.parametrize(("value", "path", "good", "bad"), VALUES)
def test_one_value_may_be_another_of_its_schema_and_nothing_more(value, path, good, bad, lead):
    spec = hole(value, lead)
    assert stands_apart(SCHEMA, path)
    for text in (value, *good):
        assert fits(spec, spec.lead + text)
        json.loads(spec.before + spec.lead + text + spec.after)
    for text in bad:
        assert not fits(spec, spec.lead + text)
    assert lead == 0 or not fits(spec, "?" * lead + value)


def test_all_that_follows_may_differ_to_the_end():
    spec = hole("7", 2, rest=True)
    assert fits(spec, ': 9, "at": "", "tags": []}]}')
    assert not fits(spec, ": 9")
    assert not fits(spec, '  9, "at": "", "tags": []}]}')


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(VALUES), st.integers(0, 6), st.booleans(), st.data())
def test_any_way_through_a_hole_makes_a_whole_of_it(case, lead, rest, data):
    spec = hole(case[0], lead, rest)
    automaton, made = Automaton(rules_of(spec)[0]), bytearray()
    state = automaton.start
    while not (state.accepting and data.draw(st.booleans())):
        following = list(automaton.following(state))
        if not following or len(made) > 60:
            break
        made.append(data.draw(st.sampled_from(following)))
        state = automaton.push(state, made[-1])
        assert state is not None
    whole = spec.before + (bytes(made) + automaton.completion(state)).decode() + (spec.after or "")
    checked = Automaton(rules_of(SCHEMA)[0])
    end = checked.run(checked.start, whole.encode())
    assert end is not None
    assert end.accepting


@pytest.mark.parametrize(("value", "path", "good", "bad"), VALUES)
def test_masks_are_what_trying_every_token_gives(value, path, good, bad):
    pieces = [bytes([b]) for b in range(256)] + [
        b'", "', b'"]', b"]}", b"1, ", b'"a', b"12", b'"tags": [', b'{"start": ', b"[]", b'""',
        b'"},',
    ]  # fmt: skip
    vocabulary = Vocabulary(pieces, encode=lambda text: list(text.encode()))
    for rest in (False, True):
        spec = hole(value, 2, rest)
        grammar = compile_spec(spec, vocabulary)
        matcher = GrammarMatcher(grammar)
        for byte in (spec.lead + value).encode():
            mask = grammar.masks.mask(grammar.automaton, matcher.state)
            legal = {i for i in range(len(pieces)) if int(mask.bits[i >> 5]) >> (i % 32) & 1}
            due = {i for i, p in enumerate(pieces) if grammar.automaton.run(matcher.state, p)}
            assert legal == due
            assert matcher.accept_token(byte)


EITHER = Either(
    (SCHEMA, Regex('[{"a-j]+: ?[0-9]*'), JsonSchema.of({"type": "array"}), Choice(("{",)))
)


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("value", [*(case[0] for case in VALUES), None])
def test_runs_of_bytes_come_to_what_their_bytes_come_to(value, rest):
    spec = EITHER if value is None else hole(value, 3, rest)
    rules, draws = rules_of(spec)[0], random.Random(str(value))
    assert isinstance(rules, Swift)

    def pushed(key, data):
        for byte in data:
            key = None if key is None else rules.push(key, byte)
        return key

    text = (TEXT if value is None else TEXT[len(spec.before) :]).encode()
    if value is not None and not rest:
        text = text[: 3 + len(value.encode())]
    key, at, known = rules.start(), 0, 0
    while at < len(text):
        size = draws.choice([1, 1, 2, 3, 5, 8])
        piece = text[at : at + size]
        for data in (piece, piece[:-1] + b"}", piece + b'"', b'","' + piece, text[at:] + b"]"):
            assert rules.run(key, data) == pushed(key, data), data
        runs, wide = rules.runs(key), rules.widened(key)
        following = {byte for byte in range(256) if rules.push(key, byte) is not None}
        assert set(rules.following(key)) == following
        assert following <= set(rules.following(wide))
        if runs is not None:
            known += 1
            assert list(runs) == sorted(set(runs))
            assert {run[0] for run in runs} == following
            assert all(pushed(key, run) is not None for run in runs)
        key, at = pushed(key, piece), at + size
    assert rules.accepting(key)
    assert known or value == "7"


def test_values_that_others_depend_on_do_not_stand_apart():
    for schema, path, apart in (
        ({"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "null"}]}, ("a",), True),
        ({"anyOf": [{"properties": {"a": {}}}, {"type": "object"}]}, ("a",), False),
        ({"type": "array", "items": {}, "uniqueItems": True}, (0,), False),
        ({"type": "array", "prefixItems": [{}], "items": {"properties": {}}}, (1, "x"), True),
        ({"properties": {"a": {}}, "if": {}}, ("a",), False),
        ({"properties": {"a": {}}, "enum": [{"a": 1}]}, ("a",), False),
        ({"additionalProperties": {"type": "object", "not": {}}}, ("k", "x"), False),
    ):
        assert stands_apart(JsonSchema.of(schema), path) is apart, schema


def test_a_value_that_does_not_go_with_what_stands_behind_is_none():
    def pair(first, second):
        return {
            "type": "object",
            "properties": {"a": {"const": first}, "b": {"const": second}},
            "required": ["a", "b"],
        }

    for one, other in (("x", "y"), (1, 2), ([], [0])):
        schema = JsonSchema.of({"anyOf": [pair(one, 1), pair(other, 2)]})
        for after, due in ((1, one), (2, other)):
            spec = Hole(schema, '{"a": ', "", f', "b": {after}}}')
            assert [value for value in (one, other) if fits(spec, json.dumps(value))] == [due]


def test_texts_around_a_hole_must_be_of_the_schema():
    with pytest.raises(ConstraintError, match="begins with"):
        rules_of(Hole(SCHEMA, '{"jobs": [{"finish', ""))
    with pytest.raises(ConstraintError, match="a hole is of a JSON schema"):
        Hole("x", "")


def test_a_hole_crosses_the_wire():
    for spec in (hole("7", 2), hole("7", rest=True)):
        request = Request(Prompt.of(Text("x")), constraint=spec)
        message = json.loads(json.dumps(wire.to_wire(request)))
        assert wire.request_from_wire(message).constraint == spec
