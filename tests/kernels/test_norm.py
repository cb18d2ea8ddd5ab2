"""RMS norm against torch's own, alone and fused with the residual addition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from lmlang.kernels.activation import gelu_tanh_mul, silu_mul
from lmlang.kernels.norm import add_rms_norm, rms_norm

SHAPES = [(1, 8), (5, 32), (33, 576), (0, 16)]


def inputs(tokens: int, hidden: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(tokens * 1_000 + hidden)
    x, residual = torch.randn(2, tokens, hidden, generator=generator).to(dtype)
    return x, residual, torch.randn(hidden, generator=generator).to(dtype)


@pytest.mark.parametrize(("tokens", "hidden"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_equals_that_of_torch(tokens, hidden, dtype):
    x, _, weight = inputs(tokens, hidden, dtype)
    before = x.clone()
    out = rms_norm(x, weight, 1e-5)
    wanted = F.rms_norm(x.double(), (hidden,), weight.double(), 1e-5)
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)
    assert out.dtype == dtype
    assert torch.equal(x, before)


@pytest.mark.parametrize(("tokens", "hidden"), SHAPES)
def test_add_rms_norm_writes_the_sum_and_gives_its_norm(tokens, hidden):
    x, residual, weight = inputs(tokens, hidden, torch.float32)
    total, before = residual + x, x.clone()
    out = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(out, rms_norm(total, weight, 1e-5))
    assert torch.equal(x, before)


def test_rms_norm_of_zeros_is_zero():
    assert torch.equal(rms_norm(torch.zeros(2, 4), torch.ones(4), 1e-5), torch.zeros(2, 4))


def test_each_head_may_have_a_weight_of_its_own():
    x, _, _ = inputs(7, 48, torch.float32)
    heads = x.view(7, 6, 8)
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    wanted = torch.stack([rms_norm(heads[:, h], weight[h], 1e-5) for h in range(6)], dim=1)
    assert torch.equal(rms_norm(heads, weight, 1e-5), wanted)


@pytest.mark.parametrize(
    ("gate", "activation"),
    [(silu_mul, F.silu), (gelu_tanh_mul, lambda x: F.gelu(x, approximate="tanh"))],
)
def test_a_gate_multiplies_the_second_half(gate, activation):
    gate_up, _, _ = inputs(7, 64, torch.float32)
    before = gate_up.clone()
    out = gate(gate_up)
    torch.testing.assert_close(out, activation(before[:, :32]) * before[:, 32:])
    assert torch.equal(gate_up, before)
    assert out.is_contiguous()
