"""Arrays whose items must differ: whether there are enough values, and which ones must be kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from lmlang.errors import SchemaUnsupported
from lmlang.grammar.schema.array_plan import ArrayPlan
from lmlang.grammar.schema.frames import goals
from lmlang.grammar.schema.items import Items
from lmlang.grammar.schema.moves import Start
from lmlang.grammar.schema.numerals import Texts
from lmlang.grammar.schema.shapes import Array, Graph, Node, Object

MOST_COUNTED = 200
"""Items that must differ of which there may have to be at least so many."""

MAX_PAIRS = 5000
"""Pairs of nodes whose values are compared for the order of their keys."""

TextsOf: TypeAlias = Callable[[Start, int], "list[bytes] | None"]
"""All texts of a value; None where there are more than a limit."""


class Distinct:
    """Which items would leave too few values for those that are still to come.

    Args:
        texts: The texts of a value.
    """

    def __init__(self, texts: TextsOf) -> None:
        self._texts = texts
        self._few: dict[tuple[Node, int, int], frozenset[bytes] | None] = {}

    def rivals(self, frame: Items, depth: int) -> Texts:
        """The texts that the next item must not have, in ascending order.

        Args:
            frame: A level of an array whose items must differ, where an item begins.
            depth: Of the item.
        """
        assert frame.written is not None
        _, plan, spot = frame.readings[0]
        later = self._later(plan, spot.at + 1, depth)
        kept = _kept(later, frame.written) if later else frozenset[bytes]()
        return Texts(sorted(frame.written | kept))

    def enough(self, plan: ArrayPlan) -> bool:
        """Whether there are enough values for the items that there must be at least."""
        return _matched(self._later(plan, 0, 0), frozenset())

    def few(self, node: Node, depth: int, limit: int) -> frozenset[bytes] | None:
        """The values of a node if there are at most so many."""
        key = (node, depth, limit)
        if key not in self._few:
            found = self._texts(Start((node,), depth, True), limit)
            self._few[key] = None if found is None else frozenset(found)
        return self._few[key]

    def _later(self, plan: ArrayPlan, first: int, depth: int) -> list[frozenset[bytes]]:
        """For each item that there must be from an index on and has few values, those values."""
        least = plan.shape.least
        if least < 2 or plan.shape.tallies:
            return []
        found = []
        for index in range(first, least):
            node = plan.node(index)
            values = None if node is None else self.few(node, depth, least)
            if values is not None:
                found.append(values)
        return found


def _kept(later: list[frozenset[bytes]], written: frozenset[bytes]) -> frozenset[bytes]:
    """The values that must be kept for later items, each of which needs one of its own."""
    free = frozenset().union(*later) - written
    if all(values is later[0] or values == later[0] for values in later):
        return free if len(free) <= len(later) else frozenset()
    return frozenset(value for value in free if not _matched(later, written | {value}))


def _matched(places: list[frozenset[bytes]], taken: frozenset[bytes]) -> bool:
    """Whether each place can have a value of its own that is not taken."""
    holder: dict[bytes, int] = {}
    for start in range(len(places)):
        came: dict[bytes, bytes | None] = {}
        todo: deque[tuple[int, bytes | None]] = deque([(start, None)])
        end: bytes | None = None
        while todo and end is None:
            place, before = todo.popleft()
            for value in sorted(places[place] - taken - came.keys()):
                came[value] = before
                if value not in holder:
                    end = value
                    break
                todo.append((holder[value], value))
        if end is None:
            return False
        while True:  # along the way back, each value moves to the place that looked for it
            before = came[end]
            holder[end] = start if before is None else holder[before]
            if before is None:
                break
            end = before
    return True


def needs_care(graph: Graph) -> bool:
    """Whether what a value turns out to be besides changes what may come behind it.

    So it is with items that must differ or are counted, and with properties that meet demands.
    """
    todo, seen = [graph.root], {graph.root}
    while todo:
        for shape in graph.shapes(todo.pop()):
            if isinstance(shape, Array) and (shape.unique or shape.tallies):
                return True
            if isinstance(shape, Object) and shape.some:
                return True
            for node in goals(shape, graph):
                if node not in seen:
                    seen.add(node)
                    todo.append(node)
    return False


def check_shape(shape: Array, graph: Graph, texts: TextsOf) -> bool:
    """Whether an array whose items must differ can be filled (see `rules.check_unique`)."""
    plan = ArrayPlan(shape, graph.shortest, graph.both)
    nodes = [node for node in plan.nodes() if graph.shortest(node) is not None]
    _check_orders(nodes, graph)
    needed = max([shape.least, *(tally.least for tally in shape.tallies)])
    if needed < 2:
        return True
    if needed > MOST_COUNTED:
        raise _refused(f"{needed:,} items must differ, and at most {MOST_COUNTED:,} are counted")
    distinct = Distinct(texts)
    if not shape.tallies:
        return distinct.enough(plan)
    needed += sum(tally.least for tally in shape.tallies)
    if all(tally.least <= 1 for tally in shape.tallies):
        nodes = list(plan.plain_nodes())  # while one is not met, none of its values is written
    if any(distinct.few(node, 0, needed) is not None for node in nodes):
        raise _refused("items must differ, some of them have few values, and some are counted")
    return True


def _refused(why: str) -> SchemaUnsupported:
    return SchemaUnsupported(
        f"uniqueItems: {why}; whether there are enough cannot be told: leave it out, or bound the "
        "items otherwise.",
        keyword="uniqueItems",
    )


def _check_orders(nodes: Iterable[Node], graph: Graph) -> None:
    """Refuse items in which equal objects could be written in different orders."""
    some = sorted(set(nodes))
    todo = [(one, other) for i, one in enumerate(some) for other in some[i:]]
    seen = set(todo)
    while todo:
        one, other = todo.pop()
        for pair in _pairs_inside(one, other, graph):
            pair = (min(pair), max(pair))
            if pair not in seen:
                seen.add(pair)
                todo.append(pair)
        if len(seen) > MAX_PAIRS:
            raise _refused(f"more than {MAX_PAIRS:,} pairs of values would have to be compared")


def _pairs_inside(one: Node, other: Node, graph: Graph) -> Iterator[tuple[Node, Node]]:
    """The nodes that values inside of two equal values may have."""
    for first in graph.shapes(one):
        for second in graph.shapes(other):
            if isinstance(first, Array) and isinstance(second, Array):
                yield from ((a, b) for a in goals(first, graph) for b in goals(second, graph))
            elif isinstance(first, Object) and isinstance(second, Object):
                _check_order(first, second, one == other)
                yield from _pairs_of_objects(first, second)


def _pairs_of_objects(one: Object, other: Object) -> Iterator[tuple[Node, Node]]:
    named = {name.key: name.node for name in other.names}
    mine = {name.key for name in one.names}
    for name in one.names:
        if name.key in named:
            yield name.node, named[name.key]
        yield from ((name.node, o.node) for o in other.others if o.keys.contains(name.key))
    for others in one.others:
        yield from (
            (others.node, name.node)
            for name in other.names
            if name.key not in mine and others.keys.contains(name.key)
        )
        yield from ((others.node, o.node) for o in other.others)


def _check_order(one: Object, other: Object, same: bool) -> None:
    for shape in (one, other):
        needed = sum(name.required for name in shape.names)
        if shape.others and (shape.some or shape.least > needed + 1):
            # Such keys ascend: one may be any of them, and behind it a second may find none.
            raise _refused("its items are objects that need several properties without a name")
    if same:
        return
    keys = [name.key for name in other.names]
    known = set(keys)
    common = [name.key for name in one.names if name.key in known]
    if common != [key for key in keys if key in set(common)]:
        raise _refused("its items are objects whose keys have no common order")
    for first, second in ((one, other), (other, one)):
        named = {name.key for name in second.names}
        for name in first.names:
            if name.key not in named and any(o.keys.contains(name.key) for o in second.others):
                raise _refused("its items are objects whose keys have no common order")
