"""Row-invariant forms: the bits of a row do not depend on the rows beside it, nor on its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lmlang.kernels import linear as products
from lmlang.kernels.activation import gelu_tanh_mul, silu_mul
from lmlang.kernels.forms import is_row_invariant, row_invariant
from lmlang.kernels.linear import linear, pack_weight
from lmlang.kernels.norm import rms_norm
from lmlang.kernels.rope import apply_rope, rope_angles, rope_frequencies
from lmlang.kernels.sampling import log_normalisers, truncate

COUNTS = (1, 2, 3, 5, 7, 8, 9, 16, 31, 64, 100, 333)
STARTS = (0, 1, 13, 200)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def differing(kernel: Callable[[Tensor], Tensor], x: Tensor) -> list[tuple[int, int]]:
    """Which (start, count) of the rows come out with other bits than among all rows."""
    whole = kernel(x)
    parts = [(start, count) for start in STARTS for count in COUNTS if start + count <= len(x)]
    return [
        (start, count)
        for start, count in parts
        if not torch.equal(kernel(x[start : start + count].clone()), whole[start : start + count])
    ]


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(576, 960), (576, 576), (576, 3072), (1536, 576), (33, 47), (8, 286)]
)
def test_a_product_of_any_number_of_rows(inputs: int, outputs: int, packed: bool) -> None:
    weight = noise(outputs, inputs, seed=1) / inputs**0.5
    x = noise(600, inputs, seed=2)
    kept = pack_weight(weight) if packed else weight
    with row_invariant():
        whole = linear(x, kept)
        for rows in (*range(1, 40), *range(40, 600, 37)):
            start = 7 * rows % (601 - rows)
            got = linear(x[start : start + rows], kept)
            assert torch.equal(got, whole[start : start + rows]), (start, rows)
    torch.testing.assert_close(whole, x @ weight.T, rtol=1e-4, atol=1e-4)


def test_a_product_with_a_whole_vocabulary() -> None:
    weight = pack_weight(noise(49_152, 576, seed=1) / 24)
    x = noise(37, 576, seed=2)
    with row_invariant():
        whole = linear(x, weight)
        for start, rows in ((0, 1), (36, 1), (3, 2), (5, 7), (1, 8), (2, 17)):
            assert torch.equal(linear(x[start : start + rows], weight), whole[start : start + rows])


def test_a_bias_is_added_to_every_row() -> None:
    weight, bias, x = noise(40, 30), noise(40, seed=1), noise(11, 30, seed=2)
    with row_invariant():
        whole = linear(x, weight, bias)
        assert torch.equal(linear(x[4:5], weight, bias), whole[4:5])
        assert linear(x[:0], weight, bias).shape == (0, 40)
    torch.testing.assert_close(whole, x @ weight.T + bias, rtol=1e-5, atol=1e-5)


def test_sizes_that_give_other_bits_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards_when(odd: Callable[[int], bool]) -> Callable[..., Tensor]:
        def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            order = range(x.shape[1])
            out = torch.zeros(len(x), weight.shape[0])
            for i in reversed(order) if odd(len(x)) else order:
                out += x[:, i : i + 1] * weight[:, i]
            return out

        return product

    weight = noise(5, 50)
    monkeypatch.setattr(products, "_applied", backwards_when(lambda rows: rows in (1, 4, 64)))
    assert products._agreeing(weight) == (2, 8, 16, 32)
    x = noise(77, 50, seed=3)
    with row_invariant():
        whole = linear(x, weight)
        for start, rows in ((0, 1), (3, 4), (5, 64), (9, 40)):
            assert torch.equal(linear(x[start : start + rows], weight), whole[start : start + rows])

    def by_place(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return x @ weight.T + torch.arange(len(x))[:, None]

    monkeypatch.setattr(products, "_applied", by_place)
    assert products._agreeing(weight) == (1,)


@pytest.mark.parametrize("width", [16, 31, 100, 1536])
@pytest.mark.parametrize("gate", [silu_mul, gelu_tanh_mul])
def test_gates(gate: Callable[[Tensor], Tensor], width: int) -> None:
    x = 3 * noise(600, 2 * width)
    usual = gate(x)
    with row_invariant():
        assert differing(gate, x) == []
        torch.testing.assert_close(gate(x), usual, rtol=1e-5, atol=5e-6)
        extreme = torch.tensor([[-200.0, -20.0, 0.0, 200.0, 1.0, 1.0, 1.0, 1.0]])
        torch.testing.assert_close(gate(extreme)[0], torch.tensor([0.0, -4e-8, 0.0, 200.0]))


@pytest.mark.parametrize("width", [8, 33, 100, 576])
def test_norms(width: int) -> None:
    weight = 1 + noise(width) / 10
    assert differing(lambda x: rms_norm(x, weight, 1e-5), noise(600, width, seed=1)) == []


@pytest.mark.parametrize(("heads", "size"), [(3, 8), (12, 64), (5, 80), (40, 100), (7, 6)])
def test_ropes(heads: int, size: int) -> None:
    frequencies = rope_frequencies(size, 10_000.0)

    def turned(rows: Tensor) -> Tensor:
        x = rows[:, 1:].reshape(len(rows), heads, size).clone()
        apply_rope(x, *rope_angles(rows[:, 0].long(), frequencies))
        return x

    rows = torch.cat([torch.arange(600.0)[:, None], noise(600, heads * size)], dim=1)
    assert differing(turned, rows) == []


@pytest.mark.parametrize("vocab", [33, 286, 3_072])
def test_what_the_sampler_computes(vocab: int) -> None:
    logits = 4 * noise(600, vocab)

    def cut(x: Tensor) -> Tensor:
        rows = len(x)
        return truncate(
            x, torch.full((rows,), 40), torch.full((rows,), 0.9), torch.full((rows,), 0.01)
        )

    assert differing(log_normalisers, logits) == []
    assert differing(cut, logits) == []
    assert differing(lambda x: torch.tanh(x / 30) * 30, logits) == []


def test_the_form_ends_with_its_block() -> None:
    assert not is_row_invariant()
    with row_invariant():
        assert is_row_invariant()
        with row_invariant():
            pass
        assert is_row_invariant()
    assert not is_row_invariant()

    def failing() -> None:
        with row_invariant():
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        failing()
    assert not is_row_invariant()
