"""Pool and tree under thousands of random operations: no slot is lost, twice, or overwritten."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lmlang.runtime.cache.manager import CacheManager, Lease

SLOTS = 48
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=20)


class Held:
    """A sequence as the cache sees it: tokens, a lease, and how far it has computed."""

    def __init__(self, tokens: list[int], lease: Lease) -> None:
        self.tokens = np.array(tokens, dtype=np.int64)
        self.lease = lease
        self.computed = lease.shared


class CacheMachine(RuleBasedStateMachine):
    """Writes a fingerprint of the whole prefix into a slot when its token is computed."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.cache = CacheManager(SLOTS)
        self.content: dict[int, tuple[int, ...]] = {}
        self.live: set[Held] = set()

    @rule(target=held, tokens=TOKENS, extra=st.integers(0, 6))
    def admit(self, tokens: list[int], extra: int) -> Held | None:
        array = np.array(tokens, dtype=np.int64)
        match = self.cache.match(array, len(tokens) - 1)
        room = self.cache.allocator.free_count + self.cache.tree.evictable_tokens
        lease = self.cache.lease(match, len(tokens) + extra)
        if lease is None:
            assert len(tokens) + extra > min(room, SLOTS) - match.length
            return None
        assert lease.capacity == len(tokens) + extra
        held = Held(tokens, lease)
        self.live.add(held)
        return held

    @rule(held=held, count=st.integers(1, 8))
    def compute(self, held: Held | None, count: int) -> None:
        if held not in self.live or held is None:
            return
        end = min(held.computed + count, len(held.tokens))
        for position in range(held.computed, end):
            slot = int(held.lease.table[position])
            self.content[slot] = tuple(held.tokens[: position + 1].tolist())
        held.computed = end
        self.cache.commit(held.lease, held.tokens[:end])

    @rule(held=held, token=st.integers(0, 2))
    def generate(self, held: Held | None, token: int) -> None:
        if held not in self.live or held is None or held.computed < len(held.tokens):
            return
        if held.computed >= held.lease.capacity:
            return
        held.tokens = np.append(held.tokens, token)
        slot = int(held.lease.table[held.computed])
        held.computed += 1
        self.content[slot] = tuple(held.tokens.tolist())

    @rule(held=consumes(held), keep=st.booleans())
    def end(self, held: Held | None, keep: bool) -> None:
        if held not in self.live or held is None:
            return
        self.live.remove(held)
        self.cache.release(held.lease, held.tokens[: held.computed if keep else held.lease.shared])

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
        for held in self.live:
            for position in range(held.computed):
                slot = int(held.lease.table[position])
                assert self.content[slot] == tuple(held.tokens[: position + 1].tolist())

    @invariant()
    def the_tree_holds_what_its_paths_say(self) -> None:
        stack = [(self.cache.tree.root, ())]
        while stack:
            node, path = stack.pop()
            for token, slot in zip(node.tokens.tolist(), node.slots.tolist(), strict=True):
                path = (*path, token)
                assert self.content[slot] == path
            stack.extend((child, path) for child in node.children.values())

    def teardown(self) -> None:
        for held in self.live:
            self.cache.release(held.lease, held.tokens[: held.computed])
        self.cache.check()
        self.cache.flush()
        assert self.cache.allocator.free_count == SLOTS


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestCache = CacheMachine.TestCase
