"""From a model's files to the weights, sizes and metadata of a native model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlang.errors import ModelError, quote
from lmlang.kernels.packed import PackedWeight, pack_floats
from lmlang.kernels.quant import Weight, quantise_weight
from lmlang.runtime.models.gguf_blocks import packed_rows
from lmlang.runtime.models.gguf_config import INTERLEAVED, gguf_shape
from lmlang.runtime.models.gguf_file import GGUFFile, open_gguf
from lmlang.runtime.models.hf_config import hf_shape, read_json
from lmlang.runtime.models.llama import weight_shapes
from lmlang.runtime.models.safetensors_file import open_safetensors
from lmlang.runtime.shape import ModelShape

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
QUANTISED = frozenset({"embed", "head", "qkv", "out", "gate_up", "down"})
"""The native weights that are matrices: what a scheme is about."""

Scheme: TypeAlias = Literal["none", "int8", "blocks"]
SCHEMES: Mapping[Scheme, Callable[[Tensor], Weight]] = {
    "none": lambda weight: weight,
    "int8": quantise_weight,
    "blocks": pack_floats,
}
"""What becomes of a matrix. Blocks that the file itself has are kept as they are."""

GGUF_NAMES = {
    "embed": ("token_embd.weight",),
    "norm": ("output_norm.weight",),
    "head": ("output.weight",),
    "attention_norm": ("attn_norm.weight",),
    "qkv": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "qkv_bias": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "q_norm": ("attn_q_norm.weight",),
    "k_norm": ("attn_k_norm.weight",),
    "out": ("attn_output.weight",),
    "out_bias": ("attn_output.bias",),
    "post_attention_norm": ("post_attention_norm.weight",),
    "mlp_norm": ("ffn_norm.weight",),
    "gate_up": ("ffn_gate.weight", "ffn_up.weight"),
    "down": ("ffn_down.weight",),
    "post_mlp_norm": ("post_ffw_norm.weight",),
}
"""Native weight to the tensors whose rows it stacks; those of layer i stand behind ``blk.i.``."""

HF_NAMES = {
    "embed": ("model.embed_tokens.weight",),
    "norm": ("model.norm.weight",),
    "head": ("lm_head.weight",),
    "attention_norm": ("input_layernorm.weight",),
    "qkv": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "qkv_bias": tuple(f"self_attn.{part}_proj.bias" for part in "qkv"),
    "q_norm": ("self_attn.q_norm.weight",),
    "k_norm": ("self_attn.k_norm.weight",),
    "out": ("self_attn.o_proj.weight",),
    "out_bias": ("self_attn.o_proj.bias",),
    "mlp_norm": ("post_attention_layernorm.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
"""The same for Hugging Face folders, behind ``model.layers.i.``."""

GEMMA_NAMES = HF_NAMES | {
    "post_attention_norm": ("post_attention_layernorm.weight",),
    "mlp_norm": ("pre_feedforward_layernorm.weight",),
    "post_mlp_norm": ("post_feedforward_layernorm.weight",),
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a model's files hold.

    Args:
        path: The file or folder.
        shape: The model's sizes.
        weights: One for every name of `weight_shapes`, on the CPU.
        metadata: Of a GGUF file its metadata, of a folder its config; the tokenizer and the chat
            template are made from it.
    """

    path: Path
    shape: ModelShape
    weights: Mapping[str, Weight]
    metadata: Mapping[str, Any]


class TensorStore(Protocol):
    """Named tensors in files."""

    @property
    def path(self) -> Path:
        """For messages."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of all tensors."""
        ...

    def read(self, name: str, out: Tensor) -> None:
        """Convert a tensor into ``out``; **written**."""
        ...


def load_gguf(
    path: str | os.PathLike[str], dtype: torch.dtype = torch.float32, *, quantize: Scheme = "none"
) -> LoadedModel:
    """Load a model from a GGUF file, dequantised to ``dtype``.

    Args:
        path: The file.
        dtype: Of all weights but norms, which are float32: float32, bfloat16 or float16.
        quantize: What becomes of those that are matrices, one by one as they are read.

    Raises:
        ModelError: The file is missing, broken, of another architecture, or lacks something.
    """
    file = open_gguf(Path(path))
    shape = _naming(file.path, lambda: gguf_shape(file))
    store = _GGUFStore(file, shape)
    ignored = {"rope_freqs.weight"}
    weights = _gather(store, shape, GGUF_NAMES, "blk", dtype, ignored, quantize)
    return LoadedModel(file.path, shape, weights, file.metadata)


def load_folder(
    path: str | os.PathLike[str], dtype: torch.dtype = torch.float32, *, quantize: Scheme = "none"
) -> LoadedModel:
    """Load a model from a Hugging Face folder: config.json and safetensors files.

    Args:
        path: The folder.
        dtype: Of all weights but norms, which are float32: float32, bfloat16 or float16.
        quantize: What becomes of those that are matrices, one by one as they are read.

    Raises:
        ModelError: Something is missing, broken, pickled, or of a type that cannot be run.
    """
    folder = Path(path)
    config_path = folder / "config.json"
    config = read_json(config_path)
    shape = _naming(config_path, lambda: hf_shape(config_path, config))
    store = open_safetensors(folder)
    ignored = {
        name for name in store.shapes if name.endswith("rotary_emb.inv_freq")
    }  # old files store what is computed
    if shape.tied_head:
        ignored.add("lm_head.weight")
    gemma = shape.post_norms
    names = GEMMA_NAMES if gemma else HF_NAMES
    weights = _gather(store, shape, names, "model.layers", dtype, ignored, quantize)
    if gemma:  # its norms are stored as what is added to one
        for name, weight in weights.items():
            if name.endswith("norm") and isinstance(weight, Tensor):
                weight.add_(1)
    return LoadedModel(folder, shape, weights, config)


def _naming(path: Path, make: Callable[[], ModelShape]) -> ModelShape:
    """The shape, or its error with the file's name in it."""
    try:
        return make()
    except ModelError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from None


def _gather(
    store: TensorStore,
    shape: ModelShape,
    names: Mapping[str, tuple[str, ...]],
    layer_prefix: str,
    dtype: torch.dtype,
    ignored: set[str],
    scheme: Scheme,
) -> dict[str, Weight]:
    """Every native weight, stacked from its tensors; no tensor is missing or left over."""
    if dtype not in DTYPES:
        raise ModelError(
            f"a model cannot be loaded as {dtype}: choose torch.float32, bfloat16 or float16."
        )
    sources: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for native, wanted in weight_shapes(shape).items():
        *layer, part = native.split(".")
        prefix = f"{layer_prefix}.{layer[1]}." if layer else ""
        rows = _rows(part, shape) or (wanted[0],)
        sources[native] = [
            (prefix + name, (count, *wanted[1:]))
            for name, count in zip(names[part], rows, strict=True)
        ]
    _check(store, dict(source for stacked in sources.values() for source in stacked), ignored)
    weights: dict[str, Weight] = {}
    for native, wanted in weight_shapes(shape).items():
        quantised = native.split(".")[-1] in QUANTISED
        if quantised and scheme == "blocks" and isinstance(store, _GGUFStore):
            weights[native] = store.packed([name for name, _ in sources[native]])
            continue
        kind = torch.float32 if native.endswith("norm") else dtype
        weight = torch.empty(wanted, dtype=kind)
        row = 0
        for name, size in sources[native]:
            store.read(name, weight[row : row + size[0]])
            row += size[0]
        weights[native] = SCHEMES[scheme](weight) if quantised else weight
    return weights


def _rows(part: str, shape: ModelShape) -> tuple[int, ...]:
    """How many rows each of a stacked weight's tensors has; nothing where it is one tensor."""
    if part in ("qkv", "qkv_bias"):
        return shape.query_width, shape.kv_width, shape.kv_width
    return (shape.intermediate,) * 2 if part == "gate_up" else ()


def _check(store: TensorStore, wanted: Mapping[str, tuple[int, ...]], ignored: set[str]) -> None:
    absent = [name for name in wanted if name not in store.shapes]
    if absent:
        more = f" and {len(absent) - 1:,} more" if len(absent) > 1 else ""
        raise ModelError(
            f"{store.path} lacks the tensor {absent[0]!r}{more}: it is incomplete, fetch it anew."
        )
    for name, found in store.shapes.items():
        if name in wanted and found != wanted[name]:
            raise ModelError(
                f"{store.path}: the tensor {name!r} has the shape {found}, and the model's own "
                f"sizes ask for {wanted[name]}: it is damaged, fetch it anew."
            )
        if name not in wanted and name not in ignored:
            raise ModelError(
                f"{store.path} has the tensor {quote(name)}, which a model of its kind has not: "
                "this variant cannot be run."
            )


class _GGUFStore:
    """A GGUF file as a store whose query and key rows are in half-split order."""

    def __init__(self, file: GGUFFile, shape: ModelShape) -> None:
        self.path = file.path
        self.shapes = {name: entry.shape for name, entry in file.tensors.items()}
        self._file = file
        self._orders: dict[str, NDArray[np.int64]] = {}
        if file.metadata["general.architecture"] in INTERLEAVED:
            self._orders = {
                "attn_q": _half_split(shape.heads, shape.head_dim),
                "attn_k": _half_split(shape.kv_heads, shape.head_dim),
            }

    def packed(self, names: Seq[str]) -> PackedWeight:
        """The rows of some matrices, one below the other."""
        parts = []
        for name in names:
            rows, order = self._file.rows(name), self._orders.get(name.split(".")[-2])
            parts.append((self._file.tensors[name].kind, rows if order is None else rows[order]))
        return packed_rows(parts)

    def read(self, name: str, out: Tensor) -> None:
        order = self._orders.get(name.split(".")[-2])
        wide = out if out.dtype == torch.float32 else torch.empty(out.shape, dtype=torch.float32)
        values = wide.numpy()
        if order is not None and values.ndim == 1:  # a bias: one row, whose numbers are turned
            self._file.read(name, values)
            values[:] = values[order]
        else:
            self._file.read(name, values, order)
        if wide is not out:
            out.copy_(wide)


def _half_split(heads: int, head_dim: int) -> NDArray[np.int64]:
    """Where the rows of half-split rope stand in a file of interleaved ones.

    llama.cpp's converter stores these rows as (0, half, 1, half + 1, ...).
    """
    rows = np.arange(heads * head_dim, dtype=np.int64)
    order: NDArray[np.int64] = rows.reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
    return order
