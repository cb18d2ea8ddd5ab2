"""Schema texts are read exactly; keywords are checked; references lead where each draft says."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from lmlang.errors import (
    ConstraintError,
    GrammarSyntaxError,
    GrammarTooLarge,
    SchemaUnsupported,
    Unsatisfiable,
)
from lmlang.grammar.schema.graph import SchemaGraph, compile_schema
from lmlang.grammar.schema.source import canonical, read
from lmlang.grammar.spec import JsonSchema
from tests.grammar.schema.verdicts import accepts

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_6 = "http://json-schema.org/draft-06/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def compiled(schema: Any) -> SchemaGraph:
    return compile_schema(JsonSchema.of(schema))


def verdicts(schema: Any, *values: Any) -> list[bool]:
    graph = compiled(schema)
    return [accepts(graph, value) for value in values]


def test_numbers_are_read_exactly() -> None:
    assert read("[2.0, 1e3, -0.0, 0.10]") == [2, 1000, 0, Decimal("0.10")]
    assert type(read("2.0")) is int
    digits = "0." + "123456789" * 20
    assert read(digits) == Decimal(digits)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1", "1.0", True),
        ("0.5", "0.50", True),
        ("100", "1e2", True),
        ("0", "-0.0", True),
        ("1", "true", False),
        ("0", "false", False),
        ('"1"', "1", False),
        ('{"a": 1, "b": 2}', '{"b": 2.0, "a": 1}', True),
        ("[1, 2]", "[2, 1]", False),
        ("0.5", '{"\\u0000decimal": "0 5 -1"}', False),
    ],
)
def test_canonical_texts_are_equal_where_values_are(one: str, other: str, same: bool) -> None:
    assert (canonical(read(one)) == canonical(read(other))) is same


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("{", GrammarSyntaxError, "line 1"),
        ('{"a": NaN}', GrammarSyntaxError, "NaN"),
        ('{"type": "string", "type": "null"}', GrammarSyntaxError, "'type' twice"),
        ('{"const": "\\ud800"}', GrammarSyntaxError, "surrogate"),
        ("[]", GrammarSyntaxError, "object, true or false"),
        ('{"minimum": 1e400}', GrammarTooLarge, "400 digits"),
        ('{"multipleOf": 1e-1000000000}', GrammarTooLarge, "400 digits"),
        ('{"maximum": 1e9999999999999999999}', GrammarTooLarge, "400 digits"),
        ('{"minimum": ' + "9" * 5000 + "}", GrammarTooLarge, "400 digits"),
        ("[" * 10_000, GrammarTooLarge, "256 levels"),
        ('{"not":' * 10_000 + "{}" + "}" * 10_000, GrammarTooLarge, "256 levels"),
        ('{"description": "' + "x" * 5_000_000 + '"}', GrammarTooLarge, "5,000,0"),
    ],
)
def test_texts_that_are_none_are_refused(text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        compile_schema(JsonSchema(text))
    assert len(str(caught.value)) < 600


def test_brackets_in_texts_are_no_depth() -> None:
    schema = {"const": '[{"\\' * 500}
    assert verdicts(schema, '[{"\\' * 500, "[") == [True, False]


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "strng"}, "type"),
        ({"type": 5}, "type"),
        ({"enum": "a"}, "enum"),
        ({"minLength": -1}, "minLength"),
        ({"minLength": 1.5}, "minLength"),
        ({"maxItems": "3"}, "maxItems"),
        ({"minimum": "3"}, "minimum"),
        ({"minimum": True}, "minimum"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"pattern": 5}, "pattern"),
        ({"required": True}, "required"),
        ({"required": [1]}, "required"),
        ({"properties": []}, "properties"),
        ({"anyOf": []}, "anyOf"),
        ({"anyOf": {}}, "anyOf"),
        ({"uniqueItems": "yes"}, "uniqueItems"),
        ({"dependentRequired": {"a": "b"}}, "dependentRequired"),
        ({"$ref": 5}, "\\$ref"),
        ({"$schema": DRAFT_2020, "items": [{"type": "null"}]}, "items"),
        ({"prefixItems": [True], "items": [{"type": "null"}]}, "items"),
        ({"$schema": DRAFT_2020, "exclusiveMinimum": True}, "exclusiveMinimum"),
    ],
)
def test_keywords_with_impossible_values_are_refused(schema: Any, keyword: str) -> None:
    wrapped = schema if "$schema" in schema else {"properties": {"a/b": schema}}
    with pytest.raises(GrammarSyntaxError, match=f"{keyword} at ('/properties/a~1b'|the root)"):
        compiled(wrapped)


def test_a_subschema_that_is_none_is_refused() -> None:
    with pytest.raises(GrammarSyntaxError, match="/properties/a"):
        compiled({"properties": {"a": "string"}})


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"$ref": "http://example.com/x.json"}, "$ref", ""),
        ({"items": {"$ref": "#/$defs/none"}}, "$ref", "/items"),
        ({"items": {"$ref": "#none"}}, "$ref", "/items"),
        ({"items": {"$ref": "http://json-schema.org/draft-03/schema#"}}, "$ref", "/items"),
        ({"$id": "http://x/", "items": {"$ref": "//["}}, "$ref", "/items"),
        ({"$id": "http://[x", "items": {"$ref": "y"}}, "$ref", "/items"),
        ({"items": {"$ref": "#/enum/" + "9" * 5000}, "enum": []}, "$ref", "/items"),
        ({"items": {"$ref": "#/allOf/1"}, "allOf": [True]}, "$ref", "/items"),
        ({"$ref": "#"}, "$ref", ""),
        ({"allOf": [{"$ref": "#"}]}, "$ref", ""),
        ({"items": {"not": {"$ref": "#/items"}}}, "$ref", "/items"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "$ref", "/$defs/a"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema", ""),
        ({"$schema": "http://example.com/own"}, "$schema", ""),
        ({"items": {"pattern": "(a"}}, "pattern", "/items"),
        ({"items": {"pattern": "(a)\\1"}}, "pattern", "/items"),
        ({"pattern": "(a{1,500}){1,500}"}, "pattern", ""),
        ({"patternProperties": {"(a": {}}}, "patternProperties", ""),
        ({"items": {"not": {"uniqueItems": True}}}, "uniqueItems", "/items/not"),
        ({"not": {"prefixItems": [True] * 9, "items": {"type": "null"}}}, "items", "/not"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_place(
    schema: Any, keyword: str, pointer: str
) -> None:
    with pytest.raises(SchemaUnsupported) as caught:
        compiled(schema)
    assert (caught.value.keyword, caught.value.pointer) == (keyword, pointer)


def test_an_unused_part_may_be_whatever_it_is() -> None:
    schema = {"type": "null", "$defs": {"a": {"type": "strng"}, "b": {"$ref": "http://x/"}}}
    assert verdicts(schema, None, 1) == [True, False]


def test_references_are_resolved() -> None:
    schema = {
        "$id": "http://example.com/dir/root.json",
        "properties": {
            "pointer": {"$ref": "#/$defs/a~1b~0c%25"},
            "anchor": {"$ref": "#here"},
            "relative": {"$ref": "item.json"},
            "absolute": {"$ref": "http://example.com/dir/item.json#/$defs/inner"},
            "unknown": {"$ref": "#/unknown/0"},
            "through": {"$ref": "#/$defs/alias"},
        },
        "$defs": {
            "a/b~c%": {"const": 1},
            "x": {"$anchor": "here", "const": 2},
            "item": {"$id": "item.json", "const": 3, "$defs": {"inner": {"const": 4}}},
            "alias": {"$ref": "#/$defs/other"},
            "other": {"$ref": "#here"},
        },
        "unknown": [{"const": 5}],
    }
    good = {"pointer": 1, "anchor": 2, "relative": 3, "absolute": 4, "unknown": 5, "through": 2}
    assert verdicts(schema, good) == [True]
    for key in good:
        assert verdicts(schema, {**good, key: 9}) == [False]


def test_an_identifier_inside_of_a_constant_is_none() -> None:
    schema = {
        "enum": [{"$id": "http://x/y", "type": "null"}, {"$ref": "#/none"}],
        "$defs": {"real": {"$id": "http://x/y", "type": "object"}},
        "allOf": [{"$ref": "http://x/y"}],
    }
    assert verdicts(schema, {"$ref": "#/none"}, None) == [True, False]


def test_dynamic_references_follow_the_way_taken() -> None:
    tree = {
        "$id": "http://x/tree",
        "$dynamicAnchor": "node",
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
    }
    strict = {
        "$schema": DRAFT_2020,
        "$id": "http://x/strict",
        "$dynamicAnchor": "node",
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {"tree": tree},
    }
    value = {"children": [{"other": 1}]}
    assert verdicts(strict, value, {"children": [{}]}) == [False, True]
    assert verdicts({**tree, "$id": "http://x/root"}, value) == [True]


def test_recursive_references_follow_the_way_taken() -> None:
    tree = {
        "$id": "http://x/tree",
        "$recursiveAnchor": True,
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$recursiveRef": "#"}}},
    }
    strict = {
        "$schema": DRAFT_2019,
        "$id": "http://x/strict",
        "$recursiveAnchor": True,
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {"tree": tree},
    }
    value = {"children": [{"other": 1}]}
    assert verdicts(strict, value, {"children": [{}]}) == [False, True]
    assert verdicts({"$schema": DRAFT_2019, **tree}, value, {"children": [1]}) == [True, False]
    free = {**strict, "$recursiveAnchor": False}
    assert verdicts(free, value, {"children": [{}], "other": 1}) == [True, False]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$schema": DRAFT_4, "enum": [{"a": [1]}]}, {"a": [1]}, {"a": [2]}),
        ({"$schema": DRAFT_4, "minimum": 3, "exclusiveMinimum": True}, 4, 3),
        ({"minimum": 3, "exclusiveMinimum": True}, 4, 3),
        ({"maximum": 3, "exclusiveMaximum": False}, 3, 4),
        ({"$schema": "http://json-schema.org/schema#", "items": [{"type": "null"}]}, [None], [1]),
        ({"exclusiveMaximum": 3}, 2, 3),
        ({"items": [{"type": "null"}], "additionalItems": False}, [None], [None, 1]),
        ({"$schema": DRAFT_7, "items": [{"type": "null"}]}, [None, 1], [1]),
        ({"$schema": DRAFT_2019, "items": [True], "unevaluatedItems": False}, [1], [1, 2]),
        ({"dependencies": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
        ({"dependencies": {"a": {"required": ["b"]}}}, {"a": 1, "b": 2}, {"a": 1}),
        ({"dependentRequired": {"a": ["b"]}, "dependencies": {"a": ["c"]}},
         {"a": 1, "b": 1, "c": 1}, {"a": 1, "c": 1}),
        ({"dependencies": {"a": ["c"]}, "dependentRequired": {"a": ["b"]}},
         {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1}),
        ({"$schema": DRAFT_7, "items": {"$ref": "#/a", "type": "null"}, "a": {"const": 1}},
         [1], [2]),
        ({"items": {"$ref": "#/a", "type": "null"}, "a": {"enum": [1, None]}}, [None], [1]),
        ({"$schema": DRAFT_4, "id": "http://x/", "items": {"$ref": "http://x/#/a"},
          "a": {"type": "null"}}, [None], [1]),
        ({"$schema": DRAFT_6, "contains": {"const": 1}}, [1], [2]),
        ({"prefixItems": [{"const": 1}], "items": {"const": 2}}, [1, 2], [1, 1]),
    ],
)  # fmt: skip
def test_each_draft_has_its_own_keywords(schema: Any, good: Any, bad: Any) -> None:
    assert verdicts(schema, good, bad) == [True, False]


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": DRAFT_4, "const": 1},
        {"$schema": DRAFT_6, "if": {"const": 1}, "then": False},
        {"$schema": DRAFT_7, "prefixItems": [{"const": 2}]},
        {"$schema": DRAFT_7, "unevaluatedItems": False},
        {"$schema": DRAFT_2020, "dependencies": {"a": ["b"]}},
        {"$schema": DRAFT_2020, "additionalItems": False},
        {"contentMediaType": "application/json", "contentEncoding": "base64", "x-own": [1]},
        {"format": "no-such-format"},
        {"then": False, "else": False},
        {"minContains": 3},
    ],
)
def test_keywords_of_other_drafts_and_annotations_say_nothing(schema: Any) -> None:
    assert verdicts(schema, 1, "x", [1], {"a": 1}) == [True] * 4


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (False, "its root"),
        ({"enum": []}, "its root, enum"),
        ({"type": "number", "minimum": 5, "maximum": 3}, "maximum, minimum"),
        ({"required": ["a"], "type": "object", "properties": {"a": False}}, "required, type"),
        ({"type": "object", "required": ["a"], "properties": {"a": {"type": "null", "const": 1}}},
         "/properties/a"),
        ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, "without end"),
        ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3},
         "root"),
    ],
)  # fmt: skip
def test_a_schema_that_nothing_fits_is_refused_with_the_reason(schema: Any, says: str) -> None:
    with pytest.raises(Unsatisfiable, match=says):
        compiled(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": f"#/$defs/{i}"} for i in range(3)], "$defs": {}},
        {"enum": [{"a": i} for i in range(1000)]},
        {"anyOf": [{"properties": {f"a{i}": {"type": "null"}}} for i in range(2000)]},
        {"properties": {f"p{i}": {"minLength": i} for i in range(20_500)}},
        {"allOf": [{"contains": {"const": i}} for i in range(20)]},
        {"patternProperties": {f"p{i}": {"minLength": i} for i in range(9)}},
        {"type": "array", "minItems": 10**9, "items": {"type": "null"}},
        {"type": "object", "minProperties": 10**9},
        {"type": "string", "minLength": 10**9},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_what_is_too_large_is_refused(schema: Any) -> None:
    with pytest.raises(ConstraintError):
        compiled(schema)


@pytest.mark.parametrize(
    "inner", [lambda s: {"allOf": [s]}, lambda s: {"not": s}, lambda s: {"if": s, "then": s}]
)
def test_many_schemas_for_one_value_are_refused(inner: Any) -> None:
    text = json.dumps({"type": "null"})
    for _ in range(60):
        text = json.dumps(inner("HERE")).replace('"HERE"', text, 1).replace('"HERE"', "true")
    with pytest.raises(SchemaUnsupported, match="one inside of another"):
        compile_schema(JsonSchema(text))
