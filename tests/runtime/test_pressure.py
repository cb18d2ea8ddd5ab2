"""Retraction, eviction, namespaces, a host tier, drafts: never a token but the oracle's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import ModelError
from lmlang.protocol import (
    Generation,
    Output,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Scores,
    Tag,
    Text,
)
from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.commit import Commit
from lmlang.runtime.drafting import Drafter
from lmlang.runtime.intake import cache_namespace
from lmlang.runtime.local import Runtime
from lmlang.runtime.loop import EngineLoop
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.output import OutputStream
from lmlang.runtime.policy import POLICIES
from lmlang.runtime.scheduler import Scheduler
from lmlang.runtime.scoring import ScoreJob
from lmlang.runtime.sequence import GenerateTask, Sequence, score_sequence
from tests.runtime import oracle
from tests.runtime.test_engine import MODEL, REQUESTS, TEMPLATE, TOKENIZER, expected, request

CPU = torch.device("cpu")


class Stepped:
    """The real loop, stepped by the test, with a check of all invariants after every step."""

    def __init__(
        self,
        slots: int,
        budget: int = 512,
        *,
        policy: str = "program",
        host_slots: int = 0,
        drafts: bool = False,
        max_running: int = 64,
        runner: ModelRunner | None = None,
    ) -> None:
        cache = CacheManager(slots, host_slots=host_slots)
        drafter = Drafter(cache.tree) if drafts else None
        scheduler = Scheduler(cache, budget, max_running, policy=policy, drafter=drafter)
        host = KVPool(MODEL.kv_layers, host_slots, torch.float32, CPU) if host_slots else None
        runner = runner or ModelRunner(MODEL, KVPool(MODEL.kv_layers, slots, torch.float32, CPU))
        self.loop = EngineLoop(runner, cache, scheduler, host)
        self.budget = budget

    def generate(self, one: Request) -> Generation:
        ids = TOKENIZER.encode("".join(s.text for s in one.prompt.segments()))  # type: ignore[union-attr]
        generation = Generation(one)
        first = len(ids) - 1
        if one.input_logprobs_from is not None:
            first = min(first, max(0, one.input_logprobs_from - 1))
        task = GenerateTask(generation, OutputStream(TOKENIZER, one.params))
        growth = one.params.max_tokens
        tokens, space = np.array(ids, np.int64), cache_namespace(one.namespace, one.lora)
        self.loop.add(
            Sequence(tokens, first, growth, task, tag=one.tag, namespace=space, lora=one.lora)
        )
        return generation

    def score(self, stem: list[int], tails: list[list[int]], alone: bool = False) -> Future[Scores]:
        future: Future[Scores] = Future()
        job = ScoreJob(future, np.array(stem, np.int64), tails, alone)
        self.loop.add(score_sequence(job, self.budget, Tag(), ""))
        return future

    def run(self, between: Callable[[int], None] = lambda step: None) -> int:
        """Step to the end; how many steps that took."""
        steps = 0
        while self.loop.has_work():
            self.loop.step()
            steps += 1
            self.loop.cache.check()
            between(steps)
            self.loop.cache.check()
            assert steps < 5_000
        return steps

    def retract(self, number: int) -> None:
        """Retract one of the running sequences."""
        running = self.loop.scheduler.running
        if running:
            self.loop.scheduler.retract(running[number % len(running)])


def answered(one: Request, generation: Generation) -> Output:
    """The output, as the model alone gives it, each token shown once."""
    output = generation.result(timeout=0)
    assert list(output.ids) == expected(one)
    events = list(generation.events())
    assert [i for event in events for i in event.ids] == list(output.ids)
    at = 0
    for event in events:
        assert event.index == at
        at += len(event.ids)
    return output


# ---------------------------------------------------------------- retraction


@pytest.mark.parametrize("policy", POLICIES)
def test_forced_retraction_every_three_steps_in_a_pool_for_sixty_percent(policy: str) -> None:
    texts = [f"{n} " + "the user and the world, hello " * (n % 3) for n in range(32)]
    asked = [request(text, n, max_tokens=12, temperature=n % 2) for n, text in enumerate(texts)]
    demand = sum(len(TOKENIZER.encode(text)) + 11 for text in texts)
    engine = Stepped(int(0.6 * demand), 48, policy=policy)
    generations = [engine.generate(one) for one in asked]

    def between(step: int) -> None:
        if step % 3 == 0:
            engine.retract(step)
        if step % 6 == 0:
            engine.loop.cache.flush()  # what was retracted must be computed again

    engine.run(between)
    for text, one, generation in zip(texts, asked, generations, strict=True):
        output = answered(one, generation)
        wanted = oracle.choice_logprobs(MODEL, TOKENIZER.encode(text), list(output.ids))
        assert output.logprobs == pytest.approx(wanted, abs=1e-3)
    stats = engine.loop.stats()
    assert stats.retractions >= 4
    assert stats.recomputed_tokens > 0
    assert stats.prompt_tokens == stats.cached_tokens + stats.prefill_tokens
    assert stats.decode_tokens == sum(len(g.result().ids) - 1 for g in generations)
    engine.loop.cache.flush()
    assert engine.loop.cache.allocator.free_count == int(0.6 * demand)


@settings(max_examples=40)
@given(st.lists(REQUESTS, min_size=1, max_size=8), st.sampled_from([2, 5, 64]), st.data())
def test_retraction_at_any_step_in_a_pool_of_any_size(
    asked: list[Request], budget: int, data: st.DataObject
) -> None:
    engine = Stepped(data.draw(st.integers(60, 200)), budget)
    generations = [engine.generate(one) for one in asked]

    def between(step: int) -> None:
        if step < 200 and data.draw(st.booleans()):
            engine.retract(data.draw(st.integers(0, 7)))

    engine.run(between)
    for one, generation in zip(asked, generations, strict=True):
        answered(one, generation)


def test_a_long_output_grows_block_by_block_and_retracts_who_came_later() -> None:
    engine = Stepped(220, 64, policy="fcfs")
    asked = [request(f"user: {n}", n, max_tokens=150, ignore_eos=True) for n in range(4)]
    generations = [engine.generate(one) for one in asked]
    engine.run()
    for one, generation in zip(asked, generations, strict=True):
        answered(one, generation)
    assert engine.loop.stats().retractions > 0


@pytest.mark.parametrize("at", range(1, 9))
def test_prompt_logprobs_are_told_once_whenever_the_prompt_is_retracted(at: int) -> None:
    engine = Stepped(200, 5)
    one = Request(
        Prompt.of(Text("hello world and the user")),
        SamplingParams(max_tokens=4, temperature=0, ignore_eos=True),
        top_logprobs=2,
        input_logprobs_from=0,
    )
    generation = engine.generate(one)
    engine.run(lambda step: engine.retract(0) if step == at else None)
    inputs = generation.result(timeout=0).input_logprobs
    ids = TOKENIZER.encode("hello world and the user")
    assert inputs is not None
    assert inputs.ids == tuple(ids)
    wanted = oracle.choice_logprobs(MODEL, ids[:1], ids[1:])
    assert inputs.logprobs[1:] == pytest.approx(wanted, abs=1e-4)
    assert len(inputs.top) == len(ids)


def retract_at(engine: Stepped, at: int) -> Callable[[int], None]:
    """Retracts the first sequence after one step."""
    return lambda step: engine.retract(0) if step == at else None


@pytest.mark.parametrize("neighbours", [0, 1, 6, 15])
@pytest.mark.parametrize("budget", [3, 512])
def test_the_same_request_draws_the_same_tokens_in_any_company(
    neighbours: int, budget: int
) -> None:
    one = request("hello world and the ", 77, max_tokens=14, ignore_eos=True)
    wanted = expected(one)
    for warm, retracted in ((False, 0), (True, 0), (False, 4)):
        engine = Stepped(2_000, budget)
        if warm:
            engine.generate(request("hello world and the world", 1, max_tokens=1))
            engine.run()
        mine = engine.generate(one)
        for n in range(neighbours):
            engine.generate(request("hello " * (n % 4) + str(n), n, max_tokens=9))
        engine.run(retract_at(engine, retracted))
        assert list(mine.result(timeout=0).ids) == wanted


# ---------------------------------------------------------------- choices


@settings(max_examples=60)
@given(
    st.lists(st.integers(3, 250), min_size=1, max_size=12),
    st.lists(
        st.lists(st.integers(3, 6), min_size=1, max_size=7), min_size=1, max_size=9, unique_by=tuple
    ),
    st.booleans(),
    st.sampled_from([1, 4, 512]),
    st.integers(0, 12),
)
def test_scores_equal_the_model_alone_in_any_pieces(
    stem: list[int], tails: list[list[int]], alone: bool, budget: int, retract_at: int
) -> None:
    engine = Stepped(600, budget)
    beside = engine.generate(request("hello", 3, max_tokens=6))
    future = engine.score(stem, tails, alone)
    engine.run(lambda step: engine.retract(step) if step == retract_at else None)
    scores = future.result(timeout=0)
    for tail, choice in zip(tails, scores.choices, strict=True):
        assert choice.ids == tuple(tail)
        assert choice.logprobs == pytest.approx(oracle.choice_logprobs(MODEL, stem, tail), abs=1e-4)
        if alone:
            wanted = oracle.choice_logprobs(MODEL, tail[:1], tail[1:])
            assert choice.unconditional[0] is None
            assert choice.unconditional[1:] == pytest.approx(wanted, abs=1e-4)
    nodes = {tuple(tail[:n]) for tail in tails for n in range(1, len(tail))}
    if budget == 512 and not retract_at:
        assert scores.usage.scored_tokens == len(nodes) * (2 if alone else 1)
    answered(request("hello", 3, max_tokens=6), beside)
    engine.loop.cache.flush()
    assert engine.loop.cache.allocator.free_count == 600


def test_a_select_is_one_pass_and_many_at_once_are_one_batch() -> None:
    tails = [[n, 9, n, 9] for n in range(10, 40)]
    engine = Stepped(2_000)
    alone = engine.score([5, 6, 7], tails)
    assert engine.run() == 1
    assert len(alone.result().choices) == 30
    engine = Stepped(4_000, 4_000)
    futures = [engine.score([5, 6, 7, n], tails) for n in range(20)]
    assert engine.run() == 2  # the prefix that they share, then all of them
    assert all(future.done() for future in futures)


def test_thousands_of_choices_share_their_beginnings() -> None:
    tails = [[3 + a, 3 + b, 3 + c, 3] for a in range(14) for b in range(15) for c in range(15)]
    engine = Stepped(1_400, 512)
    future = engine.score([100, 101], tails)
    engine.run()
    scores = future.result(timeout=0)
    assert len(scores.choices) == 3_150
    nodes = 14 + 14 * 15 + 14 * 15 * 15
    assert nodes <= scores.usage.scored_tokens <= nodes + 2 * 8  # what pieces have to repeat
    for place in (0, 1_000, 3_149):
        wanted = oracle.choice_logprobs(MODEL, [100, 101], tails[place])
        assert scores.choices[place].logprobs == pytest.approx(wanted, abs=1e-4)


# ---------------------------------------------------------------- namespaces, the host tier


def test_namespaces_share_nothing() -> None:
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=400) as rt:
        prompt = Prompt.of(Text("hello world and the user"))
        params = SamplingParams(max_tokens=5, temperature=0)
        cached = {}
        for namespace in ("a", "b", "a", ""):
            output = rt.generate(Request(prompt, params, namespace=namespace)).result(timeout=60)
            assert list(output.ids) == expected(Request(prompt, params))
            cached.setdefault(namespace, []).append(output.usage.cached_tokens)
        length = len(TOKENIZER.encode("hello world and the user"))
        assert cached == {"a": [0, length - 1], "b": [0], "": [0]}
        scores = rt.score(ScoreRequest(prompt, ("hello", "and"), namespace="c")).result(timeout=60)
        assert scores.usage.cached_tokens == 0
        assert "namespace 'a'" in str(rt.tree())
        rt.check()


@settings(max_examples=30)
@given(st.lists(REQUESTS, min_size=4, max_size=20), st.sampled_from([40, 150, 1_000]))
def test_a_host_tier_changes_no_token(asked: list[Request], host_slots: int) -> None:
    engine = Stepped(90, 16, host_slots=host_slots)
    for one in [*asked, *asked]:
        generation = engine.generate(one)
        engine.run()
        answered(one, generation)
    stats = engine.loop.stats()
    assert stats.kv_tokens_host <= host_slots


def test_an_evicted_prefix_comes_back_from_the_host_at_a_copy() -> None:
    engine = Stepped(100, host_slots=1_000)
    prefix = "the user and the world, hello world "
    first = engine.generate(request(prefix, 1, max_tokens=3))
    engine.run()
    for n in range(6):
        engine.generate(request(str(n) * 50, n, max_tokens=3))
        engine.run()
    assert engine.loop.stats().evicted_tokens > 0
    before = engine.loop.stats()
    again = engine.generate(request(prefix, 1, max_tokens=3))
    engine.run()
    after = engine.loop.stats()
    assert again.result().ids == first.result().ids
    length = len(TOKENIZER.encode(prefix))
    assert again.result().usage.cached_tokens == length - 1
    assert after.prefill_tokens - before.prefill_tokens == 1
    assert after.host_tokens == length - 1


def test_after_a_copy_that_fails_nothing_is_found_that_was_not_copied() -> None:
    engine = Stepped(100, host_slots=1_000)
    whole = engine.loop.host
    prefix = "the user and the world, hello world "
    first = request(prefix, 1, max_tokens=3)
    engine.generate(first)
    engine.run()
    engine.loop.host = KVPool(
        MODEL.kv_layers, 1, torch.float32, CPU
    )  # to which nothing can be copied
    beside = [engine.generate(request(str(n) * 30, n, max_tokens=3)) for n in range(4)]
    engine.run()
    failures = [generation.outcome() for generation in beside]
    assert any(isinstance(failure, ModelError) for failure in failures)
    engine.loop.host = whole
    for one in (first, *(generation.request for generation in beside), first):
        generation = engine.generate(one)
        engine.run()
        answered(one, generation)


# ---------------------------------------------------------------- speculation


@settings(max_examples=50)
@given(st.lists(REQUESTS, min_size=1, max_size=6), st.sampled_from([60, 400]), st.data())
def test_drafts_change_no_token(asked: list[Request], slots: int, data: st.DataObject) -> None:
    engine = Stepped(slots, data.draw(st.sampled_from([8, 64])), drafts=True)
    for _ in range(2):  # the second time the tree foresees everything
        generations = [engine.generate(one) for one in asked]
        engine.run()
        for one, generation in zip(asked, generations, strict=True):
            answered(one, generation)
    stats = engine.loop.stats()
    outputs = sum(len(expected(one)) - 1 for one in asked)
    assert stats.decode_tokens == 2 * outputs
    assert stats.accepted_tokens <= stats.drafted_tokens


def test_drafts_with_penalties_stops_and_lengths() -> None:
    params = [
        {"max_tokens": 30, "ignore_eos": True, "temperature": 0, "frequency_penalty": 0.4},
        {"max_tokens": 30, "ignore_eos": True, "min_tokens": 10, "temperature": 0},
        {"max_tokens": 7, "ignore_eos": True, "repetition_penalty": 1.3, "temperature": 0.7},
        {"max_tokens": 30, "stop": ("a", "é"), "ignore_eos": True, "temperature": 0},
    ]
    texts = ["hello hello hello hello ", "the the the the ", "and the and the and the "]
    outputs: dict[bool, list[tuple[int, ...]]] = {}
    for drafts in (False, True):
        engine = Stepped(2_000, drafts=drafts)
        outputs[drafts] = []
        for _ in range(2):
            made = [engine.generate(request(t, 5, **p)) for t in texts for p in params]
            engine.run()
            outputs[drafts] += [generation.result(timeout=0).ids for generation in made]
    assert outputs[True] == outputs[False]
    assert engine.loop.stats().accepted_tokens > 30


def test_accepted_drafts_save_steps() -> None:
    steps = {}
    for drafts in (False, True):
        engine = Stepped(2_000, drafts=drafts)
        one = request("hello world ", 4, max_tokens=60, ignore_eos=True)
        engine.generate(one)
        engine.run()
        engine.generate(one)
        steps[drafts] = engine.run()
    assert steps[False] == 60
    assert steps[True] <= 60 / 6  # the tree saw it all: up to eight a step and one more


# ---------------------------------------------------------------- switches


@pytest.mark.parametrize(
    "switches",
    [
        {"radix_cache": False},
        {"in_batch_sharing": False},
        {"eviction": "lru"},
        {"speculative": "ngram"},
        {"host_kv_gb": 1e-4},
        {"max_running": 1},
        *({"policy": policy} for policy in POLICIES),
    ],
    ids=str,
)
def test_no_switch_changes_an_answer(switches: dict[str, object]) -> None:
    asked = [request("the user and " * 3 + str(n % 4), n % 3, max_tokens=8) for n in range(12)]
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=150, **switches) as rt:
        generations = [rt.generate(one) for one in asked]
        scores = rt.score(ScoreRequest(Prompt.of(Text("the ")), ("hello", "and", "world")))
        for one, generation in zip(asked, generations, strict=True):
            assert list(generation.result(timeout=60).ids) == expected(one)
        assert len(scores.result(timeout=60).choices) == 3
        rt.check()
        stats = rt.stats()
        assert stats.prompt_tokens == stats.cached_tokens + stats.prefill_tokens
        if switches.get("radix_cache") is False:
            assert stats.cached_tokens == stats.kv_tokens_tree == 0


# ---------------------------------------------------------------- priorities


def test_who_preempts_the_only_one_that_computes_their_common_prefix_computes_it_itself() -> None:
    text = "the user and the world, hello world "
    engine = Stepped(400, 4, policy="priority", max_running=1)
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    asked = [
        Request(Prompt.of(Text(text + end)), params, tag=Tag(priority=priority))
        for end, priority in (("", 0), ("and", 5))
    ]
    generations = [engine.generate(asked[0])]
    engine.loop.step()
    generations.append(engine.generate(asked[1]))
    engine.run()
    for one, generation in zip(asked, generations, strict=True):
        answered(one, generation)
    stats = engine.loop.stats()
    assert stats.retractions == 1
    assert stats.prompt_tokens == stats.cached_tokens + stats.prefill_tokens
    assert stats.recomputed_tokens == 0  # each found when it came back what the other had computed


def test_nobody_is_preempted_for_those_who_still_wait_for_a_prefix() -> None:
    text = "the user and the world, hello world " * 3
    engine = Stepped(2_000, 5, policy="priority", max_running=2)
    low = engine.generate(request("hello", max_tokens=60, ignore_eos=True))
    engine.loop.step()
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    high = [
        Request(Prompt.of(Text(text + end)), params, tag=Tag("run", path, priority=5))
        for end, path in (("", "0"), ("and", "1"), ("", "0"))
    ]
    generations = [engine.generate(one) for one in high]
    engine.run()
    for one, generation in zip(high, generations, strict=True):
        answered(one, generation)
    assert len(low.result(timeout=0).ids) == 60
    assert engine.loop.stats().retractions == 1


def test_what_was_found_and_lost_before_anything_was_computed_is_recomputed() -> None:
    text = "the user and the world, hello world "
    engine = Stepped(400, 4, policy="fcfs")
    one = request(text, max_tokens=4, temperature=0, ignore_eos=True)
    engine.generate(one)
    engine.run()
    engine.loop.reset_stats()
    again = engine.generate(one)
    (sequence,) = engine.loop.scheduler.plan().admitted
    Commit(engine.loop.scheduler, engine.loop.cache, engine.loop.counters).admit(sequence)
    engine.retract(0)
    engine.loop.cache.flush()
    engine.run()
    answered(one, again)
    stats = engine.loop.stats()
    length = len(TOKENIZER.encode(text))
    assert stats.prompt_tokens == length == stats.cached_tokens + stats.prefill_tokens
    assert stats.recomputed_tokens == stats.cached_tokens == length - 1
    assert stats.decode_tokens == 3
