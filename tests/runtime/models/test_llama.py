"""The native Llama against transformers in float32: real weights, tiny weights, hostile weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import ModelError
from lmlang.runtime.models.causal import Attend, Inputs
from lmlang.runtime.models.llama import LlamaModel, weight_shapes
from lmlang.runtime.shape import LayerKind, ModelShape, Rope
from tests.reference import (
    causal_attention,
    embedded,
    greedy,
    reference_llama,
    reference_logits,
    reference_model,
)
from tests.tiny import tiny_model, tiny_shape, tiny_weights

TEXTS = [
    "Hello",
    "The capital of France is",
    "<div>\n\t12345 你好 🙂</div>\r\n" * 8,
    "def add(a, b):\n    return a + b\n\n" * 40,
]
TINY = {
    "two layers": {},
    "head of its own": {"tied_head": False},
    "all heads equal": {"kv_heads": 4},
    "one key head": {"kv_heads": 1, "layers": 1},
    "wide heads": {
        "head_dim": 16, "kinds": (LayerKind(rope=Rope(500_000.0)),), "norm_eps": 1e-6, "layers": 3,
    },
}  # fmt: skip


@torch.inference_mode()
def logits_of(model: LlamaModel, ids: list[int]) -> torch.Tensor:
    return forward(model, ids, torch.arange(len(ids)), causal_attention())


def forward(
    model: LlamaModel, ids: list[int], positions: torch.Tensor, attend: Attend
) -> torch.Tensor:
    return model.forward(Inputs(torch.tensor(ids), positions, torch.arange(len(ids))), attend)


def relative_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("text", TEXTS)
def test_logits_of_the_real_model_equal_those_of_transformers(text):
    path, loaded, model, tokenizer, _ = embedded()
    ids = tokenizer.encode(text)
    theirs = reference_logits(reference_model(path, loaded.shape), ids)
    assert relative_difference(logits_of(model, ids), theirs) <= 1e-4


def test_greedy_tokens_of_the_real_model_equal_those_of_transformers():
    path, loaded, model, tokenizer, _ = embedded()
    ids = tokenizer.encode("Once upon a time")
    expected = greedy(reference_model(path, loaded.shape), ids, 8)
    for _ in range(8):
        ids.append(int(logits_of(model, ids)[-1].argmax()))
    assert ids[-8:] == expected


def half_split_tensors(shape: ModelShape, weights: dict[str, torch.Tensor]):
    """The native weights by GGUF name, as transformers wants them."""
    widths = [shape.query_width, shape.kv_width, shape.kv_width]

    def tensor(name: str) -> torch.Tensor:
        plain = {"token_embd": "embed", "output_norm": "norm", "output": "head"}
        parts = name.split(".")
        if parts[0] in plain:
            return weights[plain[parts[0]]]
        layer = f"layers.{parts[1]}."
        q, k, v = weights[layer + "qkv"].split(widths)
        gate, up = weights[layer + "gate_up"].chunk(2)
        return {
            "attn_q": q, "attn_k": k, "attn_v": v, "ffn_gate": gate, "ffn_up": up,
            "attn_output": weights[layer + "out"], "ffn_down": weights[layer + "down"],
            "attn_norm": weights[layer + "attention_norm"],
            "ffn_norm": weights[layer + "mlp_norm"],
        }[parts[2]]  # fmt: skip

    return tensor


@pytest.mark.parametrize("changes", TINY.values(), ids=TINY.keys())
def test_logits_of_tiny_models_equal_those_of_transformers(changes):
    shape = tiny_shape(**changes)
    weights = tiny_weights(shape, seed=3)
    model, reference = LlamaModel(shape, weights), None
    reference = reference_llama(half_split_tensors(shape, weights), shape)

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, shape.vocab - 1), min_size=1, max_size=40))
    def check(ids: list[int]) -> None:
        assert relative_difference(logits_of(model, ids), reference_logits(reference, ids)) <= 1e-4

    check()


def test_rows_of_a_flat_batch_do_not_see_one_another():
    model, _, _ = tiny_model()
    ids = [5, 9, 200, 31]

    def own_row_only(layer, q, k, v):
        return v.repeat_interleave(2, dim=1)

    with torch.inference_mode():
        positions = torch.tensor([3, 0, 7, 2])
        batch = forward(model, ids, positions, own_row_only)
        for row, index in enumerate(ids):
            alone = forward(model, [index], positions[row : row + 1], own_row_only)
            torch.testing.assert_close(alone[0], batch[row])


def test_attend_is_called_per_layer_with_turned_keys_and_shapes_as_promised():
    model, _, _ = tiny_model()
    seen = []

    def attend(layer, q, k, v):
        seen.append((layer, q.shape, k.shape, v.shape, q.stride(-1), k.stride(-1), v.stride(-1)))
        return torch.zeros(q.shape)

    out = forward(model, [1, 2, 3], torch.arange(3), attend)
    assert out.shape == (3, model.vocab)
    assert seen == [(layer, (3, 4, 8), (3, 2, 8), (3, 2, 8), 1, 1, 1) for layer in range(2)]


def test_bfloat16_stays_bfloat16_until_the_logits():
    shape = tiny_shape()
    weights = {name: weight.bfloat16() for name, weight in tiny_weights(shape).items()}
    model = LlamaModel(shape, weights)
    seen = set()

    def attend(layer, q, k, v):
        seen.update((q.dtype, k.dtype, v.dtype))
        return causal_attention()(layer, q, k, v)

    with torch.inference_mode():
        logits = forward(model, [1, 2], torch.arange(2), attend)
    assert (seen, logits.dtype) == ({torch.bfloat16}, torch.float32)


def test_weights_are_not_written():
    shape = tiny_shape()
    weights = tiny_weights(shape)
    kept = {name: weight.clone() for name, weight in weights.items()}
    logits_of(LlamaModel(shape, weights), [1, 2, 3])
    assert all(torch.equal(weight, kept[name]) for name, weight in weights.items())


def test_weights_that_do_not_fit_are_refused():
    shape = tiny_shape()
    weights = tiny_weights(shape)
    assert weights.keys() == weight_shapes(shape).keys()
    with pytest.raises(ModelError, match=r"'layers\.1\.qkv' is missing"):
        LlamaModel(shape, {n: w for n, w in weights.items() if n != "layers.1.qkv"})
    with pytest.raises(ModelError, match="'bias' belongs to no part"):
        LlamaModel(shape, weights | {"bias": weights["norm"]})
    with pytest.raises(ModelError, match=r"'norm' has the shape \(3,\).* ask for \(32,\)"):
        LlamaModel(shape, weights | {"norm": torch.ones(3)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers=0"),
        ({"hidden": 1 << 40}, f"hidden={1 << 40}"),
        ({"vocab": True}, "vocab=True"),
        ({"heads": 2.0}, "heads=2.0"),
        ({"heads": 4, "kv_heads": 3}, "heads=4 and kv_heads=3"),
        ({"head_dim": 7}, "head_dim=7"),
        ({"norm_eps": float("nan")}, "norm_eps=nan"),
        ({"norm_eps": "small"}, "norm_eps=small"),
        ({"query_scale": 0.0}, "query_scale=0.0"),
        ({"softcap": -1.0}, "softcap=-1.0"),
        ({"embed_scale": float("inf")}, "embed_scale=inf"),
        ({"activation": "relu"}, "activation is 'relu', and only silu and gelu_tanh"),
        ({"kinds": ()}, "0 kinds of layers"),
        ({"kinds": (LayerKind(rope=Rope(1e4, "factors", factors=(1.0,))),)}, "1 rope factors"),
    ],
)
def test_sizes_that_no_model_has_are_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        tiny_shape(**changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rope(0.0), "rope_theta=0.0"),
        (lambda: Rope(True), "rope_theta=True"),
        (lambda: Rope(scaling="dynamic"), "rope scaling is 'dynamic'"),
        (lambda: Rope(scaling="linear", factor=-1.0), "rope_factor=-1.0"),
        (lambda: Rope(scaling="yarn", factor=4.0), "rope's original positions=0"),
        (lambda: Rope(1.0, "yarn", 4.0, 64), "theta=1.0"),
        (lambda: Rope(1e4, "llama3", 4.0, 64, low=4.0, high=4.0), "low=4.0, high=4.0"),
        (lambda: Rope(factors=(1.0, float("nan"))), "rope factor=nan"),
        (lambda: LayerKind(-1), "window=-1"),
        (lambda: LayerKind(1.5), "window=1.5"),
    ],
)
def test_layers_that_no_model_has_are_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_kinds_of_layers_repeat():
    wide, narrow = LayerKind(), LayerKind(16)
    shape = tiny_shape(layers=5, kinds=(narrow, narrow, wide))
    assert [shape.kind(layer) for layer in range(5)] == [narrow, narrow, wide, narrow, narrow]
    assert [layer.window for layer in shape.kv_layers] == [16, 16, 0, 16, 16]
