"""What is learned of layers: from calls and masks, not from configs."""

from __future__ import annotations

import pytest
import torch

from lmlang.runtime.models import hf_parity
from lmlang.runtime.models.hf_loader import opened
from lmlang.runtime.models.hf_refusals import Refused, longest_context
from lmlang.runtime.shape import KVLayer
from tests.models import zoo
from tests.models.paged import on_our_pool

SLIDING = zoo.BOTH


def test_layers_are_as_they_call():
    model = on_our_pool("gemma2", **SLIDING, query_pre_attn_scalar=64)
    local, wide = model.kv_layers
    assert local == KVLayer(4, 2, 16, 16, 0.125, window=6, softcap=50.0)
    assert wide == KVLayer(4, 2, 16, 16, 0.125, window=0, softcap=50.0)
    assert (model.vocab, model.max_positions) == (128, 256)


def test_keys_and_values_may_differ_in_size_and_layers_in_theirs():
    latent = on_our_pool("deepseek_v3", **zoo.MLA).kv_layers
    assert {(layer.kv_heads, layer.key_dim, layer.value_dim) for layer in latent} == {(4, 24, 16)}
    shapes = [(layer.kv_heads, layer.window, layer.sinks) for layer in
              on_our_pool("mimo_v2_flash").kv_layers]  # fmt: skip
    assert shapes == [(2, 0, False), (4, 6, True)]


def test_a_layer_that_calls_twice_has_two_places():
    assert len(on_our_pool("diffllama").kv_layers) == 4


def test_a_window_that_reaches_over_the_context_is_none():
    assert {layer.window for layer in on_our_pool("mistral", sliding_window=255).kv_layers} == {255}
    for width in (256, 4096):
        layers = on_our_pool("mistral", sliding_window=width).kv_layers
        assert {layer.window for layer in layers} == {0}


def test_chunks_of_attention_end_the_context_where_they_begin_to_hide():
    model = on_our_pool("llama4_text", attn_temperature_tuning=False, attention_chunk_size=24,
                        layer_types=["chunked_attention", "full_attention"])  # fmt: skip
    assert model.max_positions == 24
    assert {layer.window for layer in model.kv_layers} == {0}


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, 256),
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, 256),
        (
            {
                "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8, "original_max_position_embeddings": 64,
            },
            64,
        ),
    ],
)  # fmt: skip
def test_the_context_ends_where_angles_would_depend_on_the_batch(rope, longest):
    assert longest_context(zoo.tiny_config("llama", rope_parameters=rope)) == longest


def test_without_a_length_of_the_context_a_model_is_refused():
    config = zoo.tiny_config("whisper")  # which names it otherwise
    with pytest.raises(Refused, match="no length of the context"):
        longest_context(config)


@pytest.mark.parametrize("kind", ["gpt2", "smollm3"])
def test_only_the_logits_that_are_asked_for_are_computed(kind):
    model = on_our_pool(kind)
    sizes: list[int] = []
    head = model.module.get_output_embeddings()
    head.register_forward_hook(lambda module, args, out: sizes.append(out.shape[1]))
    hf_parity.measure(model)
    assert model._probed.keeps_rows
    assert sizes[:4] == [4, 4, 4, 1]


def test_attention_in_both_directions_is_refused():
    with pytest.raises(Refused, match=f"^{zoo.BOTH_WAYS}"):
        on_our_pool("bert", is_decoder=False)


DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["minimax", "olmo_hybrid"])
def test_a_state_that_nothing_tells_of_is_found_by_comparing(kind, dtype):
    transformer = zoo.tiny_transformer(zoo.tiny_config(kind)).to(dtype)
    with pytest.raises(Refused, match="its outputs in chunks over cached prefixes differ"):
        opened(transformer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["gpt_oss", "qwen3_moe", "gemma2"])
def test_what_is_right_is_taken_in_every_dtype(kind, dtype):
    transformer = zoo.tiny_transformer(zoo.tiny_config(kind, **zoo.RUNS[kind])).to(dtype)
    assert opened(transformer).dtype == dtype
