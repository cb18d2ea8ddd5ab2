"""Inside of arrays of one shape: how many items there are, and what the next may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple, TypeAlias

from lmlang.errors import GrammarTooLarge, SchemaUnsupported
from lmlang.grammar.schema.shapes import Array, Node
from lmlang.grammar.schema.style import Layout
from lmlang.grammar.schema.ways import MAX_KEPT, MAX_STEPS, Ways

MAX_DEMANDS = 6
"""Demands on some items, or some properties, that one array or object may have besides."""

MAX_TEXT = 1_000_000
"""Bytes of the shortest text of one node."""

Of: TypeAlias = Callable[[Node], "bytes | None"]
"""The shortest text of a node; None where it has none."""

Both: TypeAlias = Callable[[Node, Node], Node]
"""The node of what is of two nodes."""


class Spot(NamedTuple):
    """A place between the items of an array.

    Attributes:
        at: Items so far; no more than matter.
        counts: For each tally, how many of them it counts; no more than matter.
    """

    at: int
    counts: tuple[int, ...]


class Item(NamedTuple):
    """One thing that the next item may be."""

    node: Node
    then: Spot


def subsets(count: int) -> Iterator[tuple[int, ...]]:
    """All sets of the first numbers, the largest first."""
    for size in range(count, -1, -1):
        yield from combinations(range(count), size)


class ArrayPlan:
    """What arrays of one shape may go on with. Thread-safe: what it keeps is a cache.

    Args:
        shape: The shape.
        of: Shortest texts; those of one plan must not change.
        both: What is of two nodes.
    """

    def __init__(self, shape: Array, of: Of, both: Both) -> None:
        self.shape = shape
        self.start = Spot(0, (0,) * len(shape.tallies))
        self._of = of
        self._both = both
        self._far = max(len(shape.prefix), shape.least)
        self._options: dict[Spot, tuple[Item, ...]] = {}
        self._items: dict[Spot, tuple[Item, ...]] = {}
        self._ways = Ways(self.may_end, self._steps, "an array")

    def may_end(self, spot: Spot) -> bool:
        """Whether the array may end here."""
        if spot.at < self.shape.least:
            return False
        return all(n >= t.least for n, t in zip(spot.counts, self.shape.tallies, strict=True))

    def items(self, spot: Spot) -> tuple[Item, ...]:
        """What the next item may be, so that the array can still end.

        Where a value is of several of them, the first one counts.
        """
        found = self._items.get(spot)
        if found is None:
            options = self._all(spot)
            if self.shape.tallies or self.shape.least > spot.at + 1:
                options = tuple(item for item in options if self.cost(item.then) is not None)
            if len(self._items) >= MAX_KEPT:
                self._items.clear()
            found = self._items[spot] = options
        return found

    def cost(self, spot: Spot) -> int | None:
        """The bytes, or nearly, of the shortest rest of the array; None where it has no end."""
        way = self._way(spot)
        return None if way is None else way[0]

    def rest(self, spot: Spot) -> list[bytes]:
        """The texts of the items that are still to come in the shortest array."""
        found: list[bytes] = []
        size = 0
        way = self._way(spot)
        while way is not None and way[1] is not None:
            text = self._of(way[1].node)
            assert text is not None, "options have texts"
            found.append(text)
            size += len(text)
            if size > MAX_TEXT:
                raise too_long()
            way = self._way(way[1].then)
        return found

    def ending(self, spot: Spot, first: bool, depth: int, layout: Layout) -> bytes:
        """The shortest rest of the text of an array that is at a depth, with its bracket.

        Args:
            spot: Where; it can end.
            first: Whether no item has been written.
            depth: Of the array.
            layout: White space.
        """
        texts = [layout.at(layout.inner(depth), text) for text in self.rest(spot)]
        return layout.ending(texts, first, depth, b"]")

    def nodes(self) -> Iterator[Node]:
        """All nodes that items may be asked for, whether they are empty or not."""
        for node in dict.fromkeys((*self.shape.prefix, self.shape.rest)):
            if node is not None:
                for chosen in subsets(len(self.shape.tallies)):
                    yield self._combined(node, chosen)

    def plain_nodes(self) -> Iterator[Node]:
        """Those that are asked for where no tally counts an item."""
        for node in dict.fromkeys((*self.shape.prefix, self.shape.rest)):
            if node is not None:
                yield self._combined(node, ())

    def node(self, index: int) -> Node | None:
        """The node of an item; None where there can be none."""
        if self.shape.most is not None and index >= self.shape.most:
            return None
        return self.shape.prefix[index] if index < len(self.shape.prefix) else self.shape.rest

    def _combined(self, node: Node, chosen: tuple[int, ...]) -> Node:
        for number, tally in enumerate(self.shape.tallies):
            if number in chosen:
                node = self._both(node, tally.inside)
            elif tally.most is not None:
                node = self._both(node, tally.outside)
        return node

    def _all(self, spot: Spot) -> tuple[Item, ...]:
        """What the next item may be, whether the array can then end or not."""
        found = self._options.get(spot)
        if found is None:
            found = tuple(self._made(spot))
            if len(self._options) >= MAX_KEPT:
                self._options.clear()
            self._options[spot] = found
        return found

    def _made(self, spot: Spot) -> Iterator[Item]:
        tallies = self.shape.tallies
        base = self.node(spot.at)
        if base is None:
            return
        index = spot.at + 1
        if self.shape.most is None:
            index = min(index, self._far)
        seen = set()
        for chosen in subsets(len(tallies)):
            counts = list(spot.counts)
            for number in chosen:
                counts[number] += 1
            useful = all(
                counts[n] <= (tallies[n].least if (most := tallies[n].most) is None else most)
                for n in chosen
            )
            node = self._combined(base, chosen) if useful else base
            if useful and node not in seen and self._of(node) is not None:
                seen.add(node)
                yield Item(node, Spot(index, tuple(counts)))

    def _can_be_met(self, spot: Spot) -> bool:
        """Whether some item can be counted by each tally that needs more."""
        nodes = set(dict.fromkeys((*self.shape.prefix, self.shape.rest))) - {None}
        chosen = list(subsets(len(self.shape.tallies)))
        return all(
            count >= tally.least
            or any(
                self._of(self._combined(node, some)) is not None
                for some in chosen
                if number in some
                for node in nodes
                if node is not None
            )
            for number, (count, tally) in enumerate(
                zip(spot.counts, self.shape.tallies, strict=True)
            )
        )

    def _way(self, spot: Spot) -> tuple[int, Item | None] | None:
        """The cost of the shortest way to an end, and its first step; None where there is none."""
        if self.shape.least - spot.at > MAX_STEPS:
            raise self._ways.too_many()
        if spot == self.start and self.shape.tallies and not self._can_be_met(spot):
            return None
        return self._ways.of(spot)

    def _steps(self, spot: Spot) -> Iterator[tuple[int, Item, Spot]]:
        for item in self._all(spot):
            text = self._of(item.node)
            assert text is not None, "options have texts"
            yield len(text) + 2, item, item.then


def check_demands(count: int, keyword: str) -> None:
    """Refuse more demands on items or properties than can be told apart."""
    if count > MAX_DEMANDS:
        raise SchemaUnsupported(
            f"{count} demands on what some items or properties must be meet in one place, and at "
            f"most {MAX_DEMANDS} can be told apart: use fewer {keyword}.",
            keyword=keyword,
        )


def too_long() -> GrammarTooLarge:
    """The error for a node whose shortest text is too long."""
    return GrammarTooLarge(
        f"the shortest JSON text that the schema allows has more than {MAX_TEXT:,} bytes: let it "
        "need less."
    )
