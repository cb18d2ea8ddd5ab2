"""Quantised weights: how far they are from the numbers they stand for, and their products."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmlang.kernels import linear as products
from lmlang.kernels.forms import row_invariant
from lmlang.kernels.linear import FEW_ROWS, INPUTS, linear, pack_weight
from lmlang.kernels.quant import Int8Weight, embedding, quantise_weight

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def exact(weight: Int8Weight) -> Tensor:
    return weight.values.double() * weight.scale.double()[:, None]


@settings(max_examples=60)
@given(
    st.integers(1, 40), st.integers(1, 60), st.integers(0, 9), st.integers(-30, 10),
    st.sampled_from(DTYPES),
)  # fmt: skip
def test_a_number_is_off_by_half_a_step_at_most(
    outputs: int, inputs: int, seed: int, exponent: int, dtype: torch.dtype
) -> None:
    weight = (noise(outputs, inputs, seed=seed) * 2.0 ** (exponent / 2)).to(dtype)
    weight[0] = 0
    kept = weight.clone()
    quantised = quantise_weight(weight)
    assert torch.equal(weight, kept)
    assert (quantised.shape, quantised.dtype) == (weight.shape, dtype)
    steps = quantised.scale.double()[:, None]
    assert ((exact(quantised) - weight.double()).abs() <= steps / 2).all()
    largest = weight.double().abs().amax(1, keepdim=True)
    assert (steps <= largest / 127 * (1 + 2**-8)).all()
    assert not quantised.values[0].any()
    assert not exact(quantised)[0].any()
    assert torch.equal(quantise_weight(-weight).values, -quantised.values)
    turned = quantise_weight(weight.T.contiguous().T)
    assert torch.equal(turned.values, quantised.values)
    assert turned.values.is_contiguous()


@settings(max_examples=120)
@given(
    st.integers(0, 40), st.one_of(st.integers(1, 90), st.integers(1, 5).map(lambda n: n * INPUTS)),
    st.integers(1, 90), st.integers(0, 9), st.booleans(), st.sampled_from(DTYPES),
)  # fmt: skip
def test_a_product_is_that_of_the_numbers_it_stands_for(
    rows: int, inputs: int, outputs: int, seed: int, biased: bool, dtype: torch.dtype
) -> None:
    x = noise(rows, inputs, seed=seed).to(dtype)
    weight = quantise_weight(noise(outputs, inputs, seed=seed + 1).to(dtype))
    bias = noise(outputs, seed=seed + 2).to(dtype) if biased else None
    got = linear(x, pack_weight(weight), bias)
    assert (got.shape, got.dtype) == ((rows, outputs), dtype)
    assert got.is_contiguous()
    wanted = x.double() @ exact(weight).T + (0 if bias is None else bias.double())
    sizes = x.double().abs() @ exact(weight).abs().T + (0 if bias is None else bias.double().abs())
    # bfloat16 is off by 2^-9 of a number: an input, an output, and what is added to it.
    wide = dtype == torch.float32 and (rows > FEW_ROWS or inputs % INPUTS != 0)
    assert ((got.double() - wanted).abs() <= sizes * (1e-5 if wide else 2**-7)).all()


def test_rows_that_lie_apart_and_a_weight_of_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = quantise_weight(noise(50, 32))
    x = noise(70, 100, seed=1)[:, 7:39]
    for rows in (3, 70):
        assert torch.equal(linear(x[:rows], weight), linear(x[:rows].contiguous(), weight))
    whole = linear(x, weight)
    monkeypatch.setattr(products, "WIDENED", 7 * 32)
    torch.testing.assert_close(linear(x, weight), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_way_of_devices_is_the_same_product(dtype: torch.dtype) -> None:
    weight, x = quantise_weight(noise(50, 32).to(dtype) / 200), noise(9, 32, seed=1).to(dtype)
    got = products._times_part_on_device(x, weight.values, weight.scale)
    assert got.dtype == dtype
    wanted, sizes = x.double() @ exact(weight).T, x.double().abs() @ exact(weight).abs().T
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    assert ((got.double() - wanted).abs() <= tolerance * sizes).all()


def test_a_product_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = products._multiplies_int8.__wrapped__  # what is kept in the cache is not asked for
    assert asked()
    monkeypatch.setattr(torch, "_weight_int8pack_mm", lambda x, values, scale: x @ values.T.to(x))
    assert not asked()
    monkeypatch.delattr(torch, "_weight_int8pack_mm")
    assert not asked()
    monkeypatch.setattr(products, "use_reference", lambda: True)
    assert not asked()


def test_the_reference_takes_no_shortcut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_multiplies_int8", lambda: False)
    weight, x = quantise_weight(noise(50, 32)), noise(4, 32, seed=1)
    wanted = (x.double() @ exact(weight).T).float()
    torch.testing.assert_close(linear(x, weight), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (47, 33)])
def test_a_row_has_the_same_bits_in_any_batch(
    outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    weight = quantise_weight(noise(outputs, inputs, seed=1).to(dtype))
    x = noise(300, inputs, seed=2).to(dtype)
    with row_invariant():
        whole = linear(x, weight)
        for rows in (*range(1, 40), 100, 299):
            start = 7 * rows % (301 - rows)
            got = linear(x[start : start + rows], weight)
            assert torch.equal(got, whole[start : start + rows]), (start, rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_looked_up(dtype: torch.dtype) -> None:
    weight = quantise_weight(noise(50, 24).to(dtype))
    ids = torch.tensor([3, 0, 49, 3])
    got = embedding(ids, weight)
    assert torch.equal(got, weight.widened()[ids])
    assert got.dtype == dtype
    plain = noise(50, 24).to(dtype)
    assert torch.equal(embedding(ids, plain), plain[ids])
    assert embedding(ids[:0], weight).shape == (0, 24)


def test_it_takes_half_of_the_memory_of_bfloat16_and_moves_whole() -> None:
    plain = noise(960, 576).to(torch.bfloat16)
    weight = quantise_weight(plain)
    assert weight.nbytes <= 0.51 * plain.nbytes
    moved = weight.to("cpu")
    assert torch.equal(moved.values, weight.values)
    assert torch.equal(moved.scale, weight.scale)
    assert (moved.dtype, moved.device) == (torch.bfloat16, torch.device("cpu"))


@pytest.mark.parametrize(
    ("capability", "rows", "dtype"),
    [
        (90, 1, torch.bfloat16),
        (90, 64, torch.bfloat16),
        (90, 8, torch.float32),
        (86, 64, torch.float16),
    ],
)
def test_its_kernel_fits_a_gpu_and_runs_on_tensor_cores(
    capability: int, rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
    from lmlang.kernels.triton.products import int8_product
    from tests.kernels.compiled import compiling

    x = torch.empty(rows, 4096, dtype=dtype, device="meta")
    values = torch.empty(14336, 4096, dtype=torch.int8, device="meta")
    scale = torch.empty(14336, dtype=torch.bfloat16, device="meta")
    with compiling(capability, monkeypatch, tmp_path) as kernels:
        int8_product(x, values, scale)
    (kernel,) = kernels
    assert kernel.spilled == 0
    assert kernel.shared <= {86: 99, 90: 227 // 2}[capability] * 1024  # two at a time on Hopper
    assert "cp.async" in kernel.ptx
    if dtype != torch.float32:
        assert {86: "mma.sync", 90: "wgmma.mma_async"}[capability] in kernel.ptx
