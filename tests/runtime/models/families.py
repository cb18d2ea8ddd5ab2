"""Tiny random models of every family, made and saved by transformers itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    RopeScalingType,
    get_tensor_name_map,
)
from gguf.quants import quantize
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

VOCAB = 120
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}

FAMILIES: Mapping[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "llama with llama3 rope": (LlamaConfig, {"rope_parameters": LLAMA3}),
    "llama with yarn": (LlamaConfig, {"rope_parameters": YARN, "head_dim": 16}),
    "llama with linear rope and biases": (
        LlamaConfig, {"rope_parameters": LINEAR, "attention_bias": True},
    ),
    "smollm2": (LlamaConfig, {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "mistral": (MistralConfig, {"sliding_window": 16, "head_dim": 16}),
    "qwen2": (
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 2},
    ),
    "qwen2.5": (Qwen2Config, {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": (Qwen3Config, {"head_dim": 16}),
    "qwen3 with windows": (
        Qwen3Config,
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1,
         "head_dim": 8, "attention_bias": True},
    ),
    "smollm3": (SmolLM3Config, {"num_hidden_layers": 5}),
    "smollm3 with windows": (
        SmolLM3Config,
        {"use_sliding_window": True, "sliding_window": 11, "no_rope_layer_interval": 2},
    ),
    "gemma2": (
        Gemma2Config,
        {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 20,
         "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        Gemma3TextConfig,
        {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 10,
         "query_pre_attn_scalar": 24, "rope_parameters": GEMMA3_ROPES},
    ),
}  # fmt: skip


def family_model(name: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A model of a family in float32, its weights large enough that every part of it shows."""
    kind, options = FAMILIES[name]
    config = kind(**(SIZES | options | changes), initializer_range=0.3)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or parameter_name.endswith("bias"):
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


def save_family(
    path: Path, name: str, *, model: Mapping[str, Any] | None = None, **options: Any
) -> PreTrainedModel:
    """Write the folder of a family's model; ``model`` changes its config, ``options`` how."""
    made = family_model(name, **(model or {}))
    made.save_pretrained(path, **options)
    return made


ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "llama with llama3 rope": MODEL_ARCH.LLAMA,
    "llama with yarn": MODEL_ARCH.LLAMA,
    "llama with linear rope and biases": MODEL_ARCH.LLAMA,
    "smollm2": MODEL_ARCH.LLAMA,
    "mistral": MODEL_ARCH.LLAMA,
    "qwen2.5": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "smollm3": MODEL_ARCH.SMOLLM3,
    "gemma2": MODEL_ARCH.GEMMA2,
    "gemma3": MODEL_ARCH.GEMMA3,
}
"""Families that have a GGUF form, and its architecture."""


def write_family_gguf(
    path: Path,
    name: str,
    model: PreTrainedModel,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    extra: Callable[[GGUFWriter], None] = lambda writer: None,
) -> None:
    """The model as llama.cpp's converter writes it: its keys, its names, its order of rows.

    Args:
        path: The file to write.
        name: Of the family.
        model: Its weights and config.
        kind: How matrices are stored.
        extra: Adds metadata.
    """
    architecture, config = ARCHITECTURES[name], model.config
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config.rope_parameters
    _write_rope(writer, rope.get("full_attention", rope), head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    extra(writer)
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    interleaved = architecture in (MODEL_ARCH.LLAMA, MODEL_ARCH.SMOLLM3)
    for theirs, parameter in model.named_parameters():  # a tied head is not among them
        values = parameter.detach().numpy()
        if "gemma" in name and theirs.endswith("norm.weight"):
            values = values + 1
        for part, heads in (("q_proj", config.num_attention_heads),
                            ("k_proj", config.num_key_value_heads)):  # fmt: skip
            if interleaved and part in theirs:
                halves = values.reshape(heads, 2, head_dim // 2, *values.shape[1:])
                values = halves.swapaxes(1, 2).reshape(values.shape)
        ours = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        if values.ndim == 1 or kind == GGMLQuantizationType.F32:
            writer.add_tensor(ours, np.ascontiguousarray(values))
        else:
            writer.add_tensor(ours, quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_rope(writer: GGUFWriter, rope: dict[str, Any], head_dim: int) -> None:
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        factors = []
        for pair in range(head_dim // 2):
            wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * pair / head_dim)
            turns = rope["original_max_position_embeddings"] / wavelength
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            kept = np.clip((turns - low) / (high - low), 0, 1)
            factors.append(1 / ((1 - kept) / rope["factor"] + kept))
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
