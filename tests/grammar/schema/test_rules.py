"""The rules over bytes against a judge of values, over graphs that hypothesis makes."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lmlang.grammar.automaton import LEAVE, Automaton, Leaving, State
from lmlang.grammar.language import ANY, of_texts
from lmlang.grammar.schema.numbers import ALL
from lmlang.grammar.schema.rules import SchemaRules
from lmlang.grammar.schema.shapes import Array, Name, Number, Object, Others, String, Word
from tests.grammar.schema.shape_graphs import (
    Shapes,
    automaton,
    graphs,
    parse,
    spellings,
    values,
)

EXAMPLES = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


def accepts(found: Automaton, text: str) -> bool:
    state = found.run(found.start, text.encode())
    return state is not None and state.accepting


def check_state(found: Automaton, state: State, path: list[int]) -> None:
    """What follows is what can be pushed, the completion completes, tables tell the same.

    Args:
        found: Whose state.
        state: The state.
        path: Numbers that choose bytes to follow in tables.
    """
    following = found.following(state)
    assert list(following) == [b for b in range(256) if found.push(state, b) is not None]
    assert following or state.accepting
    ending = found.completion(state)
    end = found.run(state, ending)
    assert end is not None
    assert end.accepting
    assert state.accepting == (ending == b"")
    tables = list(found.rules.contents(state.key))
    leaving = found.rules.leaving(state.key) if tables else Leaving.UNKNOWN
    asked, run = found.rules.asked(state.key), b""
    behind: dict[int, State] = {}
    here: State | None = state
    for number in path:
        bytes_of = sorted({b for table, at in tables for b in table.following(at)})
        if not bytes_of or here is None:
            break
        for byte in bytes_of:
            ways = [table.push(at, byte) for table, at in tables]
            if LEAVE in ways and leaving and run not in asked:
                other = found.push(here, byte)
                assert other is not None
                known = behind.setdefault(byte, other)
                assert leaving < Leaving.ALIKE or found.following(known) == found.following(other)
                assert leaving < Leaving.SAME or known is other
            if LEAVE not in ways or max(ways) >= 0:
                assert (found.push(here, byte) is not None) == (max(ways) >= 0)
        assert set(found.following(here)) <= set(bytes_of)
        byte = bytes_of[number % len(bytes_of)]
        here, run = found.push(here, byte), run + bytes((byte,))
        tables = [(t, way) for t, at in tables if (way := t.push(at, byte)) >= 0]


def walk(graph: Shapes, found: Automaton, data: st.DataObject, most: int) -> bytes:
    """A text by random bytes, more often than not those of the completion, and then by it."""
    state, text = found.start, b""
    path = data.draw(st.lists(st.integers(0, 255), max_size=4))
    for _ in range(most):
        check_state(found, state, path)
        following = found.following(state)
        if not following:
            break
        ending = found.completion(state)
        choice = data.draw(st.sampled_from([*following, *ending[:1] * 8]))
        text += bytes([choice])
        onward = found.push(state, choice)
        assert onward is not None
        state = onward
    return text + found.completion(state)


@EXAMPLES
@given(graphs(), st.data())
def test_walks_end_in_values_that_fit(graph: Shapes, data: st.DataObject) -> None:
    assume(graph.shortest(0) is not None)
    text = walk(graph, automaton(graph), data, 40)
    assert graph.fits(0, parse(text)), text
    free = b"\\" in text or b"." in text
    assert free or text.decode() in set(spellings(parse(text), graph.style))


@EXAMPLES
@given(graphs(), st.lists(values, min_size=5, max_size=15), st.lists(st.integers(0, 255)))
def test_a_value_can_be_written_just_if_it_fits(
    graph: Shapes, some: list[Any], path: list[int]
) -> None:
    assume(graph.shortest(0) is not None)
    found = automaton(graph)
    for value in some:
        texts = [text for text in spellings(value, graph.style) if accepts(found, text)]
        assert bool(texts) == graph.fits(0, value), value
        state = found.start
        for byte in texts[0].encode() if texts else b"":
            check_state(found, state, path[:3])
            onward = found.push(state, byte)
            assert onward is not None
            state = onward


@EXAMPLES
@given(graphs())
def test_the_first_completion_is_the_shortest_text(graph: Shapes) -> None:
    assume(graph.shortest(0) is not None)
    found = automaton(graph)
    assert found.completion(found.start) == graph.shortest(0)


def test_outputs_may_be_as_deep_as_they_like() -> None:
    graph = Shapes([[Array((), 0, 0, None), Object((), (Others(ANY, 0),), 0, None)]], "compact")
    found = automaton(graph)
    state = found.run(found.start, b'[{"a":' * 5000)
    assert state is not None
    assert found.completion(state) == b"[]" + b"}]" * 5000
    end = found.run(state, found.completion(state))
    assert end is not None
    assert end.accepting


def test_a_key_comes_once_whatever_its_spelling() -> None:
    graph = Shapes([[Object((), (Others(ANY, 1),), 0, None)], [Number(ALL)]])
    found = automaton(graph)
    assert accepts(found, '{"a": 1, "ab": 2, "": 3}')
    assert not accepts(found, '{"a": 1, "ab": 2, "a": 3}')
    assert found.run(found.start, b'{"\\u0061') is None
    assert found.run(found.start, b'{"a": 1, "a"') is None
    assert found.run(found.start, b'{"a": 1, "a') is not None


def test_the_last_of_a_few_keys_is_not_begun_again() -> None:
    few = Others(of_texts(["ab", "ac"]), 1)
    graph = Shapes([[Object((), (few,), 0, None)], [Word(b"null")]])
    found = automaton(graph)
    state = found.run(found.start, b'{"ab": null, "a')
    assert state is not None
    assert found.following(state) == b"c"
    end = found.run(state, b'c": null')
    assert end is not None
    assert found.following(end) == b"}"


def test_names_keep_their_order_and_required_ones_are_not_passed_over() -> None:
    names = (Name("x", 1, False), Name("y", 1, True), Name("z", 1, False))
    graph = Shapes([[Object(names, (), 0, None)], [Word(b"null")]], "compact")
    found = automaton(graph)
    for text in ('{"y":null}', '{"x":null,"y":null}', '{"y":null,"z":null}'):
        assert accepts(found, text)
    assert not accepts(found, "{}")
    for text in ('{"x":null}', '{"y":null,"x', '{"z', '{"x":null,"z'):
        assert found.run(found.start, text.encode()) is None


def test_free_strings_share_their_states_between_levels() -> None:
    graph = Shapes([[Array((), 1, 0, None)], [String(ANY, True)]])
    found = automaton(graph)
    one = found.run(found.start, b'["some text')
    other = found.run(found.start, b'["another')
    third = found.run(found.start, b'["x", "y')
    assert one is other is third


def test_rules_tell_where_in_the_schema_they_are() -> None:
    graph = Shapes([[Object((Name("a", 1, True),), (), 0, None)], [Word(b"null")]])
    rules = SchemaRules(graph, "line")
    found = Automaton(rules)
    for text, node in ((b'{"', 0), (b'{"a": ', 1), (b'{"a": nu', 1), (b'{"a": null', 0)):
        state = found.run(found.start, text)
        assert state is not None
        assert rules.pointer(state.key) == f"/nodes/{node}"
