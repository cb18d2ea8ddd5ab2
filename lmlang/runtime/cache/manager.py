"""Who holds which slot: matches prompts, leases slots, moves what is computed to the tree.

Every slot of the pool is at any time in exactly one of three places:

    free ──lease──> owned by one sequence ──commit──> tree ──evict──> free
      ^                      │                          ^ (a duplicate goes straight to free)
      └──────release─────────┘

A lease's table maps positions to slots: [0, shared) belong to the tree and are locked for the
lease, [shared, capacity) belong to the lease.
"""

from __future__ import annotations

import numpy as np

from lmlang.runtime.cache.radix import IntArray, Match, Node, RadixCache
from lmlang.runtime.cache.slots import SlotAllocator


class Lease:
    """One sequence's slots, position by position. Changed by the manager only."""

    __slots__ = ("matched", "node", "shared", "table")

    def __init__(self, node: Node, table: IntArray, shared: int) -> None:
        self.node = node
        self.table = table
        self.shared = shared
        self.matched = shared
        """Tokens that were in the tree when the lease was taken."""

    @property
    def capacity(self) -> int:
        """Positions that have a slot."""
        return len(self.table)


class CacheManager:
    """The one writer of tree and free list; not thread-safe (the engine thread's own)."""

    def __init__(self, slots: int) -> None:
        self.allocator = SlotAllocator(slots)
        self.tree = RadixCache()
        self.evicted_tokens = 0
        self._leases: set[Lease] = set()

    @property
    def owned_tokens(self) -> int:
        """Slots that sequences own, used or not."""
        return self.allocator.total - self.allocator.free_count - self.tree.total_tokens

    def match(self, tokens: IntArray, limit: int) -> Match:
        """The longest cached prefix of ``tokens[:limit]``; to be leased before the tree changes."""
        return self.tree.match(tokens, limit)

    def lease(self, match: Match, capacity: int) -> Lease | None:
        """Slots for ``capacity`` positions beginning with a match; None where there is no room.

        Evicts what nothing uses, least recently used first, and nothing if that is not enough.
        """
        # The match becomes the lease's: from here on it cannot be evicted.
        self.tree.lock(match.node)
        needed = capacity - match.length
        missing = needed - self.allocator.free_count
        if missing > self.tree.evictable_tokens:
            self.tree.unlock(match.node)
            return None
        if missing > 0:
            evicted = self.tree.evict(missing)
            self.evicted_tokens += len(evicted)
            self.allocator.give(evicted)
        table = np.concatenate([match.slots, self.allocator.take(needed)])
        lease = Lease(match.node, table, match.length)
        self._leases.add(lease)
        return lease

    def commit(self, lease: Lease, tokens: IntArray) -> None:
        """Put the computed ``tokens`` (from position 0 on) of a lease into the tree.

        The lease goes on reading the same positions, now through the tree's slots; slots of
        tokens that the tree had already are freed.
        """
        if len(tokens) <= lease.shared:
            return
        found = self.tree.insert(tokens, lease.table[: len(tokens)])
        # Ownership changes hands: what differs from the tree's slots was a duplicate.
        mine = lease.table[lease.shared : len(tokens)]
        self.allocator.give(mine[mine != found.slots[lease.shared :]])
        self.tree.lock(found.node)
        self.tree.unlock(lease.node)
        lease.table[: len(tokens)] = found.slots
        lease.node, lease.shared = found.node, len(tokens)

    def release(self, lease: Lease, tokens: IntArray) -> None:
        """End a lease: its computed ``tokens`` go to the tree, all its other slots are freed."""
        self.commit(lease, tokens)
        self.allocator.give(lease.table[lease.shared :])
        self.tree.unlock(lease.node)
        self._leases.remove(lease)

    def flush(self) -> None:
        """Evict everything that no lease holds."""
        evicted = self.tree.evict(self.tree.evictable_tokens)
        self.evicted_tokens += len(evicted)
        self.allocator.give(evicted)

    def check(self) -> None:
        """Prove free + tree + owned = pool, each slot once, locks as leased; or AssertionError."""
        places = [self.allocator.free_slots(), self.tree.check()]
        places += [lease.table[lease.shared :] for lease in self._leases]
        everything = np.sort(np.concatenate(places))
        assert np.array_equal(everything, np.arange(self.allocator.total)), (
            "a slot is lost or twice"
        )
        assert len(places[0]) == self.allocator.free_count
        locks = sum(node.locks for node in self.tree.root.children.values())
        assert locks == sum(1 for lease in self._leases if lease.shared), "a lock without a lease"
        for lease in self._leases:
            held: list[IntArray] = []
            node: Node | None = lease.node
            while node is not None:
                held.append(node.slots)
                node = node.parent
            assert np.array_equal(np.concatenate(held[::-1]), lease.table[: lease.shared])
