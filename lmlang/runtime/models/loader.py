"""From a model file to the weights, sizes and metadata of a native Llama."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlang.errors import ModelError, quote
from lmlang.runtime.models.gguf_file import GGUFFile, open_gguf
from lmlang.runtime.models.llama import weight_shapes
from lmlang.runtime.shape import LayerKind, ModelShape, Rope

T = TypeVar("T")

LAYER_SOURCES = {
    "attention_norm": ("attn_norm",),
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "out": ("attn_output",),
    "mlp_norm": ("ffn_norm",),
    "gate_up": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
}
"""Native weight to the GGUF tensors whose rows it stacks."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a model file holds.

    Args:
        path: The file.
        shape: The model's sizes.
        weights: A tensor for every name of `weight_shapes`, on the CPU.
        metadata: The file's metadata; the tokenizer and the chat template are made from it.
    """

    path: Path
    shape: ModelShape
    weights: Mapping[str, Tensor]
    metadata: Mapping[str, Any]


def load_gguf(path: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Load a Llama from a GGUF file, dequantised to ``dtype``.

    Args:
        path: The file.
        dtype: Of all weights.

    Raises:
        ModelError: The file is missing, broken, of another architecture, or lacks something.
    """
    file = open_gguf(Path(path))
    shape = _shape(file)
    sources = _sources(file, shape)
    weights: dict[str, Tensor] = {}
    for name, wanted in weight_shapes(shape).items():
        stacked = np.empty(wanted, np.float32)
        row = 0
        for source in sources[name]:
            part = stacked[row : row + file.tensors[source].shape[0]]
            file.read(source, part, _row_order(source, shape))
            row += len(part)
        weights[name] = torch.from_numpy(stacked).to(dtype)
    return LoadedModel(file.path, shape, weights, file.metadata)


def _shape(file: GGUFFile) -> ModelShape:
    architecture = _value(file, "general.architecture", str)
    if architecture != "llama":
        raise ModelError(
            f"{file.path} holds a model of the architecture {quote(architecture)}, and only "
            "'llama' can be run from GGUF: give a Llama-like model."
        )
    _refuse_variants(file)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise _missing(file, ["token_embd.weight"])
    heads = _value(file, "llama.attention.head_count", int)
    hidden = _value(file, "llama.embedding_length", int)
    head_dim = hidden // heads if heads > 0 else 0
    shape = ModelShape(
        layers=_value(file, "llama.block_count", int),
        heads=heads,
        kv_heads=_value(file, "llama.attention.head_count_kv", int, heads),
        head_dim=_value(file, "llama.attention.key_length", int, head_dim),
        hidden=hidden,
        intermediate=_value(file, "llama.feed_forward_length", int),
        vocab=embedding.shape[0],
        max_positions=_value(file, "llama.context_length", int),
        kinds=(LayerKind(rope=Rope(_value(file, "llama.rope.freq_base", float, 10_000.0))),),
        norm_eps=_value(file, "llama.attention.layer_norm_rms_epsilon", float),
        tied_head="output.weight" not in file.tensors,
    )
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != shape.vocab:
        raise ModelError(
            f"{file.path} has {len(tokens):,} tokens and an embedding of {shape.vocab:,} rows: "
            "the file is damaged, fetch it anew."
        )
    for key in ("llama.rope.dimension_count", "llama.attention.value_length"):
        if _value(file, key, int, shape.head_dim) != shape.head_dim:
            raise ModelError(
                f"{file.path} says {key}={file.metadata[key]} beside heads of "
                f"{shape.head_dim}: such a model cannot be run; give one where they are equal."
            )
    return shape


def _refuse_variants(file: GGUFFile) -> None:
    experts = _value(file, "llama.expert_count", int, 0)
    scaling = _value(file, "llama.rope.scaling.type", str, "none")
    for fault in (
        f"{experts} experts" if experts else "",
        f"rope scaling of the type {quote(scaling)}" if scaling != "none" else "",
    ):
        if fault:
            raise ModelError(f"{file.path} has {fault}, which cannot be run: give a plain Llama.")


def _sources(file: GGUFFile, shape: ModelShape) -> dict[str, tuple[str, ...]]:
    """Native weight to GGUF tensors, all of them there, of the right shape, and none left over."""
    rows = {"attn_q": shape.query_width, "attn_k": shape.kv_width, "attn_v": shape.kv_width}
    sources: dict[str, tuple[str, ...]] = {
        "embed": ("token_embd.weight",),
        "norm": ("output_norm.weight",),
        "head": ("output.weight",),
    }
    if shape.tied_head:
        del sources["head"]
    wanted: dict[str, tuple[int, ...]] = {}
    for layer in range(shape.layers):
        for name, stored in LAYER_SOURCES.items():
            tensors = tuple(f"blk.{layer}.{part}.weight" for part in stored)
            sources[f"layers.{layer}.{name}"] = tensors
            wanted |= {
                tensor: (rows.get(part, shape.intermediate), shape.hidden)
                for tensor, part in zip(tensors, stored, strict=True)
                if len(stored) > 1
            }
    for name, native in weight_shapes(shape).items():
        if len(sources[name]) == 1:
            wanted[sources[name][0]] = native
    absent = [name for name in wanted if name not in file.tensors]
    if absent:
        raise _missing(file, absent)
    for name, entry in file.tensors.items():
        if name not in wanted:
            raise ModelError(
                f"{file.path} has the tensor {quote(name)}, which a plain Llama has not: this "
                "variant of the architecture cannot be run."
            )
        if entry.shape != wanted[name]:
            raise ModelError(
                f"{file.path}: the tensor {name!r} has the shape {entry.shape}, and the file's "
                f"own sizes ask for {wanted[name]}: the file is damaged, fetch it anew."
            )
    return sources


def _row_order(source: str, shape: ModelShape) -> NDArray[np.int64] | None:
    """The rows of a query or key product in half-split order; None where nothing is reordered.

    llama.cpp's converter stores these rows for interleaved rope: (0, half, 1, half + 1, ...).
    """
    heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(source.split(".")[-2])
    if heads is None:
        return None
    rows = np.arange(heads * shape.head_dim, dtype=np.int64)
    pairs = rows.reshape(heads, shape.head_dim // 2, 2)
    order: NDArray[np.int64] = pairs.swapaxes(1, 2).reshape(-1)
    return order


def _missing(file: GGUFFile, names: list[str]) -> ModelError:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return ModelError(
        f"{file.path} lacks the tensor {names[0]!r}{more}: it is incomplete, fetch it anew."
    )


def _value(file: GGUFFile, key: str, kind: type[T], default: T | None = None) -> T:
    value = file.metadata.get(key, default)
    if value is None:
        raise ModelError(
            f"{file.path} lacks the metadata {key!r}: it is incomplete or no language model."
        )
    if type(value) is not kind:
        raise ModelError(
            f"{file.path}: the metadata {key!r} is of the type {type(value).__name__}, and must "
            f"be {kind.__name__}: the file is damaged or not supported."
        )
    return value
