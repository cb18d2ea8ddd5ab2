"""Attention of a ragged batch over the paged pool, planned as index tensors once for all layers.

    starts        0     3  4        9          row r is the queries q[starts[r] : starts[r + 1]]
    table         a a a a b b b c c c c c ...  slots of all rows, one row after the other
    table_starts  0       4     7         12   and sees table[table_starts[r] : table_starts[r + 1]]

Shapes: T queries · R rows · M members of G groups · H query heads · Hkv key/value heads (query head
h reads kv head h // (H / Hkv)) · Dk, Dv head sizes · N slots in the table, or more: what stands
behind the last row is not looked at. Index tensors are int32 and lie on the queries' device, where
alone their numbers are read: out of range ones are not noticed there.

Every op returns a state (out, lse), lse = log Σ exp(score) with score = q·kᵀ·scale, or
softcap·tanh(q·kᵀ·scale / softcap) where there is a softcap. Over no keys it is (0, -inf). The
state over two disjoint sets of keys follows from the two states alone: `merge_states`.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (2023); Ye et al., "Cascade Inference" (2024) for groups that share keys.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from lmlang.kernels.forms import check, chosen_form, dispatch
from lmlang.kernels.paged import PagedKV

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Of queries; products are summed in float32."""
INDEX = (torch.int32,)
SPAN = 256
"""Keys of a row from one place to the next where it may be cut without another bit on a CPU."""


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
    """New tokens of some rows over what stands before them and over themselves.

    A row's table holds the slots of its prefix, then those of its own tokens, whose keys and
    values have been stored. With n queries and L slots, query i sees slots 0 .. L - n + i, of
    those the last ``window``.

    Args:
        q: [T, H, Dk].
        kv: The layer's keys and values, of any float dtype or int8 with scales.
        starts: [R + 1], ascending from 0, the last at most T: what stands behind gets no state.
        table: [N].
        table_starts: [R + 1], ascending; a row has at least as many slots as queries.
        scale: Factor on q·kᵀ, above 0.
        window: 0 for none.
        softcap: 0 for none.

    Returns:
        out [T, H, Dv] in q's dtype, lse [T, H] float32.

    Raises:
        ValueError: An argument is not as described.
    """
    _check(q, kv, scale, window, softcap)
    _check_indices(q, starts=starts, table=table, table_starts=table_starts)
    _check_rows("starts", starts, table_starts)
    run = dispatch("paged_prefill", prefill_reference, q)
    return run(q, kv, starts, table, table_starts, scale, window, softcap)


def paged_decode(
    q: Tensor,
    kv: PagedKV,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """One query a row, which sees all slots of its row, of those the last ``window``.

    Args:
        q: [R, H, Dk].
        kv: As in `paged_prefill`.
        table: [N].
        table_starts: [R + 1], ascending; a row may be empty.
        scale: Factor on q·kᵀ, above 0.
        window: 0 for none.
        softcap: 0 for none.

    Returns:
        out [R, H, Dv] in q's dtype, lse [R, H] float32.

    Raises:
        ValueError: An argument is not as described.
    """
    _check(q, kv, scale, window, softcap)
    _check_indices(q, table=table, table_starts=table_starts)
    if len(table_starts) != len(q) + 1:
        raise ValueError(
            f"table_starts has {len(table_starts)} numbers: {len(q)} queries need {len(q) + 1}"
        )
    run = dispatch("paged_decode", decode_reference, q)
    return run(q, kv, table, table_starts, scale, window, softcap)


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
    """Groups of queries, each over slots that all of the group see: read once for all of them.

    No query of a group stands among its keys, and there are no windows: a layer that has one
    attends row by row.

    Args:
        q: [T, H, Dk].
        rows: [M] which queries are members, group by group.
        group_starts: [G + 1], ascending from 0: the members of a group, in ``rows``.
        kv: As in `paged_prefill`.
        table: [N].
        table_starts: [G + 1], ascending: the slots of a group.
        scale: Factor on q·kᵀ, above 0.
        softcap: 0 for none.

    Returns:
        out [M, H, Dv] in q's dtype, lse [M, H] float32, in the order of ``rows``.

    Raises:
        ValueError: An argument is not as described.
    """
    _check(q, kv, scale, 0, softcap)
    _check_indices(q, rows=rows, group_starts=group_starts, table=table, table_starts=table_starts)
    _check_rows("group_starts", group_starts, table_starts)
    run = dispatch("paged_shared", shared_reference, q)
    return run(q, rows, group_starts, kv, table, table_starts, scale, softcap)


def merge_states(
    out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor, rows: Tensor | None = None
) -> None:
    """Merge states over other keys into these, in place.

    Args:
        out: [T, H, Dv], written in place; so is lse.
        lse: [T, H] float32, -inf where no key was seen.
        part: [M, H, Dv], of out's dtype.
        part_lse: [M, H] float32.
        rows: [M] which state of ``out`` each part belongs to, all different; None where M = T and
            they lie in order.

    Raises:
        ValueError: An argument is not as described.
    """
    check("out", out, (None, None, None), DTYPES, dense=3)
    tokens, heads, size = out.shape
    if rows is not None:
        check("rows", rows, (None,), INDEX, out.device)
        tokens = len(rows)
    check("lse", lse, out.shape[:2], (torch.float32,), out.device, dense=2)
    check("part", part, (tokens, heads, size), (out.dtype,), out.device, dense=3)
    check("part_lse", part_lse, (tokens, heads), (torch.float32,), out.device, dense=2)
    dispatch("merge_states", merge_reference, out)(out, lse, part, part_lse, rows)


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
    """Merge `paged_shared` of some queries into their states over keys that stand later, in place.

    The C form gives the bits that one call over all keys would have given, where what is shared
    begins and ends at multiples of `SPAN` keys of the rows.

    Args:
        out: [T, H, Dv], written in place; so is lse.
        lse: [T, H] float32, -inf where no key was seen.
        q: And all others as in `paged_shared`; ``rows`` are all different.
        rows: See there.
        group_starts: See there.
        kv: See there.
        table: See there.
        table_starts: See there.
        scale: See there.
        softcap: See there.

    Raises:
        ValueError: An argument is not as described.
    """
    check("out", out, (*q.shape[:2], kv.value_dim), (q.dtype,), q.device, dense=3)
    check("lse", lse, q.shape[:2], (torch.float32,), q.device, dense=2)
    _check(q, kv, scale, 0, softcap)
    _check_indices(q, rows=rows, group_starts=group_starts, table=table, table_starts=table_starts)
    _check_rows("group_starts", group_starts, table_starts)
    shared = (q, rows, group_starts, kv, table, table_starts, scale, softcap)
    chosen_form("add_shared", _add_by_two, q)(out, lse, *shared)


def prefill_reference(
    q: Tensor,
    kv: PagedKV,
    starts: Tensor,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`paged_prefill` in plain torch, row by row."""
    out, lse = _nothing(q, kv, len(q))
    for queries, keys in zip(_spans(starts), _spans(table_starts), strict=True):
        n, length = queries.stop - queries.start, keys.stop - keys.start
        at = torch.arange(length - n, length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)
        seen = (key <= at) & (key > at - (window or length))
        out[queries], lse[queries] = _attend(q[queries], kv, table[keys], seen, scale, softcap)
    return out, lse


def decode_reference(
    q: Tensor,
    kv: PagedKV,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`paged_decode` in plain torch, row by row."""
    out, lse = _nothing(q, kv, len(q))
    for row, keys in enumerate(_spans(table_starts)):
        slots = table[keys][-window if window else 0 :]
        at = slice(row, row + 1)
        out[at], lse[at] = _attend(q[at], kv, slots, None, scale, softcap)
    return out, lse


def shared_reference(
    q: Tensor,
    rows: Tensor,
    group_starts: Tensor,
    kv: PagedKV,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`paged_shared` in plain torch, group by group."""
    out, lse = _nothing(q, kv, len(rows))
    for members, keys in zip(_spans(group_starts), _spans(table_starts), strict=True):
        mine = q[rows[members].long()]
        out[members], lse[members] = _attend(mine, kv, table[keys], None, scale, softcap)
    return out, lse


def _add_by_two(
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    rows: Tensor,
    group_starts: Tensor,
    kv: PagedKV,
    table: Tensor,
    table_starts: Tensor,
    scale: float,
    softcap: float,
) -> None:
    """`add_shared` by the two ops that it is made of."""
    state = paged_shared(q, rows, group_starts, kv, table, table_starts, scale, softcap)
    merge_states(out, lse, *state, rows)


def merge_reference(
    out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor, rows: Tensor | None = None
) -> None:
    """`merge_states` in plain torch."""
    at = torch.arange(len(out), device=out.device) if rows is None else rows.long()
    old = lse[at]
    both = torch.logaddexp(old, part_lse)
    some = both.isfinite()
    shares = [torch.exp(x - both).where(some, 0.0)[..., None] for x in (old, part_lse)]
    out[at] = (out[at].float() * shares[0] + part.float() * shares[1]).to(out.dtype)
    lse[at] = both


def _attend(
    q: Tensor, kv: PagedKV, slots: Tensor, seen: Tensor | None, scale: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """Queries [n, H, Dk] over slots [L], of which they see where ``seen`` [n, L] says so."""
    n, heads, size = q.shape
    k = kv.keys(slots.long(), torch.float32)
    v = kv.values(slots.long(), torch.float32)
    folded = q.float().reshape(n, kv.kv_heads, heads // kv.kv_heads, size)
    scores = torch.einsum("nhgd,lhd->hgnl", folded, k) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.where(lse.isfinite(), 0.0)[..., None])
    out = torch.einsum("hgnl,lhd->nhgd", weights, v)
    return out.reshape(n, heads, kv.value_dim).to(q.dtype), lse.permute(2, 0, 1).reshape(n, heads)


def _nothing(q: Tensor, kv: PagedKV, count: int) -> tuple[Tensor, Tensor]:
    """States over no keys."""
    heads = q.shape[1]
    out = q.new_zeros((count, heads, kv.value_dim))
    return out, q.new_full((count, heads), float("-inf"), dtype=torch.float32)


def _spans(starts: Tensor) -> list[slice]:
    bounds = starts.tolist()
    return [slice(*pair) for pair in pairwise(bounds)]


def _check(q: Tensor, kv: PagedKV, scale: float, window: int, softcap: float) -> None:
    check("q", q, (None, None, kv.k.shape[2]), DTYPES)
    if not q.shape[1] or q.shape[1] % kv.kv_heads:
        raise ValueError(
            f"q has {q.shape[1]} heads: it must be a multiple of the {kv.kv_heads} kv heads"
        )
    for name, pool in (("k", kv.k), ("v", kv.v)):
        check(name, pool, (None, None, None), (*DTYPES, torch.int8), q.device)
    for name, factors in (("k_scale", kv.k_scale), ("v_scale", kv.v_scale)):
        if factors is not None:
            check(name, factors, (None, None), (torch.float32, torch.float16), q.device)
    if not scale > 0 or window < 0 or not softcap >= 0:
        raise ValueError(
            f"scale {scale} must be above 0, window {window} and softcap {softcap} at least 0"
        )


def _check_indices(q: Tensor, **indices: Tensor) -> None:
    for name, index in indices.items():
        check(name, index, (None,), INDEX, q.device)


def _check_rows(name: str, starts: Tensor, table_starts: Tensor) -> None:
    if len(starts) != len(table_starts) or not len(starts):
        raise ValueError(
            f"{name} has {len(starts)} numbers, table_starts {len(table_starts)}: each needs one "
            "for a row, and one more"
        )
