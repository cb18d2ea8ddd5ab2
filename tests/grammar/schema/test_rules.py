"""The rules over bytes against a judge of values, over graphs that hypothesis makes."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lmlang.grammar.automaton import Automaton, State
from tests.grammar.schema.shape_graphs import (
    Shapes,
    automaton,
    graphs,
    parse,
    spellings,
    values,
)

SLOW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def accepts(found: Automaton, text: str) -> bool:
    state = found.run(found.start, text.encode())
    return state is not None and state.accepting


def check_state(found: Automaton, state: State) -> None:
    """What follows is what can be pushed, and the completion completes."""
    following = found.following(state)
    assert list(following) == [b for b in range(256) if found.push(state, b) is not None]
    ending = found.completion(state)
    end = found.run(state, ending)
    assert end is not None
    assert end.accepting
    assert state.accepting == (ending == b"")
    assert following or state.accepting


def walk(graph: Shapes, found: Automaton, data: st.DataObject, most: int) -> bytes:
    state, text = found.start, b""
    for _ in range(most):
        check_state(found, state)
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


@SLOW
@given(graphs(), st.data())
def test_walks_end_in_values_that_fit(graph: Shapes, data: st.DataObject) -> None:
    assume(graph.shortest(0) is not None)
    text = walk(graph, automaton(graph), data, 40)
    assert graph.fits(0, parse(text)), text
    assert (
        text.decode() in set(spellings(parse(text), graph.style)) or b"\\" in text or b"." in text
    )


@SLOW
@given(graphs(), st.lists(values, min_size=5, max_size=20))
def test_a_value_can_be_written_just_if_it_fits(graph: Shapes, some: list[Any]) -> None:
    assume(graph.shortest(0) is not None)
    found = automaton(graph)
    for value in some:
        texts = [text for text in spellings(value, graph.style) if accepts(found, text)]
        assert bool(texts) == graph.fits(0, value), value
        for text in texts[:1]:
            state = found.start
            for byte in text.encode():
                check_state(found, state)
                onward = found.push(state, byte)
                assert onward is not None
                state = onward
