"""All tokens of a vocabulary as one tree of bytes (see `ByteTree`), and the ids at its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmlang.grammar.byte_tree import ByteTree, Ints, spans

Bits: TypeAlias = NDArray[np.int32]
"""int32 [ceil(V / 32)]: bit ``id % 32`` of the word ``id // 32`` is 1 where an id is legal."""

FEW_TOKENS = 64
"""So many are marked one by one."""


class TokenTrie(ByteTree):
    """The tree. Immutable, thread-safe.

    Args:
        pieces: The bytes of every id; b"" for ids that are not in the tree.

    Attributes:
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
        labels, parents, levels, count = [b"\0"], [np.zeros(1, dtype=np.int64)], [0, 1], 1
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
            levels.append(count)
            depth += 1
            active = active[lengths[active] > depth]
        self.longest = depth
        super().__init__(b"".join(labels), np.concatenate(parents), levels)
        self.node_of: Ints = np.zeros(self.size, dtype=np.int32)
        self.node_of[ids] = nodes
        self._sorted_ids = ids[np.argsort(nodes, kind="stable")]
        ends = np.bincount(nodes, minlength=count)
        self._ends = np.concatenate([[0], np.cumsum(ends)])
        self._doubled = frozenset(np.flatnonzero(ends > 1).tolist())  # where several ids end
        lowest = np.full(count, -1, dtype=np.int64)
        lowest[nodes[::-1]] = ids[::-1]  # equal pieces stand in the order of their ids
        self.id_at: list[int] = lowest.tolist()

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
                leads[self.parents[begin:end][leads[begin:end]]] = True
        children: dict[int, list[int]] = {}
        for child in np.flatnonzero(leads[1:]) + 1:
            children.setdefault(int(self.parents[child]), []).append(int(child))
        return children, self.bits_of_all(short)

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
        flags[self._sorted_ids[spans(self._ends, nodes)[0]]] = True
        return np.packbits(flags, bitorder="little").view(np.int32)

    def bits_of_all(self, alive: NDArray[np.bool_], node_of: Ints | None = None) -> Bits:
        """The same; given for each node whether it is one of them.

        Args:
            alive: For each node.
            node_of: The node of each id, where it is another tree's.
        """
        return self.bits_of_ids(alive.take(self.node_of if node_of is None else node_of))

    def bits_of_ids(self, legal: NDArray[np.bool_]) -> Bits:
        """The same; given for each id whether it is one of them."""
        packed = np.zeros(-(-self.size // 32) * 4, dtype=np.uint8)
        packed[: -(-self.size // 8)] = np.packbits(legal, bitorder="little")
        return packed.view(np.int32)
