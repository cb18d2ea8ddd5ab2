"""The host tier: copies of evicted prefixes in main memory, so that a hit costs a copy.

The same tree over slots of its own. A prefix is copied whole (its beginning is still in the pool
when its end is evicted, for eviction goes from the leaves up), so a path never has a hole.
No torch here: what is to be copied comes out as `Copy` values, to be done in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmlang.runtime.cache.radix import IntArray, Match, Node, RadixCache, Root
from lmlang.runtime.cache.slots import SlotAllocator


@dataclass(frozen=True, slots=True)
class Copy:
    """K and V of ``host`` slots to ``pool`` slots, or the other way with ``to_host``."""

    host: IntArray
    pool: IntArray
    to_host: bool


class HostTier:
    """Least recently used out first; not thread-safe (the cache manager's own).

    Args:
        slots: Tokens that it holds at most.
    """

    def __init__(self, slots: int) -> None:
        self.allocator = SlotAllocator(slots)
        self.tree = RadixCache()

    def beyond(self, match: Match, tokens: IntArray, limit: int, namespace: str) -> Match | None:
        """What is held of ``tokens[:limit]``, where that is more than a match; else None."""
        if self.tree.probe(tokens, limit, namespace) <= match.length:
            return None
        return self.tree.match(tokens, limit, namespace)

    def save(self, leaf: Node) -> list[Copy]:
        """Take in the path to a leaf before it loses tokens; nothing where that has no room."""
        path = list(leaf.path())[::-1]
        root = path[0]
        assert isinstance(root, Root)
        namespace = root.namespace
        tokens = np.concatenate([node.tokens for node in path])
        slots = np.concatenate([node.slots for node in path])
        known = self.tree.match(tokens, len(tokens), namespace)
        self.tree.lock(known.node)
        missing = len(tokens) - known.length
        lacking = missing - self.allocator.free_count
        copies: list[Copy] = []
        if lacking <= self.tree.evictable_tokens:
            if lacking > 0:
                self.allocator.give(self.tree.evict(lacking))
            fresh = self.allocator.take(missing)
            if missing:
                self.tree.insert(tokens, np.concatenate([known.slots, fresh]), namespace)
                copies.append(Copy(fresh, slots[known.length :], to_host=True))
        self.tree.unlock(known.node)
        return copies

    def flush(self) -> None:
        """Forget everything."""
        self.allocator.give(self.tree.evict(self.tree.evictable_tokens))

    def check(self) -> None:
        """Prove free + tree = all slots, each once; or AssertionError."""
        places = [self.allocator.free_slots(), self.tree.check()]
        everything = np.sort(np.concatenate(places))
        assert np.array_equal(everything, np.arange(self.allocator.total))
