"""Products with int8 weights in Triton against the numbers that the weights stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from lmlang.kernels.quant import quantise_weight
from lmlang.kernels.triton import products, tiles

INTERPRETED = True


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=15)
@given(
    st.sampled_from([0, 1, 2, 7, 16, 33]), st.sampled_from([1, 15, 32, 100, 256, 700]),
    st.sampled_from([1, 47, 64, 130]), st.sampled_from([torch.float32, torch.float16]),
    st.sampled_from([0, 5]), st.sampled_from([1, 132]),
)  # fmt: skip
def test_it_is_the_product_in_any_tiles_and_parts(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, gap: int, multiprocessors: int
) -> None:
    weight = quantise_weight(noise(outputs, inputs, seed=1))
    x = noise(rows, inputs + gap).to(dtype)[:, :inputs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "device_of", lambda device: tiles.Device(multiprocessors, 9))
        patch.setattr(products, "K", {2: 32, 4: 32})
        got = products.int8_product(x, weight.values, weight.scale)
    numbers = weight.values.double() * weight.scale.double()[:, None]
    wanted, sizes = x.double() @ numbers.T, x.double().abs() @ numbers.abs().T
    assert (got.shape, got.dtype) == ((rows, outputs), dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-3
    assert ((got.double() - wanted).abs() <= tolerance * (sizes + 1e-3)).all()


def test_many_rows_go_the_other_way() -> None:
    weight, x = quantise_weight(noise(20, 64)), noise(products.ROWS + 1, 64, seed=1)
    wanted = x @ (weight.values * weight.scale[:, None].float()).T
    got = products.int8_product(x, weight.values, weight.scale)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)


def test_what_is_out_of_contract_is_refused_before_a_launch() -> None:
    weight, x = quantise_weight(noise(20, 64)), noise(3, 64)
    for arguments in (
        (x[:, :32], weight.values, weight.scale),
        (x, weight.values.short(), weight.scale),
        (x, weight.values[:, ::2], weight.scale),
        (x, weight.values, weight.scale.float()),
        (x, weight.values, weight.scale[:3]),
    ):
        with pytest.raises(ValueError, match="it must"):
            products.int8_product(*arguments)
