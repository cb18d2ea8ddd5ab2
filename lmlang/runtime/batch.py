"""A plan as tensors: built complete in one go, and frozen.

input_ids  [d0 d1 d2 | c0 c0 c0 c0 | c1 c1]     T tokens: decode rows, then prefill chunks
logits_at   ^  ^  ^             ^        ^      K <= T of them need logits

A decode row with a draft is a chunk that needs all its logits; a piece of a trie of choices is as
many rows as it has unbranched runs of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmlang.kernels.paged_attention import SPAN
from lmlang.runtime.attention import AttentionPlan, plan_attention
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.cuda_graphs import Key, Padding
from lmlang.runtime.exact_attention import ExactPlan, plan_exact
from lmlang.runtime.paged_plan import MIN_SAVED_ON_CPU, PagedPlan, paged_words, plan_paged
from lmlang.runtime.scheduler import Plan, Row
from lmlang.runtime.sequence import PieceTask, Sequence
from lmlang.runtime.sharing import RowSlots
from lmlang.runtime.transfer import Buffer, Transfer


class LogitRows(NamedTuple):
    """Rows [start, end) of the logits are a sequence's, from its position ``position`` on.

    The last of them are those of its ``draft``, if it has one.
    """

    sequence: Sequence
    start: int
    end: int
    position: int
    draft: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's tensors.

    Args:
        input_ids: int64 [T].
        positions: int64 [T].
        attention: Where keys and values go, and who attends to what.
        logits_at: int64 [K], indices into the T tokens.
        logit_rows: Whose the K rows are; what is left of K is padding.
        graph: Which CUDA graph it is made for, if for one.
        adapters: Of each adapter that acts on some of the tokens, its name and their places.
    """

    input_ids: Tensor
    positions: Tensor
    attention: AttentionPlan | ExactPlan | PagedPlan
    logits_at: Tensor
    logit_rows: tuple[LogitRows, ...]
    graph: Key | None = None
    adapters: tuple[tuple[str, Tensor | slice], ...] = ()


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
    laid = _lay_out(plan)

    def tensor(parts: list[IntArray]) -> Tensor:
        joined = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return torch.from_numpy(joined).to(device)

    return Batch(
        tensor(laid.ids),
        tensor(laid.positions),
        (plan_exact if exact else plan_attention)(laid.rows, device, windows),
        tensor(laid.logits_at),
        tuple(laid.logit_rows),
        adapters=_adapters(plan, device),
    )


def build_paged_batch(
    plan: Plan,
    device: torch.device,
    windows: tuple[int, ...] = (0,),
    padding_for: Callable[[int], Padding | None] | None = None,
    *,
    shares: bool = True,
    buffer: Buffer | None = None,
) -> Batch:
    """The same as `build_batch`, in one transfer that nobody waits for; for the paged kernels.

    Args:
        plan: As there.
        device: As there.
        windows: As there.
        padding_for: How so many decode rows are filled up for a graph; None where they are not.
        shares: Whether what rows have in common may be attended once for all of them.
        buffer: On a CPU the batch's own as long as it is used; None: a new one.
    """
    laid = _lay_out(plan)
    adapters = _adapters(plan, device)
    padding = None
    if padding_for is not None and not adapters and len(laid.logit_rows) == len(laid.rows):
        padding = padding_for(len(laid.rows)) if all(row.count == 1 for row in laid.rows) else None
    if padding is not None:
        filled = laid.filled(padding.size, padding.slot)
        if filled.words(windows) > len(padding.into):
            padding = None
        else:
            laid = filled
    into = None if padding is None else padding.into
    transfer = Transfer(laid.words(windows), device, into, buffer)
    ids, positions, logits_at = (
        transfer.put_wide(*parts) for parts in (laid.ids, laid.positions, laid.logits_at)
    )
    even = padding is not None
    on_cpu = device.type == "cpu" and not even
    attention = plan_paged(
        laid.rows,
        transfer,
        windows,
        even=even,
        shares=shares,
        least=MIN_SAVED_ON_CPU if on_cpu else None,
        span=SPAN if on_cpu else 1,
    )
    transfer.send()
    graph = None if padding is None else (padding.size, attention.form)
    return Batch(ids, positions, attention, logits_at, tuple(laid.logit_rows), graph, adapters)


def _adapters(plan: Plan, device: torch.device) -> tuple[tuple[str, Tensor | slice], ...]:
    """Which tokens have which adapter: a slice where they lie together."""
    found: dict[str, list[slice]] = {}
    start = 0
    for row in plan.rows:
        end = start + row.count
        if row.sequence.lora is not None:
            runs = found.setdefault(row.sequence.lora, [])
            begin = runs.pop().start if runs and runs[-1].stop == start else start
            runs.append(slice(begin, end))
        start = end
    return tuple([(name, _places(runs, device)) for name, runs in found.items()])


def _places(runs: list[slice], device: torch.device) -> Tensor | slice:
    if len(runs) == 1:
        return runs[0]
    places = torch.from_numpy(np.concatenate([np.arange(run.start, run.stop) for run in runs]))
    if device.type == "cuda":  # so that nobody waits for it
        places = places.pin_memory()
    return places.to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class _Laid:
    """A plan's numbers: arrays one behind the other, each of them as in `Batch`."""

    ids: list[IntArray]
    positions: list[IntArray]
    rows: list[RowSlots]
    logits_at: list[IntArray]
    logit_rows: list[LogitRows]

    def words(self, windows: tuple[int, ...]) -> int:
        """Of the transfer that takes them."""
        tokens = sum(map(len, self.ids))
        return 6 * tokens + 3 + paged_words(self.rows, windows)

    def filled(self, size: int, slot: int) -> _Laid:
        """Decode rows, filled up to ``size`` with rows that read and write one slot."""
        more = np.arange(len(self.rows), size)
        nothing, table = np.zeros_like(more), np.array([slot], dtype=np.int64)
        return _Laid(
            [*self.ids, nothing],
            [*self.positions, nothing],
            [*self.rows, *(RowSlots(int(start), 1, table) for start in more)],
            [*self.logits_at, more],
            self.logit_rows,
        )


def _lay_out(plan: Plan) -> _Laid:
    """All rows; those that decode a token come first, and are most of nearly every step."""
    laid = _lay_out_decoding(plan.rows)
    start = rows_so_far = len(laid.rows)
    for row in plan.rows[start:]:
        sequence, lease = row.sequence, row.sequence.lease
        assert lease is not None
        begin, end = sequence.computed, sequence.computed + row.count
        laid.ids.append(sequence.tokens(begin, end - len(row.draft)))
        if row.draft:
            laid.ids.append(np.array(row.draft, dtype=np.int64))
        laid.positions.append(_positions(sequence, begin, end))
        laid.rows.extend(_row_slots(sequence, lease.table, start, begin, end))
        first = max(sequence.first_logit, begin)
        if first < end:
            at = np.arange(start + first - begin, start + row.count, dtype=np.int64)
            laid.logits_at.append(at)
            many = end - first
            laid.logit_rows.append(
                LogitRows(sequence, rows_so_far, rows_so_far + many, first, row.draft)
            )
            rows_so_far += many
        start += row.count
    return laid


def _lay_out_decoding(planned: Seq[Row]) -> _Laid:
    """The rows at the beginning that only have the token that was drawn last, and its logits."""
    rows, logit_rows, tokens, places = [], [], [], []
    for at, row in enumerate(planned):
        sequence, place = row.sequence, row.sequence.computed
        if not row.decoding or row.draft:
            break
        assert sequence.lease is not None
        tokens.append(sequence.generated[-1])
        places.append(place)
        rows.append(RowSlots(at, 1, sequence.lease.table[: place + 1]))
        logit_rows.append(LogitRows(sequence, at, at + 1, place))
    if not rows:
        return _Laid([], [], [], [], [])
    ids, positions, logits_at = np.array([tokens, places, range(len(rows))], dtype=np.int64)
    return _Laid([ids], [positions], rows, [logits_at], logit_rows)
