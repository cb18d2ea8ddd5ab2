"""What is known of runs and outer levels, and forgotten again, against byte by byte without it."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lmlang.errors import ConstraintError
from lmlang.grammar import automaton as automata
from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.budget import Budget, within
from lmlang.grammar.compiler import rules_of
from lmlang.grammar.schema import levels, rules
from lmlang.grammar.schema.completions import Completions
from lmlang.grammar.schema.places import Place, Where
from lmlang.grammar.schema.rules import SchemaRules
from lmlang.grammar.spec import Hole, JsonSchema
from tests.grammar.schema.random_schemas import VALUES, schemas
from tests.grammar.schema.shape_graphs import spellings

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
STYLES = st.sampled_from(["line", "compact", 2])


def made(schema: Any, style: str | int) -> SchemaRules:
    """The rules of a schema, if there are any."""
    try:
        with within(Budget(2)):
            found = rules_of(JsonSchema.of(schema, style))[0]
    except ConstraintError:
        assume(False)
        raise
    assert isinstance(found, SchemaRules)
    return found


def pushed(found: Automaton, state: State | None, data: bytes) -> State | None:
    for byte in data:
        state = None if state is None else found.push(state, byte)
    return state


def an_output(found: SchemaRules, data: st.DataObject, most: int) -> tuple[Where, bytes]:
    """A place that bytes lead to, more often than not those of completions."""
    key, text = found.start(), b""
    for _ in range(data.draw(st.integers(0, most))):
        following = found.following(key)
        if not following:
            break
        byte = data.draw(st.sampled_from([*following, *found.completion(key)[:1] * 8]))
        onward = found.push(key, byte)
        assert onward is not None
        key, text = onward, text + bytes((byte,))
    return key, text


@EXAMPLES
@given(schemas(), st.lists(VALUES, min_size=2, max_size=5), STYLES, st.data())
def test_a_run_leads_to_where_its_bytes_lead(
    schema: Any, values: list[Any], style: str | int, data: st.DataObject
) -> None:
    found = Automaton(made(schema, style))
    texts = [text.encode() for value in values for text in islice(spellings(value, style), 2)]
    texts.append(found.completion(found.start))
    for text in texts:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
        state: State | None = found.start
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            onward = found.run(state, text[begin:end]) if state is not None else None
            assert onward is pushed(found, state, text[begin:end])
            state = onward


@EXAMPLES
@given(schemas(unevaluated=True), STYLES, st.data())
def test_a_completion_is_that_which_is_walked_at_once(
    schema: Any, style: str | int, data: st.DataObject
) -> None:
    found = made(schema, style)
    key, text = an_output(found, data, 20)
    fresh = made(schema, style)
    again = fresh.run(fresh.start(), text)
    assert again is not None
    if not found.accepting(key):
        assert Completions(found).of(key) == Completions(fresh)._walked(again)


@EXAMPLES
@given(schemas(), STYLES, st.data())
def test_what_is_forgotten_is_found_again(
    schema: Any, style: str | int, data: st.DataObject
) -> None:
    text = an_output(made(schema, style), data, 30)[1]
    kept, few = Automaton(made(schema, style)), made(schema, style)
    with pytest.MonkeyPatch.context() as patch:
        for module in (automata, levels, rules):
            patch.setattr(module, "MAX_KEPT", 3)
        patch.setattr(levels, "MAX_WAYS", 5)
        patch.setattr(automata, "MAX_WAYS", 5)
        small = Automaton(few)
        one: State | None = kept.start
        other: State | None = small.start
        for byte in text:
            assert one is not None
            assert other is not None
            assert kept.following(one) == small.following(other)
            assert kept.completion(one) == small.completion(other)
            assert kept.widened(one).accepting == small.widened(other).accepting
            numbers = [state.number for state in small._kept]
            assert len(small) <= 3
            assert len({*numbers, other.number}) >= len(numbers)
            one, other = kept.push(one, byte), small.push(other, byte)
        assert one is not None
        assert other is not None
        assert one.accepting == other.accepting
        ending = kept.completion(one)
        end = small.run(other, ending)
        assert end is not None
        assert end.accepting


def test_a_state_that_has_been_forgotten_goes_on_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(automata, "MAX_KEPT", 4)
    found = Automaton(made({"type": "array", "items": {"type": "integer"}}, "compact"))
    old = [found.run(found.start, b"[" + b"1," * count) for count in range(2)]
    digits = [found.push(state, ord("7")) for state in old if state is not None]
    for number in range(30):  # states that let the others be forgotten
        assert found.run(found.start, b"[%d]" % number) is not None
    assert all(state is not None and state.number < 0 for state in old)
    for state, digit in zip(old, digits, strict=True):
        assert state is not None
        assert found.push(state, ord("7")) is digit
        assert found.push(state, ord("x")) is None
    assert len({state.number for state in (*old, *digits) if state is not None}) >= 2


def test_careful_completions_may_be_as_deep_as_they_like() -> None:
    nested = {"type": "array", "items": {"$ref": "#/$defs/nested"}}
    unique = {"type": "array", "uniqueItems": True, "items": {"type": "string"}}
    schema = {"$defs": {"nested": nested}, "properties": {"a": unique, "b": nested}}
    found = Automaton(made({**schema, "type": "object"}, "compact"))
    state = found.run(found.start, b'{"b":' + b"[" * 2000)
    assert state is not None
    assert found.completion(state) == b"]" * 2000 + b"}"


def test_rules_of_a_hole_have_states_beside_their_places() -> None:
    schema = JsonSchema.of({"type": "array", "items": {"type": "integer"}}, "compact")
    found = Automaton(rules_of(Hole(schema, "[", after="]"))[0])
    state = found.run(found.start, b"12")
    assert state is not None
    assert not isinstance(state, Place)
    assert found.run(found.start, b"12") is state
