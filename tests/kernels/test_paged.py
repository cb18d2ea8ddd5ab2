"""One layer of the pool: what is stored is read again, exactly or within the bound of int8."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.kernels.attention import attend_decode, attend_span
from lmlang.kernels.paged import PagedKV, Slots, store_kv
from lmlang.runtime.cache.pool import KVPool, bytes_per_slot
from lmlang.runtime.shape import KVLayer

SLOTS, HEADS = 50, 3
CPU = torch.device("cpu")


def int8_pool(key: int, value: int, scale_dtype: torch.dtype) -> PagedKV:
    k, v = (torch.zeros(SLOTS, HEADS, size, dtype=torch.int8) for size in (key, value))
    scales = (torch.zeros(SLOTS, HEADS, dtype=scale_dtype) for _ in range(2))
    return PagedKV(k, v, *scales)


def drawn(seed: int, *shapes: tuple[int, ...], spread: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * spread for shape in shapes]


WHERE: list[Slots] = [slice(4, 11), torch.tensor([30, 2, 49, 7, 0, 12, 11])]


@pytest.mark.parametrize("slots", WHERE, ids=["slice", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_stored_is_read_again(slots: Slots, dtype: torch.dtype) -> None:
    kv = PagedKV(*(torch.full((SLOTS, HEADS, n), torch.nan, dtype=dtype) for n in (8, 5)))
    k, v = drawn(0, (7, HEADS, 8), (7, HEADS, 5))
    store_kv(kv, slots, k, v)
    assert torch.equal(kv.keys(slots, dtype), k.to(dtype))
    assert torch.equal(kv.values(slots, dtype), v.to(dtype))
    assert kv.keys(slots, torch.float32).dtype == torch.float32
    assert int(kv.k.isnan().sum()) == (SLOTS - 7) * HEADS * 8


def test_a_slice_is_read_in_place() -> None:
    kv = PagedKV(*drawn(0, (SLOTS, HEADS, 8), (SLOTS, HEADS, 5)))
    assert kv.keys(slice(4, 9), torch.float32).data_ptr() == kv.k[4].data_ptr()
    assert kv.values(slice(4, 9), torch.float32).data_ptr() == kv.v[4].data_ptr()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 99),
    st.sampled_from([0.0, 1e-9, 1e-6, 1e-3, 1.0, 100.0, 60_000.0]),
    st.sampled_from([torch.float32, torch.float16]),
    st.sampled_from(range(len(WHERE))),
)
def test_int8_is_off_by_half_a_scale_at_most(
    seed: int, spread: float, scale_dtype: torch.dtype, where: int
) -> None:
    slots, kv = WHERE[where], int8_pool(8, 5, scale_dtype)
    k, v = drawn(seed, (7, HEADS, 8), (7, HEADS, 5), spread=spread)
    store_kv(kv, slots, k, v)
    for read, new, scales in (
        (kv.keys, k, kv.k_scale),
        (kv.values, v, kv.v_scale),
    ):
        assert scales is not None
        bound = 0.501 * scales[slots].float()[..., None]
        assert ((read(slots, torch.float32) - new).abs() <= bound).all()
        largest = new.abs().amax(-1)
        assert (scales[slots].float() <= 1.001 * largest / 127 + 1e-4).all()


def test_attention_over_int8_is_that_over_the_numbers_that_it_stands_for() -> None:
    kv = int8_pool(8, 5, torch.float32)
    k, v, q = drawn(1, (SLOTS, HEADS, 8), (SLOTS, HEADS, 5), (4, 6, 8))
    store_kv(kv, slice(0, SLOTS), k, v)
    every = slice(0, SLOTS)
    plain = PagedKV(kv.keys(every, torch.float32), kv.values(every, torch.float32))
    table = torch.randint(SLOTS, (4, 9), generator=torch.Generator().manual_seed(2))
    for slots in (slice(3, 30), table[0]):
        assert torch.equal(attend_span(q, kv, slots, 0.3)[0], attend_span(q, plain, slots, 0.3)[0])
    wanted = attend_decode(q, plain, table, None, 0.3)
    torch.testing.assert_close(attend_decode(q, kv, table, None, 0.3), wanted)


def test_tensors_that_do_not_belong_together_are_refused() -> None:
    k, v = torch.zeros(4, 2, 8), torch.zeros(4, 2, 5)
    scale, whole = torch.zeros(4, 2), torch.int8
    for wrong in (
        (k, v[:3]), (k, v[:, :1]), (k[0], v[0]), (k, v.half()), (k, v, scale, scale),
        (k.to(whole), v.to(whole)), (k.to(whole), v.to(whole), scale),
        (k.to(whole), v.to(whole), scale, scale[:3]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"must be|belong"):
            PagedKV(*wrong)


def test_slots_are_copied_with_all_that_belongs_to_them() -> None:
    layers = (KVLayer(4, 2, 8, 5, 1.0), KVLayer(4, 1, 6, 6, 1.0, window=3))
    here, there = (KVPool(layers, size, torch.float32, CPU) for size in (9, 20))
    assert [tuple(t.shape) for t in here.layers[0].tensors()] == [(9, 2, 8), (9, 2, 5)]
    assert [tuple(t.shape) for t in here.layers[1].tensors()] == [(9, 1, 6), (9, 1, 6)]
    for seed, layer in enumerate(there.layers):
        for tensor in layer.tensors():
            tensor.copy_(drawn(seed, tuple(tensor.shape))[0])
    for theirs, ours in (([19, 0, 7], [2, 8, 3]), ([4, 9, 1, 0], [5, 6, 7, 1]), ([], [])):
        here.copy_from(there, np.array(theirs, np.int64), np.array(ours, np.int64))
        for mine, its in zip(here.layers, there.layers, strict=True):
            for into, out_of in zip(mine.tensors(), its.tensors(), strict=True):
                assert torch.equal(into[ours], out_of[theirs])
    assert bytes_per_slot(layers, torch.float32) == 4 * (2 * (8 + 5) + 12)
