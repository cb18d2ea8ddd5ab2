"""Plans attention on a device once per batch, in one transfer, and runs the plan in every layer.

Every row has a table: the slots of its context, then those of its own tokens. All tables of a
batch lie one behind the other; everything else says where something begins.

    rows of one token     one call, each row over its table                       (paged_decode)
    rows of more          one call, ragged and causal                             (paged_prefill)
    a shared stretch      out of its rows' tables, attended once for all of them  (add_shared)

    table   [ row 0: ·····> | row 1: ···> | row 2: ·······>> | stretch ███████ | stretch ▓▓▓▓ ]

The stretches that are shared stand in levels: of one level, every query is in at most one stretch,
so that a level is one call. A row's tokens and slots come in the order of its last to its first:
its own, then its innermost stretch, then those outside of it; the C kernels' bits are then those of
a row that shares nothing. A layer's window is kept by the kernels, which count table entries; rows
that do not see all of their context share nothing there.

Source: Ye et al., "Cascade Inference: Memory Bandwidth Efficient Shared Prefix Batch Decoding"
(2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lmlang.kernels.attention import apply_sinks
from lmlang.kernels.paged import PagedKV, store_kv
from lmlang.kernels.paged_attention import add_shared, paged_decode, paged_prefill
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.shape import KVLayer
from lmlang.runtime.sharing import RowSlots, Stretch, share
from lmlang.runtime.transfer import Transfer

MIN_SAVED = 8_192
"""Slots that need not be read, from which on a stretch is shared.

Not measured yet: what a call and a merge of a few microseconds cost a model of 8 key heads.
"""
MIN_SAVED_ON_CPU = 2_048
"""The same on a CPU, where a call and a merge cost some tens of microseconds."""
READ_AT_ONCE = 32
"""Queries for which a kernel reads a slot once, be they of one row or of many.

So rows of many queries save nothing by sharing: of 8 each they took 1.1 to 1.3 times as long
apart, of one each 1.25 to 2.6 times.
"""
MAX_LEVELS = 2
"""Of shared stretches, from the outermost; what is deeper is left to the rows."""

Index = Tensor | slice


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of queries, each over its table.

    Args:
        queries: All of them, n places in the batch.
        starts: int32 [R+1], where a row's queries begin in these n; None where each has one.
        table_starts: int32 [R+1], where its table begins.
    """

    queries: Index
    starts: Tensor | None
    table_starts: Tensor


@dataclass(frozen=True, slots=True)
class Level:
    """Groups of queries that share a stretch each.

    Args:
        queries: int32 [M], places in the batch, each at most once.
        starts: int32 [G+1], where a group begins in these M.
        table_starts: int32 [G+1], where its stretch begins in the table; it may be empty.
    """

    queries: Tensor
    starts: Tensor
    table_starts: Tensor


@dataclass(frozen=True, slots=True)
class PagedParts:
    """Every query is in one of the rows, and in any number of levels, inner ones first."""

    rows: tuple[Rows, ...]
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class PagedPlan:
    """How one batch attends; `AttentionPlan`'s form for devices.

    Args:
        stores: int64 [T], the slot of each token.
        table: int32 [N], all tables and stretches, and then what means nothing.
        parts: Who attends to what, for each window of the model's layers.
    """

    stores: Tensor
    table: Tensor
    parts: Mapping[int, PagedParts]

    @property
    def form(self) -> tuple[tuple[int, ...], ...]:
        """Of each window, how many groups its levels have."""
        return tuple(
            tuple(len(level.starts) - 1 for level in parts.levels) for parts in self.parts.values()
        )


def paged_words(rows: Seq[RowSlots], windows: Seq[int]) -> int:
    """int32 words of a transfer that `plan_paged` needs at most."""
    tokens = sum(row.count for row in rows)
    tables = sum(len(row.table) for row in rows)
    each = 2 * tokens + 4 * len(rows) + MAX_LEVELS * (2 * tokens + 2 * len(rows) + 8) + 16
    return 2 * tokens + (1 + len(windows)) * (each + tables)


def plan_paged(
    rows: Seq[RowSlots],
    transfer: Transfer,
    windows: Seq[int] = (0,),
    *,
    even: bool = False,
    shares: bool = True,
    least: int | None = None,
    span: int = 1,
) -> PagedPlan:
    """The plan for these rows in layers of these windows; its numbers go by the transfer.

    Args:
        rows: Of a batch, in order: their queries are all its tokens.
        transfer: With room for `paged_words`; whoever made it sends it.
        windows: Of the model's layers.
        even: Rows of one token each: the sizes of all but the table depend on nothing but the
            number of rows and the plan's form, so that a recorded pass can be run with other
            numbers.
        shares: Whether anything may be attended once for several rows.
        least: Slots that need not be read, from which on a stretch is shared; None is `MIN_SAVED`.
        span: Stretches are cut at multiples of so many slots.
    """
    stores = transfer.put_wide(*(row.own for row in rows))
    tables = _Tables()
    least = MIN_SAVED if least is None else least
    whole: tuple[Rows, ...] | None = None
    made: dict[int, PagedParts] = {}
    for window in windows:
        levels, cut = _shared(rows, window, least, span) if shares else ([], [])
        if levels:
            own = _rows(rows, cut, tables, transfer)
            made[window] = PagedParts(
                own, tuple(_level(level, rows, tables, transfer, even=even) for level in levels)
            )
            continue
        if whole is None:
            whole = _rows(rows, [row.table for row in rows], tables, transfer)
        made[window] = PagedParts(whole, ())
    return PagedPlan(stores, transfer.put_last(*tables.parts), made)


def run_paged(
    plan: PagedPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: PagedKV,
    layer: KVLayer,
    sinks: Tensor | None = None,
) -> Tensor:
    """One layer: store the new keys and values, then attend; as `run_attention`, the CPU's form.

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
    store_kv(kv, plan.stores, k, v)
    return attend_paged(plan, q, kv, layer, sinks)


def attend_paged(
    plan: PagedPlan, q: Tensor, kv: PagedKV, layer: KVLayer, sinks: Tensor | None = None
) -> Tensor:
    """`run_paged` where the new keys and values have been stored."""
    parts = plan.parts[layer.window]
    states = [_attend(rows, q, kv, plan.table, layer) for rows in parts.rows]
    out, lse = states[0]
    if len(states) > 1:
        out = q.new_empty(*q.shape[:2], kv.value_dim)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        for rows, (part, its_lse) in zip(parts.rows, states, strict=True):
            out[rows.queries], lse[rows.queries] = part, its_lse
    for level in parts.levels:
        groups = (level.queries, level.starts, kv, plan.table, level.table_starts)
        add_shared(out, lse, q, *groups, layer.scale, layer.softcap)
    return out if sinks is None else apply_sinks(out, lse, sinks)


class PagedAttend:
    """Attention by a plan, as a model calls it: a `StoringAttend`.

    Args:
        plan: Of the batch.
        layers: The pool's, written in place.
        kv_layers: What attention of each is like.
    """

    def __init__(self, plan: PagedPlan, layers: Seq[PagedKV], kv_layers: Seq[KVLayer]) -> None:
        self._plan = plan
        self._layers = layers
        self._kv_layers = kv_layers

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """See `Attend`."""
        own = (self._layers[layer], self._kv_layers[layer])
        return run_paged(self._plan, q, k, v, *own, sinks)

    def place(self, layer: int) -> tuple[PagedKV, Tensor]:
        """See `StoringAttend`."""
        return self._layers[layer], self._plan.stores

    def stored(self, layer: int, q: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `StoringAttend`."""
        return attend_paged(self._plan, q, self._layers[layer], self._kv_layers[layer], sinks)


def _attend(
    rows: Rows, q: Tensor, kv: PagedKV, table: Tensor, layer: KVLayer
) -> tuple[Tensor, Tensor]:
    """The state of some rows over their tables."""
    q, starts = q[rows.queries], rows.table_starts
    scale, window, softcap = layer.scale, layer.window, layer.softcap
    if rows.starts is None:
        return paged_decode(q, kv, table, starts, scale, window, softcap)
    return paged_prefill(q, kv, rows.starts, table, starts, scale, window, softcap)


class _Tables:
    """Tables one behind the other, as they come."""

    def __init__(self) -> None:
        self.parts: list[IntArray] = []
        self._length = 0

    def add(self, slots: Seq[IntArray]) -> IntArray:
        """Where each begins, and where the last one ends."""
        starts = self._length + _starts([len(part) for part in slots])
        self.parts += slots
        self._length = int(starts[-1])
        return starts


def _starts(lengths: Seq[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))])


def _shared(
    rows: Seq[RowSlots], window: int, least: int, span: int
) -> tuple[list[list[Stretch]], list[IntArray]]:
    """What rows share, in levels, inner ones first, and every row's table without it.

    A stretch is shared where so many slots at least need not be read then.
    """
    members = [i for i, row in enumerate(rows) if row.sees_all(window)]

    def pays(length: int, sharers: Seq[int]) -> bool:
        return length * _saved([rows[i].count for i in sharers]) >= least

    if not pays(max((len(rows[i].context) for i in members), default=0), members):
        return [], []
    stretches, cuts = share(rows, members, pays, span, MAX_LEVELS)
    levels = [[s for s in stretches if s.level == level] for level in reversed(range(MAX_LEVELS))]
    tables = [row.table[cuts.get(i, 0) :] for i, row in enumerate(rows)]
    return [level for level in levels if level], tables


def _saved(counts: Seq[int]) -> int:
    """How many times less a slot is read for rows of so many queries once they share it."""
    return sum(-(-count // READ_AT_ONCE) for count in counts) - -(-sum(counts) // READ_AT_ONCE)


def _queries(rows: Seq[RowSlots]) -> IntArray:
    """Places of their tokens in the batch."""
    if all(row.count == 1 for row in rows):
        return np.array([row.start for row in rows], dtype=np.int64)
    return np.concatenate([row.queries for row in rows])


def _level(
    stretches: list[Stretch],
    rows: Seq[RowSlots],
    tables: _Tables,
    transfer: Transfer,
    *,
    even: bool,
) -> Level:
    """One level; an even one has all queries, in one more group than a power of two.

    Queries without a stretch are then the first group after those with one, and have an empty one.
    """
    groups = [_queries([rows[i] for i in stretch.rows]) for stretch in stretches]
    slots = [stretch.slots for stretch in stretches]
    if even:
        left = np.delete(np.arange(len(rows)), np.concatenate(groups))
        spare = (1 << (len(groups) - 1).bit_length()) - len(groups)
        nothing = left[:0]
        groups += [left, *[nothing] * spare]
        slots += [nothing] * (spare + 1)
    return Level(
        transfer.put(*groups),
        transfer.put(_starts([len(group) for group in groups])),
        transfer.put(tables.add(slots)),
    )


def _rows(
    rows: Seq[RowSlots], slots: Seq[IntArray], tables: _Tables, transfer: Transfer
) -> tuple[Rows, ...]:
    """Rows of one token, and those of more."""
    made = []
    for single in (True, False):
        some = [i for i, row in enumerate(rows) if (row.count == 1) == single]
        if not some:
            continue
        queries = _queries([rows[i] for i in some])
        index: Index = slice(int(queries[0]), int(queries[-1]) + 1)
        if len(queries) != queries[-1] - queries[0] + 1:
            index = transfer.put_wide(queries)
        starts = None if single else transfer.put(_starts([rows[i].count for i in some]))
        table_starts = transfer.put(tables.add([slots[i] for i in some]))
        made.append(Rows(index, starts, table_starts))
    return tuple(made)
