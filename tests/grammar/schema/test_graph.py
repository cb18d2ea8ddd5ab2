"""Graphs are complete, deterministic, told in words, and made in time."""

from __future__ import annotations

import json
import re
import time
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import ConstraintError
from lmlang.grammar.automaton import Automaton
from lmlang.grammar.budget import Budget, OutOfTime, within
from lmlang.grammar.schema.graph import SchemaGraph, compile_schema, explain
from lmlang.grammar.schema.rules import SchemaRules
from lmlang.grammar.schema.shapes import Array, Object
from lmlang.grammar.spec import JsonSchema
from tests.grammar.schema.random_schemas import schemas

LONG_NUMBER = re.compile(rb"[0-9.]{13}")


def compiled(schema: Any) -> SchemaGraph:
    return compile_schema(JsonSchema.of(schema))


@settings(max_examples=120)
@given(schemas(unevaluated=True))
def test_shortest_texts_are_valid_and_parts_can_be_filled(schema: Any) -> None:
    try:
        with within(Budget(2)):
            graph = compiled(schema)
    except ConstraintError:
        return
    text = graph.shortest(graph.root)
    assert text is not None
    if "uniqueItems" not in json.dumps(schema):
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    for node in range(len(graph)):
        assert bool(graph.shapes(node)) is (graph.shortest(node) is not None)
        for shape in graph.shapes(node):
            if isinstance(shape, Object):
                inner = [name.node for name in shape.names] + [o.node for o in shape.others]
            elif isinstance(shape, Array):
                inner = [*shape.prefix, *([] if shape.rest is None else [shape.rest])]
            else:
                inner = []
            assert all(graph.shortest(other) is not None for other in inner)


@settings(max_examples=80)
@given(schemas(unevaluated=True), st.randoms(use_true_random=False))
def test_whatever_is_written_is_valid(schema: Any, random: Random) -> None:
    try:
        with within(Budget(2)):
            automaton = Automaton(SchemaRules(compiled(schema), "line"))
    except ConstraintError:
        return
    for steps in (0, 5, 40):
        state, text = automaton.start, b""
        for _ in range(steps):
            following = automaton.following(state)
            if not following:
                break
            text += bytes([random.choice(following)])
            onward = automaton.push(state, text[-1])
            assert onward is not None
            state = onward
        rest = automaton.completion(state)
        end = automaton.run(state, rest)
        assert end is not None
        assert end.accepting
        if not LONG_NUMBER.search(text + rest):  # which jsonschema would round
            value = json.loads(text + rest)
            assert jsonschema.Draft202012Validator(schema).is_valid(value), text + rest


def test_names_of_what_is_counted_stand_behind_those_of_the_items() -> None:
    graph = compiled(
        {
            "type": "array",
            "contains": {"type": "object", "properties": {"a": {}, "c": {"type": "null"}}},
            "items": {"type": "object", "properties": {"b": {}, "a": {"type": "string"}}},
        }
    )
    (array,) = graph.shapes(graph.root)
    assert isinstance(array, Array)
    assert array.rest is not None
    (shape,) = graph.shapes(graph.both(array.rest, array.tallies[0].inside))
    assert isinstance(shape, Object)
    assert [name.key for name in shape.names] == ["b", "a", "c"]


@settings(max_examples=60)
@given(schemas())
def test_the_same_text_gives_the_same_graph(schema: Any) -> None:
    try:
        with within(Budget(2)):
            one, two = compiled(schema), compiled(schema)
    except ConstraintError:
        return
    assert explain(one) == explain(two)
    assert len(one) == len(two)


def test_keys_without_a_name_have_an_order_of_their_own() -> None:
    patterns = {f"^{letter} ": {"minimum": at} for at, letter in enumerate("qaxkbz")}
    schema = {"type": "object", "patternProperties": patterns, "additionalProperties": False}
    spec = JsonSchema.of(schema, "line")
    graph = compile_schema(spec)
    (shape,) = graph.shapes(graph.root)
    assert isinstance(shape, Object)
    firsts = [others.keys.first(1)[0][0] for others in shape.others if others.keys.size(9) > 8]
    assert firsts == sorted("qaxkbz")  # as the schemas of their values are numbered
    rules = SchemaRules(graph, "line")
    key = rules.run(rules.start(), b'{"')
    assert key is not None
    assert rules.completion(key).startswith(b"a ")


def test_explanations_tell_every_decision() -> None:
    told = explain(
        compiled(
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "age": {"type": "integer", "minimum": 0, "not": {"multipleOf": 2}},
                    "tags": {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}},
                    "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
                    "never": {"type": "string", "const": 4},
                    "pair": {"prefixItems": [False]},
                    "colour": {"type": "string", "format": "color"},
                },
                "required": ["name"],
                "minProperties": 2,
                "additionalProperties": False,
            }
        )
    )
    for part in (
        "'name': node 1, 'age'?: node 2",
        "at least 2 properties",
        "integer >= 0, no multiple of 2",
        "among them at least 1",
        "number of 1, 2",
        "null | object",
        "<- '/properties/tags/items'",
        "prefixItems at '/properties/pair' is of another draft and says nothing",
        "format 'color' at '/properties/colour' is an annotation",
    ):
        assert part in told
    assert "'never'" not in told.splitlines()[0]


def test_pointers_tell_where_a_node_comes_from() -> None:
    graph = compiled({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "null"}}})
    places = {graph.pointer(node) for node in range(len(graph))}
    assert places == {"", "/$defs/x"}


@pytest.mark.parametrize(
    ("schema", "seconds"),
    [
        ({"enum": [f"value-{i}" for i in range(20_000)]}, 2),
        ({"enum": list(range(20_000))}, 4),
        ({"not": {"enum": [f"value-{i}" for i in range(20_000)]}}, 2),
        ({"properties": {f"p{i}": {"type": "string"} for i in range(5_000)}}, 2),
        ({"const": {f"p{i}": i for i in range(2_000)}}, 2),
        ({"description": "x" * 4_900_000}, 2),
        ({"pattern": "(a+)+$"}, 1),
        ({"oneOf": [{"properties": {"k": {"const": i}}, "required": ["k"]} for i in range(50)]}, 2),
    ],
    ids=lambda value: json.dumps(value)[:30],
)
def test_large_schemas_are_made_in_time(schema: Any, seconds: float) -> None:
    start = time.thread_time()
    assert compiled({"type": ["string", "integer", "object"], **schema})
    assert time.thread_time() - start < seconds


def test_deep_schemas_are_made() -> None:
    text = '{"type":"string"}'
    for _ in range(120):
        text = f'{{"type":"object","required":["a"],"properties":{{"a":{text}}}}}'
    graph = compile_schema(JsonSchema(text))
    shortest = graph.shortest(graph.root)
    assert shortest is not None
    assert shortest.count(b"{") == 120


def test_work_stops_when_its_time_is_over() -> None:
    branches = [{"properties": {f"a{i}": {"const": i}, "b": {"const": i}}} for i in range(60)]
    with pytest.raises(OutOfTime), within(Budget(0)):
        compiled({"type": "object", "oneOf": branches})
