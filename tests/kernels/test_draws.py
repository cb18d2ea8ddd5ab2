"""The C draws and sums of exponentials against the reference, with every instruction set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lmlang.kernels import native
from lmlang.kernels.sampling import draw_reference, normalisers_reference
from lmlang.runtime.sampler import sample

pytestmark = pytest.mark.skipif(not native.available(), reason=native.description())
INF = float("inf")


@pytest.fixture(params=["avx512", "avx2", "plain"])
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    library, widest = native.library(), native.library().lm_instructions()
    if library.lm_limit_instructions(request.param.encode()):
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    library.lm_limit_instructions(widest)


def settings(rows: int, vocab: int, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31 - 1, (rows, 2), generator=generator).int()
    temperatures = torch.rand(rows, generator=generator) * 2
    temperatures[::3] = 0
    return words, temperatures, torch.full((rows,), vocab), torch.ones(rows), torch.zeros(rows)


def drawn(scores: Tensor, settings: tuple[Tensor, ...], *, truncates: bool = False) -> Tensor:
    from lmlang.kernels.c.draws import draw

    words, temperatures, top_k, top_p, min_p = settings
    return draw(scores, words, temperatures, top_k, top_p, min_p, truncates)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize(
    ("rows", "vocab", "spread"), [(3000, 7, 1.0), (400, 1003, 3.0), (12, 49_152, 0.3), (1, 1, 1.0)]
)
def test_what_is_sure_is_what_the_reference_draws(rows: int, vocab: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    scores = torch.randn(rows, vocab + 2, generator=generator)[:, :vocab] * spread
    scores[rows // 2 :, : vocab // 3] = -INF
    how = settings(rows, vocab, rows)
    wanted, found = draw_reference(scores, *how, False), drawn(scores, how)
    sure = found[2] == 1
    assert (~sure).sum() <= rows * 2e-3
    assert torch.equal(found[0][sure], wanted[0][sure])
    probs = (each[1].view(torch.float32)[sure] for each in (found, wanted))
    torch.testing.assert_close(*probs, atol=1e-6, rtol=1e-4)


@pytest.mark.usefixtures("instructions")
def test_scores_that_rounding_could_turn_round_are_not_sure() -> None:
    words = torch.tensor([[5, 9]]).int().expand(200, 2)
    how = (words, torch.ones(200), torch.full((200,), 2), torch.ones(200), torch.zeros(200))
    gap = torch.linspace(-1e-4, 1e-4, 200)
    even = draw_reference(torch.zeros(1, 2), *(each[:1] for each in how), False)
    scores = torch.zeros(200, 2)
    low, high = 0.0, 20.0
    for _ in range(60):  # to where both tokens are equally good, by the reference
        middle = (low + high) / 2
        scores[0, 1 - int(even[0])] = middle
        turned = draw_reference(scores[:1], *(each[:1] for each in how), False)[0] != even[0]
        low, high = (low, middle) if turned else (middle, high)
    scores[:, 1 - int(even[0])] = low + gap
    wanted, found = draw_reference(scores, *how, False), drawn(scores, how)
    sure = found[2] == 1
    assert torch.equal(found[0][sure], wanted[0][sure])
    assert not sure[90:110].any()
    assert sure[:20].all()
    assert sure[-20:].all()


@pytest.mark.usefixtures("instructions")
def test_the_first_of_equal_ones_is_the_likeliest() -> None:
    scores = torch.zeros(2, 100)
    scores[0, [37, 60, 99]] = 1
    how = settings(2, 100, 0)
    how[1].zero_()
    assert drawn(scores, how)[0].tolist() == [37, 0]


@pytest.mark.usefixtures("instructions")
def test_rows_that_are_no_numbers_and_limited_ones_are_left_to_the_reference() -> None:
    scores = torch.randn(4, 50)
    scores[0] = -INF
    scores[1, 7] = torch.nan
    scores[2, 7] = INF
    words, _, top_k, top_p, min_p = settings(4, 50, 0)
    how = (words, torch.ones(4), top_k, top_p, min_p)
    assert drawn(scores, how)[2].tolist() == [0, 0, 0, 1]
    top_k[3] = 5
    assert drawn(scores, how, truncates=True)[2].tolist() == [0, 0, 0, 0]


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("size", [1, 5, 33, 1000, 49_152])
def test_sums_of_exponentials_are_those_of_torch(size: int) -> None:
    from lmlang.kernels.c.draws import log_normalisers

    logits = torch.randn(9, size + 1)[:, :size] * 5
    logits[0] = -INF
    logits[1, 0] = torch.nan
    logits[2, size - 1] = INF
    logits[3, : size // 2] = -INF
    found, wanted = log_normalisers(logits), normalisers_reference(logits)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-6, equal_nan=True)


def test_logits_of_another_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 rows are needed"):
        drawn(torch.zeros(1, 4, dtype=torch.bfloat16), settings(1, 4, 0))


def test_the_sampler_is_called_with_no_draws() -> None:
    assert sample(torch.zeros(2, 8), []) == []
