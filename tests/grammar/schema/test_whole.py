"""What can be written under a schema is what jsonschema accepts: from its text to the bytes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import GrammarTooLarge, SchemaUnsupported, Unsatisfiable
from lmlang.grammar.budget import OutOfTime
from tests.grammar.schema.random_schemas import VALUES, schemas
from tests.grammar.suites import accepts, compiled, dumped, exactly, oracle

TWO = {"a": 1, "b": 2}
UNEVALUATED = "unevaluatedProperties"
TABLE: list[tuple[Any, list[Any]]] = [
    ({"const": TWO, "minProperties": 2, "not": {"additionalProperties": False}}, [TWO, {"a": 1}]),
    (
        {
            "required": ["a", "b"],
            "minProperties": 1,
            "maxProperties": 3,
            "not": {"additionalProperties": {"type": "null"}},
        },
        [TWO, {"a": None, "b": 0}, {"a": None, "b": None}, {"a": 1}, {**TWO, "c": 1, "d": 1}],
    ),
    (
        {
            "not": {
                "const": TWO,
                "oneOf": [{}, {"maxProperties": 1}],
                "unevaluatedProperties": False,
            }
        },
        [TWO, {}, {"a": 1}],
    ),
    (
        {
            "uniqueItems": True,
            "items": {"minProperties": 1, "additionalProperties": {"type": "integer"}},
        },
        [[TWO, {"b": 2}, {"a": 1, "b": 3}], [TWO, {"b": 2, "a": 1}], [{"x": 1}, {}], [[], 1, []]],
    ),
]


def check(schema: Any, values: list[Any]) -> None:
    text = dumped(schema)
    validator = oracle(text)
    some = [exactly(dumped(value)) for value in values]
    expected = [validator.is_valid(value) for value in some]
    try:
        automaton = compiled(text, seconds=5)
    except Unsatisfiable:
        assert not any(expected)
        return
    assert [accepts(automaton, value, text) for value in some] == expected
    state = automaton.start
    for byte in automaton.completion(state):
        following = automaton.push(state, byte)
        assert following is not None
        state = following
        assert automaton.completion(state) is not None
    assert state.accepting


@pytest.mark.parametrize(("schema", "values"), TABLE)
def test_what_was_wrong_once_is_what_jsonschema_accepts(schema: Any, values: list[Any]) -> None:
    check(schema, values)


@settings(max_examples=120, deadline=None)
@given(schemas(unevaluated=True), st.lists(VALUES, min_size=1, max_size=8))
def test_what_can_be_written_is_what_jsonschema_accepts(schema: Any, values: list[Any]) -> None:
    with contextlib.suppress(SchemaUnsupported, GrammarTooLarge, OutOfTime):
        check(schema, values)
