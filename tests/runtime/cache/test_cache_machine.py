"""Pool, tree and host tier under random operations: no slot is lost, twice or overwritten."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lmlang.runtime.cache.manager import CacheManager, Lease
from lmlang.runtime.cache.radix import Mark

SLOTS, HOST_SLOTS = 48, 40
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=20)
NAMESPACES = st.sampled_from(["", "other"])
Content = tuple[object, ...]


class Held:
    """A sequence as the cache sees it: tokens, a lease, and how far it has computed."""

    def __init__(self, tokens: list[int], lease: Lease) -> None:
        self.tokens = np.array(tokens, dtype=np.int64)
        self.lease = lease
        self.computed = lease.matched

    def content(self, position: int) -> Content:
        """What must stand in the slot of a position."""
        return (self.lease.namespace, *self.tokens[: position + 1].tolist())


class CacheMachine(RuleBasedStateMachine):
    """Writes a fingerprint of the whole prefix into a slot when its token is computed."""

    held = Bundle("held")
    marks = Bundle("marks")
    host_slots = 0

    def __init__(self) -> None:
        super().__init__()
        self.cache = CacheManager(SLOTS, host_slots=self.host_slots)
        self.content: dict[int, Content] = {}
        self.on_host: dict[int, Content] = {}
        self.live: set[Held] = set()
        self.marked: set[Mark] = set()

    def copy(self) -> None:
        """Do what the loop does before a forward pass."""
        for copy in self.cache.take_copies():
            for there, here in zip(copy.host.tolist(), copy.pool.tolist(), strict=True):
                if copy.to_host:
                    self.on_host[there] = self.content[here]
                else:
                    self.content[here] = self.on_host[there]

    @rule(target=held, tokens=TOKENS, extra=st.integers(0, 6), namespace=NAMESPACES)
    def admit(self, tokens: list[int], extra: int, namespace: str) -> Held | None:
        array = np.array(tokens, dtype=np.int64)
        probed = self.cache.probe(array, len(tokens) - 1, namespace)
        found = self.cache.match(array, len(tokens) - 1, namespace)
        assert found.match.length == probed
        room = self.cache.available_tokens
        lease = self.cache.lease(found, len(tokens) + extra)
        if lease is None:
            assert len(tokens) + extra > min(room, SLOTS) - found.match.length
            return None
        assert lease.capacity == len(tokens) + extra
        assert lease.matched == found.length >= found.match.length
        held = Held(tokens, lease)
        self.live.add(held)
        return held

    @rule(held=held, count=st.integers(1, 8))
    def compute(self, held: Held | None, count: int) -> None:
        if held not in self.live or held is None:
            return
        self.copy()
        end = min(held.computed + count, len(held.tokens))
        for position in range(held.computed, end):
            self.content[int(held.lease.table[position])] = held.content(position)
        held.computed = end
        self.cache.commit(held.lease, held.tokens[:end])

    @rule(held=held, token=st.integers(0, 2), block=st.integers(1, 5))
    def generate(self, held: Held | None, token: int, block: int) -> None:
        if held not in self.live or held is None or held.computed < len(held.tokens):
            return
        if held.computed >= held.lease.capacity:
            room, before = self.cache.available_tokens, held.lease.table
            grown = self.cache.grow(held.lease, block)
            assert grown == (room >= block)
            assert np.array_equal(held.lease.table[: len(before)], before)
            if not grown:
                return
        self.copy()
        held.tokens = np.append(held.tokens, token)
        self.content[int(held.lease.table[held.computed])] = held.content(held.computed)
        held.computed += 1

    @rule(held=held)
    def trim(self, held: Held | None) -> None:
        if held in self.live and held is not None:
            self.cache.trim(held.lease, max(len(held.tokens), held.computed))

    @rule(target=marks, held=consumes(held), keep=st.booleans())
    def end(self, held: Held | None, keep: bool) -> Mark | None:
        if held not in self.live or held is None:
            return None
        self.live.remove(held)
        kept = held.computed if keep else held.lease.shared
        node = self.cache.release(held.lease, held.tokens[:kept])
        mark = self.cache.mark(node)
        if mark is not None:
            self.marked.add(mark)
        return mark

    @rule(mark=consumes(marks))
    def unmark(self, mark: Mark | None) -> None:
        if mark in self.marked and mark is not None:
            self.marked.remove(mark)
            self.cache.unmark(mark)

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        assert self.cache.tree.evictable_tokens == 0

    @invariant()
    def nothing_is_lost(self) -> None:
        self.cache.check()
        tree, free = self.cache.tree.total_tokens, self.cache.allocator.free_count
        assert free + tree + self.cache.owned_tokens == SLOTS

    @invariant()
    def everyone_reads_what_was_computed_for_them(self) -> None:
        self.copy()
        for held in self.live:
            for position in range(held.computed):
                assert self.content[int(held.lease.table[position])] == held.content(position)

    @invariant()
    def the_trees_hold_what_their_paths_say(self) -> None:
        self.copy()
        trees = [(self.cache.tree, self.content)]
        if self.cache.host is not None:
            trees.append((self.cache.host.tree, self.on_host))
        for tree, content in trees:
            stack = [(root, (name,)) for name, root in tree.roots.items()]
            while stack:
                node, path = stack.pop()
                for token, slot in zip(node.tokens.tolist(), node.slots.tolist(), strict=True):
                    path = (*path, token)
                    assert content[slot] == path
                stack.extend((child, path) for child in node.children.values())

    def teardown(self) -> None:
        for held in self.live:
            self.cache.release(held.lease, held.tokens[: held.computed])
        for mark in self.marked:
            self.cache.unmark(mark)
        self.cache.check()
        self.cache.flush()
        assert self.cache.allocator.free_count == SLOTS
        assert not self.cache.tree.roots


class HostMachine(CacheMachine):
    """The same with a host tier, too small for everything."""

    host_slots = HOST_SLOTS


CacheMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
HostMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestCache = CacheMachine.TestCase
TestHost = HostMachine.TestCase
