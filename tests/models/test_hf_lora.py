"""LoRA adapters on models of transformers: the same as weights they are merged into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmlang.errors import ModelError
from lmlang.protocol import Prompt, Request, SamplingParams, Text
from lmlang.runtime.attention import plan_attention
from lmlang.runtime.batch import Batch
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.local import Runtime
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.models.hf import HFModel
from lmlang.runtime.models.lora import read_lora
from lmlang.runtime.sharing import RowSlots
from tests.models import zoo
from tests.models.paged import on_our_pool, whole
from tests.runtime.adapters import Made, write_lora
from tests.tiny import tiny_template, tiny_tokenizer

KINDS = ("llama", "gpt2", "phi3", "deepseek_v3", "gpt_oss", "qwen3_moe", "gemma2")


def linear_layers(model: Any) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of all linear layers but the head."""
    found = {}
    for name, module in model.named_modules():
        if type(module).__name__ == "Conv1D":
            found[name] = tuple(module.weight.shape)
        elif isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings():
            found[name] = (module.in_features, module.out_features)
    return found


def merged(kind: str, made: Made, **changes: Any) -> Any:
    """transformers' model with an adapter added to its weights."""
    model = zoo.tiny_transformer(zoo.tiny_config(kind, **(zoo.RUNS[kind] | changes)))
    with torch.no_grad():
        for name, delta in made.added.items():
            module = model.get_submodule(name)
            module.weight += delta.T if type(module).__name__ == "Conv1D" else delta
    return model


def runner_of(model: HFModel, folders: dict[str, Path]) -> ModelRunner:
    adapters = {name: model.adapter(read_lora(name, at), "tiny") for name, at in folders.items()}
    pool = KVPool(model.kv_layers, 200, model.dtype, model.device)
    return ModelRunner(model, pool, adapters=adapters)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_batch_have_different_adapters_or_none(kind: str, tmp_path: Path) -> None:
    plain = zoo.tiny_transformer(zoo.tiny_config(kind, **zoo.RUNS[kind]))
    layers = linear_layers(plain)
    made = {
        name: write_lora(tmp_path / name, layers, seed=seed, rank=seed + 1)
        for seed, name in enumerate(("one", "two"))
    }
    model = on_our_pool(kind, **zoo.RUNS[kind])
    runner = runner_of(model, {name: each.path for name, each in made.items()})
    draw = np.random.default_rng(0)
    texts = [(lora, draw.integers(3, 120, 12).tolist()) for lora in ("one", None, "two", "one")]
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    for begin, end in ((0, 9), (9, 10), (10, 12)):  # a chunk, a token, two
        count = end - begin
        rows = [
            RowSlots(i * count, count, np.arange(12 * i, 12 * i + end)) for i in range(len(texts))
        ]
        places = {
            lora: torch.cat(
                [
                    torch.arange(i * count, (i + 1) * count)
                    for i, t in enumerate(texts)
                    if t[0] == lora
                ]
            )
            for lora in made
        }
        batch = Batch(
            torch.tensor([token for _, ids in texts for token in ids[begin:end]]),
            torch.arange(begin, end).repeat(len(texts)),
            plan_attention(rows, model.device, runner.windows),
            torch.arange(count * len(texts)),
            (),
            adapters=tuple(places.items()),
        )
        for part, logits in zip(found, runner.run(batch).split(count), strict=True):
            part.append(logits)
    references = {None: plain} | {name: merged(kind, each) for name, each in made.items()}
    for (lora, ids), parts in zip(texts, found, strict=True):
        wanted = whole(references[lora], ids)
        assert (torch.cat(parts) - wanted).abs().max() <= 1e-4 * wanted.abs().max(), lora
    assert (whole(references["one"], ids) - whole(plain, ids)).abs().max() > 1e-2


def test_a_runtime_chooses_adapters_by_name(tmp_path: Path) -> None:
    changes = zoo.RUNS["phi3"] | {"vocab_size": 286}
    layers = linear_layers(zoo.tiny_transformer(zoo.tiny_config("phi3", **changes)))
    made = write_lora(tmp_path, layers, seed=4)
    plain, other = (
        zoo.tiny_transformer(zoo.tiny_config("phi3", **changes)),
        merged("phi3", made, vocab_size=286),
    )
    model, prompt = on_our_pool("phi3", **changes), "hello world and the user"
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    with Runtime.over(
        model, tiny_tokenizer(), tiny_template(), lora={"mine": tmp_path}, kv_tokens=500
    ) as rt:
        asked = [
            rt.generate(Request(Prompt.of(Text(prompt)), params, lora=lora))
            for lora in (None, "mine", None, "mine")
        ]
        found = [list(generation.result(timeout=60).ids) for generation in asked]
        rt.check()
    for ids, reference in zip(found, (plain, other) * 2, strict=True):
        before = tiny_tokenizer().encode(prompt)
        for token in ids:
            scores = whole(reference, before)[-1]
            assert scores[token] >= scores.max() - 1e-4
            before.append(token)


def test_what_an_adapter_cannot_change_is_refused(tmp_path: Path) -> None:
    model = on_our_pool("llama", **zoo.RUNS["llama"])
    for name, size, message in (
        ("lm_head", (64, 128), "changes 'lm_head'"),
        ("model.layers.0.mlp.experts.0.up_proj", (64, 64), "changes 'model.layers.0.mlp.experts"),
        ("model.layers.0.mlp.up_proj", (32, 64), "from 32 numbers to 64, and that of the model"),
    ):
        folder = tmp_path / name
        write_lora(folder, {name: size})
        with pytest.raises(ModelError, match=message):
            model.adapter(read_lora("one", folder), "tiny")


def test_a_layer_that_does_not_see_every_token_by_a_call_is_refused(tmp_path: Path) -> None:
    model = on_our_pool("llama", **zoo.RUNS["llama"])
    mlp = model.module.model.layers[0].mlp
    up = mlp.up_proj
    write_lora(tmp_path, {"model.layers.0.mlp.up_proj": (64, 64)})
    mlp.forward = lambda x: mlp.down_proj(mlp.gate_proj(x) * (x @ up.weight.T))
    with pytest.raises(ModelError, match="whose weight that model reads without calling it"):
        model.adapter(read_lora("one", tmp_path), "tiny")
    mlp.forward = lambda x: mlp.down_proj(mlp.gate_proj(x) * up(x[:, :1]))
    with pytest.raises(ModelError, match="was called with 1 of 2 tokens"):
        model.adapter(read_lora("one", tmp_path), "tiny")
