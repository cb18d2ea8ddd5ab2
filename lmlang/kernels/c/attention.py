"""C forms of attention over slots; contracts in lmlang/kernels/paged_attention.py."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from lmlang.kernels import native
from lmlang.kernels.paged import PagedKV


def paged_prefill(
    q: Tensor,
    kv: PagedKV,
    starts: Tensor,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """New tokens of some rows over what stands before them and over themselves."""
    rows = (None, starts, table, table_starts)
    return _attend(q, kv, *rows, scale, window, softcap, causal=True)


def paged_decode(
    q: Tensor,
    kv: PagedKV,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """One query a row, which sees all slots of its row, of those the last ``window``."""
    return _attend(q, kv, None, None, table, table_starts, scale, window, softcap, causal=True)


def paged_shared(
    q: Tensor,
    rows: Tensor,
    group_starts: Tensor,
    kv: PagedKV,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Groups of queries, each over slots that all of the group see."""
    groups = (rows, group_starts, table, table_starts)
    return _attend(q, kv, *groups, scale, 0, softcap, causal=False)


def _attend(
    q: Tensor,
    kv: PagedKV,
    queries: Tensor | None,
    starts: Tensor | None,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    window: int,
    softcap: float,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """One call of ``lm_attend``, whose fields these are."""
    library, threads = native.library(), native.threads()
    tokens, heads, key_dim = q.shape
    slots, kv_heads, value_dim = kv.v.shape
    members = tokens if queries is None else len(queries)
    out = torch.empty((members, heads, value_dim), dtype=q.dtype)
    lse = torch.empty((members, heads), dtype=torch.float32)
    needed = _space(heads, kv_heads, key_dim, value_dim, threads)
    space = native.workspace(needed)
    k_scale, v_scale = kv.k_scale, kv.v_scale
    for scales in (k_scale, v_scale):
        if scales is not None and not scales.is_contiguous():
            raise ValueError("the scales of an int8 pool must be without gaps")
    arguments = native.Attention(
        q.data_ptr(),
        kv.k.data_ptr(),
        kv.v.data_ptr(),
        None if k_scale is None else k_scale.data_ptr(),
        None if v_scale is None else v_scale.data_ptr(),
        None if queries is None else queries.data_ptr(),
        None if starts is None else starts.data_ptr(),
        table.data_ptr(),
        table_starts.data_ptr(),
        out.data_ptr(),
        lse.data_ptr(),
        space.data_ptr(),
        len(space),
        *q.stride()[:2],
        *kv.k.stride()[:2],
        *kv.v.stride()[:2],
        len(table),
        native.TYPES[q.dtype],
        native.TYPES[kv.k.dtype],
        0 if k_scale is None else native.TYPES[k_scale.dtype],
        len(table_starts) - 1,
        tokens,
        members,
        slots,
        heads,
        kv_heads,
        key_dim,
        value_dim,
        causal,
        window,
        scale,
        softcap,
        threads,
    )
    native.check_fault(library.lm_attend(ctypes.byref(arguments)))
    return out, lse


@cache
def _space(heads: int, kv_heads: int, key_dim: int, value_dim: int, threads: int) -> int:
    needed: int = native.library().lm_attend_space(heads, kv_heads, key_dim, value_dim, threads)
    return needed
