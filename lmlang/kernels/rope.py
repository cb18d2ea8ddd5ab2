"""Rotary positions: each pair (i, i + head_dim/2) of a head is turned by position x frequency.

Half-split layout, as in the published Llama weights; the interleaved layout of GGUF files is
undone when they are loaded.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_frequencies(head_dim: int, theta: float) -> Tensor:
    """Angle per position of each pair: ``theta ** (-2i / head_dim)``, float32 ``[head_dim/2]``."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / (theta**exponent)


def rope_angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine for every position, once per forward pass.

    The angle is a float32 product, as in the models' training code: at far positions a more
    exact angle would be a different model.

    Args:
        positions: ``[T]`` int64.
        frequencies: ``[head_dim/2]`` float32.

    Returns:
        ``cos, sin``: ``[T, 1, head_dim/2]`` float32, new.
    """
    angles = torch.outer(positions.float(), frequencies).unsqueeze(1)
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn every head of ``x`` in place.

    Args:
        x: ``[T, heads, head_dim]``, any strides with a dense last axis; **written**.
        cos: ``[T, 1, head_dim/2]`` in the dtype of ``x``.
        sin: Like ``cos``.
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    turned = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1.0)
    second.mul_(cos).add_(turned)
