"""The native Llama family: fused products over plain tensors, attention and cache passed in.

    ids [T] -> embed (* scale) -> x [T, hidden]                  T: tokens of all rows of a step
      per layer:  norm -> qkv -> (norm q, k) -> rope(q, k) -> attend -> out (-> norm)   } added
                  norm -> gate_up -> gate * up -> down (-> norm)                        } to x
    -> norm -> logits [K, vocab], of the rows that are asked for alone

Parts in brackets are there by the flags of `ModelShape`: so Mistral, Qwen, SmolLM and Gemma run.
The model knows no request, no cache and no batch: what an operation needs is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from lmlang.errors import ModelError
from lmlang.kernels.activation import gelu_tanh_mul, silu_mul
from lmlang.kernels.linear import linear, pack_weight
from lmlang.kernels.norm import add_rms_norm, add_rms_norm_at, rms_norm
from lmlang.kernels.quant import Weight, embedding
from lmlang.kernels.rope import (
    apply_rope,
    llama3_frequencies,
    rope_angles,
    rope_frequencies,
    rope_store,
    yarn_frequencies,
)
from lmlang.runtime.models.adapters import Adapter, AdapterRows, Place, add_deltas, fit
from lmlang.runtime.models.causal import Attend, Inputs, StoringAttend
from lmlang.runtime.models.lora import LoraFile
from lmlang.runtime.shape import ModelShape, Rope

PRODUCTS = ("qkv", "out", "gate_up", "down")
"""The weights of one layer that are multiplied with, laid out for it."""
MODULES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The modules whose rows each of them stacks, as transformers names them."""
GATES = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}


def layer_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of the weights of one layer; products are ``[out, in]``."""
    hidden, intermediate = shape.hidden, shape.intermediate
    qkv = shape.query_width + 2 * shape.kv_width
    layer: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "qkv": (qkv, hidden),
        "out": (hidden, shape.query_width),
        "mlp_norm": (hidden,),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
    }
    if shape.qkv_bias:
        layer["qkv_bias"] = (qkv,)
    if shape.out_bias:
        layer["out_bias"] = (hidden,)
    if shape.qk_norm:
        layer |= {"q_norm": (shape.head_dim,), "k_norm": (shape.head_dim,)}
    if shape.post_norms:
        layer |= {"post_attention_norm": (hidden,), "post_mlp_norm": (hidden,)}
    return layer


def weight_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight; those of `layer_shapes` behind ``layers.INDEX.``."""
    hidden, layer = shape.hidden, layer_shapes(shape)
    shapes: dict[str, tuple[int, ...]] = {"embed": (shape.vocab, hidden), "norm": (hidden,)}
    if not shape.tied_head:
        shapes["head"] = (shape.vocab, hidden)
    for index in range(shape.layers):
        shapes |= {f"layers.{index}.{name}": size for name, size in layer.items()}
    return shapes


def frequencies(head_dim: int, rope: Rope) -> Tensor:
    """``[head_dim/2]`` float32, the angle per position of each pair of a head."""
    plain = rope_frequencies(head_dim, rope.theta)
    if rope.scaling == "linear":
        return plain / rope.factor
    if rope.scaling == "llama3":
        return llama3_frequencies(plain, rope.factor, rope.low, rope.high, rope.original_positions)
    if rope.scaling == "factors":
        return plain / torch.tensor(rope.factors, dtype=torch.float32)
    if rope.scaling == "yarn":
        return yarn_frequencies(
            head_dim, rope.theta, rope.factor, rope.low, rope.high, rope.original_positions,
            truncate=rope.truncate,
        )  # fmt: skip
    return plain


class LlamaModel:
    """A model of the family in one dtype on one device: a `CausalLM`; see the picture above.

    Args:
        shape: Its sizes and flags.
        weights: One for every name of `weight_shapes`, on one device and of one dtype (norms may
            be float32 in any case); never written. Matrices may be quantised; those of products
            are kept as `pack_weight` lays them out.

    Raises:
        ModelError: A weight is missing, unknown or of another shape.
    """

    def __init__(self, shape: ModelShape, weights: Mapping[str, Weight]) -> None:
        _check_weights(shape, weights)
        self.shape = shape
        self.vocab, self.max_positions = shape.vocab, shape.max_positions
        self.kv_layers = shape.kv_layers
        self.embed = weights["embed"]
        self.norm = _tensor(weights["norm"])
        self.head = pack_weight(weights["embed" if shape.tied_head else "head"])
        self.norms = [self._layer(index, weights) for index in range(shape.layers)]
        self.products = [
            {name: pack_weight(weights[f"layers.{index}.{name}"]) for name in PRODUCTS}
            for index in range(shape.layers)
        ]
        self._gate = GATES[shape.activation]
        # In the weights' dtype, as in the training code: Gemma's scales were rounded there.
        self._embed_scale = torch.tensor(shape.embed_scale, dtype=self.dtype).to(self.device)
        self.frequencies = {
            kind.rope: frequencies(shape.head_dim, kind.rope).to(self.embed.device)
            for kind in shape.kinds
            if kind.rope is not None
        }

    def _layer(self, index: int, weights: Mapping[str, Weight]) -> dict[str, Tensor]:
        """Norms and biases of a layer by their short names, ready for use."""
        names = [name for name in layer_shapes(self.shape) if name not in PRODUCTS]
        own = {name: _tensor(weights[f"layers.{index}.{name}"]) for name in names}
        if self.shape.qk_norm:
            heads = (own.pop("q_norm"), own.pop("k_norm"))
            counts = (self.shape.heads, self.shape.kv_heads)
            own["qk_norm"] = torch.cat(
                [norm.expand(count, -1) for norm, count in zip(heads, counts, strict=True)]
            )
        return own

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and hidden states."""
        return self.embed.dtype

    @property
    def device(self) -> torch.device:
        """Where weights lie and inputs must."""
        return self.embed.device

    def forward(self, inputs: Inputs, attend: Attend) -> Tensor:
        """Float32 logits [K, vocab] of the tokens that are asked for; see `CausalLM`."""
        return self._logits(self._hidden(inputs, attend))

    def adapter(self, lora: LoraFile, base: str) -> Adapter:
        """The form of an adapter for ``inputs.adapters``; see `CausalLM`."""
        places: dict[str, Place] = {}
        sizes, shape = layer_shapes(self.shape), self.shape
        for product, modules in MODULES.items():
            outputs, inputs = sizes[product]
            rows = {"qkv": (shape.query_width, shape.kv_width, shape.kv_width)}.get(product)
            row = 0
            for part, module in enumerate(modules):
                count = rows[part] if rows else outputs // len(modules)
                for index in range(shape.layers):
                    own = Place(f"layers.{index}.{product}", row, count, inputs, outputs)
                    places[f"model.layers.{index}.{module}"] = own
                row += count
        return fit(lora, base, places, self.dtype, self.device)

    def _hidden(self, inputs: Inputs, attend: Attend) -> Tensor:
        """Run all layers; ``[K, hidden]`` of the tokens asked for, the final norm applied."""
        input_ids, positions = inputs.input_ids, inputs.positions
        shape, eps = self.shape, self.shape.norm_eps
        angles = {rope: self.angles(positions, rope) for rope in self.frequencies}
        storing = attend if isinstance(attend, StoringAttend) else None
        residual = embedding(input_ids, self.embed)
        if shape.embed_scale != 1:
            residual.mul_(self._embed_scale)
        normed = rms_norm(residual, self.norms[0]["attention_norm"], eps)
        for index, layer in enumerate(self.norms):
            rope = shape.kind(index).rope
            qkv = self._times(normed, index, "qkv", inputs.adapters)
            turns = None if rope is None else angles[rope]
            attended = self._attended(index, qkv, turns, attend, storing)
            out = self._times(attended, index, "out", inputs.adapters)
            if shape.post_norms:
                out = rms_norm(out, layer["post_attention_norm"], eps)
            normed = add_rms_norm(out, residual, layer["mlp_norm"], eps)
            gated = self._gate(self._times(normed, index, "gate_up", inputs.adapters))
            out = self._times(gated, index, "down", inputs.adapters)
            if shape.post_norms:
                out = rms_norm(out, layer["post_mlp_norm"], eps)
            if index + 1 < shape.layers:
                normed = add_rms_norm(out, residual, self.norms[index + 1]["attention_norm"], eps)
        return add_rms_norm_at(out, residual, inputs.logits_at, self.norm, eps)

    def _times(self, x: Tensor, index: int, name: str, adapters: Seq[AdapterRows]) -> Tensor:
        """One of the `PRODUCTS` of a layer, with what adapters add to it."""
        out = linear(x, self.products[index][name], self.norms[index].get(f"{name}_bias"))
        if adapters:
            add_deltas(out, x, f"layers.{index}.{name}", adapters)
        return out

    def angles(self, positions: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each [T, 1, head_dim / 2] of its dtype, one of ``frequencies``."""
        cos, sin = rope_angles(positions, self.frequencies[rope])
        factor = rope.attention_factor
        return cos.mul_(factor).to(self.dtype), sin.mul_(factor).to(self.dtype)

    def _attended(
        self,
        index: int,
        qkv: Tensor,
        angles: tuple[Tensor, Tensor] | None,
        attend: Attend,
        storing: StoringAttend | None,
    ) -> Tensor:
        """Attention of a layer from its product ``[T, qkv]``, which is written: ``[T, width]``.

        ``storing`` is ``attend`` where that lets a model store keys and values itself.
        """
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        qkv = qkv.view(len(qkv), heads + 2 * kv_heads, self.shape.head_dim)
        turning = qkv[:, : heads + kv_heads]
        if self.shape.qk_norm:
            weight = self.norms[index]["qk_norm"]
            turning.copy_(rms_norm(turning, weight, self.shape.norm_eps))
        if angles is not None and storing is not None:
            rope_store(qkv, *angles, heads, *storing.place(index))
            out = storing.stored(index, qkv[:, :heads])
        else:
            if angles is not None:
                apply_rope(turning, *angles)
            out = attend(index, *torch.split(qkv, [heads, kv_heads, kv_heads], dim=1))
        return out.reshape(len(qkv), self.shape.query_width)

    def _logits(self, hidden: Tensor) -> Tensor:
        """``[R, hidden]`` rows of what `_hidden` gave to ``[R, vocab]`` float32 logits."""
        logits = linear(hidden, self.head).float()
        cap = self.shape.logit_softcap
        return logits if cap == 0 else logits.div_(cap).tanh_().mul_(cap)


def _tensor(weight: Weight) -> Tensor:
    """Of one axis, and so never quantised."""
    assert isinstance(weight, Tensor)
    return weight


def _check_weights(shape: ModelShape, weights: Mapping[str, Weight]) -> None:
    expected = weight_shapes(shape)
    for name in expected.keys() ^ weights.keys():
        fault = "is missing" if name in expected else "belongs to no part of the model"
        raise ModelError(f"the weight {name!r} {fault}: load the file with load_gguf.")
    for name, wanted in expected.items():
        if tuple(weights[name].shape) != wanted:
            raise ModelError(
                f"the weight {name!r} has the shape {tuple(weights[name].shape)}, and the "
                f"model's sizes ask for {wanted}: weights and shape are of different models."
            )
