"""C forms of attention over slots; contracts in lmlang/kernels/paged_attention.py."""

from __future__ import annotations

import ctypes

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
    return _attend(q, kv, starts, table, table_starts, scale, window, softcap)


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
    return _attend(q, kv, None, table, table_starts, scale, window, softcap)


def add_shared(
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    rows: Tensor,
    group_starts: Tensor,
    kv: PagedKV,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    softcap: float = 0.0,
) -> None:
    """Groups of queries, each over slots that all of the group see, added to their states."""
    groups = (group_starts, table, table_starts)
    _attend(q, kv, *groups, scale, 0, softcap, queries=rows, into=(out, lse))


def _attend(
    q: Tensor,
    kv: PagedKV,
    starts: Tensor | None,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    window: int,
    softcap: float,
    *,
    queries: Tensor | None = None,
    into: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """One call of ``lm_attend``, whose fields these are."""
    library, threads = native.library(), native.threads()
    tokens, heads, key_dim = q.shape
    slots, kv_heads, value_dim = kv.v.shape
    if into is None:
        out = torch.empty((tokens, heads, value_dim), dtype=q.dtype)
        into = out, torch.empty((tokens, heads), dtype=torch.float32)
    out, lse = into
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
        None,
        0,
        *q.stride()[:2],
        *kv.k.stride()[:2],
        *kv.v.stride()[:2],
        len(table),
        native.TYPES[q.dtype],
        native.TYPES[kv.k.dtype],
        0 if k_scale is None else native.TYPES[k_scale.dtype],
        len(table_starts) - 1,
        tokens,
        tokens if queries is None else len(queries),
        slots,
        heads,
        kv_heads,
        key_dim,
        value_dim,
        queries is None,
        window,
        queries is not None,
        scale,
        softcap,
        threads,
    )
    space = native.workspace(library.lm_attend_space(ctypes.byref(arguments)))
    arguments.space, arguments.space_size = space.data_ptr(), len(space)
    native.check_fault(library.lm_attend(ctypes.byref(arguments)))
    return out, lse
