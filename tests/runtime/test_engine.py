"""The engine on a tiny model: the same answers as the model alone, whatever runs beside them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import Cancelled
from lmlang.noise import gumbel
from lmlang.protocol import (
    Generation,
    Output,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Text,
    Tokens,
)
from lmlang.runtime.local import Runtime
from lmlang.runtime.models.causal import Attend, CausalLM, Inputs
from lmlang.runtime.models.llama import LlamaModel
from tests.runtime import oracle
from tests.tiny import tiny_model, tiny_weights

MODEL, TOKENIZER, TEMPLATE = tiny_model()


def runtime(**options: int) -> Runtime:
    return Runtime.over(MODEL, TOKENIZER, TEMPLATE, **({"kv_tokens": 4_000} | options))


@pytest.fixture
def rt() -> Iterator[Runtime]:
    with runtime() as rt:
        yield rt
        rt.check()


def request(text: str, key: int = 0, **params: object) -> Request:
    return Request(Prompt.of(Text(text)), SamplingParams(**params), key)  # type: ignore[arg-type]


def expected(request: Request) -> list[int]:
    prompt = TOKENIZER.encode("".join(s.text for s in request.prompt.segments()))
    return oracle.generated(MODEL, prompt, request.params, request.draw_key, TOKENIZER.stop_ids)


TEXTS = st.lists(
    st.sampled_from(["the ", "hello world", "and ", "12", "é", "😀", "\n", "user: x"]),
    min_size=1, max_size=8,
).map("".join)  # fmt: skip
REQUESTS = st.builds(
    request,
    TEXTS,
    key=st.integers(0, 2**64 - 1),
    max_tokens=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 0.0, 0.8, 1.5]),
    top_k=st.sampled_from([-1, 20]),
    top_p=st.sampled_from([1.0, 0.9]),
    ignore_eos=st.booleans(),
)


@settings(max_examples=40)
@given(
    st.lists(st.lists(REQUESTS, min_size=1, max_size=8), min_size=1, max_size=3),
    st.sampled_from([1, 3, 7, 512]),
    st.sampled_from([60, 4_000]),
)
def test_answers_equal_the_model_alone_in_any_batch_chunk_and_cache_state(
    waves: list[list[Request]], budget: int, slots: int
) -> None:
    with runtime(max_batch_tokens=budget, kv_tokens=slots) as rt:
        for wave in waves:
            generations = [rt.generate(request) for request in wave]
            for one, generation in zip(wave, generations, strict=True):
                output = generation.result(timeout=60)
                assert list(output.ids) == expected(one)
                assert output.finish.reason == (
                    "eos"
                    if output.ids[-1] in TOKENIZER.stop_ids and not one.params.ignore_eos
                    else "length"
                )
                assert "".join(event.text for event in generation.events()) == output.text
                assert output.usage.generated_tokens == len(output.ids)
            rt.check()


def test_logprobs_are_the_models_own_before_temperature_and_truncation(rt: Runtime) -> None:
    one = request("hello world", key=3, max_tokens=8, temperature=0.5, top_k=5, ignore_eos=True)
    output = rt.generate(one).result()
    wanted = oracle.choice_logprobs(MODEL, TOKENIZER.encode("hello world"), list(output.ids))
    assert output.logprobs == pytest.approx(wanted, abs=1e-4)


def test_history_goes_on_as_the_ids_that_were_sampled(rt: Runtime) -> None:
    first = rt.generate(request("and the", key=1, max_tokens=10, ignore_eos=True)).result()
    prompt = Prompt.of(Text("and the"), *first.history, Text(" hello"))
    ids = [*TOKENIZER.encode("and the"), *first.ids, *TOKENIZER.encode(" hello")]
    assert rt.encode(prompt) == ids
    again = rt.generate(Request(prompt, SamplingParams(max_tokens=5, ignore_eos=True), 2)).result()
    # All but the last sampled token had been computed, and were still there.
    assert again.usage.cached_tokens == len(TOKENIZER.encode("and the")) + 9
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    assert list(again.ids) == oracle.generated(MODEL, ids, params, 2, frozenset())


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 40), min_size=1, max_size=3))
def test_stop_strings_cut_the_text_and_are_never_streamed(key: int, cuts: list[int]) -> None:
    with runtime() as rt:
        free = rt.generate(request("user: ", key, max_tokens=40, ignore_eos=True)).result()
        stops = tuple({free.text[cut : cut + 1 + cut % 3] for cut in cuts} - {""}) or ("never",)
        generation = rt.generate(request("user: ", key, max_tokens=40, ignore_eos=True, stop=stops))
        output = generation.result()
        ends = {free.text.find(s) + len(s): s for s in sorted(stops, key=len) if s in free.text}
        if not ends:
            assert output.finish.reason == "length"
            assert output.text == free.text
            return
        stop = ends[min(ends)]
        assert (output.finish.reason, output.finish.stop) == ("stop", stop)
        assert output.text == free.text[: min(ends) - len(stop)]
        assert "".join(event.text for event in generation.events()) == output.text
        kept = [s for s in output.history if isinstance(s, Tokens)]
        assert "".join(s.text for s in output.history) == output.text  # type: ignore[union-attr]
        assert all(free.ids[: len(s.ids)] == s.ids for s in kept)


def test_max_tokens_0_computes_the_prompt_and_gives_nothing(rt: Runtime) -> None:
    output = rt.generate(request("hello world", max_tokens=0)).result()
    assert (output.text, output.ids, output.finish.reason) == ("", (), "length")
    assert rt.generate(request("hello world and", max_tokens=1)).result().usage.cached_tokens > 0


@settings(max_examples=25)
@given(TEXTS, st.integers(0, 30), st.integers(1, 4), st.sampled_from([2, 512]), st.booleans())
def test_prompt_logprobs_and_the_likeliest_tokens_are_the_models(
    text: str, start: int, top: int, budget: int, warm: bool
) -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    one = Request(Prompt.of(Text(text)), params, 4, top_logprobs=top, input_logprobs_from=start)
    with runtime(max_batch_tokens=budget) as rt:
        if warm:
            rt.generate(request(text, max_tokens=1)).result(timeout=60)
        generation = rt.generate(one)
        output = generation.result(timeout=60)
        rt.check()
    prompt = TOKENIZER.encode(text)
    ids = [*prompt, *output.ids]
    scores = oracle.logits(MODEL, ids).log_softmax(-1)
    inputs = output.input_logprobs
    assert inputs is not None
    assert list(inputs.ids) == prompt[start:]
    assert len(inputs.logprobs) == len(inputs.top) == len(inputs.ids)
    for i, token in enumerate(inputs.ids, start):
        at = i - start
        if i == 0:
            assert (inputs.logprobs[at], inputs.top[at]) == (None, ())
        else:
            assert inputs.logprobs[at] == pytest.approx(scores[i - 1, token].item(), abs=1e-4)
            best = scores[i - 1].topk(top).values.tolist()
            assert [p for _, p in inputs.top[at]] == pytest.approx(best, abs=1e-4)
    for i, likeliest in enumerate(output.top_logprobs):
        row = scores[len(prompt) - 1 + i]
        assert [p for _, p in likeliest] == pytest.approx(row.topk(top).values.tolist(), abs=1e-4)
        assert all(row[t].item() == pytest.approx(p, abs=1e-4) for t, p in likeliest)
    assert tuple(t for e in generation.events() for t in e.top_logprobs) == output.top_logprobs


def test_min_tokens_keeps_an_output_from_ending(rt: Runtime) -> None:
    ends = TOKENIZER.stop_ids | TOKENIZER.control_ids
    bias = dict.fromkeys(TOKENIZER.stop_ids, 100)
    for key in range(5):
        one = request("the ", key, max_tokens=9, min_tokens=4, logit_bias=bias)
        output = rt.generate(one).result(timeout=60)
        assert (len(output.ids), output.finish.reason) == (5, "eos")
        assert not ends & set(output.ids[:4])
    free = rt.generate(request("the ", 3, max_tokens=30, min_tokens=30)).result(timeout=60)
    stop = free.text[0]
    cut = rt.generate(request("the ", 3, max_tokens=30, min_tokens=5, stop=stop)).result(timeout=60)
    assert len(cut.ids) > 5
    assert cut.ids[:5] == free.ids[:5]


def test_a_stop_token_ends_the_output_and_is_not_part_of_it(rt: Runtime) -> None:
    free = rt.generate(request("the ", 3, max_tokens=12, ignore_eos=True)).result(timeout=60)
    token = free.ids[6]
    first = free.ids.index(token)
    one = request("the ", 3, max_tokens=12, ignore_eos=True, stop_token_ids=[token])
    output = rt.generate(one).result(timeout=60)
    assert (output.finish.reason, output.finish.stop) == ("stop", token)
    assert output.ids == free.ids[: first + 1]
    assert output.text == TOKENIZER.decode(free.ids[:first])
    assert [s.ids for s in output.history if isinstance(s, Tokens)] == [free.ids[:first]][:first]


def test_a_stop_string_may_be_kept(rt: Runtime) -> None:
    free = rt.generate(request("user: ", 5, max_tokens=30, ignore_eos=True)).result(timeout=60)
    stop = free.text[4:6]
    options = {"max_tokens": 30, "ignore_eos": True, "stop": stop}
    bare = rt.generate(request("user: ", 5, **options)).result(timeout=60)
    kept = rt.generate(request("user: ", 5, include_stop=True, **options)).result(timeout=60)
    assert kept.text == bare.text + stop
    assert "".join(s.text for s in kept.history) == kept.text  # type: ignore[union-attr]


@settings(max_examples=40)
@given(
    st.integers(0, 99), st.integers(-2, 2), st.integers(-2, 2), st.sampled_from([0.5, 1.0, 1.7]),
    st.dictionaries(st.integers(3, 285), st.integers(-100, 100), max_size=4),
)  # fmt: skip
def test_penalties_and_bias_equal_their_definition(
    key: int, frequency: int, presence: int, repetition: float, bias: dict[int, float]
) -> None:
    params = SamplingParams(
        max_tokens=12, temperature=0.7, ignore_eos=True, frequency_penalty=frequency,
        presence_penalty=presence, repetition_penalty=repetition, logit_bias=bias,  # type: ignore[arg-type]
    )  # fmt: skip
    prompt = TOKENIZER.encode("hello world")
    with runtime() as rt:
        output = rt.generate(Request(Prompt.of(Text("hello world")), params, key)).result(60)
    ids: list[int] = []
    for index in range(12):
        scores = oracle.logits(MODEL, [*prompt, *ids])[-1].tolist()
        for token, more in bias.items():
            scores[token] += more
        for token in {*prompt, *ids}:
            old = scores[token]
            scores[token] = old / repetition if old > 0 else old * repetition
        for token in set(ids):
            scores[token] -= frequency * ids.count(token) + presence
        noisy = [score / 0.7 + gumbel(key, index, t) for t, score in enumerate(scores)]
        ids.append(max(range(len(noisy)), key=noisy.__getitem__))
    assert list(output.ids) == ids


@settings(max_examples=40)
@given(
    TEXTS, st.lists(TEXTS, min_size=1, max_size=6, unique=True),
    st.sampled_from([1, 4, 512]), st.booleans(),
)  # fmt: skip
def test_scores_equal_brute_force(text: str, choices: list[str], budget: int, warm: bool) -> None:
    prompt = Prompt.of(Text("the " + text))
    with runtime(max_batch_tokens=budget) as rt:
        if warm:
            rt.generate(request("the " + text + choices[0], max_tokens=2)).result()
        asked = ScoreRequest(prompt, tuple(choices), unconditional=True)
        scores = rt.score(asked).result(timeout=60)
        rt.check()
    encoded = [TOKENIZER.encode("the " + text + choice) for choice in choices]
    for choice, ids in zip(scores.choices, encoded, strict=True):
        common = len(ids) - len(choice.ids)
        assert tuple(ids[common:]) == choice.ids
        assert all(other[:common] == ids[:common] for other in encoded)
        wanted = oracle.choice_logprobs(MODEL, ids[:common], list(choice.ids))
        assert list(choice.logprobs) == pytest.approx(wanted, abs=1e-4)
        assert choice.unconditional[:1] == (None,) * min(1, len(choice.ids))
        alone = oracle.choice_logprobs(MODEL, list(choice.ids[:1]), list(choice.ids[1:]))
        assert list(choice.unconditional[1:]) == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize("at", range(14))
def test_a_cancel_at_any_step_frees_the_slots_and_leaves_neighbours_alone(at: int) -> None:
    steps = StepCounter(MODEL)
    with Runtime.over(steps, TOKENIZER, TEMPLATE, kv_tokens=200, max_batch_tokens=6) as rt:
        all_there = threading.Event()
        steps.at(0, lambda: all_there.wait(60) and at == 0 and victim.cancel())
        victim = rt.generate(request("hello world and the user" * 2, 5, max_tokens=9))
        neighbours = [request("hello world" + t, 6, max_tokens=6) for t in ("", " and", "12")]
        running = [rt.generate(one) for one in neighbours]
        if at:
            steps.at(at, victim.cancel)
        all_there.set()
        for one, generation in zip(neighbours, running, strict=True):
            assert list(generation.result(timeout=60).ids) == expected(one)
        with suppress(Cancelled):
            victim.result(timeout=60)
        outcome = victim.outcome()
        assert isinstance(outcome, (Cancelled, Output))
        assert isinstance(outcome, Output) or victim.cancelled
        rt.check()
        assert rt.stats().running == rt.stats().waiting == 0
        again = request("hello world and the user" * 2, 5, max_tokens=4)
        assert list(rt.generate(again).result(timeout=60).ids) == expected(again)


class StepCounter:
    """The tiny model, with something to do at its n-th forward pass."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.vocab, self.max_positions = MODEL.vocab, MODEL.max_positions
        self.kv_layers = MODEL.kv_layers
        self.dtype, self.device = MODEL.dtype, MODEL.device
        self.step = 0
        self.actions: dict[int, object] = {}

    def at(self, step: int, action: object) -> None:
        self.actions[step] = action

    def forward(self, inputs: Inputs, attend: Attend) -> torch.Tensor:
        action = self.actions.pop(self.step, None)
        self.step += 1
        if callable(action):
            action()
        return self.model.forward(inputs, attend)


def counted(rt: Runtime, generations: list[Generation]) -> None:
    """The counters' own law, for the requests since the last reset."""
    outputs = [generation.result(timeout=60) for generation in generations]
    stats = rt.stats()
    assert stats.prompt_tokens == stats.cached_tokens + stats.prefill_tokens
    assert stats.prompt_tokens == sum(o.usage.prompt_tokens for o in outputs)
    assert stats.cached_tokens == sum(o.usage.cached_tokens for o in outputs)
    assert stats.decode_tokens == sum(len(o.ids) - 1 for o in outputs)
    assert stats.sampled_tokens == stats.generated_tokens == sum(len(o.ids) for o in outputs)
    assert stats.computed_tokens == stats.prefill_tokens + stats.decode_tokens


def test_rows_over_one_prefix_compute_it_once(rt: Runtime) -> None:
    prefix = "hello world and the user. " * 6
    counted(rt, [rt.generate(request(prefix + str(n), n, max_tokens=4)) for n in range(10)])
    union = {tuple(ids[:n]) for ids in (TOKENIZER.encode(prefix + str(i)) for i in range(10))
             for n in range(1, len(ids) + 1)}  # fmt: skip
    assert rt.stats().prefill_tokens == len(union)


def test_a_chats_next_turn_computes_only_what_is_new(rt: Runtime) -> None:
    prompt, total = Prompt.of(Text("hello")), 0
    for turn in range(4):
        prompt = prompt.append(Text(" and the user"))
        params = SamplingParams(max_tokens=6, ignore_eos=True)
        output = rt.generate(Request(prompt, params, turn)).result()
        new = len(rt.encode(prompt)) - total
        assert output.usage.prefill_tokens == new + (1 if turn else 0)
        for segment in output.history:
            prompt = prompt.append(segment)
        total = len(rt.encode(prompt))


def test_a_row_with_logits_that_are_not_finite_fails_alone() -> None:
    weights, bad = tiny_weights(MODEL.shape), TOKENIZER.encode("9")[0]
    embed = weights["embed"].clone()
    weights["head"] = embed.clone()
    embed[bad] = float("nan")
    weights["embed"] = embed
    shape = dataclasses.replace(MODEL.shape, tied_head=False)
    with Runtime.over(LlamaModel(shape, weights), TOKENIZER, TEMPLATE, kv_tokens=500) as rt:
        good = [request("hello" + t, 1, max_tokens=5) for t in ("", " world", " and")]
        generations = [rt.generate(one) for one in good]
        failing = rt.generate(request("hello9", max_tokens=5))
        scoring = rt.score(ScoreRequest(Prompt.of(Text("the 9 ")), ("hello", "and")))
        with pytest.raises(Exception, match="not finite"):
            failing.result(timeout=60)
        with pytest.raises(Exception, match="not finite"):
            scoring.result(timeout=60)
        for one, generation in zip(good, generations, strict=True):
            assert list(generation.result(timeout=60).ids) == expected(one)
        rt.check()
        assert rt.stats().kv_tokens_tree < 25


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_generation_whose_logits_cease_to_be_finite_fails_alone(temperature: float) -> None:
    weights, bad = tiny_weights(MODEL.shape), TOKENIZER.encode("9")[0]
    weights["head"] = weights["embed"].clone()
    weights["embed"] = weights["embed"].clone()
    weights["embed"][bad] = float("nan")
    model = LlamaModel(dataclasses.replace(MODEL.shape, tied_head=False), weights)
    good = request("hello world", 1, max_tokens=6)
    assert bad not in expected(good)
    with Runtime.over(model, TOKENIZER, TEMPLATE, kv_tokens=500) as rt:
        bias = {"logit_bias": {bad: 100.0}, "temperature": temperature, "ignore_eos": True}
        failing = rt.generate(request("hello", 1, max_tokens=6, **bias))
        generation = rt.generate(good)
        with pytest.raises(Exception, match="not finite"):
            failing.result(timeout=60)
        assert list(generation.result(timeout=60).ids) == expected(good)
        rt.check()
