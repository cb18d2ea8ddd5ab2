"""Tiny random models of every family, made and saved by transformers itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
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


def save_family(path: Path, name: str, **options: Any) -> PreTrainedModel:
    """The folder of such a model, and the model."""
    model = family_model(name)
    model.save_pretrained(path, **options)
    return model
