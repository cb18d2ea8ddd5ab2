"""A toy tokenizer and a random-weight Llama, made in milliseconds, and GGUF files of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.models.llama import LlamaModel, weight_shapes
from lmlang.runtime.shape import ModelShape
from lmlang.runtime.tokenizer import CONTROL, NORMAL, Tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "t h", "th e",
    "Ġ the", "i n", "e r", "a n", "an d", "Ġ and", "u s", "us er", "s y", "a s", "Ġ Ġ", "ĠĠ ĠĠ",
    "Ã ©", "ð Ł", "ðŁ ĺ", "! !",
)  # fmt: skip
"""Merges in the byte alphabet, among them one for "é" and two inside of emoji."""


def byte_characters() -> list[str]:
    """The byte alphabet, byte 0 first."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tiny_vocabulary() -> tuple[list[str], list[int]]:
    """Tokens and their kinds: three control tokens, 256 bytes, the results of the merges."""
    tokens = [*CONTROLS, *byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]
    return tokens, [CONTROL if token in CONTROLS else NORMAL for token in tokens]


@cache
def tiny_tokenizer(*, add_bos: bool = False) -> Tokenizer:
    """A byte-level tokenizer of 286 tokens; every byte has one."""
    tokens, kinds = tiny_vocabulary()
    return Tokenizer(tokens, MERGES, kinds=kinds, bos_id=1, eos_id=2, add_bos=add_bos)


@cache
def tiny_template() -> ChatTemplate:
    """ChatML without a default system turn."""
    return ChatTemplate(CHATML, bos_token="<|im_start|>", eos_token="<|im_end|>")


def tiny_shape(**changes: Any) -> ModelShape:
    """Two layers, four query heads over two key heads, a hidden width of 32."""
    sizes: dict[str, Any] = {
        "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "hidden": 32, "intermediate": 64,
        "vocab": len(tiny_vocabulary()[0]), "max_positions": 512,
    }  # fmt: skip
    return ModelShape(**(sizes | changes))


def tiny_weights(shape: ModelShape, seed: int = 0) -> dict[str, torch.Tensor]:
    """Seeded weights, large enough that outputs differ from token to token."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, size in weight_shapes(shape).items():
        noise = torch.randn(size, generator=generator)
        weights[name] = 1 + 0.1 * noise if len(size) == 1 else 2 * noise / size[1] ** 0.5
    return weights


def tiny_model(seed: int = 0, **changes: Any) -> tuple[LlamaModel, Tokenizer, ChatTemplate]:
    """A random-weight Llama with its tokenizer and template; ``changes`` are of its shape."""
    shape = tiny_shape(**changes)
    return LlamaModel(shape, tiny_weights(shape, seed)), tiny_tokenizer(), tiny_template()


def write_tiny_gguf(
    path: Path,
    shape: ModelShape | None = None,
    *,
    seed: int = 0,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
) -> Path:
    """Write a tiny Llama as llama.cpp would.

    Args:
        path: The file to write.
        shape: The model's sizes.
        seed: Of the weights.
        kind: How products are stored.
        metadata: Values over the usual ones; None leaves a key out.
        tensors: Tensors over the usual ones; None leaves one out.
    """
    shape = shape or tiny_shape()
    writer = GGUFWriter(path, "llama")
    for key, value in (tiny_metadata(shape) | dict(metadata or {})).items():
        if value is None:
            continue
        adders = {str: writer.add_string, bool: writer.add_bool, float: writer.add_float32}
        adders |= {int: writer.add_uint32, list: writer.add_array}
        adders[type(value)](key, value)
    for name, array in (gguf_tensors(shape, seed) | dict(tensors or {})).items():
        if array is None:
            continue
        if array.ndim == 1 or kind == GGMLQuantizationType.F32:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rope_theta(shape: ModelShape) -> float:
    """The base of a model whose layers are all alike."""
    (kind,) = shape.kinds
    assert kind.rope is not None
    return kind.rope.theta


def tiny_metadata(shape: ModelShape) -> dict[str, Any]:
    """The metadata of a tiny file, without the architecture, which GGUFWriter adds."""
    tokens, kinds = tiny_vocabulary()
    return {
        "llama.block_count": shape.layers,
        "llama.context_length": shape.max_positions,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.intermediate,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.value_length": shape.head_dim,
        "llama.attention.layer_norm_rms_epsilon": shape.norm_eps,
        "llama.rope.freq_base": rope_theta(shape),
        "llama.rope.dimension_count": shape.head_dim,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def gguf_tensors(shape: ModelShape, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """The weights of `tiny_weights`, split, named and permuted as in a GGUF file."""
    native = {name: weight.numpy() for name, weight in tiny_weights(shape, seed).items()}
    tensors = {"token_embd.weight": native["embed"], "output_norm.weight": native["norm"]}
    if not shape.tied_head:
        tensors["output.weight"] = native["head"]
    for layer in range(shape.layers):
        own = {name: native[f"layers.{layer}.{name}"] for name in
               ("attention_norm", "qkv", "out", "mlp_norm", "gate_up", "down")}  # fmt: skip
        q, k, v = np.split(own["qkv"], [shape.query_width, shape.query_width + shape.kv_width])
        gate, up = np.split(own["gate_up"], 2)
        parts = {
            "attn_norm": own["attention_norm"], "attn_q": _interleaved(q, shape.heads),
            "attn_k": _interleaved(k, shape.kv_heads), "attn_v": v, "attn_output": own["out"],
            "ffn_norm": own["mlp_norm"], "ffn_gate": gate, "ffn_up": up, "ffn_down": own["down"],
        }  # fmt: skip
        tensors |= {f"blk.{layer}.{name}.weight": part for name, part in parts.items()}
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def _interleaved(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Half-split rows in the order of interleaved rope: 0, half, 1, half + 1, ... per head."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return halves.swapaxes(1, 2).reshape(rows.shape)
