"""The sizes of one decoder-only model, checked once and then believed by everyone."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        rope_theta: Base of the rotary frequencies.
        norm_eps: Added to the mean square in each RMS norm.
        tied_head: Whether the output head is the embedding.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int
    max_positions: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied_head: bool = True

    def __post_init__(self) -> None:
        for name, highest in MAX_SIZES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
                raise ModelError(
                    f"the model says {name}={str(value)[:64]}: it must be a whole number "
                    f"from 1 to {highest:,}. The file is damaged or no language model."
                )
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
        for name in ("rope_theta", "norm_eps"):
            number = getattr(self, name)
            if not isinstance(number, (int, float)) or not math.isfinite(number) or number <= 0:
                raise ModelError(
                    f"the model says {name}={str(number)[:64]}: it must be a positive number. "
                    "The file is damaged."
                )

    @property
    def query_width(self) -> int:
        """Numbers in all query heads of one token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Numbers in all key heads of one token."""
        return self.kv_heads * self.head_dim
