"""Plans for devices give what the CPU's plans give; run here through the reference kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.kernels.paged import PagedKV
from lmlang.runtime import paged_plan
from lmlang.runtime.attention import plan_attention, run_attention
from lmlang.runtime.paged_plan import PagedPlan, paged_words, plan_paged, run_paged
from lmlang.runtime.shape import KVLayer
from lmlang.runtime.sharing import RowSlots
from lmlang.runtime.transfer import Transfer
from tests.kernels.test_attention import SLOTS, row_trees, tensors

CPU = torch.device("cpu")
KV_HEADS, KEY, VALUE = 2, 8, 6


def planned(
    rows: list[RowSlots], windows: tuple[int, ...] = (0,), *, even: bool = False
) -> PagedPlan:
    """A plan whose numbers have arrived in a buffer beside the one they were written to."""
    words = paged_words(rows, windows)
    into = torch.full((words,), -1, dtype=torch.int32)
    transfer = Transfer(words, CPU, into)
    plan = plan_paged(rows, transfer, windows, even=even)
    assert bool((into == -1).all())
    transfer.send()
    return plan


def decode_rows(shared: list[int], own: int = 3) -> list[RowSlots]:
    """Rows of one token over the first ``shared[i]`` of slots that all know, and their own."""
    return [
        RowSlots(i, 1, np.r_[0:n, 1000 + 50 * i : 1000 + 50 * i + own].astype(np.int64))
        for i, n in enumerate(shared)
    ]


@settings(max_examples=150)
@given(
    row_trees(), st.integers(0, 9), st.sampled_from([1, 20, 60, 512]), st.sampled_from([1, 9, 64]),
    st.lists(st.sampled_from([0, 1, 2, 7, 33, 90, 1000]), min_size=1, max_size=3, unique=True),
    st.sampled_from([0.0, 0.0, 3.0]), st.sampled_from([1, 3]), st.booleans(),
)  # fmt: skip
def test_a_plan_for_a_device_gives_what_the_plan_for_a_cpu_gives(
    rows: list[RowSlots], seed: int, least: int, at_once: int, windows: list[int], softcap: float,
    groups: int, sunk: bool,
) -> None:  # fmt: skip
    total = sum(row.count for row in rows)
    shapes = [(total, groups * KV_HEADS, KEY), (total, KV_HEADS, KEY), (total, KV_HEADS, VALUE)]
    pools = [(SLOTS + 150, KV_HEADS, KEY), (SLOTS + 150, KV_HEADS, VALUE), (groups * KV_HEADS,)]
    q, k, v, k_pool, v_pool, sinks = tensors(seed, *shapes, *pools)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_plan, "MIN_SAVED", least)
        patch.setattr(paged_plan, "READ_AT_ONCE", at_once)
        plan = planned(rows, tuple(windows))
    usual = plan_attention(rows, CPU, windows)
    for window in windows:
        layer = KVLayer(groups * KV_HEADS, KV_HEADS, KEY, VALUE, 0.3, window, softcap, sunk)
        found, wanted = PagedKV(k_pool.clone(), v_pool.clone()), PagedKV(k_pool, v_pool)
        given_sinks = sinks if sunk else None
        out = run_paged(plan, q, k, v, found, layer, given_sinks)
        expected = run_attention(usual, q, k, v, wanted, layer, given_sinks)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(found.k, wanted.k)
        assert torch.equal(found.v, wanted.v)


@settings(max_examples=100)
@given(row_trees(), st.sampled_from([1, 20, 60]))
def test_every_slot_that_a_query_sees_is_read_once(rows: list[RowSlots], least: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_plan, "MIN_SAVED", least)
        plan = planned(rows)
    (parts,) = plan.parts.values()
    read: dict[int, list[int]] = {}
    for own in parts.rows:
        queries = torch.arange(sum(row.count for row in rows))[own.queries].tolist()
        starts = range(len(queries) + 1) if own.starts is None else own.starts.tolist()
        for r, first in enumerate(starts[:-1]):
            table = plan.table[own.table_starts[r] : own.table_starts[r + 1]].tolist()
            for i, query in enumerate(queries[first : starts[r + 1]]):
                hidden = starts[r + 1] - first - 1 - i
                read[query] = table[: len(table) - hidden]
    assert sorted(read) == list(range(sum(row.count for row in rows)))
    for level in parts.levels:
        assert len(set(level.queries.tolist())) == len(level.queries)
        for g in range(len(level.starts) - 1):
            stretch = plan.table[level.table_starts[g] : level.table_starts[g + 1]].tolist()
            members = level.queries[level.starts[g] : level.starts[g + 1]].tolist()
            apart = [row.count for row in rows if row.start in members]
            assert sum(apart) == len(members)
            reads = [math.ceil(count / paged_plan.READ_AT_ONCE) for count in (*apart, sum(apart))]
            assert len(stretch) * (sum(reads[:-1]) - reads[-1]) >= least
            for query in members:
                read[query] += stretch
    for row in rows:
        for i in range(row.count):
            seen = row.table[: len(row.table) - row.count + i + 1]
            assert sorted(read[row.start + i]) == sorted(seen.tolist())


def test_what_is_shared_is_what_pays() -> None:
    few = planned(decode_rows([900] * 8))
    assert few.form == ((),)
    plan = planned(decode_rows([2_000] * 8))
    assert plan.form == ((1,),)
    (level,) = plan.parts[0].levels
    assert level.queries.tolist() == list(range(8))
    assert (level.table_starts.diff().tolist(), level.starts.tolist()) == ([2_000], [0, 8])
    (rows,) = plan.parts[0].rows
    assert rows.table_starts.diff().tolist() == [3] * 8
    assert (rows.queries, rows.starts) == (slice(0, 8), None)


@pytest.mark.parametrize(("count", "shares"), [(1, True), (8, True), (30, False), (33, True)])
def test_rows_share_where_slots_are_read_less_often(count: int, shares: bool) -> None:
    """30 queries read a slot once, with others or not; 33 twice, and so 20 rows 40 times."""
    tables = [np.r_[0:1_000, 2_000 + 40 * i : 2_000 + 40 * i + count] for i in range(20)]
    rows = [RowSlots(i * count, count, table.astype(np.int64)) for i, table in enumerate(tables)]
    assert planned(rows).form == (((1,),) if shares else ((),))


def test_what_is_deeper_than_the_levels_is_left_to_the_rows() -> None:
    nested = [9_000, 9_000, 18_000, 18_000, 30_000, 30_000, 45_000, 45_000]
    plan = planned(decode_rows(nested))
    levels = plan.parts[0].levels
    assert len(levels) == paged_plan.MAX_LEVELS
    (rows,) = plan.parts[0].rows
    shared = sum(int(level.table_starts[-1] - level.table_starts[0]) for level in levels)
    read = shared + int(rows.table_starts[-1] - rows.table_starts[0])
    assert max(nested) < read < sum(nested) // 2


def test_layers_of_all_windows_read_one_table_where_nothing_is_shared() -> None:
    rows = decode_rows([40, 90, 7])
    plan = planned(rows, (0, 16, 50))
    assert plan.parts[0] == plan.parts[16] == plan.parts[50]
    tables = np.concatenate([row.table for row in rows])
    assert plan.table[: len(tables)].tolist() == tables.tolist()


@pytest.mark.parametrize("windows", [(0,), (0, 9_100)])
def test_an_even_plan_has_the_same_places_whatever_is_shared_by_whom(
    windows: tuple[int, ...],
) -> None:
    def places(shared: list[int]) -> list[tuple[int, int]]:
        rows = decode_rows(shared)
        plan = planned(rows, windows, even=True)
        assert set(plan.form) == {(2,)}
        found = [plan.stores, plan.table]
        for parts in plan.parts.values():
            (own,) = parts.rows
            assert (own.queries, own.starts) == (slice(0, len(shared)), None)
            found.append(own.table_starts)
            for level in parts.levels:
                found += [level.queries, level.starts, level.table_starts]
                assert sorted(level.queries.tolist()) == list(range(len(shared)))
        lengths = [0 if part is plan.table else len(part) for part in found]
        return [(part.storage_offset(), n) for part, n in zip(found, lengths, strict=True)]

    every, some = [5_000] * 7, [0, 5_000, 5_000, 5_000, 5_000, 0, 0]
    assert places(every) == places(some) == places([9_000, 9_000, 1, 9_000, 0, 8_800, 2])


def test_an_even_plan_gives_the_same_as_another() -> None:
    rows = decode_rows([5_000, 0, 5_000, 5_000, 200, 5_000, 5_000])
    layer = KVLayer(4, 2, KEY, VALUE, 0.3)
    shapes = [(7, 4, KEY), (7, 2, KEY), (7, 2, VALUE), (6_000, 2, KEY), (6_000, 2, VALUE)]
    q, k, v, k_pool, v_pool = tensors(1, *shapes)
    outs = [
        run_paged(planned(rows, even=even), q, k, v, PagedKV(k_pool, v_pool), layer)
        for even in (False, True)
    ]
    torch.testing.assert_close(outs[0], outs[1])
