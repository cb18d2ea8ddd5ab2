"""Schemas under a reference to a meta-schema: those that jsonschema's own copy of it accepts."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings

from lmlang.grammar.automaton import Automaton
from lmlang.grammar.schema.meta import meta_schema
from tests.grammar.schema.random_schemas import schemas
from tests.grammar.suites import accepts, compiled, dumped, exactly

DRAFTS: dict[str, Any] = {
    "http://json-schema.org/draft-04/schema": jsonschema.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
}
SCHEMAS: list[Any] = [
    {}, True, 1, {"type": "text"}, {"type": ["null", "null"]}, {"type": ["null", "object"]},
    {"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": True}, {"exclusiveMinimum": 1},
    {"minLength": -1}, {"maxItems": 1}, {"multipleOf": 0}, {"required": []},
    {"required": ["a", "a"]}, {"prefixItems": [1]},
    {"allOf": []}, {"allOf": [{"not": {"minItems": "1"}}]}, {"items": [{"type": 1}]},
    {"items": [{}], "additionalItems": False}, {"additionalProperties": False},
    {"properties": {"a": {"type": []}}}, {"patternProperties": {"^a": {"format": 1}}},
    {"dependencies": {"a": ["b"], "b": {"enum": 1}}}, {"dependencies": {"a": ["b"]}},
    {"dependentRequired": {"a": "b"}}, {"dependentSchemas": {"a": {"if": 1}}}, {"if": {"then": 1}},
    {"$defs": {"x": {"$anchor": "1x"}}}, {"$anchor": "x"}, {"definitions": {"x": {"const": 1}}},
    {"$id": "a#b"}, {"$id": "a"}, {"id": 1}, {"contains": {"maxContains": -1}}, {"readOnly": 1},
    {"unevaluatedItems": {"items": {"$comment": 1}}}, {"$dynamicRef": 1}, {"$recursiveRef": 1},
    {"$vocabulary": {"https://a.b/c": True}}, {"$vocabulary": {"https://a.b/c": 1}}, {"title": 1},
]  # fmt: skip


def automaton(uri: str, reference: str = "#") -> Automaton:
    return compiled(dumped({"$ref": uri + reference}))


@pytest.mark.parametrize("uri", DRAFTS)
def test_a_schema_is_what_its_draft_says(uri: str) -> None:
    automata, validator = automaton(uri), DRAFTS[uri](DRAFTS[uri].META_SCHEMA)

    text = dumped(meta_schema(uri))

    @settings(max_examples=10, deadline=None)
    @given(schemas(unevaluated=True))
    def check(schema: Any) -> None:
        value = exactly(dumped(schema))
        assert accepts(automata, value, text) == validator.is_valid(value)

    for schema in SCHEMAS:
        assert accepts(automata, schema, text) == validator.is_valid(schema), schema
    check()


def test_parts_of_a_meta_schema_are_referred_to() -> None:
    count = automaton("http://json-schema.org/draft-04/schema", "#/definitions/positiveInteger")
    assert accepts(count, 3)
    assert not accepts(count, -3)
    assert accepts(automaton("http://json-schema.org/draft-07/schema", "#/properties/title"), "a")


def test_what_extends_a_meta_schema_holds_inside_of_it() -> None:
    own = {
        "$id": "https://a.b/own",
        "$dynamicAnchor": "meta",
        "$ref": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"unit": {"enum": ["m", "s"]}},
    }
    found = compiled(dumped(own))
    assert accepts(found, {"properties": {"a": {"unit": "m"}}})
    assert not accepts(found, {"properties": {"a": {"unit": "x"}}})
