"""Random JSON schemas, run byte by byte, against jsonschema."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lmlang.errors import ConstraintError
from lmlang.grammar.automaton import Automaton
from lmlang.grammar.budget import Budget, within
from lmlang.grammar.schema.graph import compile_schema
from lmlang.grammar.schema.rules import SchemaRules
from lmlang.grammar.spec import JsonSchema
from tests.grammar.schema.random_schemas import VALUES, schemas
from tests.grammar.schema.shape_graphs import parse, spellings
from tests.grammar.schema.test_rules import accepts, check_state

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
LONG_NUMBER = re.compile(r"[0-9]{8}|\.[0-9]{4}")  # which jsonschema would round


def compiled(schema: Any, style: str | int) -> Automaton:
    """The automaton of a schema, if there is one."""
    spec = JsonSchema.of(schema, style)
    try:
        with within(Budget(2)):
            return Automaton(SchemaRules(compile_schema(spec), style))
    except ConstraintError:
        assume(False)
        raise


@EXAMPLES
@given(schemas(), st.lists(VALUES, min_size=3, max_size=8), st.sampled_from(["line", "compact", 2]))
def test_a_value_can_be_written_just_if_it_is_valid(
    schema: Any, values: list[Any], style: str | int
) -> None:
    found = compiled(schema, style)
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        texts = [text for text in spellings(value, style) if accepts(found, text)]
        assert bool(texts) == validator.is_valid(value), value
        state = found.start
        for byte in texts[0].encode() if texts else b"":
            check_state(found, state, [])
            onward = found.push(state, byte)
            assert onward is not None
            state = onward


@EXAMPLES
@given(schemas(unevaluated=True), st.sampled_from(["line", "compact", 2]), st.data())
def test_walks_end_in_valid_values(schema: Any, style: str | int, data: st.DataObject) -> None:
    found = compiled(schema, style)
    state, text = found.start, b""
    path = data.draw(st.lists(st.integers(0, 255), max_size=3))
    for _ in range(data.draw(st.integers(0, 25))):
        check_state(found, state, path)
        following = found.following(state)
        if not following:
            break
        ending = found.completion(state)
        choice = data.draw(st.sampled_from([*following, *ending[:1] * 8]))
        onward = found.push(state, choice)
        assert onward is not None
        state, text = onward, text + bytes((choice,))
    text += found.completion(state)
    parse(text)
    if not LONG_NUMBER.search(text.decode()):
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text
