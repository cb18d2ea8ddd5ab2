"""Every family against transformers, from a folder that transformers saved, in all cache states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import PreTrainedModel

from lmlang.errors import ModelError
from lmlang.protocol import Prompt, Request, SamplingParams, Text
from lmlang.runtime.attention import plan_attention
from lmlang.runtime.batch import Batch
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.local import Runtime
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.models.loader import LoadedModel, load_folder, load_gguf
from lmlang.runtime.shape import LayerKind, ModelShape, Rope
from lmlang.runtime.sharing import RowSlots
from tests.reference import greedy
from tests.runtime.models.families import (
    ARCHITECTURES,
    FAMILIES,
    VOCAB,
    family_model,
    save_family,
    write_family_gguf,
)
from tests.tiny import tiny_template, tiny_tokenizer, tiny_vocabulary

SLOTS = 1_000
LONG = 70
"""Tokens of a prompt: several times every window."""


class Cases:
    """A loaded model over a pool, its prompts, and what transformers says about them."""

    def __init__(
        self, loaded: LoadedModel, reference: PreTrainedModel, dtype: torch.dtype = torch.float32
    ) -> None:
        self.reference = reference
        self.model = LlamaModel(loaded.shape, loaded.weights)
        pool = KVPool(loaded.shape.kv_layers, SLOTS, dtype, torch.device("cpu"))
        for part in pool.layers:
            part.k.fill_(torch.nan)  # whatever reads a slot that nobody wrote is found out
            part.v.fill_(torch.nan)
        self.runner = ModelRunner(self.model, pool)
        self.draw = np.random.default_rng(0)
        self.free = list(self.draw.permutation(SLOTS // 10))  # runs of ten slots, in any order

    def prompt(self, count: int) -> list[int]:
        return self.draw.integers(3, VOCAB, count).tolist()

    def slots(self, count: int) -> np.ndarray:
        taken = [self.free.pop() * 10 + np.arange(10) for _ in range(-(-count // 10))]
        return np.concatenate(taken)[:count].astype(np.int64)

    def run(self, rows: Sequence[tuple[list[int], np.ndarray, int]]) -> list[torch.Tensor]:
        """One step: of each row (ids, slots, computed) the logits of all that was not computed."""
        ids, positions, tables, start = [], [], [], 0
        for tokens, slots, computed in rows:
            ids += tokens[computed:]
            positions += range(computed, len(tokens))
            count = len(tokens) - computed
            tables.append(RowSlots(start, count, slots[: len(tokens)]))
            start += count
        attention = plan_attention(tables, torch.device("cpu"), self.runner.windows)
        everything = torch.arange(start)
        batch = Batch(torch.tensor(ids), torch.tensor(positions), attention, everything, ())
        return list(self.runner.run(batch).split([table.count for table in tables]))

    @torch.inference_mode()
    def theirs(self, tokens: list[int]) -> torch.Tensor:
        return self.reference(torch.tensor([tokens])).logits[0].float()

    def check(self, ours: torch.Tensor, tokens: list[int], limit: float = 1e-4) -> None:
        """The last logits of a prompt equal those of transformers over the whole prompt."""
        theirs = self.theirs(tokens)[-len(ours) :]
        assert (ours - theirs).abs().max() <= limit * theirs.abs().max()


@pytest.fixture(scope="module", params=FAMILIES)
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    folder = tmp_path_factory.mktemp("model")
    reference = save_family(folder, request.param)
    return Cases(load_folder(folder), reference)


def test_a_cold_prompt(cases: Cases) -> None:
    tokens = cases.prompt(LONG)
    cases.check(cases.run([(tokens, cases.slots(LONG), 0)])[0], tokens)


def test_a_prompt_in_chunks(cases: Cases) -> None:
    tokens, slots = cases.prompt(LONG), cases.slots(LONG)
    parts = [cases.run([(tokens[: i + 7], slots, i)])[0] for i in range(0, LONG, 7)]
    cases.check(torch.cat(parts), tokens)


def test_cached_prefixes_neighbours_and_forks(cases: Cases) -> None:
    stem, stem_slots = cases.prompt(50), cases.slots(50)
    cases.run([(stem, stem_slots, 0)])
    forks = []
    for cached, own in ((50, 9), (50, 1), (38, 25), (5, 40), (50, 1)):
        slots = np.concatenate([stem_slots[:cached], cases.slots(own + 3)])
        forks.append((stem[:cached] + cases.prompt(own), slots, cached))
    for (tokens, _, _), logits in zip(forks, cases.run(forks), strict=True):
        cases.check(logits, tokens)
    for _ in range(3):  # decode all, beside a prompt that prefills
        forks = [(tokens + cases.prompt(1), slots, len(tokens)) for tokens, slots, _ in forks]
        late = cases.prompt(20)
        *decoded, prefilled = cases.run([*forks, (late, cases.slots(20), 0)])
        for (tokens, _, _), logits in zip(forks, decoded, strict=True):
            cases.check(logits, tokens)
        cases.check(prefilled, late)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gguf_file_is_the_same_model_as_its_folder(name: str, tmp_path: Path) -> None:
    # Two of Gemma's constants are not in GGUF files; llama.cpp derives them from the sizes.
    usual = {"gemma2": {"query_pre_attn_scalar": 16}, "gemma3": {"query_pre_attn_scalar": 16}}
    reference = family_model(name, **usual.get(name, {}))
    reference.save_pretrained(tmp_path)
    path = tmp_path / "m.gguf"
    write_family_gguf(path, name, reference)
    loaded, wanted = load_gguf(path), load_folder(tmp_path)
    assert loaded.weights.keys() == wanted.weights.keys()
    for native, weight in wanted.weights.items():
        assert torch.equal(loaded.weights[native], weight), native
    case = Cases(loaded, reference)
    tokens = case.prompt(LONG)
    case.check(case.run([(tokens, case.slots(LONG), 0)])[0], tokens)


def test_a_gguf_file_may_list_its_windowed_layers(tmp_path: Path) -> None:
    model, path = family_model("gemma3"), tmp_path / "m.gguf"
    flags = [True, False, True, True, False, False, True]

    def listed(writer: GGUFWriter) -> None:
        writer.add_array("gemma3.attention.sliding_window_pattern", flags)

    write_family_gguf(path, "gemma3", model, extra=listed)
    shape = load_gguf(path).shape
    assert [shape.kind(layer).window for layer in range(7)] == [10 * flag for flag in flags]
    ropes = {shape.kind(layer).rope.theta for layer in range(7) if flags[layer]}  # type: ignore
    assert ropes == {10_000.0}


@pytest.mark.parametrize(
    ("name", "extra", "message"),
    [
        ("gemma3", lambda w: w.add_array("gemma3.attention.sliding_window_pattern", [True] * 6),
         "must be a number or 7 flags"),
        ("gemma3", lambda w: w.add_uint32("gemma3.attention.sliding_window_pattern", 0),
         "must be a whole number from 1"),
        ("gemma2", lambda w: w.add_bool("gemma2.attention.causal", False), "causal' = False"),
        ("qwen3", lambda w: w.add_uint32("qwen3.attention.sliding_window", 8), "window of 8"),
        ("qwen2.5", lambda w: w.add_uint32("qwen2.expert_count", 4), "expert_count' = 4"),
        ("smollm3", lambda w: w.add_float32("smollm3.logit_scale", 2.0), "logit_scale' = 2.0"),
        ("llama", lambda w: w.add_string("llama.rope.scaling.type", "yarn"), "scaling.factor"),
    ],
)  # fmt: skip
def test_gguf_variants_that_cannot_be_run_are_refused(
    name: str, extra: Callable[[GGUFWriter], None], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    write_family_gguf(path, name, family_model(name), extra=extra)
    with pytest.raises(ModelError, match=rf"m\.gguf.*{message}"):
        load_gguf(path)


FLAGS = {
    "llama with llama3 rope": [{"kinds": (LayerKind(rope=Rope()),)}],
    "llama with yarn": [{"kinds": (LayerKind(rope=Rope()),)}],
    "llama with linear rope and biases": [{"kinds": (LayerKind(rope=Rope()),)}],
    "mistral": [{"kinds": (LayerKind(),)}, {"kinds": (LayerKind(15),)}],
    "qwen2": [{"kinds": (LayerKind(),)}, {"kinds": (LayerKind(12),)}],
    "smollm3": [{"kinds": (LayerKind(),)}, {"norm_eps": 0.1}],
    "gemma2": [
        {"softcap": 0.0}, {"logit_softcap": 0.0}, {"query_scale": None}, {"embed_scale": 1.0},
        {"kinds": (LayerKind(),)}, {"activation": "silu"},
    ],
    "gemma3": [{"query_scale": None}, {"kinds": (LayerKind(10), LayerKind())}],
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_shows_in_the_logits(name: str, tmp_path: Path) -> None:
    save_family(tmp_path, name)
    loaded = load_folder(tmp_path)
    tokens = torch.randint(3, VOCAB, (LONG,), generator=torch.Generator().manual_seed(0))

    def logits(shape: ModelShape) -> torch.Tensor:
        pool = KVPool(shape.kv_layers, LONG, torch.float32, torch.device("cpu"))
        runner = ModelRunner(LlamaModel(shape, loaded.weights), pool)
        row = RowSlots(0, LONG, np.arange(LONG))
        plan = plan_attention([row], torch.device("cpu"), runner.windows)
        everything = torch.arange(LONG)
        return runner.run(Batch(tokens, everything, plan, everything, ()))

    wanted = logits(loaded.shape)
    for change in FLAGS[name]:
        other = logits(dataclasses.replace(loaded.shape, **change))
        assert (other - wanted).abs().max() > 1e-2 * wanted.abs().max(), change


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_as_that_of_transformers(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    reference = save_family(tmp_path, name)
    cases = Cases(load_folder(tmp_path, dtype), reference, dtype)
    tokens, slots = cases.prompt(LONG), cases.slots(LONG)
    assert cases.model.dtype == cases.runner.pool.layers[0].k.dtype == dtype
    ours = torch.cat([cases.run([(tokens[: i + 35], slots, i)])[0] for i in range(0, LONG, 35)])
    assert ours.dtype == torch.float32
    exact = cases.theirs(tokens)
    cases.reference.to(dtype)
    theirs = cases.theirs(tokens)
    assert 0 < (ours - exact).abs().mean() <= 1.3 * (theirs - exact).abs().mean()


@pytest.mark.parametrize("name", ["mistral", "qwen2", "qwen3 with windows", "smollm3", "gemma2"])
@pytest.mark.parametrize("budget", [7, 512])
def test_the_engine_generates_what_transformers_does(
    name: str, budget: int, tmp_path: Path
) -> None:
    reference = save_family(tmp_path, name, model={"vocab_size": len(tiny_vocabulary()[0])})
    loaded = load_folder(tmp_path)
    model = LlamaModel(loaded.shape, loaded.weights)
    tokenizer, template = tiny_tokenizer(), tiny_template()
    stem = "the user and the world: " * 3
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    with Runtime.over(
        model, tokenizer, template, kv_tokens=1_000, max_batch_tokens=budget
    ) as runtime:
        for wave in (["hello"], ["", "and", "sys", "hello hello"], ["hello", "user"]):
            prompts = [stem + text for text in wave]
            requests = [Request(Prompt.of(Text(text)), params, 0) for text in prompts]
            outputs = [runtime.generate(request) for request in requests]
            for text, output in zip(prompts, outputs, strict=True):
                ids = list(output.result(timeout=60).ids)
                assert ids == greedy(reference, tokenizer.encode(text), 12)
        runtime.check()
