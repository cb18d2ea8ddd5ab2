"""Whether a JSON value is one of a node's, by its shapes alone."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

from lmlang.grammar.schema.shapes import Array, Graph, Node, Number, Object, Shape, String, Word
from lmlang.grammar.schema.source import canonical, read
from tests.grammar.suites import dumped

WORDS = {b"null": None, b"true": True, b"false": False}


def accepts(graph: Graph, value: Any) -> bool:
    """Whether a value is one of the root's; floats count as the decimals that they print as."""
    exact = read(dumped(value))
    return _accepts(graph, graph.root, exact, {})


def _accepts(graph: Graph, node: Node, value: Any, known: dict[Any, bool]) -> bool:
    key = (node, canonical(value))
    if key not in known:
        known[key] = any(_of(graph, shape, value, known) for shape in graph.shapes(node))
    return known[key]


def _of(graph: Graph, shape: Shape, value: Any, known: dict[Any, bool]) -> bool:
    if isinstance(shape, Word):
        return type(value) in (bool, type(None)) and WORDS[shape.text] is value
    if isinstance(shape, String):
        return isinstance(value, str) and shape.language.contains(value)
    if isinstance(shape, Number):
        is_number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
        return is_number and shape.numbers.contains(Fraction(value))
    if isinstance(shape, Array):
        return isinstance(value, list) and _array(graph, shape, value, known)
    return isinstance(value, dict) and _object(graph, shape, value, known)


def _array(graph: Graph, shape: Array, value: list[Any], known: dict[Any, bool]) -> bool:
    if len(value) < shape.least or (shape.most is not None and len(value) > shape.most):
        return False
    for index, item in enumerate(value):
        node = shape.prefix[index] if index < len(shape.prefix) else shape.rest
        if node is None or not _accepts(graph, node, item, known):
            return False
    for tally in shape.tallies:
        inside = [_accepts(graph, tally.inside, item, known) for item in value]
        outside = [_accepts(graph, tally.outside, item, known) for item in value]
        assert tally.most is None or inside == [not one for one in outside]
        if sum(inside) < tally.least or (tally.most is not None and sum(inside) > tally.most):
            return False
    return not shape.unique or len({canonical(item) for item in value}) == len(value)


def _object(graph: Graph, shape: Object, value: dict[str, Any], known: dict[Any, bool]) -> bool:
    if len(value) < shape.least or (shape.most is not None and len(value) > shape.most):
        return False
    names = {name.key: name for name in shape.names}
    if any(name.required and name.key not in value for name in shape.names):
        return False
    for key, item in value.items():
        if key in names:
            nodes = [names[key].node]
        else:
            nodes = [others.node for others in shape.others if others.keys.contains(key)]
            assert len(nodes) <= 1
        if not nodes or not _accepts(graph, nodes[0], item, known):
            return False
    return all(
        any(some.keys.contains(key) and _accepts(graph, some.node, item, known)
            for key, item in value.items())
        for some in shape.some
    )  # fmt: skip
