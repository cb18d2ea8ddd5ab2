"""What is computed, counted without a model: shared prefixes once, within budget, in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.protocol import Generation, Prompt, Request, SamplingParams
from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.scheduler import Plan, Scheduler
from lmlang.runtime.sequence import GenerateTask, Sequence


def sequence(prompt: list[int], max_tokens: int) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens)
    task = GenerateTask(Generation(Request(Prompt(), params)), None)  # type: ignore[arg-type]
    return Sequence(np.array(prompt, dtype=np.int64), len(prompt) - 1, max_tokens, task)


class Machine:
    """Runs plans by counting: every computed last token samples the token 9."""

    def __init__(
        self, slots: int, budget: int, max_running: int = 64, policy: str = "fcfs"
    ) -> None:
        self.cache = CacheManager(slots)
        self.scheduler = Scheduler(self.cache, budget, max_running, policy=policy)
        self.budget = budget
        self.prefill = self.decode = self.cached = self.again = 0
        self.ended: list[Sequence] = []

    def step(self) -> Plan:
        plan = self.scheduler.plan()
        assert plan.rows, "sequences wait, and nothing runs"
        assert sum(row.count for row in plan.rows) <= self.budget
        kinds = [row.sequence.decoding for row in plan.rows]
        assert kinds == sorted(kinds, reverse=True), "decode rows come first"
        self.cached += sum(s.cached_tokens for s in plan.admitted if not s.retractions)
        for row in plan.rows:
            s = row.sequence
            decoding = s.decoding
            new = row.count - s.advance(row.count)
            self.again += row.count - new
            prompt = max(0, min(s.computed, len(s.prompt)) - (s.computed - new))
            self.prefill += prompt
            self.decode += new - prompt
            if not decoding:
                self.cache.commit(s.lease, s.tokens(0, s.computed))
            if not s.pending:
                if len(s.generated) + 1 < s.growth:
                    s.generated.append(9)
                else:
                    self.scheduler.remove(s)
                    self.ended.append(s)
            self.cache.check()
        return plan

    def run(self) -> None:
        for _ in range(10_000):
            if not (self.scheduler.waiting or self.scheduler.running):
                return
            self.step()
        raise AssertionError("it does not come to an end")


def new_prefixes(prompts: list[list[int]], known: set[tuple[int, ...]]) -> int:
    """Tokens of the union trie beyond ``known``, plus one for each prompt cached to its end."""
    count = 0
    for prompt in prompts:
        new = [tuple(prompt[:n]) for n in range(1, len(prompt) + 1)]
        new = [prefix for prefix in new if prefix not in known]
        known.update(new)
        count += len(new) or 1
    return count


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=15), min_size=1, max_size=14)


@settings(max_examples=300)
@given(st.lists(PROMPTS, min_size=1, max_size=3), st.integers(1, 30), st.integers(1, 5))
def test_prefill_is_the_union_trie_plus_one_for_each_prompt_cached_to_its_end(
    waves: list[list[list[int]]], budget: int, max_tokens: int
) -> None:
    machine, known = Machine(2_000, budget), set()
    for wave in waves:
        before = machine.prefill
        for prompt in wave:
            machine.scheduler.add(sequence(prompt, max_tokens))
        machine.run()
        assert machine.prefill - before == new_prefixes(wave, known)
        for prompt in wave:  # outputs enter the tree as well, but for their last token
            known.update((*prompt, *[9] * n) for n in range(1, max_tokens))
    everything = [prompt for wave in waves for prompt in wave]
    assert machine.decode == len(everything) * (max_tokens - 1)
    assert machine.cached + machine.prefill == sum(map(len, everything))


@settings(max_examples=150)
@given(PROMPTS, st.integers(1, 9), st.integers(1, 6), st.integers(1, 4), st.data())
def test_everything_ends_in_a_small_pool_with_cancels_at_any_step(
    prompts: list[list[int]], budget: int, max_tokens: int, max_running: int, data: st.DataObject
) -> None:
    machine = Machine(22, budget, max_running)
    sequences = [sequence(prompt, max_tokens) for prompt in prompts]
    for s in sequences:
        machine.scheduler.add(s)
    cancelled = 0
    while machine.scheduler.sequences():
        machine.step()
        alive = machine.scheduler.sequences()
        if alive and data.draw(st.integers(0, 4)) == 0:
            machine.scheduler.remove(data.draw(st.sampled_from(alive)))
            cancelled += 1
            machine.cache.check()
    assert len(machine.ended) + cancelled == len(sequences)
    machine.cache.flush()
    assert machine.cache.allocator.free_count == 22


def test_rows_at_once_over_one_prefix_wait_one_step_and_then_run_together() -> None:
    machine = Machine(2_000, 512)
    for row in range(20):
        machine.scheduler.add(sequence([*range(100, 200), row, 7], 4))
    assert [row.count for row in machine.step().rows] == [102]
    assert [row.count for row in machine.step().rows] == [1, *[2] * 19]


def test_who_is_held_back_keeps_its_place() -> None:
    machine = Machine(2_000, 4)
    order = [sequence([1, 2, 3, 4, 5, n], 1) for n in range(3)]
    for s in order:
        machine.scheduler.add(s)
    machine.run()
    assert machine.ended == order


def test_a_prompt_that_lacks_room_is_not_overtaken() -> None:
    machine = Machine(20, 64)
    first, large, small = sequence([1] * 10, 5), sequence([2] * 12, 1), sequence([3], 1)
    for s in (first, large, small):
        machine.scheduler.add(s)
    machine.run()
    assert machine.ended == [first, large, small]


def test_decode_rows_go_on_while_a_long_prompt_is_chunked() -> None:
    machine = Machine(2_000, 8)
    machine.scheduler.add(sequence([1, 2], 30))
    machine.step()
    machine.scheduler.add(sequence(list(range(100)), 1))
    counts = [[row.count for row in machine.step().rows] for _ in range(10)]
    assert counts == [[1, 7]] * 10


@pytest.mark.parametrize("at", range(8))
def test_late_comers_wait_for_the_chunk_that_computes_their_prefix(at: int) -> None:
    machine = Machine(2_000, 5)
    machine.scheduler.add(sequence([*range(30), 40], 1))
    for _ in range(min(at, 6)):
        machine.step()
    machine.scheduler.add(sequence([*range(30), 41], 1))
    machine.run()
    assert machine.prefill == 32
