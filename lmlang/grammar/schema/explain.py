"""Nodes in words: what a schema comes to, and why nothing fits it."""

from __future__ import annotations

from collections.abc import Callable

from lmlang.errors import quote
from lmlang.grammar.language import ANY
from lmlang.grammar.schema.numbers import Numbers, spell
from lmlang.grammar.schema.shapes import Array, Graph, Node, Number, Object, Shape, String, Word

MAX_TOLD = 12
"""Parts of a list that are told."""
MAX_DEPTH = 12
"""Values inside of values on the way to what nothing fits."""


def told(graph: Graph, node: Node) -> str:
    """What a node comes to, with the numbers of the nodes inside."""
    shapes = graph.shapes(node)
    return " | ".join(map(_shape, shapes[:MAX_TOLD])) + _more(len(shapes)) or "nothing"


def why_empty(graph: Graph, keywords: Callable[[Node], list[str]]) -> str:
    """Why nothing fits the root of a graph.

    Args:
        graph: The graph, before it is pruned.
        keywords: The keywords of a node's schema.
    """
    node, seen = graph.root, set[Node]()
    for _ in range(MAX_DEPTH):
        seen.add(node)
        place = f"at {quote(graph.pointer(node))}" if graph.pointer(node) else "at its root"
        shapes = graph.shapes(node)
        if len(shapes) != 1:
            break
        shape = shapes[0]
        inner = _empty_part(graph, shape)
        if inner is None:
            return f"{place}, {_shape(shape)} cannot be filled"
        what, node = inner
        if node in seen:
            return f"{place}, {what}, which would need another one inside, without end"
    if not shapes:
        some = keywords(node)
        what = f"the keywords {', '.join(some)}" if len(some) > 1 else "".join(some) or "false"
        return f"{place}, {quote(what)[1:-1]} {'leave' if len(some) > 1 else 'leaves'} nothing"
    return f"{place}, none of {len(shapes)} cases can be met"


def _empty_part(graph: Graph, shape: Shape) -> tuple[str, Node] | None:
    """A part that must be there and that nothing fits."""
    if isinstance(shape, Object):
        for name in shape.names:
            if name.required and graph.shortest(name.node) is None:
                return f"the property {quote(name.key)} is required", name.node
    if isinstance(shape, Array):
        for index in range(min(shape.least, len(shape.prefix) + 1)):
            inside = index < len(shape.prefix)
            node = shape.prefix[index] if inside else shape.rest
            if node is not None and graph.shortest(node) is None:
                return f"item {index} must be there", node
        for tally in shape.tallies:
            if tally.least and graph.shortest(tally.inside) is None:
                return "an item must be contained", tally.inside
    return None


def _shape(shape: Shape) -> str:
    if isinstance(shape, Word):
        return shape.text.decode()
    if isinstance(shape, String):
        kind = "string" if shape.free else "string in one spelling"
        return kind if shape.language is ANY else f"{kind} of {quote(shape.language.name)[1:-1]}"
    if isinstance(shape, Number):
        return _numbers(shape.numbers)
    return _array(shape) if isinstance(shape, Array) else _object(shape)


def _numbers(numbers: Numbers) -> str:
    if numbers.values is not None:
        values = [spell(value).decode() for value in numbers.values[:MAX_TOLD]]
        return f"number of {', '.join(values)}{_more(len(numbers.values))}"
    parts = []
    if numbers.low is not None:
        parts.append(f"{'>' if numbers.low_open else '>='} {spell(numbers.low).decode()}")
    if numbers.high is not None:
        parts.append(f"{'<' if numbers.high_open else '<='} {spell(numbers.high).decode()}")
    if numbers.step is not None and numbers.step != 1:
        parts.append(f"a multiple of {spell(numbers.step).decode()}")
    parts += [f"no multiple of {spell(step).decode()}" for step in sorted(numbers.not_steps)]
    if numbers.not_values:
        parts.append(f"none of {len(numbers.not_values)} values")
    return " ".join(["integer" if numbers.step == 1 else "number", ", ".join(parts)]).strip()


def _array(shape: Array) -> str:
    items = [f"node {node}" for node in shape.prefix[:MAX_TOLD]]
    if len(shape.prefix) > MAX_TOLD:
        items.append(_more(len(shape.prefix)).strip())
    if shape.rest is not None:
        items.append(f"node {shape.rest} …")
    parts = [f"array [{', '.join(items)}]", _count("items", shape.least, shape.most)]
    parts += [
        f"node {tally.inside} among them {_times(tally.least, tally.most)}"
        for tally in shape.tallies
    ]
    parts.append("no two equal" if shape.unique else "")
    return ", ".join(part for part in parts if part)


def _object(shape: Object) -> str:
    parts = [
        f"{quote(name.key)}{'' if name.required else '?'}: node {name.node}"
        for name in shape.names[:MAX_TOLD]
    ]
    if len(shape.names) > MAX_TOLD:
        parts.append(_more(len(shape.names)).strip())
    parts += [
        f"{'others' if len(shape.others) == 1 else quote(others.keys.name)[1:-1]}: "
        f"node {others.node}"
        for others in shape.others[:MAX_TOLD]
    ]
    found = [f"object {{{', '.join(parts)}}}", _count("properties", shape.least, shape.most)]
    found += [f"node {some.node} under {quote(some.keys.name)[1:-1]}" for some in shape.some]
    return ", ".join(part for part in found if part)


def _count(what: str, least: int, most: int | None) -> str:
    return f"{_times(least, most)} {what}" if least or most is not None else ""


def _times(least: int, most: int | None) -> str:
    return f"at least {least:,}" if most is None else f"{least:,} to {most:,}"


def _more(count: int) -> str:
    return f" and {count - MAX_TOLD:,} more" if count > MAX_TOLD else ""
