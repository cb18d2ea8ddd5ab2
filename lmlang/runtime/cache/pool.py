"""The KV pool: the bytes of K and V, one slot a token (page size 1), allocated once.

    k, v: [layers, slots, kv_heads, head_dim]      slot s of layer l: k[l, s], v[l, s]

Which slot belongs to whom is the cache manager's business; the pool knows numbers only.

The contract that a quantised pool (int8 K and V, one scale a slot and head) has to keep: the same
slots and shapes, `store_kv` writes and the attention kernels read it, `bytes_per_slot` counts it,
`copy_from` moves whole slots with whatever belongs to them. Nothing else touches k and v.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.shape import ModelShape


class KVPool:
    """K and V of every slot. Written by the model's forward pass on the engine thread only."""

    def __init__(
        self, shape: ModelShape, slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        size = (shape.layers, slots, shape.kv_heads, shape.head_dim)
        self.slots = slots
        # Left unwritten on purpose: pages that are never used never take memory on a CPU.
        self.k: Tensor = torch.empty(size, dtype=dtype, device=device)
        self.v: Tensor = torch.empty(size, dtype=dtype, device=device)

    def copy_from(self, other: KVPool, theirs: IntArray, ours: IntArray) -> None:
        """Copy K and V of slots ``theirs`` [n] of a pool on any device to slots ``ours`` [n]."""
        source = torch.from_numpy(theirs).to(other.k.device)
        target = torch.from_numpy(ours).to(self.k.device)
        for mine, its in ((self.k, other.k), (self.v, other.v)):
            mine[:, target] = its[:, source].to(mine.device)


def bytes_per_slot(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes that one token's K and V take over all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize
