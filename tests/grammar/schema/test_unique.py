"""Arrays whose items must differ, against lists of all their texts."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lmlang.errors import SchemaUnsupported
from lmlang.grammar.automaton import Automaton
from lmlang.grammar.language import ANY, of_texts
from lmlang.grammar.schema.escape import can_leave, leaves_all
from lmlang.grammar.schema.numbers import ALL, INTEGERS, Numbers
from lmlang.grammar.schema.places import Fork
from lmlang.grammar.schema.rules import check_unique
from lmlang.grammar.schema.shapes import (
    Array,
    Name,
    Node,
    Number,
    Object,
    Others,
    Shape,
    String,
    Tally,
    Word,
)
from lmlang.grammar.schema.style import spell_text
from lmlang.grammar.tables import Spelling, spelled
from tests.grammar.schema.shape_graphs import Shapes, automaton, parse
from tests.grammar.schema.test_rules import accepts, check_state, walk

EXAMPLES = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

POOL = [0, 1, 10, 12, "", "a", "ab", "b", True, None]


def finite(values: list[object]) -> list[Shape]:
    """The shapes of some scalars."""
    texts = [value for value in values if isinstance(value, str)]
    numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
    found: list[Shape] = [Word(b"true")] if True in [v for v in values if v is True] else []
    found += [Word(b"null")] if None in values else []
    found += [String(of_texts(texts), True)] if texts else []
    found += [Number(Numbers.of_values(numbers))] if numbers else []
    return found


@st.composite
def few(draw: st.DrawFn) -> tuple[Shapes, list[str]]:
    """An array whose items must differ and have few values, and all its texts."""
    sets = [
        draw(
            st.lists(
                st.sampled_from(POOL), unique_by=lambda v: (type(v), v), min_size=1, max_size=4
            )
        )
        for _ in range(3)
    ]
    prefix = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=3))
    rest = draw(st.none() | st.sampled_from([1, 2, 3]))
    least = draw(st.integers(0, 3))
    most = draw(st.none() | st.integers(max(least, 1), 3))
    if rest is None:
        most = len(prefix) if most is None else min(most, len(prefix))
        least = min(least, most)
    shape = Array(tuple(prefix), rest, least, most, (), True)
    graph = Shapes(
        [[shape], *(finite(values) for values in sets)], draw(st.sampled_from(["line", 1]))
    )
    texts = []
    longest = 4 if most is None else most
    for length in range(least, longest + 1):
        nodes = (prefix + [rest] * length)[:length]
        if None not in nodes:
            for items in itertools.product(*(sets[node - 1] for node in nodes)):
                spelled = [json.dumps(item) for item in items]
                if len(set(spelled)) == length:
                    indent = graph.style if isinstance(graph.style, int) else None
                    texts.append(json.dumps(list(items), indent=indent))
    return graph, texts


@EXAMPLES
@given(few())
def test_a_beginning_is_possible_just_if_a_text_begins_so(made: tuple[Shapes, list[str]]) -> None:
    graph, texts = made
    (shape,) = graph.shapes(0)
    assert isinstance(shape, Array)
    assert check_unique(shape, graph, graph.style) == bool(texts)
    assume(texts)
    found = automaton(graph)
    beginnings = {text[:n] for text in texts for n in range(len(text) + 1)}
    onward: dict[str, set[int]] = {}
    for beginning in beginnings:
        if beginning:
            onward.setdefault(beginning[:-1], set()).add(ord(beginning[-1]))
    longest = max(len(json.loads(text)) for text in texts)
    for beginning in sorted(beginnings):
        if shape.most is None and longest == 4 and beginning.count(",") > 2:
            continue  # longer arrays are not in the list
        state = found.run(found.start, beginning.encode())
        assert state is not None, beginning
        assert set(found.following(state)) == onward.get(beginning, set()), beginning
        assert state.accepting == (beginning in texts)
        check_state(found, state, [1, 2])


def check_walks(graph: Shapes, data: st.DataObject, found: Automaton) -> None:
    text = walk(graph, found, data, 20)
    assert graph.fits(0, parse(text)), text


@settings(EXAMPLES, max_examples=15)
@given(st.integers(0, 4), st.sampled_from(["line", "compact", 2]), st.data())
def test_free_strings_differ(least: int, style: str | int, data: st.DataObject) -> None:
    graph = Shapes([[Array((), 1, least, None, (), True)], [String(ANY, True)]], style)
    check_walks(graph, data, automaton(graph))


@EXAMPLES
@given(st.integers(0, 3), st.data())
def test_arrays_and_objects_differ(least: int, data: st.DataObject) -> None:
    names = (Name("a", 2, False), Name("b", 2, False))
    items: list[Shape] = [
        Array((), 2, 0, 2, (), True),
        Array((), 3, 0, 2),
        Object(names, (Others(of_texts(["c", "d"]), 3),), 0, None),
    ]
    graph = Shapes(
        [[Array((), 1, least, None, (), True)], items, finite([0, 1]), finite([1, None])], "compact"
    )
    check_walks(graph, data, automaton(graph))


@EXAMPLES
@given(st.data())
def test_an_array_may_repeat_where_another_reading_allows_it(data: st.DataObject) -> None:
    unique, free = Array((), 1, 0, None, (), True), Array((), 2, 0, 3)
    graph = Shapes([[unique, free], [Number(ALL)], finite([1, 2])])
    found = automaton(graph)
    assert accepts(found, "[1, 1]")
    assert accepts(found, "[3, 1, 2, 4]")
    assert not accepts(found, "[3, 3]")
    assert not accepts(found, "[1, 1, 3]")
    state = found.run(found.start, b"[1, 2")
    assert state is not None
    assert isinstance(state.key, Fork)
    check_walks(graph, data, found)


def test_other_keys_of_items_ascend() -> None:
    item = Object((), (Others(ANY, 2),), 0, None)
    graph = Shapes([[Array((), 1, 0, None, (), True)], [item], finite([1])])
    found = automaton(graph)
    assert accepts(found, '[{"a": 1, "b": 1}, {"a": 1}, {"ab": 1}, {}]')
    assert found.run(found.start, b'[{"b": 1, "a') is None
    assert found.run(found.start, b'[{"b": 1, "b"') is None
    assert found.run(found.start, b'[{"b": 1, "b') is not None
    assert not accepts(found, '[{"a": 1}, {"a": 1}]')


def test_numbers_that_differ_have_one_spelling() -> None:
    graph = Shapes([[Array((), 1, 0, None, (), True)], [Number(ALL)]])
    found = automaton(graph)
    assert accepts(found, "[1, 1.5, 15, 0, 0.5]")
    for text in ("[1, 1]", "[1.0", "[1.50", "[1, 1.0"):
        assert not accepts(found, text + "]")


@pytest.mark.parametrize(
    ("nodes", "least", "possible"),
    [
        ([finite([0, 1])], 2, True),
        ([finite([0, 1])], 3, False),
        ([[Array((), 2, 0, 1)], finite([0, 1])], 3, True),
        ([[Array((), 2, 0, 1)], finite([0, 1])], 4, False),
        ([[Number(INTEGERS & Numbers.at_least(1) & Numbers.at_most(190))]], 190, True),
        ([[Number(INTEGERS & Numbers.at_least(1) & Numbers.at_most(190))]], 191, False),
        ([[String(ANY, True)]], 190, True),
    ],
)
def test_values_are_counted(nodes: list[list[Shape]], least: int, possible: bool) -> None:
    shape = Array((), 1, least, None, (), True)
    graph = Shapes([[shape], *nodes])
    assert check_unique(shape, graph, "line") == possible


def test_many_items_that_differ_are_written_fast() -> None:
    numbers = Number(INTEGERS & Numbers.at_least(1) & Numbers.at_most(60))
    found = automaton(Shapes([[Array((), 1, 60, None, (), True)], [numbers]]))
    text = found.completion(found.start)
    assert sorted(json.loads(text)) == list(range(1, 61))


def test_what_cannot_be_counted_is_refused() -> None:
    few_values: Node = 1
    shape = Array((), few_values, 2, None, (Tally(2, 3, 1, 1),), True)
    graph = Shapes([[shape], finite([0, 1, 2]), finite([0]), []])
    graph._nodes[3] = graph.shapes(graph.outside(2))
    with pytest.raises(SchemaUnsupported, match="uniqueItems"):
        check_unique(shape, graph, "line")
    endless = Array((), 1, 5000, None, (), True)
    with pytest.raises(SchemaUnsupported, match="5,000"):
        check_unique(endless, Shapes([[endless], [String(ANY, True)]]), "line")


def test_orders_of_keys_that_do_not_agree_are_refused() -> None:
    one = Object((Name("a", 3, False), Name("b", 3, False)), (), 0, None)
    other = Object((Name("b", 3, False), Name("a", 3, False)), (), 0, None)
    shape = Array((1,), 2, 0, None, (), True)
    graph = Shapes([[shape], [one], [other], finite([1])])
    with pytest.raises(SchemaUnsupported, match="order"):
        check_unique(shape, graph, "line")


TEXTS = st.text("ab\n", max_size=3)


@EXAMPLES
@given(st.sets(TEXTS, min_size=1, max_size=8), st.sets(TEXTS, max_size=8), TEXTS)
def test_texts_that_must_differ_find_a_way(some: set[str], written: set[str], begun: str) -> None:
    table = spelled(of_texts(some), Spelling.JSON)
    state = table.start
    for byte in spell_text(begun):
        state = table.push(state, byte) if state >= 0 else state
    if state < 0:
        return
    size = len(spell_text(begun))
    rests = {spell_text(text)[size:] for text in some if text.startswith(begun)}
    rivals = tuple(spell_text(text)[size:] for text in written if text.startswith(begun))
    found = leaves_all(table, state, rivals)
    left = rests - set(rivals)
    assert can_leave(table, state, rivals) == bool(left)
    if left:
        assert found in left
        assert len(found) <= min(map(len, left)) + 1
    else:
        assert found is None
