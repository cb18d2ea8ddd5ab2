"""Shapes say of a value what jsonschema says, for random schemas and random values."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import GrammarTooLarge, SchemaUnsupported, Unsatisfiable
from lmlang.grammar.budget import Budget, OutOfTime, within
from lmlang.grammar.schema.graph import SchemaGraph, compile_schema
from lmlang.grammar.schema.shapes import Array, Object, String
from lmlang.grammar.spec import JsonSchema
from tests.grammar.schema.random_schemas import VALUES, schemas
from tests.grammar.schema.verdicts import accepts

NOT_EXACT = {"uniqueItems", "items", "unevaluatedItems"}
SOME_VALUES = st.lists(VALUES, min_size=1, max_size=10)


def compiled(schema: Any) -> SchemaGraph:
    return compile_schema(JsonSchema.of(schema))


def check(schema: Any, values: list[Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    expected = [validator.is_valid(value) for value in values]
    try:
        with within(Budget(2)):
            graph = compiled(schema)
    except Unsatisfiable:
        assert not any(expected)
    except (OutOfTime, GrammarTooLarge):
        pass
    except SchemaUnsupported as error:
        if error.keyword not in NOT_EXACT:
            raise
    else:
        assert [accepts(graph, value) for value in values] == expected


@settings(max_examples=150)
@given(schemas(), SOME_VALUES)
def test_shapes_say_what_jsonschema_says(schema: Any, values: list[Any]) -> None:
    check(schema, values)


@settings(max_examples=100)
@given(schemas(unevaluated=True), SOME_VALUES)
def test_shapes_know_what_has_been_evaluated(schema: Any, values: list[Any]) -> None:
    check(schema, values)


@settings(max_examples=60)
@given(schemas(), schemas(), SOME_VALUES)
def test_a_schema_and_its_opposite_part_all_values(one: Any, two: Any, values: list[Any]) -> None:
    check({"oneOf": [one, two, {"not": one}]}, values)


def objects(schema: Any) -> tuple[Object, ...]:
    graph = compiled(schema)
    shapes = graph.shapes(graph.root)
    return tuple(shape for shape in shapes if isinstance(shape, Object))


@pytest.mark.parametrize(
    ("schema", "order"),
    [
        ({"required": ["b", "a"], "properties": {"a": {}, "b": {}}}, "ab"),
        ({"allOf": [{"properties": {"c": {}}}], "properties": {"a": {}}}, "ca"),
        ({"properties": {"a": {}}, "allOf": [{"properties": {"c": {}, "a": {}}}]}, "ac"),
        ({"$ref": "#/$defs/z", "properties": {"a": {}}, "$defs": {"z": {"properties": {"z": {}}}}},
         "za"),
        ({"anyOf": [{"required": ["b"]}, {"required": ["c"]}], "properties": {"a": {}, "c": {}}},
         "acb"),
        ({"const": {"b": 1, "a": 2}}, "ba"),
        ({"if": {"required": ["q"]}, "then": {"properties": {"p": {"type": "null"}}}}, "pq"),
    ],
)  # fmt: skip
def test_names_stand_in_declared_order(schema: Any, order: str) -> None:
    shapes = objects({"type": "object", **schema})
    assert shapes
    for shape in shapes:
        keys = [name.key for name in shape.names]
        assert keys == [key for key in order if key in keys]
    assert {name.key for shape in shapes for name in shape.names} == set(order)


def test_an_empty_property_is_no_name_and_no_other() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null", "const": 1}, "b": True}}
    (shape,) = objects(schema)
    assert [name.key for name in shape.names] == ["b"]
    assert not any(others.keys.contains("a") for others in shape.others)
    assert any(others.keys.contains("c") for others in shape.others)


def test_patterns_part_the_other_keys() -> None:
    schema = {
        "type": "object",
        "properties": {"xa": True},
        "patternProperties": {"^x": {"type": "null"}, "y$": {"type": "string"}},
        "additionalProperties": False,
    }
    (shape,) = objects(schema)
    for key, found in {"x": 1, "y": 1, "xy": 0, "xa": 0, "z": 0}.items():
        assert sum(others.keys.contains(key) for others in shape.others) == found, key


def test_a_negated_property_that_is_required_is_one_case() -> None:
    branches = [
        {"properties": {f"k{i}": {"type": "null"}}, "required": [f"k{i}"]} for i in range(20)
    ]
    assert len(objects({"type": "object", "oneOf": branches})) == 20


def test_strings_of_one_node_are_one_shape() -> None:
    graph = compiled(
        {"type": "string", "anyOf": [{"maxLength": 2}, {"enum": ["abc"]}, {"pattern": "^z"}]}
    )
    (shape,) = graph.shapes(graph.root)
    assert isinstance(shape, String)
    assert [text for text in ("ab", "abc", "abd", "zzzz") if shape.language.contains(text)] == [
        "ab", "abc", "zzzz",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "free"),
    [
        ({}, True),
        ({"minLength": 1}, True),
        ({"pattern": "a"}, False),
        ({"enum": ["a"]}, False),
        ({"format": "date"}, False),
        ({"format": "no-such-format"}, True),
    ],
)
def test_only_length_leaves_the_spelling_free(schema: Any, free: bool) -> None:
    graph = compiled({"type": "string", **schema})
    (shape,) = graph.shapes(graph.root)
    assert isinstance(shape, String)
    assert shape.free is free


@pytest.mark.parametrize(
    ("schema", "prefix", "rest", "most"),
    [
        ({"prefixItems": [{"type": "null"}, False]}, 1, False, 1),
        ({"prefixItems": [{"type": "null"}], "items": False}, 1, False, 1),
        ({"prefixItems": [{"$ref": "#/$defs/x"}], "items": {"$ref": "#/$defs/x"}}, 0, True, None),
        ({"prefixItems": [{"type": "null"}, {"type": "string"}], "maxItems": 1}, 1, False, 1),
        ({"items": {"type": "null", "const": 1}}, 0, False, 0),
    ],
)
def test_arrays_end_where_nothing_fits(
    schema: Any, prefix: int, rest: bool, most: int | None
) -> None:
    graph = compiled({"type": "array", "$defs": {"x": {"type": "null"}}, **schema})
    (shape,) = graph.shapes(graph.root)
    assert isinstance(shape, Array)
    assert len(shape.prefix) == prefix
    assert (shape.rest is not None, shape.most) == (rest, most)


@pytest.mark.parametrize("first", range(4))
def test_items_behind_the_first_ones_can_be_negated(first: int) -> None:
    schema = {"type": "array", "not": {"prefixItems": [True] * first, "items": {"type": "null"}}}
    graph = compiled(schema)
    for value in ([], [1], [None] * 5, [1] * first + [None], [None] * first + [None, 1], [1] * 5):
        expected = any(item is not None for item in value[first:])
        assert accepts(graph, value) is expected, value


def test_recursive_schemas_and_their_opposites() -> None:
    tree = {
        "$defs": {"tree": {
            "type": "object",
            "properties": {"l": {"$ref": "#/$defs/tree"}, "v": {"type": "integer"}},
            "required": ["v"],
            "additionalProperties": False,
        }},
        "type": "object",
        "properties": {"yes": {"$ref": "#/$defs/tree"}, "no": {"not": {"$ref": "#/$defs/tree"}}},
    }  # fmt: skip
    good, bad = {"v": 1, "l": {"v": 2, "l": {"v": 3}}}, {"v": 1, "l": {"v": 2, "l": {"v": "x"}}}
    graph = compiled(tree)
    assert [accepts(graph, {"yes": value}) for value in (good, bad)] == [True, False]
    assert [accepts(graph, {"no": value}) for value in (good, bad)] == [False, True]
