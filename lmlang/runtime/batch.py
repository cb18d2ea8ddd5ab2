"""A plan as tensors: built complete in one go, and frozen.

input_ids  [d0 d1 d2 | c0 c0 c0 c0 | c1 c1]     T tokens: decode rows, then prefill chunks
logits_at   ^  ^  ^             ^        ^      K <= T of them need logits

A decode row with a draft is a chunk that needs all its logits; a piece of a trie of choices is as
many rows as it has unbranched runs of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lmlang.runtime.attention import AttentionPlan, plan_attention
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.exact_attention import ExactPlan, plan_exact
from lmlang.runtime.scheduler import Plan
from lmlang.runtime.sequence import PieceTask, Sequence
from lmlang.runtime.sharing import RowSlots


@dataclass(frozen=True, slots=True)
class LogitRows:
    """Rows [start, end) of the logits are a sequence's, from its position ``position`` on."""

    sequence: Sequence
    start: int
    end: int
    position: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's tensors.

    Args:
        input_ids: int64 [T].
        positions: int64 [T].
        attention: Where keys and values go, and who attends to what.
        logits_at: int64 [K], indices into the T tokens.
        logit_rows: Whose the K rows are.
    """

    input_ids: Tensor
    positions: Tensor
    attention: AttentionPlan | ExactPlan
    logits_at: Tensor
    logit_rows: tuple[LogitRows, ...]


def _positions(sequence: Sequence, begin: int, end: int) -> IntArray:
    """Places in the text of tokens [begin, end): a node of a trie stands behind those above it."""
    places = np.arange(begin, end, dtype=np.int64)
    if isinstance(sequence.task, PieceTask) and end > sequence.stem:
        nodes = places >= sequence.stem
        depths = sequence.task.piece.depths()
        places[nodes] = sequence.stem + depths[places[nodes] - sequence.stem]
    return places


def _row_slots(
    sequence: Sequence, table: IntArray, start: int, begin: int, end: int
) -> list[RowSlots]:
    """What attention must know of tokens [begin, end): a row for text, one a run of nodes."""
    if not isinstance(sequence.task, PieceTask) or end <= sequence.stem:
        return [RowSlots(start, end - begin, table[:end])]
    stem, piece = sequence.stem, sequence.task.piece
    made = [RowSlots(start, stem - begin, table[:stem])] if begin < stem else []
    for first, last in piece.runs(max(0, begin - stem), end - stem):
        seen = (table[:stem], table[stem + piece.above(first)], table[stem + first : stem + last])
        made.append(RowSlots(start + stem + first - begin, last - first, np.concatenate(seen)))
    return made


def build_batch(
    plan: Plan, device: torch.device, windows: tuple[int, ...] = (0,), *, exact: bool = False
) -> Batch:
    """The tensors of a plan that is not empty, for layers of these windows."""
    ids, positions, slots, logits_at = [], [], [], []
    logit_rows: list[LogitRows] = []
    start = rows_so_far = 0
    for row in plan.rows:
        sequence, lease = row.sequence, row.sequence.lease
        assert lease is not None
        begin, end = sequence.computed, sequence.computed + row.count
        ids.append(sequence.tokens(begin, end - len(row.draft)))
        if row.draft:
            ids.append(np.array(row.draft, dtype=np.int64))
        positions.append(_positions(sequence, begin, end))
        slots += _row_slots(sequence, lease.table, start, begin, end)
        first = begin if row.draft else max(sequence.first_logit, begin)
        if first < end:
            logits_at.append(np.arange(start + first - begin, start + row.count, dtype=np.int64))
            logit_rows.append(LogitRows(sequence, rows_so_far, rows_so_far + end - first, first))
            rows_so_far += end - first
        start += row.count

    def tensor(parts: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> Tensor:
        joined = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return torch.from_numpy(joined).to(device)

    return Batch(
        tensor(ids),
        tensor(positions),
        (plan_exact if exact else plan_attention)(slots, device, windows),
        tensor(logits_at),
        tuple(logit_rows),
    )
