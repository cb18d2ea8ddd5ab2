"""The C draws and sums of exponentials against the reference, with every instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from lmlang.kernels import native
from lmlang.kernels.bitmask import allowed
from lmlang.kernels.sampling import draw_reference, normalisers_reference
from lmlang.noise import draw_words
from lmlang.protocol import SamplingParams
from lmlang.runtime.sampler import Draw, sample

pytestmark = pytest.mark.skipif(not native.available(), reason=native.description())
INF = float("inf")


@pytest.fixture(params=["avx512", "avx2", "plain"])
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    library, widest = native.library(), native.library().lm_instructions()
    if library.lm_limit_instructions(request.param.encode()):
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    library.lm_limit_instructions(widest)


@dataclass(frozen=True)
class Rows:
    """Draws of the rows of some scores: as many numbers of each kind as there are rows."""

    keys: list[int]
    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    masks: Tensor | None = None

    def reference(self, scores: Tensor) -> Tensor:
        """What `draw_reference` gives for them."""
        if self.masks is not None:
            scores = scores.masked_fill(~allowed(self.masks, scores.shape[1]), -INF)
        words = np.array([draw_words(key, 5) for key in self.keys], dtype=np.uint32)
        limits = (self.temperatures, self.top_k, self.top_p, self.min_p)
        return draw_reference(scores, torch.from_numpy(words.view(np.int32)), *limits, True)

    def drawn(self, scores: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The same in C, and the log-probabilities by the model's own logits."""
        from lmlang.kernels.c.draws import DrawRow, draw_rows

        rows, masks = [], self.masks
        for i, key in enumerate(self.keys):
            place = scores[i].data_ptr()
            mask = (0, 0) if masks is None else (masks[i].data_ptr(), masks.shape[1])
            each = (self.temperatures, self.top_p, self.min_p, self.top_k)
            how = key, 5, *(float(numbers[i]) for numbers in each[:3]), int(self.top_k[i])
            own = place if logits is None else logits[i].data_ptr()
            rows.append(DrawRow(place, own, mask[0], *how, mask[1]))
        found = draw_rows(rows, scores.shape[1])
        tokens, sure, probs, logprobs = zip(*found, strict=True)
        there = [torch.tensor(tokens), torch.tensor(probs).view(torch.int32), torch.tensor(sure)]
        return torch.stack([each.int() for each in there]), torch.tensor(logprobs)


def rows_of(rows: int, vocab: int, seed: int) -> Rows:
    """Draws without limits, every third one of the likeliest token."""
    generator = torch.Generator().manual_seed(seed)
    temperatures = torch.rand(rows, generator=generator) * 2
    temperatures[::3] = 0
    temperatures[1::3] = 1
    keys = [seed * 7919 + (i << 31) for i in range(rows)]
    limits = torch.full((rows,), vocab), torch.ones(rows), torch.zeros(rows)
    return Rows(keys, temperatures, *limits)


def compare(scores: Tensor, how: Rows, *, unsure: float = 2e-3) -> None:
    """What is sure must be the reference's, and most must be."""
    wanted, (found, logprobs) = how.reference(scores), how.drawn(scores)
    sure = found[2] == 1
    assert (~sure).sum() <= len(how.keys) * unsure
    assert torch.equal(found[0][sure], wanted[0][sure])
    own = scores - normalisers_reference(scores)[:, None]
    said = own.gather(1, found[0].long()[:, None])[:, 0]
    torch.testing.assert_close(logprobs[sure], said[sure], atol=2e-5, rtol=1e-5)
    plain = sure & ((how.temperatures == 0) | ((how.top_p == 1) & (how.min_p == 0)))
    plain &= (how.temperatures == 0) | (how.top_k == scores.shape[1])
    probs = (each[1].view(torch.float32) for each in (found, wanted))
    torch.testing.assert_close(*(each[plain] for each in probs), atol=1e-6, rtol=1e-4)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize(
    ("rows", "vocab", "spread"), [(3000, 7, 1.0), (400, 1003, 3.0), (12, 49_152, 0.3), (1, 1, 1.0)]
)
def test_what_is_sure_is_what_the_reference_draws(rows: int, vocab: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    scores = torch.randn(rows, vocab + 2, generator=generator)[:, :vocab] * spread
    scores[rows // 2 :, : vocab // 3] = -INF
    compare(scores, rows_of(rows, vocab, rows))


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("vocab", [5, 333, 3_000])
@pytest.mark.parametrize("legal", [0.001, 0.3, 0.98])
def test_masks_are_kept(vocab: int, legal: float) -> None:
    rows, rng = 60, np.random.default_rng(vocab)
    bits = rng.random((rows, -(-vocab // 32) * 32)) < legal
    bits[np.arange(rows), rng.integers(0, vocab, rows)] = True
    bits[0, vocab - 1 :] = True  # beyond the last logit, too
    masks = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
    scores = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 2
    compare(scores, replace(rows_of(rows, vocab, 3), masks=masks), unsure=0.02)
    if vocab > 64:  # what is behind a mask may not be drawn
        short = replace(rows_of(rows, vocab, 3), masks=masks[:, :2].contiguous())
        short.masks[:, 0] |= 1
        compare(scores, short, unsure=0.02)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("vocab", [50, 2_000])
@pytest.mark.parametrize("rounded", [False, True])
def test_limits_leave_what_the_reference_leaves(vocab: int, *, rounded: bool) -> None:
    rows, rng = 300, np.random.default_rng(vocab)
    scores = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    scores = scores.round() if rounded else scores  # many equal ones, at the cut too
    how = replace(
        rows_of(rows, vocab, 9),
        top_k=torch.from_numpy(rng.choice([1, 2, 20, 256, vocab], rows)).clamp(max=vocab),
        top_p=torch.from_numpy(rng.choice([0.01, 0.5, 0.95, 1.0], rows)).float(),
        min_p=torch.from_numpy(rng.choice([0.0, 0.0, 0.01, 0.5, 1.0], rows)).float(),
    )
    # The likeliest of all has a share of itself that is 1, which is just on the cut of min_p = 1.
    compare(scores, how, unsure=0.3)
    compare(scores, replace(how, min_p=how.min_p.clamp(max=0.5)), unsure=0.02)


@examples(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 2**64 - 1), st.integers(1, 600), st.sampled_from([0.1, 2.0, 30.0]),
    st.sampled_from([0.0, 1e-30, 0.5, 1.0, 3.0]), st.sampled_from([1, 3, 40, 300]),
    st.sampled_from([0.03, 0.6, 0.99, 1.0]), st.sampled_from([0.0, 0.02, 0.7]),
    st.sampled_from([None, 1, 5, 100]), st.integers(0, 1),
)  # fmt: skip
def test_any_draw_that_is_sure_is_the_reference_s(
    key: int, vocab: int, spread: float, temperature: float, top_k: int, top_p: float,
    min_p: float, legal: int | None, rounded: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(key % 1000)
    scores = torch.randn(1, vocab, generator=generator) * spread
    scores = scores.round() if rounded else scores
    masks = None
    if legal is not None:
        flags = np.zeros(-(-vocab // 32) * 32, dtype=bool)
        flags[np.random.default_rng(key).integers(0, vocab, legal)] = True
        masks = torch.from_numpy(np.packbits(flags, bitorder="little").view(np.int32))[None]
    numbers = (torch.tensor([x]) for x in (temperature, min(top_k, vocab), top_p, min_p))
    how = Rows([key], *numbers, masks)
    compare(scores, how, unsure=1)


@pytest.mark.usefixtures("instructions")
def test_scores_that_rounding_could_turn_round_are_not_sure() -> None:
    how = replace(rows_of(200, 2, 1), keys=[5] * 200, temperatures=torch.ones(200))
    one = replace(rows_of(1, 2, 1), keys=[5], temperatures=torch.ones(1))
    gap = torch.linspace(-1e-4, 1e-4, 200)
    even = one.reference(torch.zeros(1, 2))[0]
    scores = torch.zeros(200, 2)
    low, high = 0.0, 20.0
    for _ in range(60):  # to where both tokens are equally good, by the reference
        middle = (low + high) / 2
        scores[0, 1 - int(even)] = middle
        turned = one.reference(scores[:1])[0] != even
        low, high = (low, middle) if turned else (middle, high)
    scores[:, 1 - int(even)] = low + gap
    wanted, (found, _) = how.reference(scores), how.drawn(scores)
    sure = found[2] == 1
    assert torch.equal(found[0][sure], wanted[0][sure])
    assert not sure[90:110].any()
    assert sure[:20].all()
    assert sure[-20:].all()


@pytest.mark.usefixtures("instructions")
def test_what_stands_at_a_cut_is_not_sure() -> None:
    scores = torch.tensor([[0.0, -0.5, -1.0, -INF]]).expand(400, 4).contiguous()
    weights = torch.exp(scores[0])
    for limit in ("top_p", "min_p"):
        share = weights[0] / weights.sum() if limit == "top_p" else weights[1]
        base = rows_of(400, 4, 4)
        how = replace(base, temperatures=torch.ones(400), **{limit: torch.full((400,), share)})
        found = how.drawn(scores)[0]
        second = replace(how, **{limit: torch.full((400,), share * 0.9)}).drawn(scores)[0]
        moved = found[2] == 0
        assert moved.any()  # those whose noise is in favour of the token there
        assert (second[2] == 1).all()


@pytest.mark.usefixtures("instructions")
def test_the_first_of_equal_ones_is_the_likeliest() -> None:
    scores = torch.zeros(2, 100)
    scores[0, [37, 60, 99]] = 1
    how = replace(rows_of(2, 100, 0), temperatures=torch.zeros(2))
    assert how.drawn(scores)[0][0].tolist() == [37, 0]


@pytest.mark.usefixtures("instructions")
def test_rows_that_are_no_numbers_and_long_rankings_are_left_to_the_reference() -> None:
    scores = torch.randn(5, 500)
    scores[0] = -INF
    scores[1, 7] = torch.nan
    scores[2, 7] = INF
    how = replace(rows_of(5, 500, 0), temperatures=torch.ones(5))
    how.top_k[4] = 257
    found, logprobs = how.drawn(scores)
    assert found[2].tolist() == [0, 0, 0, 1, 0]
    assert logprobs.isnan().tolist() == [True, True, True, False, False]
    masks = torch.zeros(5, 16, dtype=torch.int32)
    assert replace(how, masks=masks).drawn(scores)[0][2].tolist() == [0] * 5  # nothing is legal


@pytest.mark.usefixtures("instructions")
def test_log_probabilities_are_those_of_the_model_s_own_logits() -> None:
    scores, logits = torch.randn(6, 700), torch.randn(6, 700) * 4
    logits[5, 3] = torch.nan
    found, logprobs = rows_of(6, 700, 2).drawn(scores, logits)
    own = logits - normalisers_reference(logits)[:, None]
    said = own.gather(1, found[0].long()[:, None])[:, 0]
    torch.testing.assert_close(logprobs, said, atol=1e-5, rtol=1e-5, equal_nan=True)
    assert (found[2] == 1).all()


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
        sample(torch.zeros(1, 4, dtype=torch.bfloat16), [Draw(0, SamplingParams(), 1, 0)])


def test_the_sampler_is_called_with_no_draws() -> None:
    assert sample(torch.zeros(2, 8), []) == []
