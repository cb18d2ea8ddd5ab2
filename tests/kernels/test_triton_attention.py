"""Paged attention in Triton against the reference: ragged batches, under the interpreter.

Small tiles and small batches: the interpreter takes some milliseconds for every tile.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmlang.kernels import paged_attention as paged
from tests.kernels.paged_batches import batch, close, offsets

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from lmlang.kernels.triton import attention, decode, states
from lmlang.kernels.triton.tiles import Tile

INTERPRETED = True
SMALL = Tile(16, 16, 4, 2)
WIDE = Tile(32, 64, 4, 2)

ROWS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 15, 16, 33])), min_size=1, max_size=3
).map(lambda rows: [(n, n + prefix) for n, prefix in rows])
SIZES = st.sampled_from([(32, 32), (64, 64), (80, 80), (96, 96), (24, 40)])
GROUPS = st.sampled_from([1, 2, 3, 8])
DTYPES = st.sampled_from([torch.float32, torch.float16])
SOFTCAPS = st.sampled_from([0.0, 0.0, 5.0])
LARGE = [(128, 128), (192, 128), (256, 256)]


@settings(max_examples=12)
@given(
    ROWS, st.integers(0, 99), GROUPS, SIZES, DTYPES, st.booleans(),
    st.sampled_from([0, 0, 1, 7, 20]), SOFTCAPS, st.sampled_from([1, 1, 3]),
)  # fmt: skip
@example([(1, 1)], 0, 1, (32, 32), torch.float32, False, 0, 0.0, 1)
@example([(40, 57)], 0, 1, (32, 32), torch.float32, False, 7, 0.0, 2)
@example([(40, 57)], 0, 1, (32, 32), torch.float16, False, 0, 0.0, 1)
@example([(20, 80)], 0, 1, (32, 32), torch.float16, False, 43, 0.0, 1)
@example([(3, 1003)], 0, 2, (32, 32), torch.float16, False, 0, 0.0, 1)
@example([(2, 1002)], 0, 2, (32, 32), torch.float32, True, 100, 3.0, 2)
def test_new_tokens_over_their_prefix(
    rows: list[tuple[int, int]], seed: int, groups: int, sizes: tuple[int, int],
    dtype: torch.dtype, int8: bool, window: int, softcap: float, splits: int,
) -> None:  # fmt: skip
    b = batch(rows, seed=seed, groups=groups, sizes=sizes, dtype=dtype, int8=int8)
    arguments = (b.q, b.kv, b.starts, b.table, b.table_starts, b.scale, window, softcap)
    tile = WIDE if len(b.table) > 500 else SMALL
    got = attention.paged_prefill(*arguments, tile=tile, splits=splits)
    close(got, paged.prefill_reference(*arguments), dtype)


@settings(max_examples=12)
@given(
    st.lists(st.sampled_from([0, 1, 15, 16, 40, 70]), min_size=1, max_size=4), st.integers(0, 99),
    st.sampled_from([1, 2, 3, 8, 17]), SIZES, DTYPES, st.booleans(),
    st.sampled_from([0, 0, 1, 7, 20]), SOFTCAPS, st.sampled_from([1, 2, 9]),
)  # fmt: skip
@example([1000], 0, 2, (32, 32), torch.float16, False, 0, 0.0, 4)
@example([1000, 3], 0, 2, (32, 32), torch.float32, True, 300, 3.0, 4)
def test_one_query_a_row(
    lengths: list[int], seed: int, groups: int, sizes: tuple[int, int], dtype: torch.dtype,
    int8: bool, window: int, softcap: float, spare: int,
) -> None:  # fmt: skip
    rows = [(1, n) for n in lengths]
    b = batch(rows, seed=seed, groups=groups, sizes=sizes, dtype=dtype, int8=int8)
    arguments = (b.q, b.kv, b.table, b.table_starts, b.scale, window, softcap)
    tile = WIDE if len(b.table) > 500 else SMALL
    got = decode.paged_decode(*arguments, tile=tile, units=len(rows) + spare, least=tile.n)
    close(got, paged.decode_reference(*arguments), dtype)


@settings(max_examples=8)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 16, 50])), min_size=1, max_size=3
    ),
    st.integers(0, 99), GROUPS, SIZES, DTYPES, st.booleans(), SOFTCAPS, st.sampled_from([1, 3]),
)  # fmt: skip
@example([(5, 1000)], 0, 2, (32, 32), torch.float32, False, 0.0, 2)
def test_groups_over_what_they_share(
    members: list[tuple[int, int]], seed: int, groups: int, sizes: tuple[int, int],
    dtype: torch.dtype, int8: bool, softcap: float, splits: int,
) -> None:  # fmt: skip
    b = batch(members, seed=seed, groups=groups, sizes=sizes, dtype=dtype, int8=int8)
    rows = torch.randperm(len(b.q), generator=torch.Generator().manual_seed(seed)).int()
    arguments = (b.q, rows, b.starts, b.kv, b.table, b.table_starts, b.scale, softcap)
    tile = WIDE if len(b.table) > 500 else SMALL
    got = attention.paged_shared(*arguments, tile=tile, splits=splits)
    close(got, paged.shared_reference(*arguments), dtype)


@pytest.mark.parametrize("sizes", LARGE, ids=str)
@pytest.mark.parametrize("int8", [False, True])
def test_large_heads_with_the_tiles_and_splits_of_a_device(
    sizes: tuple[int, int], int8: bool
) -> None:
    rows = [(3, 20), (1, 7)]
    for dtype in (torch.float32, torch.float16):
        b = batch(rows, kv_heads=1, sizes=sizes, dtype=dtype, int8=int8)
        arguments = (b.q, b.kv, b.starts, b.table, b.table_starts, b.scale)
        close(attention.paged_prefill(*arguments), paged.prefill_reference(*arguments), dtype)
        one = (b.q[:2], b.kv, b.table, b.table_starts, b.scale)
        close(decode.paged_decode(*one), paged.decode_reference(*one), dtype)


@settings(max_examples=10)
@given(st.integers(0, 99), st.sampled_from([(1, 8), (5, 80), (16, 128)]), DTYPES, st.booleans())
def test_states_merge(seed: int, shape: tuple[int, int], dtype: torch.dtype, some: bool) -> None:
    generator = torch.Generator().manual_seed(seed)

    def state(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        lse = torch.randn(count, shape[0], generator=generator) * 5
        empty = torch.rand(lse.shape, generator=generator) < 0.3
        lse[empty] = float("-inf")
        out = torch.randn(count, *shape, generator=generator).to(dtype)
        return out.masked_fill(empty[..., None], 0), lse

    into, part = state(4), state(3 if some else 4)
    rows = torch.tensor([3, 0, 2], dtype=torch.int32) if some else None
    wanted = into[0].clone(), into[1].clone()
    paged.merge_reference(*wanted, *part, rows)
    states.merge_states(*into, *part, rows)
    close(into, wanted, dtype)


def test_nothing_comes_of_nothing() -> None:
    b = batch([])
    none = offsets([])
    out, lse = attention.paged_prefill(b.q, b.kv, none, b.table, none, 1.0)
    assert out.shape == (0, 4, 32)
    assert lse.shape == (0, 4)
    assert decode.paged_decode(b.q, b.kv, b.table, none, 1.0)[0].shape == (0, 4, 32)
    rows = torch.zeros(0, dtype=torch.int32)
    assert attention.paged_shared(b.q, rows, none, b.kv, b.table, none, 1.0)[1].shape == (0, 4)
    states.merge_states(out, lse, out, lse)


def test_heads_above_the_largest_tile_are_refused() -> None:
    b = batch([(1, 3)], sizes=(320, 64))
    with pytest.raises(ValueError, match="heads of 320 and 64 numbers are larger than 256"):
        decode.paged_decode(b.q, b.kv, b.table, b.table_starts, 1.0)
