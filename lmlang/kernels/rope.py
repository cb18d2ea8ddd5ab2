"""Rotary positions: each pair (i, i + head_dim/2) of a head is turned by position x frequency.

Half-split layout, as in the published Llama weights; the interleaved layout of GGUF files is
undone when they are loaded.

Sources: Su et al., "RoFormer" (2021); Peng et al., "YaRN" (2023); the Llama 3.1 model card for
its scaling.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmlang.kernels.forms import dispatch
from lmlang.kernels.paged import PagedKV, store_kv


def rope_frequencies(head_dim: int, theta: float) -> Tensor:
    """Angle per position of each pair: ``theta ** (-2i / head_dim)``, float32 ``[head_dim/2]``."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / (theta**exponent)


def llama3_frequencies(
    frequencies: Tensor, factor: float, low: float, high: float, original: int
) -> Tensor:
    """Frequencies for a longer context: slow pairs divided by ``factor``, fast ones kept.

    Args:
        frequencies: ``[head_dim/2]`` float32.
        factor: What slow pairs are divided by.
        low: Turns over the original context up to which a pair is slow.
        high: Turns from which a pair is fast; in between the two are mixed.
        original: Positions of the original context.
    """
    wavelength = 2 * math.pi / frequencies
    kept = (original / wavelength - low) / (high - low)
    mixed = (1 - kept) * frequencies / factor + kept * frequencies
    mixed = torch.where(wavelength > original / low, frequencies / factor, mixed)
    return torch.where(wavelength < original / high, frequencies, mixed)


def yarn_frequencies(
    head_dim: int,
    theta: float,
    factor: float,
    low: float,
    high: float,
    original: int,
    *,
    truncate: bool = True,
) -> Tensor:
    """YaRN's frequencies: slow pairs divided by ``factor``, fast ones kept, a ramp between.

    Args:
        head_dim: Numbers in a head.
        theta: Base of the frequencies; above 1.
        factor: What slow pairs are divided by.
        low: Turns over the original context at which the ramp ends (beta_slow).
        high: Turns at which it begins (beta_fast).
        original: Positions of the original context.
        truncate: Whether the ramp is widened to whole pairs.
    """

    def pair(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair(high), pair(low)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001
    steps = torch.arange(head_dim // 2, dtype=torch.float32)
    kept = 1 - ((steps - first) / (last - first)).clamp(0, 1)
    powers = theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept


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
    dispatch("apply_rope", apply_rope_reference, x)(x, cos, sin)


def rope_store(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv: PagedKV, slots: Tensor
) -> None:
    """Turn queries and keys in place, and write keys and values to their slots, in one pass.

    It is `apply_rope` of the first ``heads + Hkv`` heads, then `lmlang.kernels.paged.store_kv`.

    Args:
        qkv: ``[T, heads + 2 * Hkv, D]``: queries, keys, values; **written**.
        cos: ``[T, 1, D/2]`` in the dtype of ``qkv``.
        sin: Like ``cos``.
        heads: Of the queries.
        kv: One layer of the pool, keys and values of size D; **written**, as int8 with new scales
            where it is int8.
        slots: ``[T]`` int64 or int32.
    """
    run = dispatch("rope_store", rope_store_reference, qkv)
    run(qkv, cos, sin, heads, slots, kv.k, kv.v, kv.k_scale, kv.v_scale)


def apply_rope_reference(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """`apply_rope` in plain torch."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    turned = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1.0)
    second.mul_(cos).add_(turned)


def rope_store_reference(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """`rope_store` by the two ops it is made of, with the tensors of the pool one by one."""
    kv_heads = k.shape[1]
    apply_rope(qkv[:, : heads + kv_heads], cos, sin)
    new = qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    store_kv(PagedKV(k, v, k_scale, v_scale), slots, *new)
