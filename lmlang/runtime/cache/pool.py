"""The KV pool: the bytes of K and V, one slot a token (page size 1), allocated once.

    layers[l]: k [slots, kv_heads, key_dim], v [slots, kv_heads, value_dim]      of layer l
               k_scale, v_scale [slots, kv_heads] too, where k and v are int8

Which slot belongs to whom is the cache manager's business; the pool knows numbers only. `store_kv`
writes it and the attention kernels read it, whatever `PagedKV` holds: nothing else touches them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from lmlang.kernels.paged import PagedKV
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.shape import KVLayer

SCALE_DTYPE = torch.float16
"""Of int8's scales: with float32, heads of 64 would fit 1.88 times as many tokens, not 1.94."""


class KVPool:
    """K and V of every slot. Written by the model's forward pass on the engine thread only.

    Args:
        kv_layers: What the layers keep.
        slots: Of each layer.
        dtype: Of keys and values; int8 where they are quantised.
        device: Where they lie.
    """

    def __init__(
        self, kv_layers: Seq[KVLayer], slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots = slots
        self.device = device

        def empty(*size: int, dtype: torch.dtype = dtype) -> Tensor:
            # Left unwritten on purpose: pages that are never used never take memory on a CPU.
            return torch.empty((slots, *size), dtype=dtype, device=device)

        def layer(of: KVLayer) -> PagedKV:
            k, v = empty(of.kv_heads, of.key_dim), empty(of.kv_heads, of.value_dim)
            if dtype != torch.int8:
                return PagedKV(k, v)
            return PagedKV(k, v, *(empty(of.kv_heads, dtype=SCALE_DTYPE) for _ in "kv"))

        self.layers = tuple(layer(of) for of in kv_layers)

    def copy_from(self, other: KVPool, theirs: IntArray, ours: IntArray) -> None:
        """Copy all of slots ``theirs`` [n] of a pool on any device to slots ``ours`` [n]."""
        source = torch.from_numpy(theirs).to(other.device)
        target = torch.from_numpy(ours).to(self.device)
        for mine, its in zip(self.layers, other.layers, strict=True):
            for into, out_of in zip(mine.tensors(), its.tensors(), strict=True):
                into[target] = out_of[source].to(into.device)


def bytes_per_slot(kv_layers: Seq[KVLayer], dtype: torch.dtype) -> int:
    """Bytes that one token's K and V take over all layers."""
    numbers = sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in kv_layers)
    scales = sum(2 * layer.kv_heads for layer in kv_layers) if dtype == torch.int8 else 0
    return numbers * dtype.itemsize + scales * SCALE_DTYPE.itemsize
