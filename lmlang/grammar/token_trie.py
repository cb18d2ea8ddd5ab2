"""All tokens of a vocabulary as one tree of bytes, in arrays.

depth     0       1              2
nodes     root    "a"  "t"       "an"  "at"  "to"       numbered in this order
children  of node n: the nodes from first[n] to first[n + 1], by their bytes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]
Bits: TypeAlias = NDArray[np.int32]
"""int32 [ceil(V / 32)]: bit ``id % 32`` of the word ``id // 32`` is 1 where an id is legal."""

MANY_NODES = 4_000


class TokenTrie:
    """The tree. Immutable, thread-safe.

    Args:
        pieces: The bytes of every id; b"" for ids that are not in the tree.

    Attributes:
        labels: The byte that leads to each node; 0 for the root.
        first: int32 [nodes + 1], where the children of each node begin.
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
            depth += 1
            active = active[lengths[active] > depth]
        self.longest = depth
        self.labels = b"".join(labels)
        self._labels = np.frombuffer(self.labels, dtype=np.uint8)
        parent = np.concatenate(parents)
        self._parents: list[int] = parent.tolist()
        children = np.bincount(parent[1:], minlength=count)
        self.first: Ints = np.concatenate([[1], 1 + np.cumsum(children)]).astype(np.int32)
        self.starts: list[int] = self.first.tolist()
        self.node_of: Ints = np.zeros(self.size, dtype=np.int32)
        self.node_of[ids] = nodes
        self._sorted_ids = ids[np.argsort(nodes, kind="stable")]
        ends = np.bincount(nodes, minlength=count)
        self._ends = np.concatenate([[0], np.cumsum(ends)])
        lowest = np.full(count, -1, dtype=np.int64)
        lowest[nodes[::-1]] = ids[::-1]  # equal pieces stand in the order of their ids
        self.id_at: list[int] = lowest.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def child(self, node: int, byte: int) -> int:
        """The node behind one more byte, -1 for none."""
        return self.labels.find(byte, self.starts[node], self.starts[node + 1])

    def path(self, node: int) -> bytes:
        """The bytes that lead to a node."""
        found = bytearray()
        while node:
            found.append(self.labels[node])
            node = self._parents[node]
        found.reverse()
        return bytes(found)

    def descend(
        self, rows: Callable[[Any], Any], start: int, dead: int, leave: int
    ) -> tuple[list[Any], list[Any]]:
        """Walk all tokens at once, a depth at a time, in a deterministic automaton over bytes.

        Args:
            rows: States, each once, to their rows: int32 [states, 256].
            start: The state before the first byte.
            dead: In a row: the byte is not possible.
            leave: In a row: the byte ends the walk.

        Returns:
            Arrays of the nodes inside, and of the nodes to which an ending byte leads.
        """
        inside: list[Any] = []
        left: list[Any] = []
        nodes, states = np.zeros(1, dtype=np.int64), np.array([start], dtype=np.int64)
        while len(nodes):
            begin = self.first[nodes].astype(np.int64)
            counts = self.first[nodes + 1] - begin
            total = int(counts.sum())
            if not total:
                break
            ends = np.cumsum(counts)
            children = np.arange(total) + np.repeat(begin - ends + counts, counts)
            distinct, index = _distinct(states)
            table = rows(distinct)
            onward = table[np.repeat(index, counts), self._labels[children]]
            gone = onward == leave
            if gone.any():
                left.append(children[gone])
            alive = (onward != dead) & ~gone
            nodes, states = children[alive], onward[alive].astype(np.int64)
            inside.append(nodes)
        return inside, left

    def bits(self, nodes: Any) -> Bits:
        """The ids that end at some nodes."""
        flags = np.zeros(-(-self.size // 32) * 32, dtype=np.bool_)
        if len(nodes) > MANY_NODES:
            alive = np.zeros(len(self.labels), dtype=np.bool_)
            alive[nodes] = True
            alive[0] = False
            flags[: self.size] = alive[self.node_of]
        elif len(nodes):
            begin = self._ends[nodes]
            counts = self._ends[np.asarray(nodes) + 1] - begin
            ends = np.cumsum(counts)
            places = np.arange(int(ends[-1])) + np.repeat(begin - ends + counts, counts)
            flags[self._sorted_ids[places]] = True
        return np.packbits(flags, bitorder="little").view(np.int32)


def _distinct(states: Any) -> tuple[Any, Any]:
    """The distinct states in ascending order, and for each state its place among them."""
    last = int(states.max())
    if last > 16 * len(states) + 1024:
        distinct, index = np.unique(states, return_inverse=True)
        return distinct, index
    seen = np.zeros(last + 1, dtype=np.bool_)
    seen[states] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[states]
