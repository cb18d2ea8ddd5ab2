"""Rotary positions against a complex product, and what must not change."""

from __future__ import annotations

import pytest
import torch

from lmlang.kernels.rope import apply_rope, rope_angles, rope_frequencies


def turned_as_complex(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    rates = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    turns = torch.polar(torch.ones(1, dtype=torch.float64), torch.outer(positions.double(), rates))
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns.unsqueeze(1)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 1, 2), (6, 4, 8), (9, 12, 64)])
def test_rope_turns_pairs_by_position_times_frequency(tokens, heads, head_dim):
    generator = torch.Generator().manual_seed(tokens)
    buffer = torch.randn(tokens, heads + 3, head_dim, generator=generator)
    positions = torch.randint(0, 500, (tokens,), generator=generator)
    before = buffer.clone()
    cos, sin = rope_angles(positions, rope_frequencies(head_dim, 10_000.0))
    assert apply_rope(buffer[:, :heads], cos, sin) is None
    wanted = turned_as_complex(before[:, :heads], positions, 10_000.0)
    torch.testing.assert_close(buffer[:, :heads].double(), wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(buffer[:, heads:], before[:, heads:])  # values beside are not touched


def test_rope_at_position_zero_changes_nothing():
    x = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    apply_rope(x, *rope_angles(torch.zeros(3, dtype=torch.int64), rope_frequencies(8, 1e5)))
    assert torch.equal(x, before)


def test_products_of_turned_vectors_depend_on_their_distance_alone():
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 64, generator=generator)
    frequencies = rope_frequencies(64, 10_000.0)

    def score(at: int, other: int) -> float:
        one, two = q.clone(), k.clone()
        apply_rope(one, *rope_angles(torch.tensor([at]), frequencies))
        apply_rope(two, *rope_angles(torch.tensor([other]), frequencies))
        return float((one * two).sum())

    assert score(5, 2) == pytest.approx(score(105, 102), abs=1e-4)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-3)
