"""Graphs of shapes made by hand or by hypothesis, and a judge of values that knows no bytes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from lmlang.grammar.automaton import Automaton
from lmlang.grammar.language import ANY, Language, of_length, of_texts
from lmlang.grammar.schema.frames import shortest_of
from lmlang.grammar.schema.numbers import ALL, INTEGERS, Numbers, spell
from lmlang.grammar.schema.rules import SchemaRules
from lmlang.grammar.schema.shapes import (
    Array,
    Name,
    Node,
    Number,
    Object,
    Others,
    Shape,
    Some,
    String,
    Tally,
    Word,
)
from lmlang.grammar.spec import Style

LEAVES = (Word, String, Number)


class Shapes:
    """A graph of shapes, with intersections and the complements of scalars."""

    root: Node = 0

    def __init__(self, nodes: list[list[Shape]], style: Style = "line") -> None:
        self.style = style
        self._nodes: list[tuple[Shape, ...] | None] = [tuple(shapes) for shapes in nodes]
        self._both: dict[frozenset[Node], Node] = {}
        self._made: dict[Node, frozenset[Node]] = {}
        self._shortest: dict[Node, bytes | None] = {}
        self._asked: set[Node] = set()
        self.anything = self.add([])
        everything: list[Shape] = [Word(word) for word in (b"null", b"true", b"false")]
        everything += [String(ANY, True), Number(ALL), Array((), self.anything, 0, None)]
        everything.append(Object((), (Others(ANY, self.anything),), 0, None))
        self._nodes[self.anything] = tuple(everything)

    def add(self, shapes: list[Shape]) -> Node:
        self._nodes.append(tuple(shapes))
        return len(self._nodes) - 1

    def shapes(self, node: Node) -> tuple[Shape, ...]:
        found = self._nodes[node]
        assert found is not None
        return found

    def pointer(self, node: Node) -> str:
        return f"/nodes/{node}"

    def both(self, one: Node, other: Node) -> Node:
        parts = self._parts(one) | self._parts(other)
        if len(parts) > 1:
            parts -= {self.anything}
        if len(parts) == 1:
            return min(parts)
        if parts not in self._both:
            self._both[parts] = node = self.add([])
            self._made[node] = parts
            found: tuple[Shape, ...] | None = None
            for part in sorted(parts):
                shapes = self.shapes(part)
                if found is not None:
                    pairs = itertools.product(found, shapes)
                    shapes = tuple(s for a, b in pairs for s in self._meet(a, b))
                found = shapes
            self._nodes[node] = found
        return self._both[parts]

    def _parts(self, node: Node) -> frozenset[Node]:
        return self._made.get(node, frozenset({node}))

    def outside(self, node: Node) -> Node:
        """All values that are not of a node of scalars."""
        words = [b"null", b"true", b"false"]
        language, numbers = ANY, [ALL]
        for shape in self.shapes(node):
            if isinstance(shape, Word):
                words = [word for word in words if word != shape.text]
            elif isinstance(shape, String):
                language = language & ~shape.language
            else:
                assert isinstance(shape, Number)
                parts = shape.numbers.complement()
                numbers = [one & part for one in numbers for part in parts]
        found: list[Shape] = [Word(word) for word in words]
        found += [] if language.is_empty() else [String(language, True)]
        found += [Number(part) for part in numbers if not part.is_empty()]
        found += self.shapes(self.anything)[-2:]
        return self.add(found)

    def shortest(self, node: Node) -> bytes | None:
        """By iteration, until nothing becomes shorter: graphs are small."""
        if node not in self._shortest:
            self._shortest.setdefault(node, None)
            changed = True
            while changed:
                changed = False
                for other in list(self._shortest):
                    for shape in self.shapes(other):
                        found = shortest_of(shape, self._known, self.style, self)
                        best = self._shortest[other]
                        if found is not None and (best is None or len(found) < len(best)):
                            self._shortest[other] = found
                            changed = True
                changed = changed or any(n not in self._shortest for n in self._asked)
                for other in self._asked:
                    self._shortest.setdefault(other, None)
        return self._shortest[node]

    def _known(self, node: Node) -> bytes | None:
        if node not in self._shortest:
            self._asked = self._asked | {node}
        return self._shortest.get(node)

    def _meet(self, one: Shape, other: Shape) -> Iterator[Shape]:
        if isinstance(one, Word) and one == other:
            yield one
        elif isinstance(one, String) and isinstance(other, String):
            language = one.language & other.language
            if not language.is_empty():
                yield String(language, one.free and other.free)
        elif isinstance(one, Number) and isinstance(other, Number):
            numbers = one.numbers & other.numbers
            if not numbers.is_empty():
                yield Number(numbers)
        elif isinstance(one, Array) and isinstance(other, Array):
            yield self._arrays(one, other)
        elif isinstance(one, Object) and isinstance(other, Object):
            yield self._objects(one, other)

    def _arrays(self, one: Array, other: Array) -> Array:
        length = max(len(one.prefix), len(other.prefix))
        most = min((m for m in (one.most, other.most) if m is not None), default=None)
        prefix = []
        for index in range(length):
            pair = [s.prefix[index] if index < len(s.prefix) else s.rest for s in (one, other)]
            if pair[0] is None or pair[1] is None:
                most = index if most is None else min(most, index)
                break
            prefix.append(self.both(pair[0], pair[1]))
        rest = None
        if one.rest is not None and other.rest is not None:
            rest = self.both(one.rest, other.rest)
        least, tallies = max(one.least, other.least), (*one.tallies, *other.tallies)
        return Array(tuple(prefix), rest, least, most, tallies, one.unique or other.unique)

    def _objects(self, one: Object, other: Object) -> Object:
        keys = dict.fromkeys(name.key for shape in (one, other) for name in shape.names)
        names = []
        for key in keys:
            found = [value_node(shape, key) for shape in (one, other)]
            required = any(n.key == key and n.required for s in (one, other) for n in s.names)
            if found[0] is not None and found[1] is not None:
                names.append(Name(key, self.both(found[0], found[1]), required))
            elif required:
                impossible = self.add([])
                names.append(Name(key, impossible, True))
        others = []
        for a, b in itertools.product(one.others, other.others):
            language = a.keys & b.keys & ~of_texts(keys)
            if not language.is_empty():
                others.append(Others(language, self.both(a.node, b.node)))
        most = min((m for m in (one.most, other.most) if m is not None), default=None)
        least = max(one.least, other.least)
        return Object(tuple(names), tuple(others), least, most, (*one.some, *other.some))

    # Values --------------------------------------------------------------------------------------

    def fits(self, node: Node, value: Any) -> bool:
        """Whether a value is of a node."""
        return any(self._fits(shape, value) for shape in self.shapes(node))

    def _fits(self, shape: Shape, value: Any) -> bool:
        if isinstance(shape, Word):
            return {b"null": None, b"true": True, b"false": False}[shape.text] is value
        if isinstance(shape, String):
            return isinstance(value, str) and shape.language.contains(value)
        if isinstance(shape, Number):
            number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
            return number and shape.numbers.contains(value)
        if isinstance(shape, Array):
            return isinstance(value, list) and self._fits_array(shape, value)
        return isinstance(value, dict) and self._fits_object(shape, value)

    def _fits_array(self, shape: Array, value: list[Any]) -> bool:
        if len(value) < shape.least or (shape.most is not None and len(value) > shape.most):
            return False
        nodes = [*shape.prefix, *[shape.rest] * (len(value) - len(shape.prefix))]
        for node, item in zip(nodes, value, strict=False):
            if node is None or not self.fits(node, item):
                return False
        for tally in shape.tallies:
            count = sum(self.fits(tally.inside, item) for item in value)
            if count < tally.least or (tally.most is not None and count > tally.most):
                return False
        same = {spell_value(item) for item in value}
        return not shape.unique or len(same) == len(value)

    def _fits_object(self, shape: Object, value: dict[str, Any]) -> bool:
        if len(value) < shape.least or (shape.most is not None and len(value) > shape.most):
            return False
        if any(name.required and name.key not in value for name in shape.names):
            return False
        for key, item in value.items():
            node = value_node(shape, key)
            if node is None or not self.fits(node, item):
                return False
        return all(
            any(some.keys.contains(key) and self.fits(some.node, v) for key, v in value.items())
            for some in shape.some
        )


def value_node(shape: Object, key: str) -> Node | None:
    for name in shape.names:
        if name.key == key:
            return name.node
    return next((others.node for others in shape.others if others.keys.contains(key)), None)


def automaton(graph: Shapes) -> Automaton:
    return Automaton(SchemaRules(graph, graph.style))


def spell_value(value: Any) -> str:
    """One text of a value, in which keys ascend."""
    return min(spellings(value, "line"))


def spellings(value: Any, style: Style) -> Iterator[str]:
    """All texts of a value, by the order of keys."""
    return (_spelled(ordered, style, 0) for ordered in _orders(value))


def _spelled(value: Any, style: Style, depth: int) -> str:
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return spell(Fraction(value)).decode()
    if not isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False)
    colon = ":" if style == "compact" else ": "
    brackets, items = "[]", value
    if isinstance(value, dict):
        brackets, items = "{}", list(value.items())
    parts = [
        f"{json.dumps(item[0], ensure_ascii=False)}{colon}{_spelled(item[1], style, depth + 1)}"
        if isinstance(value, dict)
        else _spelled(item, style, depth + 1)
        for item in items
    ]
    if isinstance(style, int) and parts:
        inner, outer = "\n" + " " * style * (depth + 1), "\n" + " " * style * depth
        return brackets[0] + inner + f",{inner}".join(parts) + outer + brackets[1]
    return brackets[0] + ("," if style == "compact" else ", ").join(parts) + brackets[1]


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for items in itertools.product(*(list(_orders(item)) for item in value)):
            yield list(items)
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for values in itertools.product(*(list(_orders(value[key])) for key in keys)):
                yield dict(zip(keys, values, strict=True))
    else:
        yield value


def parse(text: str | bytes) -> Any:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in found}) == len(found), f"a key twice in {text!r}"
        return dict(found)

    return json.loads(text, parse_float=Decimal, object_pairs_hook=pairs)


# Strategies --------------------------------------------------------------------------------------

TEXTS = ["", "a", "b", "ab", "abc", 'é"', "\n"]
KEYS = ["a", "b", "c", "ab", ""]
SCALARS: list[Any] = [None, True, False, *TEXTS, 0, 1, 2, 3, -1, Decimal("1.5"), Decimal("-0.25")]

languages = st.sampled_from(
    [ANY, of_texts(["a", "b"]), of_texts(["", "ab", "abc"]), ~of_texts(["a", ""]), of_length(1, 2)]
)
number_sets = st.sampled_from(
    [
        ALL,
        INTEGERS,
        Numbers.of_values([1, 2, 3]),
        Numbers.of_values([0, Decimal("1.5")]),
        Numbers.at_least(1) & INTEGERS,
        Numbers.at_most(2, exclusive=True),
        INTEGERS & Numbers.at_least(0) & Numbers.at_most(2),
        Numbers.multiples_of(Decimal("0.25")),
    ]
)
key_sets = [
    of_texts(["c", "ab"]),
    ~of_texts(KEYS),
    of_texts([""]),
    of_length(2, 2) & ~of_texts(["ab"]),
]
scalar_values = st.sampled_from(SCALARS)
values = st.recursive(
    scalar_values,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, "zz"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def words() -> st.SearchStrategy[Word]:
    return st.sampled_from([Word(b"null"), Word(b"true"), Word(b"false")])


def scalar_shapes() -> st.SearchStrategy[Shape]:
    return words() | st.builds(String, languages, st.booleans()) | st.builds(Number, number_sets)


@st.composite
def graphs(draw: st.DrawFn, rich: bool = True) -> Shapes:
    """Graphs whose root is not empty and whose empty shapes have been taken out."""
    count = draw(st.integers(2, 5))
    scalar = [draw(st.lists(scalar_shapes(), min_size=1, max_size=3)) for _ in range(count)]
    style: Style = draw(st.sampled_from(["line", "compact", 2]))
    graph = Shapes([[], *scalar], style)
    leaves = list(range(1, count + 1))
    nodes = [*leaves, 0, graph.anything]
    for _ in range(draw(st.integers(1, 2))):
        shape = draw(_arrays(graph, nodes, leaves, rich) | _objects(nodes, rich))
        nodes.append(graph.add([shape]))
    root: list[Shape] = [
        draw(_arrays(graph, nodes, leaves, rich) | _objects(nodes, rich))
        for _ in range(draw(st.integers(1, 3)))
    ]
    root += draw(st.lists(scalar_shapes(), max_size=1))
    graph._nodes[0] = tuple(root)
    prune(graph)
    return graph


@st.composite
def _arrays(
    draw: st.DrawFn, graph: Shapes, nodes: list[Node], leaves: list[Node], rich: bool
) -> Array:
    some = st.sampled_from(nodes)
    prefix = draw(st.lists(some, max_size=2))
    rest = draw(st.none() | some)
    least = draw(st.integers(0, 2))
    most = draw(st.none() | st.integers(least, 3))
    if rest is None:
        most = len(prefix) if most is None else min(most, len(prefix))
        least = min(least, most)
    tallies = []
    if rich:
        for _ in range(draw(st.integers(0, 2))):
            inside = draw(st.sampled_from(leaves))
            low = draw(st.integers(0, 2))
            high = draw(st.none() | st.integers(low, 2))
            tallies.append(Tally(inside, graph.outside(inside), low, high))
    return Array(tuple(prefix), rest, least, most, tuple(tallies))


@st.composite
def _objects(draw: st.DrawFn, nodes: list[Node], rich: bool) -> Object:
    some = st.sampled_from(nodes)
    keys = draw(st.lists(st.sampled_from(["a", "b"]), unique=True, max_size=2))
    names = [Name(key, draw(some), draw(st.booleans())) for key in keys]
    chosen = draw(st.lists(st.sampled_from(key_sets), unique=True, max_size=2))
    taken: Language = of_texts(keys)
    others = []
    for language in chosen:
        others.append(Others(language & ~taken, draw(some)))
        taken = taken | language
    least = draw(st.sampled_from([0, 0, 1, 2]))
    most = draw(st.none() | st.integers(max(least, 1), 3))
    demands = []
    if rich:
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            demands.append(Some(draw(st.sampled_from([ANY, *key_sets])), draw(some)))
    return Object(tuple(names), tuple(others), least, most, tuple(demands))


def prune(graph: Shapes) -> None:
    """Take out shapes that are empty, and what cannot be filled in the others."""
    for node in range(len(graph._nodes)):
        kept: list[Shape] = []
        for shape in graph.shapes(node):
            graph.shortest(node)
            if shortest_of(shape, graph.shortest, graph.style, graph) is None:
                continue
            if isinstance(shape, Object):
                names = [n for n in shape.names if graph.shortest(n.node) is not None]
                others = [o for o in shape.others if graph.shortest(o.node) is not None]
                shape = Object(tuple(names), tuple(others), shape.least, shape.most, shape.some)
            kept.append(shape)
        graph._nodes[node] = tuple(kept)
