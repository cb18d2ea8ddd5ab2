"""Orders, eviction and fairness, counted on the real scheduler and cache: no model, no clock."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import loads
from benchmarks.loads import Load, optimum
from benchmarks.machine import Machine as LoadMachine
from lmlang.protocol import Generation, Prompt, Request, SamplingParams, Tag
from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.policy import MAX_OVERTAKEN, POLICIES, WINDOW, Waiting
from lmlang.runtime.runs import Runs
from lmlang.runtime.scheduler import Scheduler
from lmlang.runtime.sequence import GenerateTask, Sequence
from tests.runtime.test_scheduler import Machine


def sequence(prompt: list[int], growth: int = 4, tag: Tag | None = None) -> Sequence:
    task = GenerateTask(Generation(Request(Prompt(), SamplingParams())), None)  # type: ignore[arg-type]
    tokens = np.array(prompt, dtype=np.int64)
    return Sequence(tokens, len(prompt) - 1, growth, task, tag=tag or Tag())


def working_set(load: Load) -> int:
    """Tokens that the tree holds at the end if nothing is ever evicted."""
    machine = LoadMachine(1 << 20, "fcfs", "lru")
    machine.run(load)
    return optimum(machine.asked)[1]


# ---------------------------------------------------------------- sharing under pressure


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [loads.few_shot, loads.forks])
@pytest.mark.parametrize("policy", ["program", "lpm", "dfs"])
def test_static_batches_in_half_the_working_set_find_what_depth_first_order_finds(
    make: type[Load], policy: str, seed: int
) -> None:
    load = make(seed)
    machine = LoadMachine(working_set(load) // 2, policy)
    machine.run(load)
    fewest, _ = optimum(machine.asked)
    assert machine.cached_tokens >= 0.96 * (machine.prompt_tokens - fewest)


def gain(load: Load, slots: int, policy: str) -> int:
    """Tokens that eviction by programs finds more than LRU."""
    cached = {}
    for eviction in ("program", "lru"):
        machine = LoadMachine(slots, policy, eviction)
        machine.run(load)
        cached[eviction] = machine.cached_tokens
    return cached["program"] - cached["lru"]


@pytest.mark.parametrize("policy", ["program", "lpm"])
@pytest.mark.parametrize("make", loads.LOADS)
def test_eviction_that_knows_the_programs_is_never_worse_than_lru(
    make: type[Load], policy: str
) -> None:
    made = [make(seed) for seed in range(3)]
    half = [gain(load, working_set(load) // 2, policy) for load in made]
    assert min(half) >= 0
    if made[0].name in ("react", "mixed"):
        assert sum(half) > 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", loads.LOADS)
def test_with_room_every_load_computes_the_union_trie(make: type[Load], policy: str) -> None:
    machine = LoadMachine(1 << 20, policy)
    machine.run(make(1))
    fewest, _ = optimum(machine.asked)
    assert machine.prompt_tokens - machine.cached_tokens == fewest
    assert machine.recomputed_tokens == 0
    generated = sum(len(output) - 1 for _, output in machine.asked)
    assert machine.computed_tokens == fewest + generated


# ---------------------------------------------------------------- fairness


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cold_request_waits_no_longer_than_the_bound_beside_a_hot_prefix(policy: str) -> None:
    machine = Machine(400, 64, 4, policy=policy)
    hot = itertools.count(1000)

    def more(count: int) -> list[Sequence]:
        tag = Tag(priority=3)
        made = [sequence([*range(60), next(hot)], tag=tag) for _ in range(count)]
        for one in made:
            machine.scheduler.add(one)
        return made

    before = more(8)
    for _ in range(2):
        machine.step()
    cold = sequence([*range(500, 560)])
    machine.scheduler.add(cold)
    after: list[Sequence] = []
    while cold in list(machine.scheduler.waiting):
        after += more(2)  # twice what four places end in a step
        machine.step()
    served = [one for one in after if one not in list(machine.scheduler.waiting)]
    assert len(served) <= MAX_OVERTAKEN + 1
    assert policy == "fcfs" or policy == "mlq" or len(served) == MAX_OVERTAKEN  # it is the bound
    assert all(one not in list(machine.scheduler.waiting) for one in before)


@settings(max_examples=60)
@given(st.sampled_from(POLICIES), st.data())
def test_nobody_is_overtaken_more_often_than_the_bound(policy: str, data: st.DataObject) -> None:
    cache = CacheManager(100)
    runs = Runs(cache)
    waiting = Waiting(policy, cache, runs)
    prompts = st.lists(st.integers(0, 2), min_size=1, max_size=6)
    tags = st.builds(Tag, st.sampled_from(["", "a", "b", "c"]), st.just("0"), st.integers(0, 3))
    overtaken: dict[Sequence, int] = {}
    for _ in range(data.draw(st.integers(1, 3 * MAX_OVERTAKEN))):
        one = sequence(data.draw(prompts), tag=data.draw(tags))
        waiting.add(one)
        overtaken[one] = 0
        action = data.draw(st.sampled_from(["admit", "admit", "cancel", "wait"]))
        if action == "cancel":
            gone = data.draw(st.sampled_from(list(waiting)))
            waiting.remove(gone)
            del overtaken[gone]
        elif action == "admit":
            first = waiting.candidates()[0]
            waiting.admit(first)
            runs.begin(first.tag.run_id)
            del overtaken[first]
            for other in overtaken:
                overtaken[other] += other.arrival < first.arrival
        assert all(count <= MAX_OVERTAKEN for count in overtaken.values())
        assert len(waiting) == len(overtaken)
    assert set(waiting.candidates()) == set(itertools.islice(waiting, WINDOW)) or policy != "fcfs"
    while len(waiting):  # everything can be reached
        waiting.admit(waiting.candidates()[0])


# ---------------------------------------------------------------- the orders themselves


def order(policy: str, sequences: list[Sequence], cached: list[int] | None = None) -> list[int]:
    """The places in ``sequences`` in the order in which they are admitted."""
    machine = Machine(2_000, 4_000, 1, policy=policy)
    if cached is not None:
        machine.scheduler.add(sequence(cached, 1))
        machine.run()
    for one in sequences:
        machine.scheduler.add(one)
    machine.ended.clear()
    machine.run()
    return [sequences.index(one) for one in machine.ended]


def test_each_policy_orders_as_it_says() -> None:
    prompts = [[1, 1, 5], [2, 2, 2, 6], [1, 1, 7], [2, 8]]
    assert order("fcfs", [sequence(p) for p in prompts]) == [0, 1, 2, 3]
    assert order("dfs", [sequence(p) for p in prompts]) == [0, 2, 1, 3]
    assert order("lpm", [sequence(p) for p in prompts], [2, 2, 2, 9])[0] == 1
    ranked = [sequence(p, tag=Tag(priority=r)) for p, r in zip(prompts, (0, 2, -1, 2), strict=True)]
    assert order("priority", ranked) == [1, 3, 0, 2]


def test_runs_that_have_begun_go_before_new_ones() -> None:
    machine = Machine(2_000, 64, 1, policy="program")
    machine.scheduler.add(sequence([1, 2, 3], 1, Tag("begun", "0")))
    machine.run()
    new, goes_on = (
        sequence([4, 4], 1, Tag("new", "0")),
        sequence([1, 2, 3, 9], 1, Tag("begun", "1")),
    )
    machine.scheduler.add(new)
    machine.scheduler.add(goes_on)
    machine.ended.clear()
    machine.run()
    assert machine.ended == [goes_on, new]


def test_mlq_serves_runs_that_got_little_first() -> None:
    machine = Machine(4_000, 2_000, 1, policy="mlq")
    machine.scheduler.runs.begin("greedy")
    machine.scheduler.runs.serve("greedy", 5_000)
    greedy = sequence([1, 2], 1, Tag("greedy", "1"))
    modest = sequence([3, 4], 1, Tag("modest", "0"))
    machine.scheduler.add(greedy)
    machine.scheduler.add(modest)
    machine.run()
    assert machine.ended == [modest, greedy]


def test_a_higher_priority_takes_the_place_of_a_lower_one() -> None:
    machine = Machine(40, 64, 4, policy="priority")
    low = [sequence([n] * 10, 8, Tag(priority=0)) for n in range(2)]
    for one in low:
        machine.scheduler.add(one)
    machine.step()
    high = sequence([7] * 20, 8, Tag(priority=5))
    machine.scheduler.add(high)
    machine.step()
    assert high in machine.scheduler.running
    assert machine.scheduler.retractions > 0
    machine.run()
    assert machine.ended[0] is high
    assert set(machine.ended) == {high, *low}


# ---------------------------------------------------------------- interleaving


def test_a_short_late_request_ends_before_a_long_earlier_one() -> None:
    machine = Machine(8_000, 256)
    long, short = sequence(list(range(4_000)), 2), sequence([9] * 20, 3)
    machine.scheduler.add(long)
    machine.step()
    machine.scheduler.add(short)
    machine.run()
    assert machine.ended == [short, long]


def test_rows_decode_in_every_step_while_a_long_prompt_is_prefilled() -> None:
    machine = Machine(8_000, 256)
    rows = [sequence([n, n + 1], 40) for n in range(6)]
    for one in rows:
        machine.scheduler.add(one)
    machine.step()
    machine.scheduler.add(sequence(list(range(100, 4_100)), 1))
    steps = 0
    while any(one in machine.scheduler.running for one in rows):
        plan = machine.step()
        assert sum(row.count for row in plan.rows) <= 256
        assert {row.sequence for row in plan.rows if row.sequence.decoding} >= {
            one for one in rows if one.lease
        }
        steps += 1
    assert steps == 39


def test_the_oldest_prompt_gets_on_beside_a_stream_of_short_ones() -> None:
    machine = Machine(100_000, 64, 64)
    long = sequence(list(range(640)), 1)
    machine.scheduler.add(long)
    number = itertools.count(1_000)
    for _ in range(60):
        for _ in range(4):
            machine.scheduler.add(sequence([next(number)] * 16, 1))
        machine.step()
        if long in machine.ended:
            break
    assert long in machine.ended  # a quarter of the budget each step: 40 steps


# ---------------------------------------------------------------- retraction


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=2, max_size=12),
    st.integers(2, 10),
    st.integers(1, 30),
    st.sampled_from(POLICIES),
    st.data(),
)
def test_everything_ends_whatever_is_retracted_and_whenever(
    prompts: list[list[int]], budget: int, growth: int, policy: str, data: st.DataObject
) -> None:
    slots = max(map(len, prompts)) + growth + data.draw(st.integers(0, 20))
    machine = Machine(slots, budget, 8, policy=policy)
    sequences = [sequence(prompt, growth) for prompt in prompts]
    for one in sequences:
        machine.scheduler.add(one)
    steps = 0
    while machine.scheduler.sequences():
        machine.step()
        steps += 1
        assert steps < 5_000
        if steps < 300 and data.draw(st.integers(0, 3)) == 0 and machine.scheduler.running:
            machine.scheduler.retract(data.draw(st.sampled_from(machine.scheduler.running)))
            machine.cache.check()
    assert set(machine.ended) == set(sequences)
    for one in sequences:
        assert len(one.generated) == growth - 1
    assert machine.decode + machine.prefill == sum(
        one.reached - one.cached_tokens for one in sequences
    )
    machine.cache.flush()
    assert machine.cache.allocator.free_count == slots


def test_who_came_first_is_never_retracted_for_room() -> None:
    machine = Machine(300, 64, 8)
    sequences = [sequence([n] * 8, 200) for n in range(6)]
    for one in sequences:
        machine.scheduler.add(one)
    machine.run()
    assert machine.scheduler.retractions > 0
    assert sequences[0].retractions == 0
    assert machine.ended[0] is sequences[0]


def test_the_switch_for_waiting_is_a_switch() -> None:
    rows = [[*range(50), n] for n in range(100, 104)]

    def computed(share: bool) -> int:
        machine = Machine(2_000, 512, 64)
        machine.scheduler = Scheduler(machine.cache, 512, 64, share=share)
        for row in rows:
            machine.scheduler.add(sequence(row, 1))
        machine.run()
        return machine.prefill

    assert computed(True) == 54
    assert computed(False) == 4 * 51
