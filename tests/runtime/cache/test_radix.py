"""The tree against a plain set of prefixes, and its order of eviction."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lmlang.runtime.cache.radix import RadixCache
from lmlang.runtime.cache.slots import SlotAllocator

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(PROMPTS, st.lists(st.integers(0, 2), max_size=14), st.integers(0, 14))
def test_a_match_is_the_longest_prefix_of_anything_inserted(
    prompts: list[list[int]], query: list[int], limit: int
) -> None:
    tree, prefixes, next_slot = RadixCache(), {(): []}, 0
    for prompt in prompts:
        mine = list(range(next_slot, next_slot + len(prompt)))
        next_slot += len(prompt)
        found = tree.insert(ints(prompt), ints(mine))
        for end in range(1, len(prompt) + 1):
            known = prefixes.setdefault(tuple(prompt[:end]), None)
            if known is None:
                prefixes[tuple(prompt[:end])] = [*prefixes[tuple(prompt[: end - 1])], mine[end - 1]]
        assert found.slots.tolist() == prefixes[tuple(prompt)]
        tree.check()
    limit = min(limit, len(query))
    longest = max(end for end in range(limit + 1) if tuple(query[:end]) in prefixes)
    match = tree.match(ints(query), limit)
    assert match.slots.tolist() == prefixes[tuple(query[:longest])]
    assert tree.total_tokens == len(prefixes) - 1
    tree.check()


def test_the_least_recently_used_leaf_goes_first_and_from_its_end() -> None:
    tree = RadixCache()
    tree.insert(ints([1, 2, 3]), ints([10, 11, 12]))
    tree.insert(ints([1, 5, 6]), ints([20, 21, 22]))
    tree.match(ints([1, 2, 3]), 3)
    assert tree.evict(1).tolist() == [22]
    assert sorted(tree.evict(2).tolist()) == [12, 21]
    assert tree.match(ints([1, 2, 3]), 3).slots.tolist() == [10, 11]
    assert sorted(tree.evict(99).tolist()) == [10, 11]
    assert tree.total_tokens == 0


def test_a_locked_path_is_never_evicted() -> None:
    tree = RadixCache()
    tree.insert(ints([1, 2, 3]), ints([0, 1, 2]))
    kept = tree.match(ints([1, 2]), 2)
    tree.lock(kept.node)
    assert tree.evict(99).tolist() == [2]
    assert tree.evictable_tokens == 0
    tree.unlock(kept.node)
    assert tree.evict(99).tolist() == [0, 1]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_slots_are_handed_out_once_and_in_one_run_where_one_is_long_enough(
    steps: list[tuple[bool, int]],
) -> None:
    allocator, out = SlotAllocator(32), []
    for taking, count in steps:
        if taking and count <= allocator.free_count:
            free = allocator.free_slots()
            runs = np.split(free, np.flatnonzero(np.diff(free) != 1) + 1)
            taken = allocator.take(count)
            assert set(taken.tolist()) <= set(free.tolist())
            if max(map(len, runs)) >= count:
                assert (np.diff(taken) == 1).all()
            out.extend(taken.tolist())
        elif not taking and out:
            allocator.give(ints(out[::2]))
            out = out[1::2]
        assert sorted([*allocator.free_slots().tolist(), *out]) == list(range(32))
        assert allocator.free_count == 32 - len(out)
