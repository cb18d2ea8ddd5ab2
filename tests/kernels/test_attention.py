"""Paged attention against the definition: one query at a time, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.kernels import attention
from lmlang.kernels.paged import PagedKV
from lmlang.runtime import attention as planning
from lmlang.runtime.attention import AttentionPlan, plan_attention, run_attention
from lmlang.runtime.exact_attention import plan_exact, run_exact
from lmlang.runtime.shape import KVLayer
from lmlang.runtime.sharing import RowSlots

SLOTS, KV_HEADS, SIZE = 400, 2, 8
VALUE_SIZES = st.sampled_from([SIZE, SIZE, 3, 20])


def definition(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """One query [H, Dk] over keys [L, Hkv, Dk]: out [H, Dv] and lse [H]."""
    groups = q.shape[0] // k.shape[1]
    k, v = (x.double().repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.einsum("hd,lhd->hl", q.double(), k) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    if sinks is not None:  # one more column, of a key whose value is nothing
        scores = torch.cat([scores, sinks.double()[:, None]], -1)
        v = torch.cat([v, torch.zeros_like(v[:1])])
    return torch.einsum("hl,lhd->hd", scores.softmax(-1), v), scores.logsumexp(-1)


def tensors(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * 2 for shape in shapes]


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=30)
@given(
    st.integers(0, 99), st.integers(1, 9), st.integers(1, 70), st.sampled_from([1, 3]),
    st.booleans(), VALUE_SIZES,
)  # fmt: skip
def test_a_span_is_seen_by_every_query(
    seed: int, n: int, keys: int, groups: int, run: bool, value: int
) -> None:
    heads = groups * KV_HEADS
    sizes = [(SLOTS, KV_HEADS, SIZE), (SLOTS, KV_HEADS, value)]
    q, k_pool, v_pool = tensors(seed, (n, heads, SIZE), *sizes)
    slots = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(seed))[:keys]
    index = slice(5, 5 + keys) if run else slots
    out, lse = attention.attend_span(q, PagedKV(k_pool, v_pool), index, SIZE**-0.5)
    for i in range(n):
        wanted = definition(q[i], k_pool[index], v_pool[index])
        close(out[i], wanted[0])
        close(lse[i], wanted[1])


@settings(max_examples=30)
@given(st.integers(0, 99), st.integers(1, 40), st.sampled_from([1, 3]), VALUE_SIZES)
def test_a_chunk_sees_itself_causally(seed: int, n: int, groups: int, value: int) -> None:
    sizes = [(n, groups * KV_HEADS, SIZE), (n, KV_HEADS, SIZE), (n, KV_HEADS, value)]
    q, k, v = tensors(seed, *sizes)
    twice = [torch.stack([x, x.flip(0)]) for x in (q, k, v)]
    out, lse = attention.attend_causal(*twice, SIZE**-0.5)
    for row, (q, k, v) in enumerate(zip(*twice, strict=True)):
        for i in range(n):
            wanted = definition(q[i], k[: i + 1], v[: i + 1])
            close(out[row, i], wanted[0])
            close(lse[row, i], wanted[1])


@settings(max_examples=30)
@given(st.integers(0, 99), st.lists(st.integers(1, 50), min_size=1, max_size=6), VALUE_SIZES)
def test_decode_rows_see_their_own_slots_only(seed: int, lengths: list[int], value: int) -> None:
    rows, width = len(lengths), max(lengths)
    sizes = [(SLOTS, KV_HEADS, SIZE), (SLOTS, KV_HEADS, value)]
    q, k_pool, v_pool = tensors(seed, (rows, 6, SIZE), *sizes)
    table = torch.randint(SLOTS, (rows, width), generator=torch.Generator().manual_seed(seed))
    hidden = torch.zeros(rows, width)
    for row, length in enumerate(lengths):
        hidden[row, length:] = float("-inf")
    pool = PagedKV(k_pool, v_pool)
    out, lse = attention.attend_decode(q, pool, table, hidden, SIZE**-0.5)
    alone = attention.attend_alone(q, pool, table, hidden, SIZE**-0.5)
    torch.testing.assert_close((out, lse), alone, rtol=1e-5, atol=1e-5)
    for row, length in enumerate(lengths):
        slots = table[row, :length]
        wanted = definition(q[row], k_pool[slots], v_pool[slots])
        close(out[row], wanted[0])
        close(lse[row], wanted[1])


@settings(max_examples=30)
@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 40))
def test_merged_states_are_the_state_over_both_parts(seed: int, a: int, b: int) -> None:
    q, k, v = tensors(seed, (3, 6, SIZE), *[(a + b, KV_HEADS, SIZE)] * 2)
    kv = PagedKV(k, v)
    parts = [
        attention.attend_span(q, kv, slots, SIZE**-0.5) for slots in (slice(a), slice(a, a + b))
    ]
    merged = attention.merge_states(*parts[0], *parts[1])
    whole = attention.attend_span(q, kv, slice(a + b), SIZE**-0.5)
    torch.testing.assert_close(merged, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, False), (False, True)])
def test_the_fused_form_agrees_with_the_reference(causal: bool, masked: bool) -> None:
    q, k, v = tensors(1, *[(2, 3, 33, 16)] * 3)
    mask = torch.zeros(2, 1, 1, 33)
    mask[1, ..., 20:] = float("-inf")
    arguments = (q, k, v, 0.25)
    options = {"causal": causal, "mask": mask if masked else None}
    fused = attention._dense(*arguments, **options)
    torch.testing.assert_close(
        fused, attention.dense_reference(*arguments, **options), rtol=1e-5, atol=1e-5
    )


@settings(max_examples=80)
@given(
    st.integers(0, 99), st.integers(1, 2), st.integers(1, 150), st.sampled_from([0.0, 2.0]),
    st.sampled_from([1.0, 30.0]), st.sampled_from(["mask", "row mask", "none"]),
)  # fmt: skip
def test_steps_agree_with_the_reference(
    seed: int, rows: int, n: int, softcap: float, spread: float, kind: str
) -> None:
    keys = 60
    q, k, v = tensors(seed, (rows, 3, n, SIZE), *[(rows, 3, keys, SIZE)] * 2)
    q = q * spread  # at 30, nearly all of a query's weight lies on one key
    mask = torch.zeros(rows, 1, n if kind == "mask" else 1, keys)
    mask.masked_fill_(tensors(seed + 1, mask.shape)[0] > 1, -torch.inf)[..., 0] = 0
    options = {"mask": mask if "mask" in kind else None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SCORES_AT_ONCE", 2_000)
        got = attention.dense_steps(q, k, v, 0.25, softcap, **options)
    wanted = attention.dense_reference(q, k, v, 0.25, softcap, **options)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@settings(max_examples=60)
@given(
    st.integers(0, 99), st.integers(1, 3), st.integers(1, 200), st.sampled_from([0.0, 2.0]),
    st.sampled_from([1.0, 30.0]), st.sampled_from([1, 2, 3]),
)  # fmt: skip
def test_causal_steps_agree_with_the_reference(
    seed: int, rows: int, n: int, softcap: float, spread: float, groups: int
) -> None:
    q, k, v = tensors(seed, (rows, n, 2 * groups, SIZE), *[(rows, n, 2, SIZE)] * 2)
    q = q * spread
    out, lse = attention.causal_steps(q, k, v, 0.25, softcap)
    heads = (x.repeat_interleave(groups, 2).transpose(1, 2) for x in (k, v))
    wanted = attention.dense_reference(q.transpose(1, 2), *heads, 0.25, softcap, causal=True)
    torch.testing.assert_close(out.transpose(1, 2), wanted[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(lse.transpose(1, 2), wanted[1], rtol=1e-4, atol=1e-3)


@settings(max_examples=60)
@given(
    st.integers(0, 99), st.integers(1, 70), st.integers(1, 90), st.sampled_from([0.0, 2.0]),
    st.sampled_from([1, 2, 3]), st.booleans(),
)  # fmt: skip
def test_span_steps_agree_with_the_reference(
    seed: int, n: int, keys: int, softcap: float, groups: int, masked: bool
) -> None:
    q, k, v = tensors(seed, (n, 2 * groups, SIZE), *[(keys, 2, SIZE)] * 2)
    hidden = torch.zeros(n, keys)
    hidden.masked_fill_(tensors(seed + 1, (n, keys))[0] > 0.5, -torch.inf)[:, 0] = 0
    mask = hidden if masked else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SCORES_OF_A_STEP", 1)
        out, lse = attention.span_steps(q, k, v, 0.25, softcap, mask)
    heads = (x.repeat_interleave(groups, 1).transpose(0, 1)[None] for x in (k, v))
    queries = q.transpose(0, 1)[None]
    wanted = attention.dense_reference(queries, *heads, 0.25, softcap, mask=mask)
    torch.testing.assert_close(out.transpose(0, 1)[None], wanted[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(lse.transpose(0, 1)[None], wanted[1], rtol=1e-4, atol=1e-3)


@st.composite
def row_trees(draw: st.DrawFn) -> list[RowSlots]:
    """Rows whose tables share prefixes as a radix tree would have them, in runs and in pieces."""
    free = iter(draw(st.permutations(range(0, SLOTS, 100))))
    tables: list[list[int]] = [[]]
    slots = {start: iter(range(start, start + 100)) for start in range(0, SLOTS, 100)}
    for _ in range(draw(st.integers(0, 3))):
        base = draw(st.sampled_from(tables))
        cut = draw(st.integers(0, len(base)))
        start = next(free, None)
        if start is None:
            break
        more = [next(slots[start]) for _ in range(draw(st.integers(1, 70)))]
        if draw(st.booleans()):
            more = more[::-1]
        tables.append(base[:cut] + more)
    rows, begin = [], 0
    own = iter(range(SLOTS, SLOTS + 150))
    for _ in range(draw(st.integers(1, 5))):
        context = draw(st.sampled_from(tables))
        count = draw(st.sampled_from([1, 1, 2, 5, 9, 30]))
        table = np.array([*context, *[next(own) for _ in range(count)]], dtype=np.int64)
        rows.append(RowSlots(begin, count, table))
        begin += count
    return rows


@settings(max_examples=150)
@given(
    row_trees(), st.integers(0, 9), st.sampled_from([1, 20, 32, 512]),
    st.lists(st.sampled_from([0, 1, 2, 7, 33, 90, 1000]), min_size=1, max_size=3, unique=True),
    st.sampled_from([0.0, 0.0, 3.0]), VALUE_SIZES, st.booleans(),
)  # fmt: skip
def test_a_planned_batch_equals_the_definition_whatever_is_shared(
    rows: list[RowSlots],
    seed: int,
    least: int,
    windows: list[int],
    softcap: float,
    value: int,
    sinks: bool,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MIN_SHARED", "MIN_RUN", "MAX_PADDED_CHUNK"):
            patch.setattr(planning, name, least)
        patch.setattr(planning, "BAND", min(8, least))
        plan = plan_attention(rows, torch.device("cpu"), windows)
        for window in windows:
            layer = KVLayer(6, KV_HEADS, SIZE, value, SIZE**-0.5, window, softcap, sinks)
            check_planned_batch(rows, seed, plan, layer)


def check_planned_batch(
    rows: list[RowSlots], seed: int, plan: AttentionPlan, layer: KVLayer
) -> None:
    total, value = sum(row.count for row in rows), layer.value_dim
    window, softcap = layer.window, layer.softcap
    own = [(total, KV_HEADS, size) for size in (SIZE, value)]
    pools = [(SLOTS + 150, KV_HEADS, size) for size in (SIZE, value)]
    q, k, v, k_pool, v_pool, sinks = tensors(seed, (total, 6, SIZE), *own, *pools, (6,))
    sinks = sinks if layer.sinks else None
    out = run_attention(plan, q, k, v, PagedKV(k_pool, v_pool), layer, sinks)
    assert torch.equal(k_pool[plan.stores], k)
    assert torch.equal(v_pool[plan.stores], v)
    exact = plan_exact(rows, torch.device("cpu"), (window,))
    again = run_exact(exact, q, k, v, PagedKV(k_pool, v_pool), layer, sinks)
    torch.testing.assert_close(again, out, rtol=1e-5, atol=1e-5)
    for row in rows:
        for i in range(row.count):
            end = len(row.table) - row.count + i + 1
            seen = torch.from_numpy(row.table[max(0, end - window) if window else 0 : end])
            query = row.start + i
            wanted = definition(q[query], k_pool[seen], v_pool[seen], softcap, sinks)
            close(out[query], wanted[0])


def test_slots_that_nobody_wrote_are_not_read() -> None:
    k_pool = torch.full((200, KV_HEADS, SIZE), torch.nan)
    v_pool = k_pool.clone()
    rows = []
    for i, length in enumerate((3, 8, 30)):
        table = np.arange(50 * i + 5, 50 * i + 5 + length)
        k_pool[table], v_pool[table] = 1.0, 1.0
        rows.append(RowSlots(i, 1, table))
    q, k, v = tensors(0, (3, 6, SIZE), *[(3, KV_HEADS, SIZE)] * 2)
    plan = plan_attention(rows, torch.device("cpu"))
    layer = KVLayer(6, KV_HEADS, SIZE, SIZE, 1.0)
    assert run_attention(plan, q, k, v, PagedKV(k_pool, v_pool), layer).isfinite().all()


def test_windows_that_hide_nothing_cost_nothing() -> None:
    rows = [RowSlots(i, 1, np.append(np.arange(100), 200 + i)) for i in range(3)]
    parts = plan_attention(rows, torch.device("cpu"), (101, 400)).parts
    assert parts[101] is parts[400] is parts[0]
    assert parts[0] is not plan_attention(rows, torch.device("cpu"), (100,)).parts[100]


def test_rows_that_do_not_see_all_of_their_contexts_share_nothing() -> None:
    shared = np.arange(300, dtype=np.int64)
    rows = [RowSlots(i, 1, np.append(shared, 400 + i)) for i in range(8)]
    far = np.concatenate([shared[:250], np.arange(500, 800, dtype=np.int64)])
    rows.append(RowSlots(8, 1, far))
    parts = plan_attention(rows, torch.device("cpu"), (301,)).parts[301]
    assert [(span.queries, span.slots) for span in parts.spans] == [(slice(0, 8), slice(0, 300))]
    assert [tuple(tail.table.shape) for tail in parts.tails] == [(8, 1)]
    (band,) = parts.bands
    assert band.queries == slice(8, 9)
    assert band.slots.tolist() == far[-301:].tolist()
    parts = plan_attention(rows, torch.device("cpu"), (300,)).parts[300]
    assert parts.spans == ()
    assert [tuple(tail.table.shape) for tail in parts.tails] == [(9, 300)]


def test_a_prefix_shared_by_decode_rows_is_attended_once() -> None:
    shared = np.arange(100, dtype=np.int64)
    rows = [RowSlots(i, 1, np.append(shared, 200 + i)) for i in range(8)]
    plan = plan_attention(rows, torch.device("cpu"))
    parts = plan.parts[0]
    assert [span.slots for span in parts.spans] == [slice(0, 100)]
    assert [span.queries for span in parts.spans] == [slice(0, 8)]
    assert [tuple(tail.table.shape) for tail in parts.tails] == [(8, 1)]
