"""The native Llama: fused products over plain tensors, attention and its cache passed in.

    ids [T] -> embed -> x [T, hidden]                            T: tokens of all rows of a step
      per layer:  norm -> qkv -> rope(q, k) -> attend(layer, q, k, v) -> out   } added to x
                  norm -> gate_up -> silu_mul -> down                          }
    -> norm -> hidden [T, hidden];   logits only for the rows that are asked for

The model knows no request, no cache and no batch: what an operation needs is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from lmlang.errors import ModelError
from lmlang.kernels.activation import silu_mul
from lmlang.kernels.linear import linear, pack_weight
from lmlang.kernels.norm import add_rms_norm, rms_norm
from lmlang.kernels.rope import apply_rope, rope_angles, rope_frequencies
from lmlang.runtime.shape import ModelShape

Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q, k, v) -> out``; it stores k and v itself.

q and out are ``[T, heads, head_dim]``, k and v ``[T, kv_heads, head_dim]``; q and k come after
rope. The three are views of one buffer that the layer does not use again: rows are dense in
their last axis, not contiguous as a whole, and ``attend`` must not keep them.
"""


NORMS = ("attention_norm", "mlp_norm")
PRODUCTS = ("qkv", "out", "gate_up", "down")
"""The weights of one layer, by what is done with them."""


class CausalLM(Protocol):
    """A decoder-only language model, as the runtime sees it. Thread-safe: nothing is written."""

    shape: ModelShape

    def hidden(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``[T]`` int64 ids and positions to ``[T, hidden]``, the final norm applied."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """``[R, hidden]`` rows of `hidden`'s result to ``[R, vocab]`` float32."""
        ...


def weight_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a native Llama; products are ``[out, in]``."""
    hidden, intermediate = shape.hidden, shape.intermediate
    shapes: dict[str, tuple[int, ...]] = {"embed": (shape.vocab, hidden), "norm": (hidden,)}
    if not shape.tied_head:
        shapes["head"] = (shape.vocab, hidden)
    for layer in range(shape.layers):
        shapes |= {
            f"layers.{layer}.attention_norm": (hidden,),
            f"layers.{layer}.qkv": (shape.query_width + 2 * shape.kv_width, hidden),
            f"layers.{layer}.out": (hidden, shape.query_width),
            f"layers.{layer}.mlp_norm": (hidden,),
            f"layers.{layer}.gate_up": (2 * intermediate, hidden),
            f"layers.{layer}.down": (hidden, intermediate),
        }
    return shapes


class LlamaModel:
    """A Llama in one dtype on one device; see `CausalLM` and the picture above.

    Args:
        shape: Its sizes.
        weights: A tensor for every name of `weight_shapes`, all of one dtype and device; never
            written. Those of products are kept as `pack_weight` lays them out.

    Raises:
        ModelError: A weight is missing, unknown or of another shape.
    """

    def __init__(self, shape: ModelShape, weights: Mapping[str, Tensor]) -> None:
        expected = weight_shapes(shape)
        for name in expected.keys() ^ weights.keys():
            fault = "is missing" if name in expected else "belongs to no part of a Llama"
            raise ModelError(f"the weight {name!r} {fault}: load the file with load_gguf.")
        for name, wanted in expected.items():
            if tuple(weights[name].shape) != wanted:
                raise ModelError(
                    f"the weight {name!r} has the shape {tuple(weights[name].shape)}, and the "
                    f"model's sizes ask for {wanted}: weights and shape are of different models."
                )
        self.shape = shape
        self._embed = weights["embed"]
        self._norm = weights["norm"]
        self._head = pack_weight(weights["embed" if shape.tied_head else "head"])
        self._layers = [
            {name: weights[f"layers.{layer}.{name}"] for name in NORMS}
            | {name: pack_weight(weights[f"layers.{layer}.{name}"]) for name in PRODUCTS}
            for layer in range(shape.layers)
        ]
        frequencies = rope_frequencies(shape.head_dim, shape.rope_theta)
        self._frequencies = frequencies.to(self._embed.device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and hidden states."""
        return self._embed.dtype

    @property
    def device(self) -> torch.device:
        """Where weights lie and inputs must."""
        return self._embed.device

    def hidden(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run all layers over a flat run of tokens.

        Args:
            input_ids: ``[T]`` int64, each below ``shape.vocab``.
            positions: ``[T]`` int64, each below ``shape.max_positions``.
            attend: Attention and its cache; called once per layer, in order.

        Returns:
            ``[T, hidden]`` with the final norm applied, ready for `logits`.
        """
        shape = self.shape
        tokens, eps = input_ids.shape[0], shape.norm_eps
        turning, kv_heads = shape.heads + shape.kv_heads, shape.kv_heads
        cos, sin = (part.to(self.dtype) for part in rope_angles(positions, self._frequencies))
        residual = F.embedding(input_ids, self._embed)
        normed = rms_norm(residual, self._layers[0]["attention_norm"], eps)
        for index, layer in enumerate(self._layers):
            qkv = linear(normed, layer["qkv"]).view(tokens, turning + kv_heads, shape.head_dim)
            apply_rope(qkv[:, :turning], cos, sin)  # queries and keys lie side by side
            q, k, v = torch.split(qkv, [shape.heads, kv_heads, kv_heads], dim=1)
            attended = attend(index, q, k, v).reshape(tokens, shape.query_width)
            out = linear(attended, layer["out"])
            normed = add_rms_norm(out, residual, layer["mlp_norm"], eps)
            out = linear(silu_mul(linear(normed, layer["gate_up"])), layer["down"])
            last = index + 1 == shape.layers
            weight = self._norm if last else self._layers[index + 1]["attention_norm"]
            normed = add_rms_norm(out, residual, weight, eps)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """``[R, hidden]`` rows of what `hidden` gave to ``[R, vocab]`` float32 logits."""
        return linear(hidden, self._head).float()
