"""From a GGUF file's metadata to the shape of its model, one architecture at a time.

Keys stand behind the architecture's name (``llama.block_count``). One that is not known here is
refused: it may change what is computed. Source: llama.cpp's loader and converter, for the keys and
for what they leave unsaid (Gemma's patterns and scales, SmolLM3's layers without rope).
"""

from __future__ import annotations

import math

import numpy as np

from lmlang.errors import ModelError, quote
from lmlang.runtime.models.gguf_file import GGUFFile
from lmlang.runtime.models.metadata import Metadata
from lmlang.runtime.shape import LayerKind, ModelShape, Rope, check_size

ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3")
INTERLEAVED = ("llama", "smollm3")
"""Their query and key rows are stored for interleaved rope."""
GEMMAS = ("gemma2", "gemma3")

KNOWN = {
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_rms_epsilon", "attention.sliding_window",
    "attention.sliding_window_pattern", "attn_logit_softcapping", "final_logit_softcapping",
    "rope.freq_base", "rope.freq_base_swa", "rope.dimension_count", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}  # fmt: skip
HARMLESS = {"vocab_size", "tensor_data_layout", "pooling_type", "rope.scaling.finetuned"}
"""They say nothing about the computation, or what the tensors say better."""
NEUTRAL = {
    "expert_count": 0, "expert_used_count": 0, "attention.causal": True,
    "use_parallel_residual": False, "rope.scaling.attn_factor": 1.0, "rope.scale_linear": 1.0,
    "attention.max_alibi_bias": 0.0, "attention.clamp_kqv": 0.0, "logit_scale": 1.0,
    "residual_scale": 1.0, "embedding_scale": 1.0,
}  # fmt: skip
"""Keys that may only have the value that changes nothing."""


def gguf_shape(file: GGUFFile) -> ModelShape:
    """The shape of the model in a file.

    Raises:
        ModelError: It is of an unknown architecture or variant, or says what cannot be.
    """
    architecture = Metadata(file.path, file.metadata).get("general.architecture", str)
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"{file.path} holds a model of the architecture {quote(architecture)}, and only "
            f"{', '.join(ARCHITECTURES)} can be run from GGUF: give one of these."
        )
    prefix = f"{architecture}."
    said = Metadata(
        file.path,
        {key[len(prefix) :]: v for key, v in file.metadata.items() if key.startswith(prefix)},
        prefix,
    )
    _refuse_unknown(said)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(
            f"{file.path} lacks the tensor 'token_embd.weight': it is incomplete, fetch it anew."
        )
    layers = check_size("layers", said.get("block_count", int))
    heads = check_size("heads", said.get("attention.head_count", int))
    hidden = check_size("hidden", said.get("embedding_length", int))
    head_dim = check_size("head_dim", said.get("attention.key_length", int, hidden // heads))
    gemma = architecture in GEMMAS
    shape = ModelShape(
        layers=layers,
        heads=heads,
        kv_heads=said.get("attention.head_count_kv", int, heads),
        head_dim=head_dim,
        hidden=hidden,
        intermediate=said.get("feed_forward_length", int),
        vocab=embedding.shape[0],
        max_positions=said.get("context_length", int),
        kinds=_kinds(file, said, architecture, layers, head_dim),
        norm_eps=said.get("attention.layer_norm_rms_epsilon", float),
        tied_head="output.weight" not in file.tensors,
        activation="gelu_tanh" if gemma else "silu",
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        qk_norm=architecture in ("qwen3", "gemma3"),
        post_norms=gemma,
        query_scale=_query_scale(architecture, layers, hidden, heads),
        embed_scale=math.sqrt(hidden) if gemma else 1.0,
        softcap=said.get("attn_logit_softcapping", float, 0.0),
        logit_softcap=said.get("final_logit_softcapping", float, 0.0),
    )
    _check_sizes(file, said, shape)
    return shape


def _refuse_unknown(said: Metadata) -> None:
    for key, value in said.values.items():
        if key in NEUTRAL:
            if not isinstance(value, (int, float)) or value != NEUTRAL[key]:
                raise said.refuse(f"{said.name(key)} = {str(value)[:64]}")
        elif key not in KNOWN and key not in HARMLESS:
            raise said.refuse(f"the unknown metadata {quote(said.within + key)}")


def _check_sizes(file: GGUFFile, said: Metadata, shape: ModelShape) -> None:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != shape.vocab:
        raise ModelError(
            f"{file.path} has {len(tokens):,} tokens and an embedding of {shape.vocab:,} rows: "
            "the file is damaged, fetch it anew."
        )
    for key in ("rope.dimension_count", "attention.value_length"):
        if said.get(key, int, shape.head_dim) != shape.head_dim:
            raise said.refuse(f"{said.within}{key}={said.values[key]} beside heads of "
                              f"{shape.head_dim}")  # fmt: skip


def _query_scale(architecture: str, layers: int, hidden: int, heads: int) -> float | None:
    """Gemma's largest models scale by another width than that of their heads."""
    largest = {"gemma2": 46, "gemma3": 62}.get(architecture)
    return (hidden / heads) ** -0.5 if layers == largest else None


def _kinds(
    file: GGUFFile, said: Metadata, architecture: str, layers: int, head_dim: int
) -> tuple[LayerKind, ...]:
    rope = _rope(file, said, head_dim)
    default = 4096 if architecture == "gemma2" else 0
    window = said.get("attention.sliding_window", int, default)
    if architecture == "llama":  # Mistral's: every layer has it
        return (LayerKind(window, rope),)
    if architecture in GEMMAS:
        local = rope
        if architecture == "gemma3":
            local = Rope(said.get("rope.freq_base_swa", float, 10_000.0))
        return tuple(
            LayerKind(window, local) if window and slides else LayerKind(0, rope)
            for slides in _pattern(said, layers, 2 if architecture == "gemma2" else 6)
        )
    if window:
        raise said.refuse(f"a sliding window of {window}")
    if architecture == "smollm3":
        return (LayerKind(0, rope),) * 3 + (LayerKind(0, None),)
    return (LayerKind(0, rope),)


def _pattern(said: Metadata, layers: int, default: int) -> list[bool]:
    """For each layer whether it has the window: all but every n-th, or as a list says."""
    key = "attention.sliding_window_pattern"
    listed = said.values.get(key)
    if isinstance(listed, np.ndarray):
        if listed.dtype.kind not in "biu" or len(listed) != layers:
            raise said.wrong(key, f"must be a number or {layers} flags")
        return [bool(slides) for slides in listed]
    every = said.size(key, default)
    return [(layer + 1) % every != 0 for layer in range(layers)]


def _rope(file: GGUFFile, said: Metadata, head_dim: int) -> Rope:
    theta = said.positive("rope.freq_base", 10_000.0)
    scaling = said.get("rope.scaling.type", str, "none")
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        if scaling != "none":
            raise said.refuse(f"rope factors beside rope scaling of the type {quote(scaling)}")
        if factors.shape != (head_dim // 2,):
            raise said.refuse(f"rope factors of the shape {factors.shape}")
        values = np.empty(factors.shape, np.float32)
        file.read("rope_freqs.weight", values)
        return Rope(theta, "factors", factors=tuple(values.tolist()))
    if scaling == "none":
        return Rope(theta)
    if scaling == "linear":
        return Rope(theta, "linear", said.positive("rope.scaling.factor"))
    if scaling != "yarn":
        raise said.refuse(f"rope scaling of the type {quote(scaling)}")
    factor = said.positive("rope.scaling.factor")
    return Rope(
        theta,
        "yarn",
        factor,
        original_positions=said.size("rope.scaling.original_context_length"),
        low=said.positive("rope.scaling.yarn_beta_slow", 1.0),
        high=said.positive("rope.scaling.yarn_beta_fast", 32.0),
        attention_factor=0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0,
    )
