"""Batches of decode steps on a CPU, made from the one before where the rows are the same.

wide     [ ids | positions | stores | logits_at ]              4 R, of 64 bits
narrow   [ row starts | stretches | row 0: ····> | row 1: ··> | row 2: ····>    room to grow  ]

From one step to the next each row's table has one slot more, and nothing else is different: what
rows have in common, and what is attended once for all of them, are the same. All tensors are views
of one buffer, so that they stay, too, until the tables outgrow it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from struct import Struct

import numpy as np

from lmlang.runtime.batch import Batch, LogitRows
from lmlang.runtime.cache.manager import Lease
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.paged_plan import Level, PagedParts, PagedPlan, Rows
from lmlang.runtime.scheduler import Plan
from lmlang.runtime.transfer import Buffer

SPARE = 64
"""Slots that every row may grow by before the tensors are made anew."""


class DecodeBatches:
    """Makes a batch from the one before, where it can; the engine thread's own.

    What it returns holds until it makes the next.

    Args:
        windows: Of the model's layers.
    """

    def __init__(self, windows: Seq[int]) -> None:
        self._windows = tuple(windows)
        self._buffer = Buffer()
        self._rows: list[tuple[Lease, int]] = []
        """Of each row, its lease, and at which position its own table begins."""
        self._levels: list[Level] = []
        """What rows share, their tables counted from the beginning of the stretches."""
        self._stretches: IntArray = np.empty(0, dtype=np.int32)
        self._made: Batch | None = None
        """A batch of these rows over the buffer, made for an earlier step."""
        self._wide = self._ends = Struct("")
        """Ids, positions and stores of a step, and where its tables end."""

    def note(self, plan: Plan, batch: Batch) -> None:
        """Look at a batch that was made in another way: whether the next may be made from it."""
        self._rows, self._levels, self._made = [], [], None
        attention = batch.attention
        if batch.adapters or not isinstance(attention, PagedPlan):
            return
        parts, *others = attention.parts.values()
        if any(other.rows is not parts.rows for other in others) or len(parts.rows) != 1:
            return  # what rows share in one window, they do not in another
        if parts.levels and any(self._windows):
            return  # rows that grow beyond their window share no longer
        if not all(row.decoding and not row.draft for row in plan.rows):
            return
        lengths = np.diff(parts.rows[0].table_starts.numpy()).tolist()
        for row, length in zip(plan.rows, lengths, strict=True):
            lease, sequence = row.sequence.lease, row.sequence
            assert lease is not None
            self._rows.append((lease, sequence.computed + 1 - length))
        stretches, begin = [self._stretches[:0]], 0
        for level in parts.levels:
            first, last = int(level.table_starts[0]), int(level.table_starts[-1])
            stretches.append(attention.table[first:last].numpy())
            starts = level.table_starts + (begin - first)
            self._levels.append(Level(level.queries.clone(), level.starts.clone(), starts))
            begin += last - first
        self._stretches = np.concatenate(stretches)

    def next(self, plan: Plan) -> Batch | None:
        """The batch of a plan; None where its rows are not those of the batch before."""
        rows, tables, tokens, places, stores, ends = [], [], [], [], [], []
        if len(plan.rows) != len(self._rows):
            return None
        end = len(self._stretches)
        for at, (row, (lease, cut)) in enumerate(zip(plan.rows, self._rows, strict=True)):
            sequence = row.sequence
            if sequence.lease is not lease or not row.decoding or row.draft:
                return None
            place = sequence.computed
            end += place + 1 - cut
            tokens.append(sequence.generated[-1])
            places.append(place)
            stores.append(int(lease.table[place]))
            tables.append(lease.table[cut : place + 1])
            ends.append(end)
            rows.append(LogitRows(sequence, at, at + 1, place))
        count, start = len(rows), 9 * len(rows) + 1
        made = self._made
        if made is None or self._buffer.words < start + end:
            made = self._made = self._over(count, end)
        array = self._buffer.narrow_array
        self._wide.pack_into(array.data, 0, *tokens, *places, *stores)
        self._ends.pack_into(array.data, 4 * (8 * count + 1), *ends)
        own = array[start + len(self._stretches) : start + end]
        np.concatenate(tables, out=own, casting="same_kind")
        return Batch(made.input_ids, made.positions, made.attention, made.logits_at, tuple(rows))

    def _over(self, count: int, slots: int) -> Batch:
        """The tensors of so many rows, with tables of so many slots in all."""
        buffer, shared = self._buffer, len(self._stretches)
        buffer.hold(9 * count + 1 + slots + SPARE * count)
        self._wide, self._ends = Struct(f"={3 * count}q"), Struct(f"={count}i")
        ids, positions, stores, logits_at = buffer.wide[: 4 * count].view(4, count).unbind()
        logits_at.numpy()[:] = np.arange(count)
        starts, table = buffer.narrow[8 * count :].tensor_split([count + 1])
        starts[0] = shared
        table.numpy()[:shared] = self._stretches
        parts = PagedParts((Rows(slice(0, count), None, starts),), tuple(self._levels))
        attention = PagedPlan(stores, table, dict.fromkeys(self._windows, parts))
        return Batch(ids, positions, attention, logits_at, ())
