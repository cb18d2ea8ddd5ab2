"""Batches of decode steps that are made from the one before are those that are made anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.protocol import Generation, Prompt, Request, SamplingParams
from lmlang.runtime import batch as batches
from lmlang.runtime import decode_batch
from lmlang.runtime.batch import Batch, build_paged_batch
from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.decode_batch import DecodeBatches
from lmlang.runtime.paged_plan import PagedPlan
from lmlang.runtime.scheduler import Scheduler
from lmlang.runtime.sequence import GenerateTask, Sequence

CPU = torch.device("cpu")


class Steps:
    """A scheduler whose sequences are moved on by counting."""

    def __init__(self, asked: list[tuple[int, int, int]], slots: int) -> None:
        self.cache = CacheManager(slots)
        self.scheduler = Scheduler(self.cache, 64, 8)
        self.made = 10_000
        for number, (group, length, growth) in enumerate(asked):
            prompt = np.r_[group * 1000 : group * 1000 + length, 5000 + number].astype(np.int64)
            generation = Generation(Request(Prompt(), SamplingParams(max_tokens=growth)))
            task = GenerateTask(generation, None)  # type: ignore[arg-type]  # no text is made
            self.scheduler.add(Sequence(prompt, length, growth, task))

    def commit(self, plan) -> None:
        """Every planned token counts as computed; who has none pending makes one, or ends."""
        for row in plan.rows:
            sequence = row.sequence
            sequence.advance(row.count)
            if not row.decoding:
                self.cache.commit(sequence.lease, sequence.tokens(0, sequence.computed))
            if sequence.pending:
                continue
            self.made += 1
            sequence.generated.append(self.made)
            if len(sequence.generated) == sequence.growth:
                self.scheduler.remove(sequence)


def reads(batch: Batch) -> list[list[list[int]]]:
    """The slots that each query sees in each window, in order: shared ones first."""
    plan, found = batch.attention, []
    assert isinstance(plan, PagedPlan)
    for parts in plan.parts.values():
        seen: list[list[int]] = [[] for _ in batch.positions]
        for level in parts.levels:
            for g, (first, last) in enumerate(zip(level.starts, level.starts[1:], strict=False)):
                stretch = plan.table[level.table_starts[g] : level.table_starts[g + 1]].tolist()
                for query in level.queries[first:last].tolist():
                    seen[query] += stretch
        (rows,) = parts.rows
        assert rows.queries == slice(0, len(seen))
        assert rows.starts is None
        for query, own in enumerate(seen):
            own += plan.table[rows.table_starts[query] : rows.table_starts[query + 1]].tolist()
        found.append(seen)
    return found


def same(mine: Batch, other: Batch) -> None:
    for name in ("input_ids", "positions", "logits_at"):
        assert torch.equal(getattr(mine, name), getattr(other, name)), name
        assert getattr(mine, name).dtype == getattr(other, name).dtype
    assert torch.equal(mine.attention.stores, other.attention.stores)
    assert reads(mine) == reads(other)
    assert mine.attention.form == other.attention.form  # a window hides nothing from who shares
    assert mine.logit_rows == other.logit_rows
    assert (mine.graph, mine.adapters) == (None, ())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=8
    ),
    st.sampled_from([1, 20, 10_000]), st.sampled_from([1, 3, 64]), st.sampled_from([70, 200, 900]),
    st.sampled_from([(0, 16), (0,), (24,)]),
)  # fmt: skip
def test_a_batch_made_from_the_one_before_is_the_one_that_is_made_anew(
    asked: list[tuple[int, int, int]], least: int, spare: int, slots: int, windows: tuple[int, ...]
) -> None:
    steps, decodes, again = Steps(asked, slots), DecodeBatches(windows), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "MIN_SAVED_ON_CPU", least)
        patch.setattr(batches, "SPAN", 4)
        patch.setattr(decode_batch, "SPARE", spare)
        before: list[object] = []
        while steps.scheduler.running or steps.scheduler.waiting:
            plan = steps.scheduler.plan()
            wanted = build_paged_batch(plan, CPU, windows)
            found = decodes.next(plan)
            leases = [row.sequence.lease for row in plan.rows if row.decoding]
            parts = wanted.attention.parts
            if found is None:
                decodes.note(plan, wanted)
                stays = leases == before and len(leases) == len(plan.rows)
                rows = [part.rows for part in parts.values()]
                shared = any(part.levels for part in parts.values())
                assert not stays or rows[0] is not rows[-1] or (shared and windows[0])
            else:
                again += 1
                same(found, wanted)
            before = leases if len(leases) == len(plan.rows) and leases else []
            steps.commit(plan)
    if len(asked) == 1 and asked[0][2] > 3:
        assert again


def test_what_rows_share_is_kept_with_its_queries() -> None:
    steps, decodes = Steps([(0, 40, 9)] * 3 + [(1, 30, 9)] * 2, 900), DecodeBatches((0,))
    shared = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "MIN_SAVED_ON_CPU", 8)
        patch.setattr(batches, "SPAN", 4)
        patch.setattr(decode_batch, "SPARE", 2)
        while steps.scheduler.running or steps.scheduler.waiting:
            plan = steps.scheduler.plan()
            wanted, found = build_paged_batch(plan, CPU, (0,)), decodes.next(plan)
            if found is None:
                decodes.note(plan, wanted)
            else:
                same(found, wanted)
                shared += found.attention.form == ((2,),)
            steps.commit(plan)
    assert shared >= 5


def test_rows_that_grow_beyond_the_window_share_no_longer() -> None:
    steps, decodes, forms = Steps([(0, 16, 20)] * 3, 900), DecodeBatches((24,)), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "MIN_SAVED_ON_CPU", 8)
        patch.setattr(batches, "SPAN", 4)
        while steps.scheduler.running or steps.scheduler.waiting:
            plan = steps.scheduler.plan()
            wanted, found = build_paged_batch(plan, CPU, (24,)), decodes.next(plan)
            forms.append(wanted.attention.form)
            if found is None:
                decodes.note(plan, wanted)
            else:
                same(found, wanted)
            steps.commit(plan)
    assert ((1,),) in forms
    assert forms[-2] == ((),)
