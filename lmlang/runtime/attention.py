"""Plans attention once per batch, and runs the plan in every layer.

The rows' contexts form a trie over slots. A stretch of it that several rows share is attended
once for all their queries (a span); what is left of each row is its tail:

    row 0   ███████████████▓▓▓▓▓▓··>         █ span of all three rows: one call, 3 queries
    row 1   ███████████████▓▓▓▓▓▓···>        ▓ span of rows 0 and 1
    row 2   ███████████████░░░░░░░░░░░░░>    ░ long contiguous run of one row: a span by itself
                                             · tail: gathered, all decode rows in one call
    prefill chunks attend themselves causally, from the fresh k and v; short ones together.

The parts' states (out, lse) are merged. In a layer with a window w, the query at position p sees
the positions p-w+1 .. p. A decode row's context is then shorter and all the rest is as above; the
queries of a chunk that reaches beyond the window see different slots, so it becomes bands:

    band    ·███████░░░░       its first queries see █ from the left end on; a mask hides from
               ······███████   each what is outside its own window

Sources: kernels/attention.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lmlang.kernels import attention as kernels
from lmlang.kernels.paged import PagedKV, store_kv
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.shape import KVLayer
from lmlang.runtime.sharing import RowSlots, share

MIN_SHARED = 32
"""A shared stretch shorter than this is left to the rows: a call costs more than it saves."""
MIN_RUN = 512
"""A contiguous run of one row at least this long is read in place rather than gathered."""
MAX_PADDED_CHUNK = 128
"""Chunks up to this long are padded to their longest and attended in one call."""
BAND = 128
"""Queries of one band."""

Index = Tensor | slice


@dataclass(frozen=True, slots=True)
class Span:
    """Queries that all see the same slots."""

    queries: Index
    slots: Index


@dataclass(frozen=True, slots=True)
class Chunks:
    """Prefill chunks that attend themselves causally, R rows of n queries.

    Args:
        queries: R * n of them; a shorter row is filled up with its last one.
        rows: R.
        real: Places in R * n that are no filling; None where there is none.
        targets: The queries at these places.
    """

    queries: Index
    rows: int
    real: Tensor | None
    targets: Index


@dataclass(frozen=True, slots=True)
class Tails:
    """Decode rows of similar tail length: queries [R], table [R, L], hidden [R, L] or None."""

    queries: Index
    table: Tensor
    hidden: Tensor | None


@dataclass(frozen=True, slots=True)
class Band:
    """Queries of one row over the slots of all that they see, their own positions included.

    Args:
        queries: n of one row.
        slots: L of them.
        hidden: float32 [n, L], 0 inside of a query's window and -inf outside; None where all
            are inside.
    """

    queries: slice
    slots: Index
    hidden: Tensor | None


@dataclass(frozen=True, slots=True)
class Parts:
    """Every query is in exactly one chunk, tail or band, and in any number of spans.

    Args:
        chunks: Prefill chunks.
        tails: Decode rows.
        bands: Prefill chunks that reach beyond the window, and decode rows without a like.
        spans: All the rest, merged in.
    """

    chunks: tuple[Chunks, ...]
    tails: tuple[Tails, ...]
    bands: tuple[Band, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How one batch attends.

    Args:
        stores: The slot of each token of the batch.
        parts: Who attends to what, for each window of the model's layers (0: no window).
    """

    stores: Index
    parts: Mapping[int, Parts]


def plan_attention(
    rows: Seq[RowSlots], device: torch.device, windows: Seq[int] = (0,)
) -> AttentionPlan:
    """The plan for these rows in layers of these windows; a row of one token counts as decode."""
    stores = np.concatenate([row.table[len(row.table) - row.count :] for row in rows])
    longest = max(len(row.table) for row in rows)
    made: dict[int, Parts] = {}
    for window in windows:
        reach = window if window < longest else 0  # a window that hides nothing is none
        made[window] = made[reach] if reach in made else _plan(rows, device, reach)
        made[reach] = made[window]
    return AttentionPlan(_index(stores, device), made)


def _plan(rows: Seq[RowSlots], device: torch.device, window: int) -> Parts:
    members = [i for i, row in enumerate(rows) if row.sees_all(window)]
    stretches, cuts = share(rows, members, lambda length, _: length >= MIN_SHARED)
    spans = [
        Span(_queries([rows[i] for i in stretch.rows], device), _index(stretch.slots, device))
        for stretch in stretches
    ]
    chunks: list[RowSlots] = []
    bands: list[Band] = []
    tails: list[tuple[int, IntArray]] = []
    for i, row in enumerate(rows):
        queries = slice(row.start, row.start + row.count)
        if row.count > 1 and not row.sees_all(window):
            bands.extend(_bands(row, device, window))
            continue
        left = row.context[cuts.get(i, row.first_seen(window)) :]
        if row.count > 1:
            chunks.append(row)
            if len(left):
                spans.append(Span(queries, _index(left, device)))
            continue
        runs = np.split(left, np.flatnonzero(np.diff(left) != 1) + 1)
        spans.extend(Span(queries, _index(run, device)) for run in runs if len(run) >= MIN_RUN)
        short = [run for run in runs if len(run) < MIN_RUN]
        tails.append((row.start, np.concatenate([*short, row.table[-1:]])))
    grouped = _tails(tails, device, bands)
    return Parts(_chunks(chunks, device), grouped, tuple(bands), tuple(spans))


def run_attention(
    plan: AttentionPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: PagedKV,
    layer: KVLayer,
    sinks: Tensor | None = None,
) -> Tensor:
    """One layer: store the new keys and values, then attend by the plan.

    Args:
        plan: For these T tokens, and a window that the layer has.
        q: [T, H, Dk].
        k: [T, Hkv, Dk].
        v: [T, Hkv, Dv].
        kv: The layer's pool; written in place.
        layer: What its attention is like.
        sinks: [H], where it has sinks.

    Returns:
        [T, H, Dv].
    """
    parts, scale, softcap = plan.parts[layer.window], layer.scale, layer.softcap
    store_kv(kv, plan.stores, k, v)
    if kv.k_scale is not None:  # a chunk sees itself as later ones will see it
        k, v = kv.keys(plan.stores, k.dtype), kv.values(plan.stores, v.dtype)
    out = torch.empty((*q.shape[:2], v.shape[2]), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    for chunk in parts.chunks:
        mine = (x[chunk.queries] for x in (q, k, v))
        mine_q, mine_k, mine_v = (x.view(chunk.rows, -1, *x.shape[1:]) for x in mine)
        state = kernels.attend_causal(mine_q, mine_k, mine_v, scale, softcap)
        for whole, part in zip((out, lse), state, strict=True):
            flat = part.flatten(0, 1)
            whole[chunk.targets] = flat if chunk.real is None else flat[chunk.real]
    for tail in parts.tails:
        out[tail.queries], lse[tail.queries] = kernels.attend_decode(
            q[tail.queries], kv, tail.table, tail.hidden, scale, softcap
        )
    for band in parts.bands:
        out[band.queries], lse[band.queries] = kernels.attend_span(
            q[band.queries], kv, band.slots, scale, softcap, band.hidden
        )
    for span in parts.spans:
        state = kernels.attend_span(q[span.queries], kv, span.slots, scale, softcap)
        out[span.queries], lse[span.queries] = kernels.merge_states(
            out[span.queries], lse[span.queries], *state
        )
    return out if sinks is None else kernels.apply_sinks(out, lse, sinks)


def _bands(row: RowSlots, device: torch.device, window: int) -> list[Band]:
    made: list[Band] = []
    before = len(row.table) - row.count
    for first in range(0, row.count, BAND):
        last = min(first + BAND, row.count)
        begin = max(0, before + first + 1 - window)
        positions = np.arange(before + first, before + last)[:, None]
        keys = np.arange(begin, before + last)[None, :]
        seen = (keys <= positions) & (keys > positions - window)
        hidden = np.where(seen, np.float32(0), np.float32(-np.inf))
        made.append(
            Band(
                slice(row.start + first, row.start + last),
                _index(row.table[begin : before + last], device),
                torch.from_numpy(hidden).to(device),
            )
        )
    return made


def _index(slots: IntArray, device: torch.device) -> Index:
    """A slice where the slots are contiguous, else their tensor."""
    if int(slots[-1]) - int(slots[0]) == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return torch.from_numpy(slots).to(device)


def _queries(rows: Seq[RowSlots], device: torch.device) -> Index:
    return _index(np.concatenate([np.arange(r.start, r.start + r.count) for r in rows]), device)


def _chunks(rows: list[RowSlots], device: torch.device) -> tuple[Chunks, ...]:
    """Short chunks in groups of similar length, long ones alone."""
    made: list[Chunks] = []
    ordered = sorted(rows, key=lambda row: row.count)
    while ordered:
        longest = ordered[0].count + max(8, ordered[0].count // 4)
        if ordered[0].count > MAX_PADDED_CHUNK:
            longest = 0
        size = max(1, sum(1 for row in ordered if row.count <= longest))
        group, ordered = ordered[:size], ordered[size:]
        counts = np.array([row.count for row in group])
        steps = np.arange(counts.max())
        starts = np.array([row.start for row in group])
        queries = starts[:, None] + np.minimum(steps[None, :], counts[:, None] - 1)
        real = np.flatnonzero(steps[None, :] < counts[:, None])
        flat, padded = queries.reshape(-1), len(real) < queries.size
        made.append(
            Chunks(
                _index(flat, device),
                len(group),
                torch.from_numpy(real).to(device) if padded else None,
                _index(flat[real], device),
            )
        )
    return tuple(made)


def _tails(
    tails: list[tuple[int, IntArray]], device: torch.device, bands: list[Band]
) -> tuple[Tails, ...]:
    """Tails in groups whose longest is at most twice the shortest (and a little).

    One that is alone goes to ``bands``: nothing is gathered where its slots lie together.
    """
    made: list[Tails] = []
    ordered = sorted(tails, key=lambda tail: len(tail[1]))
    while ordered:
        longest = 2 * len(ordered[0][1]) + 32
        size = sum(1 for _, slots in ordered if len(slots) <= longest)
        group, ordered = ordered[:size], ordered[size:]
        if size == 1:
            start, slots = group[0]
            bands.append(Band(slice(start, start + 1), _index(slots, device), None))
            continue
        width = len(group[-1][1])
        table = np.zeros((size, width), dtype=np.int64)
        hidden = np.full((size, width), -np.inf, dtype=np.float32)
        for r, (_, slots) in enumerate(group):
            table[r, : len(slots)] = slots
            # Filled up with a slot of its own: what an unwritten one holds may be no number, and
            # a weight of zero does not hide that.
            table[r, len(slots) :] = slots[-1]
            hidden[r, : len(slots)] = 0.0
        ragged = len(group[0][1]) < width
        queries = _index(np.array([start for start, _ in group], dtype=np.int64), device)
        made.append(
            Tails(
                queries,
                torch.from_numpy(table).to(device),
                torch.from_numpy(hidden).to(device) if ragged else None,
            )
        )
    return tuple(made)
