"""Packed weights: the layout keeps every number, and the C products agree with the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmlang.kernels import native
from lmlang.kernels.packed import BLOCK, PackedWeight, pack, pack_floats, packed_product, rows_of

needs_library = pytest.mark.skipif(not native.available(), reason=native.description())


def random_weight(outputs: int, blocks: int, bits: int, seed: int = 0) -> PackedWeight:
    generator = torch.Generator().manual_seed(seed)
    size = (outputs, blocks * BLOCK)
    numbers = torch.randint(0, 1 << bits, size, generator=generator, dtype=torch.uint8)
    scales = torch.rand(outputs, blocks, generator=generator).half()
    offsets = torch.randn(outputs, blocks, generator=generator).half() if bits == 4 else None
    return pack(numbers, scales, offsets)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.sampled_from([4, 8]), st.integers(0, 99))
def test_every_number_comes_back(outputs: int, blocks: int, bits: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = (outputs, blocks * BLOCK)
    numbers = torch.randint(0, 1 << bits, size, generator=generator, dtype=torch.uint8)
    scales = torch.randn(outputs, blocks, generator=generator).half()
    offsets = torch.randn(outputs, blocks, generator=generator).half() if bits == 4 else None
    d = scales.float().repeat_interleave(BLOCK, 1)
    m = d * -128 if offsets is None else offsets.float().repeat_interleave(BLOCK, 1)
    wanted = numbers * d + m
    weight = pack(numbers, scales, offsets)
    assert weight.shape == size
    assert torch.equal(weight.unpacked(), wanted)
    some = torch.randint(0, outputs, (5,), generator=generator)
    assert torch.equal(rows_of(some, weight), wanted[some])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 99))
def test_floats_are_kept_to_half_a_step(outputs: int, inputs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    given = torch.randn(outputs, inputs, generator=generator)
    given[0] = 0
    weight = pack_floats(given)
    assert weight.shape == (outputs, inputs)
    assert (weight.unpacked() - given).abs().max() <= given.abs().max() / 127 * 0.51
    assert not weight.unpacked()[0].any()


@needs_library
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 37),
    st.integers(1, 70),
    st.integers(1, 160),
    st.sampled_from([4, 8]),
    st.lists(st.integers(1, 2), min_size=5, max_size=5),
    st.booleans(),
    st.sampled_from(["avx512", "avx2", "plain"]),
    st.integers(0, 99),
)
def test_all_forms_agree_with_the_reference(
    rows: int,
    outputs: int,
    inputs: int,
    bits: int,
    digits: list[int],
    biased: bool,
    instructions: str,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = random_weight(outputs, -(-inputs // BLOCK), bits, seed)
    some = torch.tensor(digits[: -(-inputs // BLOCK)], dtype=torch.uint8)
    weight = PackedWeight(weight.data, (outputs, inputs), bits, some)
    x = torch.randn(rows, inputs + 3, generator=generator)[:, :inputs] * 3
    bias = torch.randn(outputs, generator=generator) if biased else None
    found = multiplied(x, weight, bias, instructions)
    wanted = packed_product(x, weight, bias)
    scale = (x.abs() @ weight.unpacked().abs().T).clamp(min=1)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found / scale, wanted / scale, atol=2e-5, rtol=0)


def multiplied(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, instructions: str
) -> torch.Tensor:
    from lmlang.kernels.c import products

    widest = native.library().lm_instructions()
    if native.library().lm_limit_instructions(instructions.encode()):
        pytest.skip(f"this CPU has no {instructions}")
    try:
        return products.packed_product(x, weight, bias)
    finally:
        native.library().lm_limit_instructions(widest)


@pytest.mark.parametrize("bits", [4, 8])
def test_two_digits_are_a_hundred_times_as_close_as_one(bits: int) -> None:
    weight = random_weight(40, 6, bits)
    x = torch.randn(20, 6 * BLOCK)
    exact = x @ weight.unpacked().T

    def error(digits: int) -> Tensor:
        some = replace(weight, digits=torch.full((6,), digits, dtype=torch.uint8))
        return (packed_product(x, some) - exact).pow(2).mean().sqrt()

    one, two = error(1), error(2)
    assert two < one / 100
    assert one < exact.std() / 50


@needs_library
@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_has_the_same_bits_alone_and_among_others(bits: int) -> None:
    weight = random_weight(100, 6, bits)
    x = torch.randn(45, 6 * BLOCK)
    together = multiplied(x, weight, None, "avx512" if has("avx512") else "plain")
    alone = [
        multiplied(row[None], weight, None, "avx512" if has("avx512") else "plain") for row in x
    ]
    assert torch.equal(together, torch.cat(alone))


def has(instructions: str) -> bool:
    return native.library().lm_instructions().decode() == instructions


@needs_library
def test_rows_of_zeros_and_of_tiny_numbers_give_no_nonsense() -> None:
    weight = random_weight(20, 2, 4)
    x = torch.zeros(3, 2 * BLOCK)
    x[1] = 1e-42
    x[2, 0] = 1e30
    from lmlang.kernels.c import products

    found = products.packed_product(x, weight)
    assert not found[0].any()
    assert found.isfinite().all()
    torch.testing.assert_close(found[2], x[2] @ weight.unpacked().T, rtol=1e-4, atol=0)


@needs_library
@pytest.mark.parametrize("instructions", ["avx512", "avx2", "plain"])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_a_row_with_a_number_that_is_none_spoils_itself_alone(
    odd: float, instructions: str
) -> None:
    weight = random_weight(20, 2, 4)
    x = torch.randn(3, 2 * BLOCK)
    spoilt = x.clone()
    spoilt[1, 7] = odd
    found, wanted = (multiplied(rows, weight, None, instructions) for rows in (spoilt, x))
    assert not found[1].isfinite().any()
    assert torch.equal(found[::2], wanted[::2])


@needs_library
def test_a_weight_with_a_number_that_is_none_spoils_its_output_alone() -> None:
    scales = torch.ones(20, 1).half()
    scales[3] = torch.nan
    weight = pack(torch.randint(0, 255, (20, BLOCK), dtype=torch.uint8), scales)
    found = multiplied(torch.randn(5, BLOCK), weight, None, "plain")
    assert found[:, 3].isnan().all()
    assert found.isnan().sum() == 5


@needs_library
def test_a_bias_with_gaps_is_read_as_it_is() -> None:
    weight, x = random_weight(4000, 1, 4), torch.randn(2, BLOCK)
    bias = torch.randn(4000, 2)[:, 0]
    found = multiplied(x, weight, bias, "plain")
    assert torch.equal(found, multiplied(x, weight, None, "plain") + bias)


@needs_library
@pytest.mark.parametrize("wrong", [-1, 20, 31, 1 << 40])
def test_rows_that_a_weight_does_not_have_are_refused(wrong: int) -> None:
    from lmlang.kernels.c.step import rows_of as rows_in_c

    weight = random_weight(20, 2, 4)
    assert torch.equal(rows_in_c(torch.tensor([19, 0]), weight), weight.unpacked()[[19, 0]])
    with pytest.raises(ValueError, match="names a row that the weight does not have"):
        rows_in_c(torch.tensor([0, wrong]), weight)


@needs_library
def test_what_is_out_of_the_contract_is_refused() -> None:
    from lmlang.kernels.c import products

    weight = random_weight(20, 2, 4)
    with pytest.raises(ValueError, match="must be float32"):
        products.packed_product(torch.zeros(1, 64, dtype=torch.bfloat16), weight)
    with pytest.raises(ValueError, match="must be float32"):
        products.packed_product(torch.zeros(1, 32), weight)
    with pytest.raises(ValueError, match="bias is"):
        products.packed_product(torch.zeros(1, 64), weight, torch.zeros(19))
