"""How a layer of the pool, head sizes and dtypes are handed to a kernel of attention."""

from __future__ import annotations

import triton
from torch import Tensor

from lmlang.kernels.paged import PagedKV


def pool_arguments(kv: PagedKV) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Keys, values, and their scales where they are int8."""
    return kv.k, kv.v, kv.k_scale, kv.v_scale


def pool_strides(kv: PagedKV) -> tuple[int, ...]:
    """From slot to slot and from head to head of keys, of values, and of their scales."""
    scales = (0, 0) if kv.k_scale is None else kv.k_scale.stride()
    return (*kv.k.stride()[:2], *kv.v.stride()[:2], *scales)


def block_of(size: int) -> int:
    """Numbers that a tile holds for a head of this size: a power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(size)))
