"""deterministic=True: the same bits cold or cached, alone or in a batch, in whatever chunks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.kernels import native
from lmlang.kernels.packed import pack_floats
from lmlang.kernels.paged_attention import SPAN
from lmlang.protocol import Output, Prompt, Request, SamplingParams, ScoreRequest, Text
from lmlang.runtime.attention import AttentionPlan, plan_attention
from lmlang.runtime.batch import Batch
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.exact_attention import ExactPlan, plan_exact
from lmlang.runtime.local import Runtime
from lmlang.runtime.loop import EngineLoop
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.models.causal import CausalLM
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.models.opened import open_model
from lmlang.runtime.paged_plan import PagedPlan, paged_words, plan_paged
from lmlang.runtime.shape import LayerKind, Rope
from lmlang.runtime.sharing import RowSlots
from lmlang.runtime.transfer import Transfer
from tests.runtime import oracle
from tests.tiny import tiny_model, tiny_shape, tiny_weights

SLOTS = 2_400


needs_c = pytest.mark.skipif(not native.available(), reason=native.description())


def batch(
    ids: list[int], positions: list[int], plan: AttentionPlan | ExactPlan | PagedPlan
) -> Batch:
    """A batch that wants all its logits."""
    return Batch(torch.tensor(ids), torch.tensor(positions), plan, torch.arange(len(ids)), ())


class Machine:
    """A deterministic runner, its pool, and texts whose tokens lie in scattered slots of it.

    It computes with the C kernels' attention, which may share prefixes, or without.
    """

    def __init__(self, model: CausalLM, seed: int = 0, *, in_c: bool = False) -> None:
        self.model, self.in_c, self.shared = model, in_c, 0
        pool = KVPool(model.kv_layers, SLOTS, model.dtype, model.device)
        for part in pool.layers:
            part.k.fill_(torch.nan)  # what nobody wrote must not be read
            part.v.fill_(torch.nan)
        self.runner = ModelRunner(model, pool, deterministic=True, paged=in_c)
        self.free = list(np.random.default_rng(seed).permutation(SLOTS))
        self.texts: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.done: dict[str, list[torch.Tensor]] = {}

    def open(self, name: str, ids: list[int], parent: str = "", shared: int = 0) -> None:
        """A text, whose first tokens may be those that another one has computed."""
        self.texts[name] = ids
        self.tables[name] = self.tables[parent][:shared] if shared else []
        self.done[name] = list(self.done[parent][:shared]) if shared else []

    def step(self, parts: dict[str, int]) -> None:
        """Compute the next so many tokens of each of these texts."""
        rows: dict[str, RowSlots] = {}
        ids: list[int] = []
        positions: list[int] = []
        for name, most in parts.items():
            table = self.tables[name]
            before = len(table)
            count = min(most, len(self.texts[name]) - before)
            if count:
                table += [int(self.free.pop()) for _ in range(count)]
                rows[name] = RowSlots(len(ids), count, np.array(table, dtype=np.int64))
                ids += self.texts[name][before : before + count]
                positions += range(before, before + count)
        if rows:
            logits = self.runner.run(batch(ids, positions, self.plan([*rows.values()])))
            for name, row in rows.items():
                self.done[name] += logits[row.start : row.start + row.count].unbind(0)

    def plan(self, rows: list[RowSlots]) -> ExactPlan | PagedPlan:
        device, windows = self.model.device, self.runner.windows
        if not self.in_c:
            return plan_exact(rows, device, windows)
        transfer = Transfer(paged_words(rows, windows), device, None)
        plan = plan_paged(rows, transfer, windows, least=1, span=SPAN)
        transfer.send()
        self.shared += sum(len(parts.levels) for parts in plan.parts.values())
        return plan

    def finish(self, name: str, chunk: int = SLOTS) -> torch.Tensor:
        """Compute what is left of a text in such chunks, alone; all its logits."""
        while len(self.tables[name]) < len(self.texts[name]):
            self.step({name: chunk})
        return torch.stack(self.done[name])


def alone(model: CausalLM, ids: list[int], *, in_c: bool = False) -> torch.Tensor:
    """The logits of a text that is computed whole, cold and alone."""
    machine = Machine(model, seed=1, in_c=in_c)
    machine.open("a", ids)
    return machine.finish("a")


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "odd": {"heads": 9, "kv_heads": 3, "head_dim": 20, "hidden": 60, "intermediate": 1501},
    "many heads": {"heads": 6, "kv_heads": 6, "head_dim": 64, "intermediate": 63, "layers": 1},
    "gemma": {
        "kinds": (LayerKind(40), LayerKind(0, Rope(500.0))), "softcap": 5.0, "logit_softcap": 9.0,
        "activation": "gelu_tanh", "intermediate": 100, "qk_norm": True, "post_norms": True,
        "query_scale": 0.2, "embed_scale": 3.0,
    },
    "windows": {"kinds": (LayerKind(150), LayerKind(7)), "qkv_bias": True, "out_bias": True},
}  # fmt: skip


def model_of(family: str) -> LlamaModel:
    return tiny_model(**FAMILIES[family])[0]


def packed_model_of(family: str) -> LlamaModel:
    shape = tiny_shape(**FAMILIES[family])
    weights = tiny_weights(shape)
    return LlamaModel(
        shape, {name: pack_floats(w) if w.ndim == 2 else w for name, w in weights.items()}
    )


MODELS = {family: model_of(family) for family in FAMILIES}


def ids_of(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 280, length).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_those_of_the_model(family: str) -> None:
    ids, model = ids_of(0, 200), MODELS[family]
    wanted = alone(model, ids)
    if family in ("llama", "odd", "many heads"):
        torch.testing.assert_close(wanted, oracle.logits(model, ids), rtol=1e-4, atol=1e-4)
    usual = ModelRunner(model, KVPool(model.kv_layers, SLOTS, model.dtype, model.device))
    rows = [RowSlots(0, len(ids), np.arange(len(ids)))]
    plan = plan_attention(rows, model.device, usual.windows)
    theirs = usual.run(batch(ids, list(range(len(ids))), plan))
    torch.testing.assert_close(wanted, theirs, rtol=1e-4, atol=1e-3)


def check_every_way(model: CausalLM, length: int, *, in_c: bool = False) -> None:
    ids = ids_of(1, length)
    wanted = alone(model, ids, in_c=in_c)
    for chunk in (7, 1):
        machine = Machine(model, in_c=in_c)
        machine.open("a", ids)
        assert torch.equal(machine.finish("a", chunk), wanted), f"in chunks of {chunk}"
    batched = Machine(model, in_c=in_c)
    for n in range(6):
        batched.open(str(n), ids if n == 3 else ids_of(n + 7, length // 2 + 5 * n))
    for counts in ((3, 1, 9, 30, 2, 40), (1, 1, 1, 1, 1, 1), (1, 50, 1, 2, 8, 1)):
        batched.step(dict(zip(map(str, range(6)), counts, strict=True)))
    while len(batched.done["3"]) < length:
        batched.step({str(n): 20 if n == 3 else 1 for n in range(6)})
    assert torch.equal(batched.finish("3"), wanted), "beside five others"
    cached = Machine(model, in_c=in_c)
    shared = length * 2 // 3
    cached.open("first", ids[:shared] + ids_of(2, 9))
    cached.finish("first")
    for n in range(3):
        cached.open(f"then {n}", ids[:shared] + ids[shared : shared + n] + ids_of(n, 5),
                    "first", shared)  # fmt: skip
    cached.open("a", ids, "first", shared)
    cached.step({"then 0": 3, "then 1": 4, "a": 6, "then 2": 1})
    assert torch.equal(cached.finish("a", 5), wanted), "behind a cached prefix"
    if in_c and shared >= SPAN and 0 in cached.runner.windows:
        assert cached.shared


@pytest.mark.parametrize("family", FAMILIES)
def test_a_position_has_the_same_bits_however_it_is_computed(family: str) -> None:
    check_every_way(MODELS[family], 170)


@needs_c
@pytest.mark.parametrize("packed", [False, True], ids=["float32", "blocks"])
@pytest.mark.parametrize("family", FAMILIES)
def test_so_it_has_where_attention_runs_in_c_and_prefixes_are_shared(
    family: str, packed: bool
) -> None:
    model = packed_model_of(family) if packed else MODELS[family]
    check_every_way(model, 470, in_c=True)


def test_the_embedded_model_has_the_same_bits_however_it_is_computed() -> None:
    model = open_model(None, quantize="none").model
    ids, machine = ids_of(1, 24), Machine(model)
    wanted = alone(model, ids)
    for n in range(4):
        machine.open(str(n), ids if n == 2 else ids_of(n + 7, 30))
    machine.step({"0": 9, "1": 1, "2": 7, "3": 4})
    machine.step({"0": 1, "1": 1, "2": 1, "3": 1})
    machine.step({"2": 3, "1": 20})
    machine.step({"2": 1})
    assert torch.equal(machine.finish("2"), wanted)


@needs_c
def test_so_it_has_in_blocks_with_prefixes_of_hundreds_of_tokens() -> None:
    check_every_way(open_model(None, quantize="blocks8").model, 390, in_c=True)


STEPS = st.lists(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 90), min_size=1),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=40)
@given(
    st.sampled_from(list(FAMILIES)), STEPS, st.integers(0, 120), st.integers(1, 200),
    st.integers(0, 99),
)  # fmt: skip
def test_any_chunks_batches_and_shared_prefixes_give_the_same_bits(
    family: str, steps: list[dict[str, int]], shared: int, more: int, seed: int
) -> None:
    model = MODELS[family]
    prefix = ids_of(seed, shared)
    machine = Machine(model, seed)
    machine.open("p", prefix or [5])
    machine.finish("p", 33)
    texts = {name: prefix + ids_of(seed + n, 1 + more * n // 4) for n, name in enumerate("abcde")}
    for name, ids in texts.items():
        machine.open(name, ids, "p", shared)
    for step in steps:
        machine.step(step)
    for name in {name for step in steps for name in step}:
        got = torch.stack(machine.done[name])
        assert torch.equal(got, alone(model, texts[name])[: len(got)])


# ---------------------------------------------------------------------- the whole runtime

MODEL, TOKENIZER, TEMPLATE = tiny_model()
PREFIX = "hello world and the user: "


def ask(rt: Runtime, number: int, tokens: int = 10) -> Any:
    params = SamplingParams(
        max_tokens=tokens, temperature=0.9 if number % 2 else 0.0, top_p=0.9, ignore_eos=True
    )
    prompt = Prompt.of(Text(PREFIX + "12 and 34 " * (number % 5) + str(number)))
    return rt.generate(Request(prompt, params, number, top_logprobs=3))


def retract_often(loop: EngineLoop) -> None:
    """Have a running sequence lose its slots before every third step."""
    step, number = loop.step, itertools.count()

    def retracting(planned: Callable[[int], None]) -> None:
        running = loop.scheduler.running
        if next(number) % 3 == 2 and running:
            loop.scheduler.retract(running[-1])
        step(planned)

    loop.step = retracting  # type: ignore[method-assign]


def facts(output: Output) -> tuple[Any, ...]:
    return output.ids, output.logprobs, output.top_logprobs


@pytest.mark.parametrize(
    "options",
    [{"max_batch_tokens": 7}, {"max_running": 3}, {"kv_tokens": 90}, {"radix_cache": False},
     {"policy": "fcfs", "in_batch_sharing": False}, {"speculative": "ngram"}],
    ids=str,
)  # fmt: skip
def test_outputs_and_log_probabilities_are_exactly_equal_in_every_state_of_the_engine(
    options: dict[str, Any],
) -> None:
    numbers = range(12)
    wanted = {}
    for number in numbers:
        with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=600, deterministic=True) as rt:
            wanted[number] = facts(ask(rt, number).result(timeout=60))
    choices = ("hello", " and the user", " and the world", "12")
    asked = ScoreRequest(Prompt.of(Text(PREFIX)), choices, unconditional=True)
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=600, deterministic=True) as rt:
        scores = rt.score(asked).result(timeout=60)
    with Runtime.over(
        MODEL, TOKENIZER, TEMPLATE, **({"kv_tokens": 600, "deterministic": True} | options)
    ) as rt:
        if "max_running" in options:
            rt._engine.call(retract_often)
        for _ in range(2):  # cold, then cached
            generations = [ask(rt, number) for number in numbers]
            scored = rt.score(asked)
            for number, generation in zip(numbers, generations, strict=True):
                assert facts(generation.result(timeout=60)) == wanted[number]
            assert scored.result(timeout=60).choices == scores.choices
        rt.check()
        assert (rt.stats().retractions > 0) == ("max_running" in options)


def test_bfloat16_is_exact_too() -> None:
    shape = tiny_shape()
    weights = {name: weight.bfloat16() for name, weight in tiny_weights(shape).items()}
    check_every_way(LlamaModel(shape, weights), 140)
