"""The KV pool: the bytes of K and V, one slot a token (page size 1), allocated once.

    layers[l]: k [slots, kv_heads, key_dim], v [slots, kv_heads, value_dim]      of layer l

Which slot belongs to whom is the cache manager's business; the pool knows numbers only. `store_kv`
writes it and the attention kernels read it, whatever `PagedKV` holds: nothing else touches them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from lmlang.kernels.paged import PagedKV
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.shape import KVLayer


class KVPool:
    """K and V of every slot. Written by the model's forward pass on the engine thread only.

    Args:
        kv_layers: What the layers keep.
        slots: Of each layer.
        dtype: Of keys and values.
        device: Where they lie.
    """

    def __init__(
        self, kv_layers: Seq[KVLayer], slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots = slots
        self.device = device
        # Left unwritten on purpose: pages that are never used never take memory on a CPU.
        self.layers = tuple(
            PagedKV(
                torch.empty((slots, layer.kv_heads, layer.key_dim), dtype=dtype, device=device),
                torch.empty((slots, layer.kv_heads, layer.value_dim), dtype=dtype, device=device),
            )
            for layer in kv_layers
        )

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
    return numbers * dtype.itemsize
