"""Paged decode on the device: one query a row, each row's keys spread over many programs.

    rows      a a a a a a a|b b|c c c c c c c c c c c        keys, one row after the other
    units     0     1     2|3  |4     5     6     7          of `size` keys each, none of two rows

All units are about as large, however long the rows are, and their number is known before the
lengths are: so a captured graph fits every batch. A unit has all query heads of one kv head, and
each of its states is merged with the others of its row.

Source: Dao et al., "Flash-Decoding for long-context inference" (2023) for splitting keys.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmlang.kernels.paged import PagedKV
from lmlang.kernels.triton.layout import block_of, pool_arguments, pool_strides
from lmlang.kernels.triton.span import LN2, attend, first_unit, row_of, state
from lmlang.kernels.triton.states import merge_parts
from lmlang.kernels.triton.tiles import FEW, Tile, device_of, tile_of

ROWS_AT_ONCE = 256
"""Rows of a batch that a program looks through at once for its own."""
PROGRAMS = 8
"""Of a multiprocessor, one after the other: so many that the last ones leave few of them idle."""
LEAST_KEYS = 256
"""Of a unit: below that, merging costs more than is won."""
PARTS_AT_ONCE = 8


@triton.jit
def unit_size(table_starts, rows, units, WINDOW: tl.constexpr, LEAST: tl.constexpr):
    """How many keys a unit has, and how many each row (0 for those in its table), to count units.

    Where windows leave less of the rows than their tables have, a row counts as one window.
    """
    keys = tl.load(table_starts + rows) - tl.load(table_starts)
    even = 0
    if WINDOW:
        even = tl.where(keys > rows * WINDOW, WINDOW, 0)
        keys = tl.minimum(keys, rows * WINDOW)
    size = tl.cdiv(tl.cdiv(keys, units - rows), LEAST) * LEAST
    return tl.maximum(size, LEAST), even


@triton.jit
def seen(table_starts, row, WINDOW: tl.constexpr):
    """Where a row's table begins, and which of its keys are seen: from the first, to the end."""
    begin = tl.load(table_starts + row)
    length = tl.load(table_starts + row + 1) - begin
    first = 0
    if WINDOW:
        first = tl.maximum(length - WINDOW, 0)
    return begin, first, length


@triton.jit(
    do_not_specialize=["rows", "units"],
    do_not_specialize_on_alignment=["table", "table_starts"],
)
def decode_kernel(
    parts,
    part_lses,
    q,
    k,
    v,
    k_scale,
    v_scale,
    table,
    table_starts,
    rows,
    units,
    scale,
    Q_TOKEN: tl.constexpr,
    Q_HEAD: tl.constexpr,
    K_SLOT: tl.constexpr,
    K_HEAD: tl.constexpr,
    V_SLOT: tl.constexpr,
    V_HEAD: tl.constexpr,
    SCALE_SLOT: tl.constexpr,
    SCALE_HEAD: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCKS: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    LEAST: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    BLOCK_DK: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    STEP: tl.constexpr,
):
    """The heads of one kv head (or M of them) over the keys of one unit."""
    kv_head = tl.program_id(0) // BLOCKS
    unit = tl.program_id(1)
    size, even = unit_size(table_starts, rows, units, WINDOW, LEAST)
    row = row_of(table_starts, rows, unit, even, size, 1, STEP)
    begin, low, length = seen(table_starts, row, WINDOW)
    low += (unit - first_unit(table_starts, row, even, size, 1)) * size
    if low >= length:
        return
    high = tl.minimum(low + size, length)

    index = tl.program_id(0) % BLOCKS * M + tl.arange(0, M)
    head = kv_head * GROUPS + index
    real = index < GROUPS
    number = tl.arange(0, BLOCK_DK)
    at = q + row.to(tl.int64) * Q_TOKEN + head[:, None] * Q_HEAD + number[None, :]
    tile_q = tl.load(at, mask=real[:, None] & (number < DK)[None, :], other=0.0)
    acc = tl.zeros([M, BLOCK_DV], tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    position = tl.full([M], 0, tl.int32) + (length - 1)
    k += kv_head * K_HEAD
    v += kv_head * V_HEAD
    if k_scale is not None:
        k_scale += kv_head * SCALE_HEAD
        v_scale += kv_head * SCALE_HEAD
    acc, top, total = attend(
        acc, top, total, tile_q, k, v, k_scale, v_scale, table + begin, low, high, position, scale,
        K_SLOT, V_SLOT, SCALE_SLOT, DK, DV, 0, SOFTCAP, True, PRECISION, STAGES, N, BLOCK_DK,
        BLOCK_DV,
    )  # fmt: skip

    result, result_lse = state(acc, top, total)
    slot = unit.to(tl.int64) * HEADS + head
    number = tl.arange(0, BLOCK_DV)
    inside = real[:, None] & (number < DV)[None, :]
    tl.store(parts + slot[:, None] * DV + number[None, :], result, inside)
    tl.store(part_lses + slot, result_lse, real)


@triton.jit(do_not_specialize=["rows", "units"], do_not_specialize_on_alignment=["table_starts"])
def merge_units_kernel(
    out,
    lse,
    parts,
    part_lses,
    table_starts,
    rows,
    units,
    HEADS: tl.constexpr,
    DV: tl.constexpr,
    WINDOW: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """One program merges the units of one row's head."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    size, even = unit_size(table_starts, rows, units, WINDOW, LEAST)
    _, low, length = seen(table_starts, row, WINDOW)
    first = first_unit(table_starts, row, even, size, 1)
    count = tl.cdiv(length - low, size)
    result, result_lse = merge_parts(
        parts, part_lses, first, count, head, HEADS, DV, BLOCK_DV, AT_ONCE
    )
    at = row.to(tl.int64) * HEADS + head
    number = tl.arange(0, BLOCK_DV)
    tl.store(out + at * DV + number, result.to(out.dtype.element_ty), number < DV)
    tl.store(lse + at + tl.arange(0, 1), result_lse * LN2)


def paged_decode(
    q: Tensor,
    kv: PagedKV,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    tile: Tile | None = None,
    units: int = 0,
    least: int = LEAST_KEYS,
) -> tuple[Tensor, Tensor]:
    """Triton form of `lmlang.kernels.paged_attention.paged_decode`.

    ``tile`` and the number of ``units``, more than there are rows, are chosen by the device where
    they are not given.
    """
    rows, heads, dk = q.shape
    dv, groups = kv.value_dim, heads // kv.kv_heads
    out = q.new_empty((rows, heads, dv))
    lse = q.new_empty((rows, heads), dtype=torch.float32)
    if not out.numel():
        return out, lse
    tile = tile or tile_of(q, kv, min(groups, FEW))
    blocks = triton.cdiv(groups, tile.m)
    if not units:
        programs = device_of(q.device).multiprocessors * PROGRAMS
        units = rows + triton.cdiv(programs, kv.kv_heads * blocks)
    units = rows + min(units - rows, max(1, triton.cdiv(len(table), least)))
    parts = torch.empty((units, heads, dv), dtype=torch.float32, device=q.device)
    part_lses = torch.empty((units, heads), dtype=torch.float32, device=q.device)
    decode_kernel[(kv.kv_heads * blocks, units)](
        parts, part_lses, q, *pool_arguments(kv), table, table_starts, rows, units, scale,
        q.stride(0), q.stride(1), *pool_strides(kv), heads, groups, blocks, dk, dv, window, softcap,
        tile.precision, tile.stages, least, tile.m, tile.n, block_of(dk), block_of(dv),
        ROWS_AT_ONCE,
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
    )  # fmt: skip
    merge_units_kernel[(rows, heads)](
        out, lse, parts, part_lses, table_starts, rows, units, heads, dv, window, least,
        block_of(dv), PARTS_AT_ONCE, num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    return out, lse
