"""Paged attention on the device where many queries see the same keys: new tokens, shared prefixes.

A program has a tile of queries of one row and one kv head: the query heads of the kv head are so
many more queries, so a tile of M rows holds M / G tokens. Where there are too few tiles to keep the
device busy, keys are split among programs as well, and their states are merged.
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
from lmlang.kernels.triton.tiles import Tile, device_of, tile_of

ROWS_AT_ONCE = 64
"""Rows of a batch that a program looks through at once for its own."""
WAVES = 2
"""How many programs a multiprocessor should have before keys are no longer split."""
LEAST_KEYS = 256
"""Keys of a row, on average, below which they are not split further."""
PARTS_AT_ONCE = 8


@triton.jit(
    do_not_specialize=["row_count", "splits"],
    do_not_specialize_on_alignment=["rows", "starts", "table", "table_starts"],
)
def spans_kernel(
    out,
    lse,
    q,
    rows,
    k,
    v,
    k_scale,
    v_scale,
    starts,
    table,
    table_starts,
    row_count,
    splits,
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
    DK: tl.constexpr,
    DV: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    BLOCK_DK: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    STEP: tl.constexpr,
):
    """One tile of queries over its keys, or with SPLIT over one part of them of ``splits``.

    Without ``rows`` the queries are the last tokens of their row and see what stands before them;
    with ``rows`` they are those of a group and see all of its keys.
    """
    kv_head = tl.program_id(0)
    # Tiles at the end of a row see most keys: they come first, so that short ones fill the rest.
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    split = tl.program_id(2)
    row = row_of(starts, row_count, tile, 0, M, GROUPS, STEP)
    begin = tl.load(starts + row)
    count = tl.load(starts + row + 1) - begin
    first = (tile - first_unit(starts, row, 0, M, GROUPS)) * M  # of the tile's queries, in its row
    if first >= count * GROUPS:
        return
    index = first + tl.arange(0, M)
    token = tl.minimum(index // GROUPS, count - 1)
    head = kv_head * GROUPS + index % GROUPS
    real = index < count * GROUPS

    keys_begin = tl.load(table_starts + row)
    length = tl.load(table_starts + row + 1) - keys_begin
    if rows is None:
        query = (begin + token).to(tl.int64)
        position = length - count + token
        least = length - count + first // GROUPS
        most = length - count + tl.minimum((first + M - 1) // GROUPS, count - 1)
    else:
        query = tl.load(rows + begin + token).to(tl.int64)
        position = tl.full([M], 0, tl.int32) + (length - 1)
        least = length - 1
        most = length - 1

    # Keys low .. high are seen by some query, inner .. outer by all: tiles there need no mask.
    low = 0
    inner = 0
    if WINDOW:
        low = tl.maximum(least - WINDOW + 1, 0) // N * N
        inner = tl.cdiv(tl.maximum(most - WINDOW + 1, 0), N) * N
    high = most + 1
    outer = (least + 1) // N * N
    if SPLIT:
        part = tl.cdiv(tl.cdiv(high - low, splits), N) * N
        low = low + split * part
        high = tl.minimum(high, low + part)
    inner = tl.minimum(tl.maximum(inner, low), tl.maximum(high, low))
    outer = tl.minimum(tl.maximum(outer, inner), tl.maximum(high, low))

    size = tl.arange(0, BLOCK_DK)
    at = q + query[:, None] * Q_TOKEN + head[:, None] * Q_HEAD + size[None, :]
    tile_q = tl.load(at, mask=real[:, None] & (size < DK)[None, :], other=0.0)
    acc = tl.zeros([M, BLOCK_DV], tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    k += kv_head * K_HEAD
    v += kv_head * V_HEAD
    if k_scale is not None:
        k_scale += kv_head * SCALE_HEAD
        v_scale += kv_head * SCALE_HEAD
    if q.dtype.element_ty == tl.float32:
        # Its products hold so many operands in registers that there is room for one loop only.
        acc, top, total = attend(
            acc, top, total, tile_q, k, v, k_scale, v_scale, table + keys_begin, low, high,
            position, scale, K_SLOT, V_SLOT, SCALE_SLOT, DK, DV, WINDOW, SOFTCAP, True,
            PRECISION, STAGES, N, BLOCK_DK, BLOCK_DV,
        )  # fmt: skip
    else:
        if WINDOW:
            acc, top, total = attend(
                acc, top, total, tile_q, k, v, k_scale, v_scale, table + keys_begin, low, inner,
                position, scale, K_SLOT, V_SLOT, SCALE_SLOT, DK, DV, WINDOW, SOFTCAP, True,
                PRECISION, 1, N, BLOCK_DK, BLOCK_DV,
            )  # fmt: skip
        acc, top, total = attend(
            acc, top, total, tile_q, k, v, k_scale, v_scale, table + keys_begin, inner, outer,
            position, scale, K_SLOT, V_SLOT, SCALE_SLOT, DK, DV, WINDOW, SOFTCAP, False,
            PRECISION, STAGES, N, BLOCK_DK, BLOCK_DV,
        )  # fmt: skip
        acc, top, total = attend(
            acc, top, total, tile_q, k, v, k_scale, v_scale, table + keys_begin, outer, high,
            position, scale, K_SLOT, V_SLOT, SCALE_SLOT, DK, DV, WINDOW, SOFTCAP, True,
            PRECISION, 1, N, BLOCK_DK, BLOCK_DV,
        )  # fmt: skip

    result, result_lse = state(acc, top, total)
    slot = (begin + token).to(tl.int64) * HEADS + head
    if SPLIT:
        slot = ((begin + token).to(tl.int64) * splits + split) * HEADS + head
    else:
        result_lse *= LN2
    size = tl.arange(0, BLOCK_DV)
    inside = real[:, None] & (size < DV)[None, :]
    tl.store(out + slot[:, None] * DV + size[None, :], result.to(out.dtype.element_ty), inside)
    tl.store(lse + slot, result_lse, real)


@triton.jit(do_not_specialize=["splits"])
def merge_splits_kernel(
    out,
    lse,
    parts,
    part_lses,
    splits,
    HEADS: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """One program merges the parts of one query's head."""
    query = tl.program_id(0)
    head = tl.program_id(1)
    result, result_lse = merge_parts(
        parts, part_lses, query * splits, splits, head, HEADS, DV, BLOCK_DV, AT_ONCE
    )
    at = query.to(tl.int64) * HEADS + head
    size = tl.arange(0, BLOCK_DV)
    tl.store(out + at * DV + size, result.to(out.dtype.element_ty), size < DV)
    tl.store(lse + at + tl.arange(0, 1), result_lse * LN2)


def paged_prefill(
    q: Tensor,
    kv: PagedKV,
    starts: Tensor,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    tile: Tile | None = None,
    splits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Triton form of `lmlang.kernels.paged_attention.paged_prefill`.

    ``tile`` and ``splits`` are chosen by the device where they are not given.
    """
    return _spans(
        q, kv, starts, table, table_starts, scale, window, softcap, None, tile, splits
    )  # fmt: skip


def paged_shared(
    q: Tensor,
    rows: Tensor,
    group_starts: Tensor,
    kv: PagedKV,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    softcap: float = 0.0,
    tile: Tile | None = None,
    splits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Triton form of `lmlang.kernels.paged_attention.paged_shared`; more as in `paged_prefill`."""
    return _spans(q, kv, group_starts, table, table_starts, scale, 0, softcap, rows, tile, splits)


def _spans(
    q: Tensor,
    kv: PagedKV,
    starts: Tensor,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    window: int,
    softcap: float,
    rows: Tensor | None,
    tile: Tile | None,
    splits: int,
) -> tuple[Tensor, Tensor]:
    heads, dk, dv = q.shape[1], q.shape[2], kv.value_dim
    queries = len(q) if rows is None else len(rows)
    groups, row_count = heads // kv.kv_heads, len(starts) - 1
    out = q.new_empty((queries, heads, dv))
    lse = q.new_empty((queries, heads), dtype=torch.float32)
    if not out.numel() or not row_count:
        return out, lse
    tile = tile or tile_of(q, kv, queries * groups // row_count)
    tiles = queries * groups // tile.m + row_count
    if not splits:
        programs = device_of(q.device).multiprocessors * WAVES
        busy = triton.cdiv(queries * groups, tile.m) * kv.kv_heads
        splits = max(1, min(programs // busy, len(table) // row_count // LEAST_KEYS))
    if splits > 1:
        parts = torch.empty((queries, splits, heads, dv), dtype=torch.float32, device=q.device)
        part_lses = torch.empty((queries, splits, heads), dtype=torch.float32, device=q.device)
    else:
        parts, part_lses = out, lse
    spans_kernel[(kv.kv_heads, tiles, splits)](
        parts, part_lses, q, rows, *pool_arguments(kv), starts, table, table_starts, row_count,
        splits, scale, q.stride(0), q.stride(1), *pool_strides(kv), heads, groups, dk, dv, window,
        softcap, splits > 1, tile.precision, tile.stages, tile.m, tile.n, block_of(dk),
        block_of(dv), ROWS_AT_ONCE,
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
    )  # fmt: skip
    if splits > 1:
        merge_splits_kernel[(queries, heads)](
            out, lse, parts, part_lses, splits, heads, dv, block_of(dv), PARTS_AT_ONCE,
            num_warps=1, enable_fp_fusion=True,
        )  # fmt: skip
    return out, lse
