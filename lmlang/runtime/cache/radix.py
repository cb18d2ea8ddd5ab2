"""The radix cache: a tree of token runs, each token beside the slot that holds its K and V.

    root ── [The quick brown] ──┬── [fox jumps]
                                └── [dog sleeps] ── [.]        one edge: tokens + their slots

A path from the root spells a prefix that has been computed. Nodes are split where prompts part.
``locks`` counts the sequences that read a node or anything below it; only unlocked leaves may go.
No torch here: slots are numbers, their bytes live in the KV pool.

Source: RadixAttention (Zheng et al., "SGLang: Efficient Execution of Structured Language Model
Programs", 2024), section 3.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
_EMPTY: IntArray = np.empty(0, dtype=np.int64)


class Node:
    """One run of tokens of the tree; the root's run is empty."""

    __slots__ = ("children", "last_used", "locks", "parent", "slots", "tokens")

    def __init__(self, tokens: IntArray, slots: IntArray, parent: Node | None) -> None:
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.last_used = 0


@dataclass(frozen=True, slots=True)
class Match:
    """A prefix found in the tree: it ends at the end of ``node``'s run.

    Valid until the tree next changes, unless ``node`` is locked.
    """

    node: Node
    slots: IntArray

    @property
    def length(self) -> int:
        """Tokens matched."""
        return len(self.slots)


class RadixCache:
    """The tree. It owns the slots that it holds; not thread-safe (the engine thread's own)."""

    def __init__(self) -> None:
        self.root = Node(_EMPTY, _EMPTY, None)
        self.total_tokens = 0
        self.locked_tokens = 0
        self._clock = 0

    @property
    def evictable_tokens(self) -> int:
        """Tokens that `evict` could free now."""
        return self.total_tokens - self.locked_tokens

    def match(self, tokens: IntArray, limit: int) -> Match:
        """The longest prefix of ``tokens[:limit]`` in the tree; a node is split where it ends."""
        node, position, slots = self.root, 0, [_EMPTY]
        now = self._tick()
        while position < limit:
            child = node.children.get(int(tokens[position]))
            if child is None:
                break
            shared = common_prefix(child.tokens, tokens[position:limit])
            if shared < len(child.tokens):
                child = self._split(child, shared)
            child.last_used = now
            node = child
            slots.append(node.slots)
            position += shared
        return Match(node, np.concatenate(slots))

    def insert(self, tokens: IntArray, slots: IntArray) -> Match:
        """Make ``tokens`` a path of the tree and return it.

        Where the tree already has a token, its own slot stays; for the rest the tree takes
        ownership of the caller's. So the caller keeps (and should free) exactly the slots that
        differ from the returned ones.

        Args:
            tokens: int64 [n].
            slots: int64 [n], the slots that hold their K and V.
        """
        found = self.match(tokens, len(tokens))
        if found.length == len(tokens):
            return found
        leaf = Node(tokens[found.length :].copy(), slots[found.length :].copy(), found.node)
        leaf.last_used = self._clock
        found.node.children[int(leaf.tokens[0])] = leaf
        self.total_tokens += len(leaf.tokens)
        return Match(leaf, np.concatenate([found.slots, leaf.slots]))

    def lock(self, node: Node) -> None:
        """Keep ``node`` and all above it from eviction."""
        walk: Node | None = node
        while walk is not None:
            if walk.locks == 0:
                self.locked_tokens += len(walk.tokens)
            walk.locks += 1
            walk = walk.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of the same node."""
        walk: Node | None = node
        while walk is not None:
            walk.locks -= 1
            if walk.locks == 0:
                self.locked_tokens -= len(walk.tokens)
            walk = walk.parent

    def evict(self, count: int) -> IntArray:
        """Remove unlocked leaves, least recently used first, until ``count`` slots are free.

        Returns the slots that the tree gave up: at least ``count`` where that many were
        evictable. A leaf is shortened from its end rather than removed whole where that is enough.
        """
        freed: list[IntArray] = []
        wanted = count
        leaves = [
            (node.last_used, i, node)
            for i, node in enumerate(self.nodes())
            if not node.children and node.locks == 0
        ]
        heapq.heapify(leaves)
        order = len(leaves)
        while wanted > 0 and leaves:
            _, _, leaf = heapq.heappop(leaves)
            parent = leaf.parent
            assert parent is not None
            keep = max(0, len(leaf.tokens) - wanted)
            freed.append(leaf.slots[keep:])
            gone = len(leaf.tokens) - keep
            wanted -= gone
            self.total_tokens -= gone
            if keep:
                leaf.tokens, leaf.slots = leaf.tokens[:keep].copy(), leaf.slots[:keep].copy()
                continue
            del parent.children[int(leaf.tokens[0])]
            if not parent.children and parent.locks == 0 and parent.parent is not None:
                order += 1
                heapq.heappush(leaves, (parent.last_used, order, parent))
        return np.concatenate(freed) if freed else _EMPTY

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, in no particular order."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> IntArray:
        """Prove the tree's own invariants; returns all slots it holds. Raises AssertionError."""
        total = locked = 0
        held = [_EMPTY]
        for node in self.nodes():
            parent = node.parent
            assert parent is not None
            assert parent.children[int(node.tokens[0])] is node
            assert len(node.tokens) == len(node.slots) > 0
            assert node.locks >= 0
            assert parent.parent is None or parent.locks >= node.locks
            assert all(int(child.tokens[0]) == key for key, child in node.children.items())
            total += len(node.tokens)
            locked += len(node.tokens) if node.locks else 0
            held.append(node.slots)
        assert total == self.total_tokens, (total, self.total_tokens)
        assert locked == self.locked_tokens, (locked, self.locked_tokens)
        return np.concatenate(held)

    def _split(self, node: Node, at: int) -> Node:
        """Cut ``node`` after ``at`` tokens: returns the new upper half; ``node`` stays below it."""
        parent = node.parent
        assert parent is not None
        upper = Node(node.tokens[:at].copy(), node.slots[:at].copy(), parent)
        upper.locks, upper.last_used = node.locks, node.last_used
        parent.children[int(upper.tokens[0])] = upper
        node.tokens, node.slots = node.tokens[at:].copy(), node.slots[at:].copy()
        node.parent = upper
        upper.children[int(node.tokens[0])] = node
        return upper

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def common_prefix(a: IntArray, b: IntArray) -> int:
    """Length of the longest common prefix of two arrays."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
