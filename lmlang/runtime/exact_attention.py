"""Exact attention: the bits of a position depend on its own text alone, never on the batch.

Each query attends alone to all that it sees, in the order of positions, in one call of a fixed
shape. What it sees begins and ends at multiples of BLOCK, and a mask hides what is too much:

    position      0    128   256   384
    query 300     ██████████████▒▒▒        █ seen, ▒ hidden: 384 keys, whatever chunk it came in
    query 301     ██████████████▒▒▒        the same keys: one call for many queries of a row
    query 90      ████▒

No prefix is shared between rows (no cascade), and keys are always read from the pool, so a cached
one and one of this batch are the same. The price is in `Runtime`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmlang.kernels.attention import apply_sinks, attend_alone
from lmlang.kernels.paged import PagedKV, store_kv
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.shape import KVLayer
from lmlang.runtime.sharing import RowSlots

BLOCK = 128
"""Keys of a query come in multiples of so many."""
MIN_TOGETHER = 4
"""Fewer queries of one row than this are gathered with those of other rows."""
MAX_GATHERED = 1 << 15
"""Keys, counted once a query, of one call: so much memory may be needed for copies of them."""


@dataclass(frozen=True, slots=True)
class Alone:
    """Queries over equally many slots.

    Args:
        queries: int64 [n], places in the batch.
        table: int64 [n, L] slots, or [1, L] where all queries see the same.
        hidden: float32 [n, L], 0 where a query sees the slot and -inf where not.
    """

    queries: Tensor
    table: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class ExactPlan:
    """How one batch attends, for each window of the model's layers; `AttentionPlan`'s other form.

    Args:
        stores: The slot of each token of the batch.
        groups: Every query is in one of them.
    """

    stores: Tensor
    groups: Mapping[int, tuple[Alone, ...]]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Neighbouring queries of a row that see the same blocks.

    Args:
        query: Place of the first in the batch.
        first: Its position.
        count: Queries.
        begin: First position of the blocks.
        slots: int64 [L], of the positions from ``begin`` on.
    """

    query: int
    first: int
    count: int
    begin: int
    slots: IntArray

    def split(self, size: int) -> Iterator[_Stretch]:
        """The same in pieces of at most ``size`` queries."""
        for at in range(0, self.count, size):
            count = min(size, self.count - at)
            yield _Stretch(self.query + at, self.first + at, count, self.begin, self.slots)

    def hidden(self, window: int) -> npt.NDArray[np.float32]:
        """float32 [count, L]."""
        positions = np.arange(self.first, self.first + self.count)[:, None]
        keys = np.arange(self.begin, self.begin + len(self.slots))[None, :]
        seen = keys <= positions
        if window:
            seen &= keys > positions - window
        hidden: npt.NDArray[np.float32] = np.where(seen, np.float32(0), np.float32(-np.inf))
        return hidden


def plan_exact(rows: Seq[RowSlots], device: torch.device, windows: Seq[int] = (0,)) -> ExactPlan:
    """The plan for these rows in layers of these windows."""
    stores = np.concatenate([row.table[len(row.table) - row.count :] for row in rows])
    groups = {window: tuple(_groups(rows, device, window)) for window in windows}
    return ExactPlan(torch.from_numpy(stores).to(device), groups)


def run_exact(
    plan: ExactPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: PagedKV,
    layer: KVLayer,
    sinks: Tensor | None = None,
) -> Tensor:
    """One layer: as `run_attention`, whose arguments these are."""
    store_kv(kv, plan.stores, k, v)
    out = torch.empty((*q.shape[:2], v.shape[2]), dtype=q.dtype, device=q.device)
    for group in plan.groups[layer.window]:
        part, lse = attend_alone(
            q[group.queries], kv, group.table, group.hidden, layer.scale, layer.softcap
        )
        out[group.queries] = part if sinks is None else apply_sinks(part, lse, sinks)
    return out


def _groups(rows: Seq[RowSlots], device: torch.device, window: int) -> Iterator[Alone]:
    single: dict[int, list[_Stretch]] = {}
    for row in rows:
        for stretch in _stretches(row, window):
            length = len(stretch.slots)
            if stretch.count < MIN_TOGETHER:
                single.setdefault(length, []).extend(stretch.split(1))
                continue
            for part in stretch.split(max(1, MAX_GATHERED // length)):
                yield _alone([part], window, device)
    for length, stretches in single.items():
        size = max(1, MAX_GATHERED // length)
        for at in range(0, len(stretches), size):
            yield _alone(stretches[at : at + size], window, device)


def _stretches(row: RowSlots, window: int) -> Iterator[_Stretch]:
    """A row's queries, cut where the blocks that they see begin or end elsewhere."""
    before = len(row.table) - row.count
    positions = np.arange(before, len(row.table))
    begins = np.maximum(0, positions + 1 - window) // BLOCK * BLOCK if window else 0 * positions
    ends = (positions // BLOCK + 1) * BLOCK
    cuts = np.flatnonzero((np.diff(begins) != 0) | (np.diff(ends) != 0)) + 1
    borders = [0, *cuts.tolist(), row.count]
    for start, end in pairwise(borders):
        begin, blocks_end = int(begins[start]), int(ends[start])
        slots = np.full(blocks_end - begin, row.table[-1])
        there = row.table[begin:blocks_end]
        slots[: len(there)] = there
        yield _Stretch(row.start + start, before + start, end - start, begin, slots)


def _alone(stretches: Seq[_Stretch], window: int, device: torch.device) -> Alone:
    """One call: a single stretch, or single queries of several."""
    queries = np.concatenate([np.arange(s.query, s.query + s.count) for s in stretches])
    table = np.stack([stretch.slots for stretch in stretches])
    hidden = np.concatenate([stretch.hidden(window) for stretch in stretches])
    return Alone(*(torch.from_numpy(part).to(device) for part in (queries, table, hidden)))
