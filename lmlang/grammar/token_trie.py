"""All tokens of a vocabulary as one tree of bytes, in arrays.

depth     0       1              2
nodes     root    "a"  "t"       "an"  "at"  "to"       numbered in this order
children  of node n: the nodes from first[n] to first[n + 1], by their bytes
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]
Bits: TypeAlias = NDArray[np.int32]
"""int32 [ceil(V / 32)]: bit ``id % 32`` of the word ``id // 32`` is 1 where an id is legal."""

FEW_HEADS, MANY_NODES = 64, 4_000
"""Where a walk begins with so few bytes, and below them are so few nodes, it goes one by one."""
FEW_TOKENS = 64
"""So many are marked one by one."""
FEW_NODES = 200
"""Below so many nodes are walked one by one rather than by arrays."""


class Walkable(Protocol):
    """What a token is walked in: see `Alike`."""

    def places(self, states: Any) -> tuple[Any, Any]:
        """The rows of some states: rows, the first all dead, and for each state its place."""

    def row(self, state: int) -> list[int]:
        """The row of a state."""

    def following(self, state: int) -> bytes:
        """The bytes that are possible in a row."""


class TokenTrie:
    """The tree. Immutable, thread-safe.

    Args:
        pieces: The bytes of every id; b"" for ids that are not in the tree.

    Attributes:
        labels: The byte that leads to each node; 0 for the root.
        levels: Where the nodes of each depth begin, and their number at the end.
        first: int64 [nodes + 1], where the children of each node begin.
        starts: The same as a list, for what goes node by node.
        node_of: int32 [V], the node where each id ends; 0 for ids that are not in the tree.
        id_at: For each node the lowest id that ends there, -1 for none.
        longest: Bytes of the longest token.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.size = len(pieces)
        order = sorted((i for i in range(len(pieces)) if pieces[i]), key=pieces.__getitem__)
        sorted_pieces = [pieces[index] for index in order]
        ids = np.array(order, dtype=np.int64)
        lengths = np.array([len(piece) for piece in sorted_pieces], dtype=np.int64)
        data = np.frombuffer(b"".join(sorted_pieces), dtype=np.uint8)
        offsets = np.cumsum(lengths) - lengths
        nodes = np.zeros(len(order), dtype=np.int64)  # where each token stands so far
        labels, parents, count = [b"\0"], [np.zeros(1, dtype=np.int64)], 1
        self.levels = [0, 1]
        active = np.arange(len(order))
        depth = 0
        while len(active):
            letters = data[offsets[active] + depth]
            before = nodes[active]
            new = np.ones(len(active), dtype=np.bool_)
            new[1:] = (before[1:] != before[:-1]) | (letters[1:] != letters[:-1])
            nodes[active] = count - 1 + np.cumsum(new)
            labels.append(letters[new].tobytes())
            parents.append(before[new])
            count += len(labels[-1])
            self.levels.append(count)
            depth += 1
            active = active[lengths[active] > depth]
        self.longest = depth
        self.labels = b"".join(labels)
        self._labels = np.frombuffer(self.labels, dtype=np.uint8)
        self._parents = np.concatenate(parents)
        self._numbers = np.arange(count)
        children = np.bincount(self._parents[1:], minlength=count)
        self.first = np.concatenate([[1], 1 + np.cumsum(children)])
        self._below = np.zeros(count, dtype=np.int64)  # nodes below each
        for begin, end in zip(self.levels[-2:0:-1], self.levels[:1:-1], strict=True):
            weights = 1 + self._below[begin:end]
            first, last = int(self._parents[begin]), int(self._parents[end - 1]) + 1
            self._below[first:last] += np.bincount(
                self._parents[begin:end] - first, weights, last - first
            ).astype(np.int64)
        self.starts: list[int] = self.first.tolist()
        self.node_of: Ints = np.zeros(self.size, dtype=np.int32)
        self.node_of[ids] = nodes
        self._sorted_ids = ids[np.argsort(nodes, kind="stable")]
        ends = np.bincount(nodes, minlength=count)
        self._ends = np.concatenate([[0], np.cumsum(ends)])
        self._doubled = frozenset(np.flatnonzero(ends > 1).tolist())  # where several ids end
        lowest = np.full(count, -1, dtype=np.int64)
        lowest[nodes[::-1]] = ids[::-1]  # equal pieces stand in the order of their ids
        self.id_at: list[int] = lowest.tolist()

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

    def beyond(self, depth: int) -> tuple[dict[int, list[int]], Bits]:
        """What is longer than ``depth`` bytes.

        Returns:
            The children of each node that are so long, or below which something is; and the
            tokens that are not longer.
        """
        leads = np.zeros(len(self.labels), dtype=np.bool_)
        short = np.ones(len(self.labels), dtype=np.bool_)
        if self.longest > depth:
            longer = self.levels[depth + 1]
            leads[longer:], short[longer:] = True, False
            for level in range(depth + 1, 0, -1):
                begin, end = self.levels[level : level + 2]
                leads[self._parents[begin:end][leads[begin:end]]] = True
        children: dict[int, list[int]] = {}
        for child in np.flatnonzero(leads[1:]) + 1:
            children.setdefault(int(self._parents[child]), []).append(int(child))
        return children, self.bits_of_all(short)

    def summed(self, values: Any) -> Any:
        """For each node the sum of some values of the nodes above it, int32 [nodes]."""
        sums = np.zeros(len(self.labels), dtype=np.int32)
        for begin, end in zip(self.levels[1:], self.levels[2:], strict=False):
            above = self._parents[begin:end]
            sums[begin:end] = sums[above] + values[above]
        return sums

    def depth(self, node: int) -> int:
        """How many bytes lead to a node."""
        return bisect_right(self.levels, node) - 1

    def path(self, node: int, above: Collection[int] = (0,)) -> bytes:
        """The bytes that lead to a node, from the first of some nodes above it."""
        found = bytearray()
        while node not in above:
            found.append(self.labels[node])
            node = int(self._parents[node])
        found.reverse()
        return bytes(found)

    def path_beyond(self, node: int, paths: Mapping[int, bytes]) -> bytes:
        """The bytes that lead to a node, given those to a node above it, or to itself."""
        top = node
        while top not in paths:
            top = int(self._parents[top])
        return paths[top] + self.path(node, (top,))

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
                from_ = last[self._parents[begin:end] - above]
                labels = self._labels[begin:end]
            else:
                children, counts = _spans(self.first, nodes)
                from_ = np.repeat(places, counts)
                labels = self._labels[children]
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
        starts = self.starts
        ways: dict[int, dict[int, int]] = {}
        open_ = list(zip(nodes.tolist(), states.tolist(), strict=True))
        while open_:
            node, state = open_.pop()
            begin, end = starts[node], starts[node + 1]
            if begin == end:
                continue
            known = ways.get(state)
            if known is None:
                row = table.row(state)
                known = ways[state] = {byte: row[byte] for byte in table.following(state)}
            for byte, child in self.children(node, following=known):
                onward = known[byte]
                if onward >= 0:
                    inside[child] = onward
                    open_.append((child, onward))
                elif onward == leave:
                    left.append(child)

    def ids(self, node: int) -> list[int]:
        """The ids that end at a node."""
        first = self.id_at[node]
        if first < 0 or node not in self._doubled:
            return [first] if first >= 0 else []
        found: list[int] = self._sorted_ids[self._ends[node] : self._ends[node + 1]].tolist()
        return found

    def bits(self, nodes: Any) -> Bits:
        """The ids that end at some nodes."""
        if len(nodes) <= FEW_TOKENS:
            words = np.zeros(-(-self.size // 32), dtype=np.uint32)
            for node in nodes:
                for index in self.ids(node):
                    words[index >> 5] |= 1 << (index & 31)
            return words.view(np.int32)
        flags = np.zeros(-(-self.size // 32) * 32, dtype=np.bool_)
        flags[self._sorted_ids[_spans(self._ends, nodes)[0]]] = True
        return np.packbits(flags, bitorder="little").view(np.int32)

    def bits_of_all(self, alive: NDArray[np.bool_]) -> Bits:
        """The same; given for each node whether it is one of them."""
        flags = np.zeros(-(-self.size // 32) * 32, dtype=np.bool_)
        np.take(alive, self.node_of, out=flags[: self.size])
        return np.packbits(flags, bitorder="little").view(np.int32)


def _spans(first: Any, nodes: Any) -> tuple[Any, Any]:
    """All places from ``first[n]`` to ``first[n + 1]`` of some n, and how many each has."""
    begin = first[nodes]
    counts = first[np.asarray(nodes) + 1] - begin
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1])) + np.repeat(begin - ends + counts, counts), counts
