"""Which tiles attention is cut into: by what is attended, head size, dtype and kind of device.

Chosen so that on Hopper and Ampere no tile spills registers or needs more shared memory than there
is (tests compile them), and large enough to keep the loads of some tens of KB under way. Which of
those is the fastest has not been measured yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
from torch import Tensor

from lmlang.kernels.paged import PagedKV
from lmlang.kernels.triton.layout import block_of


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program works.

    Args:
        m: Rows of a tile of queries (a query's heads of one kv head are so many rows).
        n: Keys of a tile.
        warps: Warps of 32 threads.
        stages: How deep loads are pipelined. Keys wait for their slots, so it takes two stages
            more to have one tile of keys more on its way.
        precision: Of float32 products: in three parts on tensor cores, or without them.
    """

    m: int
    n: int
    warps: int
    stages: int
    precision: str = "tf32x3"


@dataclass(frozen=True, slots=True)
class Device:
    """What sets the size of the work: multiprocessors, and the major compute capability."""

    multiprocessors: int
    major: int


H200 = Device(132, 9)
FEW = 64
"""Rows of queries that see the same keys up to which reading keys is all that costs."""
SIZES = (32, 64, 128, 256)
"""Head sizes of the tables, of which the next larger one is taken."""

HOPPER = {
    "many": (Tile(128, 128, 8, 5), Tile(128, 64, 8, 5), Tile(128, 64, 8, 5), Tile(128, 32, 8, 3)),
    "few": (Tile(FEW, 128, 4, 5), Tile(FEW, 128, 4, 5), Tile(FEW, 64, 4, 5), Tile(FEW, 32, 4, 5)),
}
AMPERE = {
    "many": (Tile(128, 64, 8, 3), Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(32, 32, 4, 3)),
    "few": (Tile(FEW, 128, 4, 5), Tile(FEW, 64, 4, 5), Tile(FEW, 32, 4, 5), Tile(FEW, 16, 8, 5)),
}
FLOAT32 = (Tile(32, 32, 4, 3), Tile(32, 32, 4, 3), Tile(16, 32, 8, 3), Tile(16, 16, 8, 3, "ieee"))
FLOAT32_OVER_INT8 = (*FLOAT32[:3], Tile(16, 32, 8, 1, "ieee"))
TABLES = {8: AMPERE, 9: HOPPER, 10: HOPPER, 12: AMPERE}
"""Tiles of float16 and bfloat16, by size in `SIZES`, of each major compute capability."""


@cache
def device_of(device: torch.device) -> Device:
    """What a CUDA device is like; of any other (tests) as an H200 is."""
    if device.type != "cuda":
        return H200
    found = torch.cuda.get_device_properties(device)
    return Device(found.multi_processor_count, found.major)


def tile_of(q: Tensor, kv: PagedKV, rows: int) -> Tile:
    """The tile for these queries.

    Args:
        q: [T, H, Dk].
        kv: The layer's keys and values.
        rows: Rows of queries that see the same keys, on average: tokens times the query heads of
            a kv head.

    Raises:
        ValueError: There is no tile for the head sizes or for the device.
    """
    size = max(block_of(q.shape[2]), block_of(kv.value_dim), SIZES[0])
    if size not in SIZES:
        raise ValueError(
            f"heads of {q.shape[2]} and {kv.value_dim} numbers are larger than {SIZES[-1]}, the "
            "largest that attention on a device takes"
        )
    at = SIZES.index(size)
    if q.dtype == torch.float32:
        return (FLOAT32 if kv.k_scale is None else FLOAT32_OVER_INT8)[at]
    major = device_of(q.device).major
    if major not in TABLES:
        raise ValueError(f"{q.device} has compute capability {major}.x; it must be 8.0 or above")
    if rows > FEW:
        return TABLES[major]["many"][at]
    tile = TABLES[major]["few"][at]
    return replace(tile, m=min(tile.m, max(16, int(triton.next_power_of_2(rows)))))
