"""The sizes and constants of one decoder-only model, checked once and then believed by everyone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmlang.errors import ModelError

MAX_SIZES = {
    "layers": 2_048,
    "heads": 4_096,
    "kv_heads": 4_096,
    "head_dim": 4_096,
    "hidden": 1 << 20,
    "intermediate": 1 << 22,
    "vocab": 1 << 22,
    "max_positions": 1 << 27,
}
"""Far above any model there is; a file that says more is broken or hostile."""

ACTIVATIONS = ("silu", "gelu_tanh")
SCALINGS = ("none", "linear", "llama3", "yarn", "factors")


def check_size(name: str, value: int) -> int:
    """The value, if a model may have that many of ``name`` (one of ``MAX_SIZES``).

    Raises:
        ModelError: It may not.
    """
    _whole(name, value, MAX_SIZES[name])
    return value


def _whole(name: str, value: Any, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise ModelError(
            f"the model says {name}={str(value)[:64]}: it must be a whole number "
            f"from 1 to {highest:,}. The file is damaged or no language model."
        )


def _positive(name: str, number: Any) -> None:
    if (
        isinstance(number, bool)
        or not isinstance(number, (int, float))
        or not 0 < number < 1e30  # NaN and infinities are refused with the rest
    ):
        raise ModelError(
            f"the model says {name}={str(number)[:64]}: it must be a positive number. "
            "The file is damaged."
        )


@dataclass(frozen=True, slots=True)
class Rope:
    """How a layer turns positions into angles; checked on construction (``ModelError``).

    Args:
        theta: Base of the rotary frequencies.
        scaling: How they are stretched for long contexts: ``"none"``; ``"linear"``: all divided
            by ``factor``; ``"llama3"`` and ``"yarn"``: low frequencies divided, high ones kept;
            ``"factors"``: each divided by its own of ``factors``.
        factor: What frequencies are divided by.
        original_positions: Context of the training before it was stretched (llama3, yarn).
        low: Turns over the original context below which a frequency is divided whole.
        high: Turns from which it is kept.
        attention_factor: Multiplies cosines and sines (yarn).
        truncate: Whether yarn's range is widened to whole pairs.
        factors: One number per pair of a head.
    """

    theta: float = 10_000.0
    scaling: str = "none"
    factor: float = 1.0
    original_positions: int = 0
    low: float = 1.0
    high: float = 4.0
    attention_factor: float = 1.0
    truncate: bool = True
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("theta", "factor", "low", "high", "attention_factor"):
            _positive(f"rope_{name}", getattr(self, name))
        if self.scaling not in SCALINGS:
            raise ModelError(
                f"the model's rope scaling is {str(self.scaling)[:64]!r}, and only "
                f"{', '.join(SCALINGS)} can be run: give another model."
            )
        if self.scaling in ("llama3", "yarn"):
            _whole("rope's original positions", self.original_positions, MAX_SIZES["max_positions"])
            if self.low >= self.high or self.theta <= 1:
                raise ModelError(
                    f"the model says low={self.low}, high={self.high} and theta={self.theta} of "
                    "its rope scaling: low must be below high, and theta above 1. The file is "
                    "damaged."
                )
        for factor in self.factors:
            _positive("rope factor", factor)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What sets layers of one model apart.

    Args:
        window: Positions that a token sees, its own included; 0 for all before it.
        rope: Its rotary positions; None for a layer without any.
    """

    window: int = 0
    rope: Rope | None = Rope()

    def __post_init__(self) -> None:
        if self.window != 0:
            _whole("window", self.window, MAX_SIZES["max_positions"])


@dataclass(frozen=True, slots=True)
class KVLayer:
    """What attention is like in one layer that keeps keys and values; of any model.

    Args:
        heads: Query heads.
        kv_heads: Key and value heads; divides ``heads``.
        key_dim: Numbers in a query and a key head.
        value_dim: Numbers in a value head.
        scale: Factor on query times key.
        window: Positions that a token sees, its own included; 0 for all before it.
        softcap: Scores become ``softcap * tanh(score / softcap)``; 0 for as they are.
        sinks: Whether each query head has a score without a key (see `apply_sinks`).
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes and constants of a Llama-like model; checked on construction (``ModelError``).

    Args:
        layers: Transformer blocks.
        heads: Query heads.
        kv_heads: Key and value heads; divides ``heads``.
        head_dim: Numbers in one head; even, for the two halves of rope.
        hidden: Width of the residual stream.
        intermediate: Width of the feed-forward part.
        vocab: Rows of the embedding.
        max_positions: Tokens of the longest context.
        kinds: Of the layers, a pattern that repeats: layer i is of ``kinds[i % len(kinds)]``.
        norm_eps: Added to the mean square in each RMS norm.
        tied_head: Whether the output head is the embedding.
        activation: Of the gate: ``"silu"`` or ``"gelu_tanh"``.
        qkv_bias: Whether queries, keys and values have a bias.
        out_bias: Whether the attention's output has a bias.
        qk_norm: Whether each query and key head is normed before rope.
        post_norms: Whether what a block adds to the residual stream is normed once more.
        query_scale: Factor on query times key; None for ``head_dim ** -0.5``.
        embed_scale: Factor on embedded tokens (not on the head, even where it is tied).
        softcap: Attention scores become ``softcap * tanh(score / softcap)``; 0 for as they are.
        logit_softcap: The same for the logits.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int
    max_positions: int
    kinds: tuple[LayerKind, ...] = (LayerKind(),)
    norm_eps: float = 1e-5
    tied_head: bool = True
    activation: str = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    query_scale: float | None = None
    embed_scale: float = 1.0
    softcap: float = 0.0
    logit_softcap: float = 0.0

    def __post_init__(self) -> None:
        for name, highest in MAX_SIZES.items():
            _whole(name, getattr(self, name), highest)
        if self.heads % self.kv_heads:
            raise ModelError(
                f"the model says heads={self.heads} and kv_heads={self.kv_heads}: each key head "
                "must serve equally many query heads. The file is damaged or not supported."
            )
        if self.head_dim % 2:
            raise ModelError(
                f"the model says head_dim={self.head_dim}: rope rotates two halves, so it must "
                "be even. The file is damaged or not supported."
            )
        for name in ("norm_eps", "query_scale", "embed_scale"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        for name in ("softcap", "logit_softcap"):
            if getattr(self, name) != 0:
                _positive(name, getattr(self, name))
        if self.activation not in ACTIVATIONS:
            raise ModelError(
                f"the model's activation is {str(self.activation)[:64]!r}, and only "
                f"{' and '.join(ACTIVATIONS)} can be run: give another model."
            )
        self._check_kinds()

    def _check_kinds(self) -> None:
        if not 1 <= len(self.kinds) <= MAX_SIZES["layers"]:
            raise ModelError(f"the model has {len(self.kinds):,} kinds of layers: give at least 1.")
        for kind in self.kinds:
            if kind.rope and kind.rope.scaling == "factors":
                _check_factors(kind.rope, self.head_dim)

    @property
    def query_width(self) -> int:
        """Numbers in all query heads of one token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Numbers in all key heads of one token."""
        return self.kv_heads * self.head_dim

    @property
    def score_scale(self) -> float:
        """The factor on query times key."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    def kind(self, layer: int) -> LayerKind:
        """What a layer is like."""
        return self.kinds[layer % len(self.kinds)]

    @property
    def kv_layers(self) -> tuple[KVLayer, ...]:
        """What attention is like in each layer."""
        sizes = (self.heads, self.kv_heads, self.head_dim, self.head_dim, self.score_scale)
        windows = [self.kind(layer).window for layer in range(self.layers)]
        return tuple(KVLayer(*sizes, window, self.softcap) for window in windows)


def _check_factors(rope: Rope, head_dim: int) -> None:
    if len(rope.factors) != head_dim // 2:
        raise ModelError(
            f"the model has {len(rope.factors):,} rope factors, and its heads of {head_dim} need "
            f"{head_dim // 2}: the file is damaged."
        )
