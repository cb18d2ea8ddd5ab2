"""Who holds which slot: matches prompts, leases slots, moves what is computed to the tree.

Every slot of the pool is at any time in exactly one of three places:

    free ──lease──> owned by one sequence ──commit──> tree ──evict──> free
      ^                      │                          ^ (a duplicate goes straight to free)
      └──trim, release───────┘

A lease's table maps positions to slots: [0, shared) belong to the tree and are locked for the
lease, [shared, capacity) belong to the lease. A host tier, if there is one, keeps a copy of what
the tree evicts; what has to be copied is noted, in order, for whoever moves the bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmlang.runtime.cache.host import Copy, HostTier
from lmlang.runtime.cache.radix import IntArray, Mark, Match, Node, RadixCache
from lmlang.runtime.cache.slots import SlotAllocator


class Lease:
    """One sequence's slots, position by position. Changed by the manager only."""

    __slots__ = ("loaded", "matched", "namespace", "node", "shared", "table")

    def __init__(self, node: Node, table: IntArray, shared: int, namespace: str) -> None:
        self.node = node
        self.table = table
        self.shared = shared
        self.namespace = namespace
        self.matched = shared
        """Tokens that were in the tree or the host tier when the lease was taken."""
        self.loaded = 0
        """Those of them that came from the host tier."""

    @property
    def capacity(self) -> int:
        """Positions that have a slot."""
        return len(self.table)


@dataclass(frozen=True, slots=True)
class Found:
    """What is cached of a prompt: in the tree, and more of it in the host tier."""

    match: Match
    tokens: IntArray
    namespace: str
    host: Match | None

    @property
    def length(self) -> int:
        """Tokens that need not be computed."""
        return self.match.length if self.host is None else self.host.length


class CacheManager:
    """The one writer of tree and free list; not thread-safe (the engine thread's own).

    Args:
        slots: Of the pool.
        keep: Whether what has been computed stays for others; else every sequence is on its own.
        informed: Whether eviction spares what live programs may go on from.
        host_slots: Of the host tier; 0 for none.
    """

    def __init__(
        self, slots: int, *, keep: bool = True, informed: bool = True, host_slots: int = 0
    ) -> None:
        self.allocator = SlotAllocator(slots)
        self.tree = RadixCache()
        self.host = HostTier(host_slots) if host_slots else None
        self.evicted_tokens = 0
        self._keep = keep
        self._informed = informed
        self._leases: set[Lease] = set()
        self._copies: list[Copy] = []

    @property
    def owned_tokens(self) -> int:
        """Slots that sequences own, used or not."""
        return self.allocator.total - self.allocator.free_count - self.tree.total_tokens

    @property
    def available_tokens(self) -> int:
        """Slots that are free or could be made so by eviction."""
        return self.allocator.free_count + self.tree.evictable_tokens

    def probe(self, tokens: IntArray, limit: int, namespace: str = "") -> int:
        """How many of ``tokens[:limit]`` the tree holds; changes nothing."""
        return self.tree.probe(tokens, limit, namespace)

    def match(self, tokens: IntArray, limit: int, namespace: str = "") -> Found:
        """The longest cached prefix of ``tokens[:limit]``; to be leased before the tree changes."""
        match = self.tree.match(tokens, limit, namespace)
        host = None
        if self.host is not None:
            host = self.host.beyond(match, tokens, limit, namespace)
        return Found(match, tokens, namespace, host)

    def lease(self, found: Found, capacity: int, spare: int = 0) -> Lease | None:
        """Slots for ``capacity`` positions beginning with a match; None where there is no room.

        Evicts what nothing uses, and nothing if that is not enough.

        Args:
            found: What `match` gave.
            capacity: Positions.
            spare: Slots that must be available beyond these.
        """
        # The match becomes the lease's: from here on it cannot be evicted.
        node, length = found.match.node, found.match.length
        self.tree.lock(node)
        with self._holding(found.host):
            slots = self._take(capacity - length, spare)
        if slots is None:
            self.tree.unlock(node)
            return None
        lease = Lease(node, np.concatenate([found.match.slots, slots]), length, found.namespace)
        self._leases.add(lease)
        if found.host is not None:
            # Copies are done in order: what later takes a place on either side is written later.
            back = found.host.slots[length:]
            self._copies.append(Copy(back, lease.table[length : found.length], to_host=False))
            self.commit(lease, found.tokens[: found.length])
            lease.matched, lease.loaded = found.length, len(back)
        return lease

    def grow(self, lease: Lease, count: int) -> bool:
        """``count`` more positions; False, and nothing is changed, where there is no room."""
        slots = self._take(count, 0, after=int(lease.table[-1]) if lease.capacity else None)
        if slots is not None:
            lease.table = np.concatenate([lease.table, slots])
        return slots is not None

    def trim(self, lease: Lease, capacity: int) -> None:
        """Free a lease's slots from a position on."""
        if capacity < lease.capacity:
            self.allocator.give(lease.table[capacity:])
            lease.table = lease.table[:capacity].copy()

    def commit(self, lease: Lease, tokens: IntArray) -> None:
        """Put the computed ``tokens`` (from position 0 on) of a lease into the tree.

        The lease goes on reading the same positions, now through the tree's slots; slots of
        tokens that the tree had already are freed.
        """
        if len(tokens) <= lease.shared or not self._keep:
            return
        found = self.tree.insert(tokens, lease.table[: len(tokens)], lease.namespace)
        # Ownership changes hands: what differs from the tree's slots was a duplicate.
        mine = lease.table[lease.shared : len(tokens)]
        self.allocator.give(mine[mine != found.slots[lease.shared :]])
        self.tree.lock(found.node)
        self.tree.unlock(lease.node)
        lease.table[: len(tokens)] = found.slots
        lease.node, lease.shared = found.node, len(tokens)

    def release(self, lease: Lease, tokens: IntArray) -> Node:
        """End a lease: its computed ``tokens`` go to the tree, all its other slots are freed.

        Returns:
            Where its tokens end in the tree, valid until the tree next changes.
        """
        self.commit(lease, tokens)
        self.allocator.give(lease.table[lease.shared :])
        self.tree.unlock(lease.node)
        self._leases.remove(lease)
        return lease.node

    def mark(self, node: Node) -> Mark | None:
        """Note that a program may go on from a node; None where eviction does not ask."""
        return self.tree.mark(node) if self._informed and node.parent is not None else None

    def unmark(self, mark: Mark | None) -> None:
        """Undo a `mark`."""
        if mark is not None:
            self.tree.unmark(mark)

    def flush(self) -> None:
        """Evict everything that no lease holds, from the host tier too."""
        evicted = self.tree.evict(self.tree.evictable_tokens)
        self.evicted_tokens += len(evicted)
        self.allocator.give(evicted)
        if self.host is not None:
            self.host.flush()

    def take_copies(self) -> list[Copy]:
        """What has to be copied before the next forward pass, in order; forgotten here."""
        copies, self._copies = self._copies, []
        return copies

    def check(self) -> None:
        """Prove free + tree + owned = pool, each slot once, locks as leased; or AssertionError."""
        places = [self.allocator.free_slots(), self.tree.check()]
        places += [lease.table[lease.shared :] for lease in self._leases]
        everything = np.sort(np.concatenate(places))
        assert np.array_equal(everything, np.arange(self.allocator.total)), (
            "a slot is lost or twice"
        )
        assert len(places[0]) == self.allocator.free_count
        locks = sum(root.locks for root in self.tree.roots.values())
        assert locks == len(self._leases), "a lock without a lease"
        for lease in self._leases:
            held = [node.slots for node in lease.node.path()]
            assert np.array_equal(np.concatenate(held[::-1]), lease.table[: lease.shared])
        if self.host is not None:
            self.host.check()

    def _take(self, count: int, spare: int, after: int | None = None) -> IntArray | None:
        """``count`` free slots, made by eviction where need be; None where they cannot be."""
        missing = count - self.allocator.free_count
        if missing + spare > self.tree.evictable_tokens:
            return None
        if missing > 0:
            evicted = self.tree.evict(missing, None if self.host is None else self._leaving)
            self.evicted_tokens += len(evicted)
            self.allocator.give(evicted)
        return self.allocator.take(count, after)

    @contextlib.contextmanager
    def _holding(self, host: Match | None) -> Iterator[None]:
        """Keep a match of the host tier there while eviction sends it more."""
        if self.host is None or host is None:
            yield
            return
        self.host.tree.lock(host.node)
        yield
        self.host.tree.unlock(host.node)

    def _leaving(self, leaf: Node) -> None:
        """Have the host tier keep what a leaf is about to lose."""
        assert self.host is not None
        self._copies += self.host.save(leaf)
