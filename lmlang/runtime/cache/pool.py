"""The KV pool: the bytes of K and V, one slot a token (page size 1), allocated once.

    layers[l]: k [slots, kv_heads, key_dim], v [slots, kv_heads, value_dim]      of layer l
               k_scale, v_scale [slots, kv_heads] too, where k and v are int8

Which slot belongs to whom is the cache manager's business; the pool knows numbers only. `store_kv`
writes it and the attention kernels read it, whatever `PagedKV` holds: nothing else touches them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from lmlang.kernels.paged import PagedKV
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.shape import KVLayer
from lmlang.runtime.transfer import sent

SCALE_DTYPE = torch.float16
"""Of int8's scales: with float32, heads of 64 would fit 1.88 times as many tokens, not 1.94."""


class KVPool:
    """K and V of every slot. Written by the model's forward pass on the engine thread only.

    Args:
        kv_layers: What the layers keep.
        slots: Of each layer.
        dtype: Of keys and values; int8 where they are quantised.
        device: Where they lie.
        pinned: Whether it is main memory that a GPU copies from and to by itself.
    """

    def __init__(
        self,
        kv_layers: Seq[KVLayer],
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        pinned: bool = False,
    ) -> None:
        self.slots = slots
        self.device = device

        def empty(*size: int, dtype: torch.dtype = dtype) -> Tensor:
            # Left unwritten on purpose: pages that are never used never take memory on a CPU.
            return torch.empty((slots, *size), dtype=dtype, device=device, pin_memory=pinned)

        def layer(of: KVLayer) -> PagedKV:
            k, v = empty(of.kv_heads, of.key_dim), empty(of.kv_heads, of.value_dim)
            if dtype != torch.int8:
                return PagedKV(k, v)
            return PagedKV(k, v, *(empty(of.kv_heads, dtype=SCALE_DTYPE) for _ in "kv"))

        self.layers = tuple(layer(of) for of in kv_layers)

    def copy_from(self, other: KVPool, theirs: IntArray, ours: IntArray) -> None:
        """Copy all of slots ``theirs`` [n] of a pool on any device to slots ``ours`` [n].

        Between a GPU and pinned memory it waits for nothing: what lies in main memory is moved in
        whole runs, by the GPU alone, in the order of its other work.
        """
        here = self.device.type == "cpu"
        runs = _runs(ours if here else theirs)
        pairs = [
            (into, out_of)
            for mine, its in zip(self.layers, other.layers, strict=True)
            for into, out_of in zip(mine.tensors(), its.tensors(), strict=True)
        ]
        far = sent(theirs if here else ours, other.device if here else self.device)
        for at, run in runs:
            places = far[at : at + run.stop - run.start]
            for into, out_of in pairs:
                if here:
                    into[run].copy_(out_of.index_select(0, places), non_blocking=True)
                else:
                    into[places] = out_of[run].to(into.device, non_blocking=True)


def _runs(slots: IntArray) -> list[tuple[int, slice]]:
    """Runs of slots that follow one another: where each begins in the array, and its slots."""
    starts = [0, *(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), len(slots)]
    return [(a, slice(int(slots[a]), int(slots[a]) + b - a)) for a, b in pairwise(starts) if b > a]


def bytes_per_slot(kv_layers: Seq[KVLayer], dtype: torch.dtype) -> int:
    """Bytes that one token's K and V take over all layers."""
    numbers = sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in kv_layers)
    scales = sum(2 * layer.kv_heads for layer in kv_layers) if dtype == torch.int8 else 0
    return numbers * dtype.itemsize + scales * SCALE_DTYPE.itemsize
