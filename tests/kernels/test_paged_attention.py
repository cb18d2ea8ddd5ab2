"""Paged attention of ragged batches against the definition, and what is out of its contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmlang.kernels import paged_attention as paged
from lmlang.kernels.paged import PagedKV
from tests.kernels.paged_batches import Batch, batch, close, offsets

ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 30)).map(lambda x: (x[0], x[0] + x[1])), max_size=4
)
SIZES = st.sampled_from([(16, 16), (12, 20), (24, 8)])
WINDOWS = st.sampled_from([0, 0, 1, 4, 100])
SOFTCAPS = st.sampled_from([0.0, 0.0, 2.0])


def definition(
    q: Tensor, kv: PagedKV, slots: Tensor, scale: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """One query [H, Dk] over slots, in float64: out [H, Dv] and lse [H]."""
    groups = q.shape[0] // kv.kv_heads
    k = kv.keys(slots.long(), torch.float32).double().repeat_interleave(groups, 1)
    v = kv.values(slots.long(), torch.float32).double().repeat_interleave(groups, 1)
    scores = torch.einsum("hd,lhd->hl", q.double(), k) * scale
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    return torch.einsum("hl,lhd->hd", scores.softmax(-1), v), scores.logsumexp(-1)


def agree(
    got: tuple[Tensor, Tensor], at: int, q: Tensor, kv: PagedKV, slots: Tensor, scale: float,
    softcap: float,
) -> None:  # fmt: skip
    wanted = definition(q, kv, slots, scale, softcap)
    close((got[0][at], got[1][at]), (wanted[0].float(), wanted[1].float()), torch.float32)


@settings(max_examples=60)
@given(
    ROWS, st.integers(0, 99), st.sampled_from([1, 3]), SIZES, WINDOWS, SOFTCAPS, st.booleans()
)  # fmt: skip
def test_new_tokens_see_their_prefix_and_themselves(
    rows: list[tuple[int, int]], seed: int, groups: int, sizes: tuple[int, int], window: int,
    softcap: float, int8: bool,
) -> None:  # fmt: skip
    b = batch(rows, seed=seed, groups=groups, sizes=sizes, int8=int8)
    got = paged.prefill_reference(
        b.q, b.kv, b.starts, b.table, b.table_starts, b.scale, window, softcap
    )
    for row, (n, length) in enumerate(rows):
        for i in range(n):
            end = int(b.table_starts[row]) + length - n + i + 1
            begin = max(int(b.table_starts[row]), end - window if window else 0)
            at = int(b.starts[row]) + i
            agree(got, at, b.q[at], b.kv, b.table[begin:end], b.scale, softcap)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 40), max_size=5), st.integers(0, 99), st.sampled_from([1, 3]), SIZES,
    WINDOWS, SOFTCAPS, st.booleans(),
)  # fmt: skip
def test_a_decoding_row_sees_all_its_slots(
    lengths: list[int], seed: int, groups: int, sizes: tuple[int, int], window: int,
    softcap: float, int8: bool,
) -> None:  # fmt: skip
    b = batch([(1, n) for n in lengths], seed=seed, groups=groups, sizes=sizes, int8=int8)
    out, lse = paged.decode_reference(b.q, b.kv, b.table, b.table_starts, b.scale, window, softcap)
    for row, length in enumerate(lengths):
        end = int(b.table_starts[row + 1])
        slots = b.table[end - min(length, window or length) : end]
        if length:
            agree((out, lse), row, b.q[row], b.kv, slots, b.scale, softcap)
        else:
            assert out[row].eq(0).all()
            assert lse[row].eq(float("-inf")).all()


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30)), max_size=3), st.integers(0, 99),
    SIZES, SOFTCAPS,
)  # fmt: skip
def test_a_group_sees_all_that_it_shares(
    groups: list[tuple[int, int]], seed: int, sizes: tuple[int, int], softcap: float
) -> None:
    b = batch(groups, seed=seed, sizes=sizes)
    rows = torch.randperm(len(b.q), generator=torch.Generator().manual_seed(seed)).int()
    got = paged.shared_reference(
        b.q, rows, b.starts, b.kv, b.table, b.table_starts, b.scale, softcap
    )
    for group in range(len(groups)):
        slots = b.table[b.table_starts[group] : b.table_starts[group + 1]]
        for member in range(int(b.starts[group]), int(b.starts[group + 1])):
            agree(got, member, b.q[rows[member]], b.kv, slots, b.scale, softcap)


@settings(max_examples=40)
@given(st.integers(0, 99), st.integers(0, 20), st.integers(0, 20), st.booleans())
def test_states_over_two_parts_merge_to_the_state_over_both(
    seed: int, first: int, second: int, some: bool
) -> None:
    lengths = [first + second, first + second, first + second]
    b = batch([(1, n) for n in lengths], seed=seed)
    spans = [b.table[int(b.table_starts[r]) :][: first + second] for r in range(3)]
    heads = [torch.cat([span[:first] for span in spans]), offsets([first] * 3)]
    tails = [torch.cat([span[first:] for span in spans]), offsets([second] * 3)]
    out, lse = paged.decode_reference(b.q, b.kv, *heads, b.scale)
    part = paged.decode_reference(b.q, b.kv, *tails, b.scale)
    whole = paged.decode_reference(b.q, b.kv, b.table, b.table_starts, b.scale)
    if some:  # of the states, in another order; the one left alone stays as it was
        rows = torch.tensor([2, 0], dtype=torch.int32)
        untouched = out[1].clone(), lse[1].clone()
        paged.merge_reference(out, lse, part[0][rows].clone(), part[1][rows].clone(), rows)
        close((out[1], lse[1]), untouched, torch.float32)
        close((out[::2], lse[::2]), (whole[0][::2], whole[1][::2]), torch.float32)
    else:
        paged.merge_reference(out, lse, *part)
        close((out, lse), whole, torch.float32)


GOOD = batch([(2, 5), (1, 9)], sizes=(16, 16))


def changed(**what: object) -> Batch:
    return replace(GOOD, **what)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (changed(q=GOOD.q.double()), "q is torch.float64: it must be torch.float32 or"),
        (changed(q=GOOD.q[:, :3]), "q has 3 heads: it must be a multiple of the 2 kv heads"),
        (changed(q=GOOD.q[..., :8]), r"q has the shape \(3, 4, 8\): it must be \(any, any, 16\)"),
        (changed(q=GOOD.q.mT.contiguous().mT), "q has the strides .* axis must be dense"),
        (changed(starts=GOOD.starts.long()), "starts is torch.int64: it must be torch.int32"),
        (changed(starts=GOOD.starts[:2]), "starts has 2 numbers, table_starts 3: each needs"),
        (changed(table=GOOD.table[None]), r"table has the shape \(1, 19\): it must be \(any\)"),
        (changed(table=GOOD.table.to("meta")), "table lies on meta: it must lie on cpu"),
        (changed(kv=PagedKV(GOOD.kv.k.to("meta"), GOOD.kv.v)), "k lies on meta"),
    ],
)
def test_what_is_out_of_contract_is_refused_before_anything_runs(given: Batch, said: str) -> None:
    b = given
    with pytest.raises(ValueError, match=said):
        paged.paged_prefill(b.q, b.kv, b.starts, b.table, b.table_starts, 1.0)


@pytest.mark.parametrize(("scale", "window", "softcap"), [(0.0, 0, 0.0), (1.0, -1, 0), (1, 0, -2)])
def test_numbers_that_mean_nothing_are_refused(scale: float, window: int, softcap: float) -> None:
    for run in (prefill, decode):
        with pytest.raises(ValueError, match="must be above 0"):
            run(GOOD, scale, window, softcap)


def prefill(b: Batch, *numbers: float) -> object:
    return paged.paged_prefill(b.q, b.kv, b.starts, b.table, b.table_starts, *numbers)  # type: ignore[arg-type]


def decode(b: Batch, *numbers: float) -> object:
    return paged.paged_decode(b.q[:2], b.kv, b.table, b.table_starts, *numbers)  # type: ignore[arg-type]


def test_a_query_for_each_row_is_needed() -> None:
    with pytest.raises(ValueError, match="table_starts has 3 numbers: 3 queries need 4"):
        paged.paged_decode(GOOD.q, GOOD.kv, GOOD.table, GOOD.table_starts, 1.0)


@pytest.mark.parametrize("wrong", range(5))
def test_states_that_do_not_belong_together_are_refused(wrong: int) -> None:
    out, lse = torch.zeros(3, 2, 8), torch.zeros(3, 2)
    rows = torch.tensor([1], dtype=torch.int32)
    ways: list[Callable[[], None]] = [
        lambda: paged.merge_states(out, lse.double(), out, lse),
        lambda: paged.merge_states(out, lse, out.half(), lse),
        lambda: paged.merge_states(out, lse, out, lse, rows),
        lambda: paged.merge_states(out, lse, out[:2], lse[:2]),
        lambda: paged.merge_states(out, lse, out[:1], lse[:1], rows.long()),
    ]
    with pytest.raises(ValueError, match="it must be"):
        ways[wrong]()


def test_the_dispatched_form_agrees_with_the_reference() -> None:
    b = GOOD
    numbers = (b.scale, 3, 1.5)
    arguments = (b.q, b.kv, b.starts, b.table, b.table_starts, *numbers)
    close(paged.paged_prefill(*arguments), paged.prefill_reference(*arguments), torch.float32)
    row = (b.q[:2], b.kv, b.table, b.table_starts, *numbers)
    close(paged.paged_decode(*row), paged.decode_reference(*row), torch.float32)
    rows = torch.tensor([2, 0, 1], dtype=torch.int32)
    group = (b.q, rows, b.starts, b.kv, b.table, b.table_starts, b.scale, 1.5)
    close(paged.paged_shared(*group), paged.shared_reference(*group), torch.float32)
    out, lse = paged.paged_prefill(*arguments)
    twice, twice_lse = out.clone(), lse.clone()
    paged.merge_states(twice, twice_lse, out, lse)
    close((twice, twice_lse), (out, lse + torch.tensor(2.0).log()), torch.float32)
