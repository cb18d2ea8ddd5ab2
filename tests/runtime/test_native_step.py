"""Whole steps in C give what the same model gives layer by layer, in every family's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from lmlang.kernels import native
from lmlang.kernels.packed import pack_floats
from lmlang.protocol import Prompt, Request, SamplingParams, ScoreRequest, Text
from lmlang.runtime import batch, model_runner, parts
from lmlang.runtime.local import Runtime
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.native_step import NativeStep
from lmlang.runtime.shape import LayerKind, Rope
from tests.tiny import tiny_shape, tiny_template, tiny_tokenizer, tiny_weights

pytestmark = pytest.mark.skipif(not native.available(), reason=native.description())

LINEAR = Rope(theta=500.0, scaling="linear", factor=2.0)
SHAPES: Mapping[str, dict[str, Any]] = {
    "llama": {},
    "untied, odd widths": {"tied_head": False, "intermediate": 50, "hidden": 36},
    "qwen2": {"qkv_bias": True, "out_bias": True},
    "qwen3": {"qk_norm": True, "head_dim": 18},
    "gemma2": {
        "post_norms": True, "activation": "gelu_tanh", "softcap": 3.0, "logit_softcap": 5.0,
        "embed_scale": 5.7, "query_scale": 0.2, "kinds": (LayerKind(window=7), LayerKind()),
    },
    "gemma3": {
        "post_norms": True, "qk_norm": True, "layers": 4,
        "kinds": (LayerKind(window=5), LayerKind(window=9, rope=LINEAR)),
    },
    "smollm3": {"kinds": (LayerKind(), LayerKind(rope=None)), "kv_heads": 1},
}  # fmt: skip
PROMPTS = ["abc", "a", "the cat sat on the mat and then", "the cat sat on the hat" * 3, "abcabc"]


def packed_model(changes: Mapping[str, Any]) -> LlamaModel:
    shape = tiny_shape(**changes)
    weights = tiny_weights(shape)
    return LlamaModel(
        shape, {name: pack_floats(w) if w.ndim == 2 else w for name, w in weights.items()}
    )


class Counted:
    """How many steps ran in C, and how many did not."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps = self.others = self.shared = 0
        run, forward = NativeStep.run, model_runner.ModelRunner._forward

        def counted(step: NativeStep, batch: Any) -> torch.Tensor:
            self.steps += 1
            self.shared += any(parts.levels for parts in batch.attention.parts.values())
            return run(step, batch)

        def other(runner: Any, batch: Any) -> torch.Tensor:
            self.others += 1
            return forward(runner, batch)

        patch.setattr(NativeStep, "run", counted)
        patch.setattr(model_runner.ModelRunner, "_forward", other)


def answers(model: LlamaModel, **options: Any) -> tuple[list[list[float]], list[float]]:
    """Log-probabilities of greedy outputs, cold and cached, and of choices."""
    params = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
    outputs: list[list[float]] = []
    own = (model, tiny_tokenizer(), tiny_template())
    with Runtime.over(*own, kv_tokens=400, max_batch_tokens=16, **options) as runtime:
        for _ in range(2):
            asked = [runtime.generate(Request(Prompt.of(Text(p)), params)) for p in PROMPTS]
            outputs += [list(generation.result().logprobs) for generation in asked]
        choices = ("abc", "abd", "ab", "cat", "hat sat")
        scores = runtime.score(ScoreRequest(Prompt.of(Text(PROMPTS[2])), choices)).result()
        runtime.check()
    return outputs, [p for choice in scores.choices for p in choice.logprobs]


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("name", SHAPES)
def test_answers_are_those_of_the_model_layer_by_layer(
    name: str, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, counted = packed_model(SHAPES[name]), Counted(monkeypatch)
    monkeypatch.setattr(batch, "MIN_SAVED_ON_CPU", 1)  # so that short prefixes are shared too
    monkeypatch.setattr(batch, "SPAN", 3)
    found = answers(model, kv_dtype=kv_dtype)
    assert counted.steps > 10
    assert counted.shared > 5
    assert not counted.others
    monkeypatch.setattr(parts, "form_of", lambda x: "reference")
    wanted = answers(model, kv_dtype=kv_dtype)
    assert counted.others > 10
    for one, other in zip(found[0], wanted[0], strict=True):
        assert one == pytest.approx(other, abs=0.02)
    assert found[1] == pytest.approx(wanted[1], abs=0.02)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda model: setattr(model, "slots", 1), "names a slot that the pool does not have"),
        (lambda model: setattr(model.embed, "outputs", 1), "names a row that the weight does not"),
    ],
    ids=["slot", "token"],
)
def test_a_slot_or_a_token_that_is_none_is_refused(wrong: Callable[[Any], None], told: str) -> None:
    model = packed_model({})
    with Runtime.over(model, tiny_tokenizer(), tiny_template(), kv_tokens=50) as runtime:
        runner = runtime._engine._loop.runner
        assert runner._native is not None
        wrong(runner._native._model)
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        with pytest.raises(Exception, match=told):
            runtime.generate(Request(Prompt.of(Text("abcabc")), params)).result()
