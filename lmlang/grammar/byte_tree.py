"""A tree of bytes in arrays, and walks through it in an automaton.

depth     0       1              2
nodes     root    "a"  "t"       "an"  "at"  "to"       numbered in this order
children  of node n: the nodes from first[n] to first[n + 1], by their bytes
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]

FEW_HEADS, MANY_NODES = 64, 1_000
"""Where a walk begins with so few bytes, and below them are so few nodes, it goes one by one."""
FEW_NODES = 200
"""Below so many nodes are walked one by one rather than by arrays."""
MANY_CHILDREN = 32
"""Of more than so many it is first asked which may follow."""


class Walkable(Protocol):
    """What a token is walked in: see `Alike`."""

    def places(self, states: Any) -> tuple[Any, Any]:
        """The rows of some states: rows, the first all dead, and for each state its place."""

    def row(self, state: int) -> memoryview:
        """The row of a state."""

    def following(self, state: int) -> bytes:
        """The bytes that are possible in a row."""


class ByteTree:
    """The tree. Immutable, thread-safe.

    Args:
        labels: The byte that leads to each node; 0 for the root.
        parents: int64 [nodes], the node above each; 0 for the root.
        levels: Where the nodes of each depth begin, and their number at the end.

    Attributes:
        labels, parents, levels: As given.
        codes: The labels as an array.
        first: int64 [nodes + 1], where the children of each node begin.
        starts: The same as a list, for what goes node by node.
    """

    def __init__(self, labels: bytes, parents: Any, levels: list[int]) -> None:
        self.labels, self.parents, self.levels = labels, parents, levels
        self.codes = np.frombuffer(labels, dtype=np.uint8)
        count = len(labels)
        self._numbers = np.arange(count)
        children = np.bincount(parents[1:], minlength=count)
        self.first = np.concatenate([[1], 1 + np.cumsum(children)])
        self._below = np.zeros(count, dtype=np.int64)  # nodes below each
        for begin, end in zip(levels[-2:0:-1], levels[:1:-1], strict=True):
            weights = 1 + self._below[begin:end]
            first, last = int(parents[begin]), int(parents[end - 1]) + 1
            self._below[first:last] += np.bincount(
                parents[begin:end] - first, weights, last - first
            ).astype(np.int64)
        self.starts: list[int] = self.first.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def child(self, node: int, byte: int) -> int:
        """The node behind one more byte, -1 for none."""
        return self.labels.find(byte, self.starts[node], self.starts[node + 1])

    def children(self, node: int, following: Collection[int]) -> list[tuple[int, int]]:
        """The bytes that may follow and lead on from a node, and the nodes behind them."""
        labels, begin, end = self.labels, self.starts[node], self.starts[node + 1]
        if end - begin < len(following):
            return [(b, n) for n in range(begin, end) if (b := labels[n]) in following]
        return [(b, n) for b in following if (n := labels.find(b, begin, end)) >= 0]

    def depth(self, node: int) -> int:
        """How many bytes lead to a node."""
        return bisect_right(self.levels, node) - 1

    def path(self, node: int, above: Collection[int] = (0,)) -> bytes:
        """The bytes that lead to a node, from the first of some nodes above it."""
        found = bytearray()
        while node not in above:
            found.append(self.labels[node])
            node = int(self.parents[node])
        found.reverse()
        return bytes(found)

    def path_beyond(self, node: int, paths: Mapping[int, bytes]) -> bytes:
        """The bytes that lead to a node, given those to a node above it, or to itself."""
        top = node
        while top not in paths:
            top = int(self.parents[top])
        return paths[top] + self.path(node, (top,))

    def summed(self, values: Any) -> Any:
        """For each node the sum of some values of the nodes above it, int32 [nodes]."""
        sums = np.zeros(len(self.labels), dtype=np.int32)
        for begin, end in zip(self.levels[1:], self.levels[2:], strict=False):
            above = self.parents[begin:end]
            sums[begin:end] = sums[above] + values[above]
        return sums

    def below(self, node: int) -> list[tuple[int, int]]:
        """The nodes below a node, and it: from one number up to another, depth by depth."""
        found, begin, end = [], node, node + 1
        while begin < end:
            found.append((begin, end))
            begin, end = self.starts[begin], self.starts[end]
        return found

    def descend(self, table: Walkable, start: int, dead: int, leave: int) -> tuple[Ints, list[int]]:
        """Walk all tokens at once, a depth at a time, in a deterministic automaton over bytes.

        Args:
            table: The automaton.
            start: The state before the first byte.
            dead: In a row: the byte is not possible; negative.
            leave: In a row: the byte ends the walk; negative.

        Returns:
            For each node the state that its bytes lead to, -1 where they do not stay inside; and
            the nodes that an ending byte leads to.
        """
        inside: Ints = np.full(len(self.labels), -1, dtype=np.int32)
        left: list[int] = []
        nodes, states = np.zeros(1, dtype=np.int64), np.array([start], dtype=np.int64)
        if self.has_few(table.following(start)):
            self._descend_one_by_one(table, nodes, states, inside, left, leave)
            return inside, left
        for depth in range(1, len(self.levels) - 1):
            if self._below[nodes].sum() <= FEW_NODES:
                break
            begin, end = self.levels[depth : depth + 2]
            above = self.levels[depth - 1]
            store, places = table.places(states)
            places = places.astype(np.int64) << 8
            if 4 * len(nodes) > begin - above:  # most are alive: take them all
                last = np.zeros(begin - above, dtype=np.int64)  # those that are not: in a dead row
                last[nodes - above] = places
                children = self._numbers[begin:end]
                from_ = last[self.parents[begin:end] - above]
                labels = self.codes[begin:end]
            else:
                children, counts = spans(self.first, nodes)
                from_ = np.repeat(places, counts)
                labels = self.codes[children]
            onward = store.reshape(-1).take(from_ + labels)
            left += children[onward == leave].tolist()
            alive = np.flatnonzero(onward >= 0)
            nodes, states = children[alive], onward[alive]
            inside[nodes] = states
        self._descend_one_by_one(table, nodes, states, inside, left, leave)
        return inside, left

    def has_few(self, heads: bytes) -> bool:
        """Whether few nodes are below the root where only some bytes may come first."""
        first = [self.child(0, byte) for byte in heads] if len(heads) <= FEW_HEADS else [0]
        return sum(int(self._below[node]) for node in first if node >= 0) <= MANY_NODES

    def descend_from(
        self, nodes: Sequence[int], table: Walkable, start: int, leave: int
    ) -> tuple[list[int], list[int]]:
        """The same below some nodes, of which none is below another.

        Returns:
            The nodes whose bytes stay inside, and those that an ending byte leads to.
        """
        inside: dict[int, int] = {}
        left: list[int] = []
        states = np.full(len(nodes), start, dtype=np.int64)
        self._descend_one_by_one(table, np.array(nodes), states, inside, left, leave)
        return list(inside), left

    def _descend_one_by_one(
        self, table: Walkable, nodes: Any, states: Any, inside: Any, left: list[int], leave: int
    ) -> None:
        """The same below some nodes."""
        starts, labels = self.starts, self.labels
        rows: dict[int, memoryview] = {}
        open_ = list(zip(nodes.tolist(), states.tolist(), strict=True))
        while open_:
            node, state = open_.pop()
            begin, end = starts[node], starts[node + 1]
            if begin == end:
                continue
            row = rows.get(state)
            if row is None:
                row = rows[state] = table.row(state)
            children: Iterable[int] = range(begin, end)
            if end - begin > MANY_CHILDREN:
                children = [child for _, child in self.children(node, table.following(state))]
            for child in children:
                onward = row[labels[child]]
                if onward >= 0:
                    inside[child] = onward
                    open_.append((child, onward))
                elif onward == leave:
                    left.append(child)


def spans(first: Any, nodes: Any) -> tuple[Any, Any]:
    """All places from ``first[n]`` to ``first[n + 1]`` of some n, and how many each has."""
    begin = first[nodes]
    counts = first[np.asarray(nodes) + 1] - begin
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1])) + np.repeat(begin - ends + counts, counts), counts
