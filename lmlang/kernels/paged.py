"""One layer of the paged KV pool: keys and values by slot, plain or as int8 with scales.

    k [S, Hkv, Dk], v [S, Hkv, Dv]           S slots, one token each · Hkv key and value heads
    k_scale, v_scale [S, Hkv]                where k and v are int8: number = int8 * scale

One scale for a token's head: it is written when the token is, and never again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmlang.kernels.forms import dispatch

Slots = Tensor | slice
"""Which slots of the pool, in order: an int64 tensor [L], or a slice where they lie together."""
LARGEST = 127
"""Of an int8 number here; -128 is not used, so that both signs reach equally far."""


@dataclass(frozen=True, slots=True, eq=False)
class PagedKV:
    """Keys and values of one layer; written in place by `store_kv`, read by everyone.

    Args:
        k: [S, Hkv, Dk].
        v: [S, Hkv, Dv], of k's dtype.
        k_scale: float32 or float16 [S, Hkv] where k and v are int8, else None; so is v_scale.
        v_scale: As ``k_scale``.

    Raises:
        ValueError: The tensors do not belong together.
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    def __post_init__(self) -> None:
        if self.k.ndim != 3 or self.k.shape[:2] != self.v.shape[:2] or self.v.ndim != 3:
            raise ValueError(
                f"keys {tuple(self.k.shape)} and values {tuple(self.v.shape)} must be "
                "[slots, heads, size] with the same slots and heads"
            )
        if self.k.dtype != self.v.dtype:
            raise ValueError(f"keys are {self.k.dtype}, values {self.v.dtype}: they must be alike")
        for scale in (self.k_scale, self.v_scale):
            if (scale is not None) != (self.k.dtype == torch.int8):
                raise ValueError(f"scales belong to int8, and only there: this is {self.k.dtype}")
            if scale is not None and scale.shape != self.k.shape[:2]:
                raise ValueError(f"scales {tuple(scale.shape)} must be [slots, heads]")

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return self.k.shape[1]

    @property
    def value_dim(self) -> int:
        """Numbers in one value head."""
        return self.v.shape[2]

    def tensors(self) -> tuple[Tensor, ...]:
        """All that belongs to its slots, which are the first axis of each."""
        parts = (self.k, self.v, self.k_scale, self.v_scale)
        return tuple(part for part in parts if part is not None)

    def keys(self, slots: Slots, dtype: torch.dtype) -> Tensor:
        """[L, Hkv, Dk] of these slots; of a slice, and where the dtype is its own, in place."""
        return _gathered(self.k, self.k_scale, slots, dtype)

    def values(self, slots: Slots, dtype: torch.dtype) -> Tensor:
        """[L, Hkv, Dv]; as `keys`."""
        return _gathered(self.v, self.v_scale, slots, dtype)


def store_kv(kv: PagedKV, slots: Slots, k: Tensor, v: Tensor) -> None:
    """Write new keys and values to their slots.

    Args:
        kv: Written in place.
        slots: T slots, all different.
        k: [T, Hkv, Dk].
        v: [T, Hkv, Dv].
    """
    pool = (kv.k, kv.v, kv.k_scale, kv.v_scale)
    if isinstance(slots, slice):
        store_reference(slots, k, v, *pool)
    else:
        dispatch("store", store_reference, k)(slots, k, v, *pool)


def store_reference(
    slots: Slots,
    k: Tensor,
    v: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """`store_kv` in plain torch, with the tensors of the pool one by one."""
    for pool, scales, new in ((k_pool, k_scale, k), (v_pool, v_scale, v)):
        if scales is None:
            pool[slots] = new.to(pool.dtype)
        else:
            pool[slots], scales[slots] = quantised(new, scales.dtype)


def quantised(x: Tensor, scale_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers as int8 with one scale for each head; off by half a scale at most.

    Args:
        x: [T, H, D].
        scale_dtype: float32 or float16.

    Returns:
        int8 [T, H, D] and scales [T, H].
    """
    x = x.float()
    # No smaller than what the dtype holds in full precision, so that the bound holds there too.
    least = torch.finfo(scale_dtype).tiny
    scale = (x.abs().amax(-1) / LARGEST).clamp_(min=least).to(scale_dtype)
    whole = (x / scale.float()[..., None]).round_().clamp_(-LARGEST, LARGEST)
    return whole.to(torch.int8), scale


def _gathered(pool: Tensor, scales: Tensor | None, slots: Slots, dtype: torch.dtype) -> Tensor:
    found = _at(pool, slots)
    if scales is None:
        return found.to(dtype)
    return found.float().mul_(_at(scales, slots).float()[..., None]).to(dtype)


def _at(x: Tensor, slots: Slots) -> Tensor:
    return x[slots] if isinstance(slots, slice) else x.index_select(0, slots)
