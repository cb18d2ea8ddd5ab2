"""Rotary positions against a complex product, and what must not change."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lmlang.kernels.rope import (
    apply_rope,
    llama3_frequencies,
    rope_angles,
    rope_frequencies,
    yarn_frequencies,
)


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


def reference_frequencies(head_dim: int, rope: dict[str, object]) -> tuple[torch.Tensor, float]:
    config = LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, max_position_embeddings=4_096,
        rope_parameters={"rope_theta": 10_000.0, **rope},
    )  # fmt: skip
    return ROPE_INIT_FUNCTIONS[str(rope["rope_type"])](config, torch.device("cpu"))


@pytest.mark.parametrize("head_dim", [8, 64, 128])
@pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (2.0, 2.5), (1e-3, 1e3)])
@pytest.mark.parametrize("original", [64, 8_192])
def test_llama3_frequencies_are_those_of_transformers(head_dim, low, high, original):
    wanted, _ = reference_frequencies(
        head_dim,
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": low, "high_freq_factor": high,
         "original_max_position_embeddings": original},
    )  # fmt: skip
    plain = rope_frequencies(head_dim, 10_000.0)
    torch.testing.assert_close(llama3_frequencies(plain, 8.0, low, high, original), wanted)


@pytest.mark.parametrize("head_dim", [8, 64, 128])
@pytest.mark.parametrize(("slow", "fast"), [(1.0, 32.0), (2.0, 2.5), (1e-3, 1e3), (1.0, 1e9)])
@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_frequencies_are_those_of_transformers(head_dim, slow, fast, truncate):
    wanted, _ = reference_frequencies(
        head_dim,
        {"rope_type": "yarn", "factor": 4.0, "beta_slow": slow, "beta_fast": fast,
         "original_max_position_embeddings": 1_024, "truncate": truncate},
    )  # fmt: skip
    got = yarn_frequencies(head_dim, 10_000.0, 4.0, slow, fast, 1_024, truncate=truncate)
    torch.testing.assert_close(got, wanted)
