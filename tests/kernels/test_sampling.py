"""The draw: its noise word for word, its distribution, its truncation against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lmlang.kernels.sampling import _truncate_in_order, gumbel_noise, truncate
from lmlang.noise import draw_words, gumbel
from lmlang.protocol import SamplingParams
from lmlang.runtime import sampler
from lmlang.runtime.predictions import Predictions
from lmlang.runtime.sampler import Draw, sample

KEYS = st.integers(0, 2**64 - 1)


def words(*draws: tuple[int, int]) -> torch.Tensor:
    pairs = np.array([draw_words(key, index) for key, index in draws], dtype=np.uint32)
    return torch.from_numpy(pairs.view(np.int32))


def tokens_of(logits: torch.Tensor, draws: list[Draw]) -> list[int]:
    return [drawn.token for drawn in sample(logits, draws)]


def test_the_hash_is_the_documented_one() -> None:
    """Draws that users have stored depend on it: it never changes."""
    assert draw_words(0, 0) == (2926543089, 3981786992)
    assert draw_words(2**64 - 1, 7) == (160725359, 441146418)
    assert gumbel(12345, 6, 789) == pytest.approx(3.8239909404708397)


@given(KEYS, st.integers(0, 2**20))
def test_the_noise_is_the_documented_function_of_key_index_and_token(key: int, index: int) -> None:
    got = gumbel_noise(words((key, index)), 70_000)[0]
    for token in (0, 1, 255, 49_151, 69_999):
        assert got[token].item() == pytest.approx(gumbel(key, index, token), abs=2e-5)


def test_the_noise_is_standard_gumbel_and_finite() -> None:
    got = gumbel_noise(words(*((key, 3) for key in range(20))), 50_000)
    assert torch.isfinite(got).all()
    assert stats.kstest(got.flatten()[::7].double().numpy(), "gumbel_r").pvalue > 1e-3


def test_neighbouring_keys_indices_and_tokens_are_uncorrelated() -> None:
    rows = [(0, 0), (1, 0), (0, 1), (2**32, 0), (1, 1)]
    got = gumbel_noise(words(*rows), 100_000).double().numpy()
    correlation = np.corrcoef(np.vstack([got, np.roll(got[:1], 1)]))
    assert np.abs(correlation - np.eye(6)).max() < 0.02


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0, top_k=5),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.2),
        SamplingParams(top_k=6, top_p=0.9, min_p=0.05, temperature=1.5),
    ],
)
def test_draws_follow_the_truncated_softmax(params: SamplingParams) -> None:
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0])
    kept = brute_force((logits / params.temperature).tolist(), params)
    exact = torch.softmax(logits.double() / params.temperature, 0).numpy()
    exact[[i for i in range(8) if i not in kept]] = 0
    exact /= exact.sum()
    count = 20_000
    tokens = tokens_of(
        logits.expand(count, -1), [Draw(i, params, i * 7919, i % 50) for i in range(count)]
    )
    seen = np.bincount(tokens, minlength=8)
    assert set(np.flatnonzero(seen)) <= kept
    order = sorted(kept)
    assert stats.chisquare(seen[order], count * exact[order]).pvalue > 1e-3


def brute_force(scaled: list[float], params: SamplingParams) -> set[int]:
    """The ids that survive top-k, then top-p, then min-p."""
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if params.top_k > 0:
        order = order[: params.top_k]
    weights = [np.exp(scaled[i] - scaled[order[0]]) for i in order]
    kept, before = [], 0.0
    for i, weight in zip(order, weights, strict=True):
        if before < params.top_p * sum(weights) or params.top_p == 1:
            kept.append(i)
        before += weight
    top = scaled[order[0]]
    return {i for i in kept if np.exp(scaled[i] - top) >= params.min_p}


@settings(max_examples=100)
@given(
    st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=30),
    st.integers(-1, 35), st.integers(1, 100), st.integers(0, 100),
)  # fmt: skip
def test_truncation_keeps_what_brute_force_keeps(
    logits: list[float], top_k: int, top_p: int, min_p: int
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p / 101 + 0.003, min_p=min_p / 101 + 0.0003)
    got = truncate(
        torch.tensor([logits]),
        torch.tensor([params.top_k if params.top_k > 0 else len(logits)]),
        torch.tensor([params.top_p]),
        torch.tensor([params.min_p]),
    )[0]
    kept = set(torch.isfinite(got).nonzero()[:, 0].tolist())
    assert kept == brute_force(logits, params)
    for i in kept:
        assert got[i].item() == pytest.approx(logits[i])


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(KEYS, st.integers(0, 500), st.sampled_from([0.0, 1e-30, 0.7, 1.0, 9.0])),
        min_size=1, max_size=8,
    ),
    st.randoms(),
)  # fmt: skip
def test_a_draw_depends_on_nothing_but_its_key(rows: list[tuple[int, int, float]], random) -> None:
    vocab = 300
    logits = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(5)) * 3
    draws = [
        Draw(i, SamplingParams(temperature=t, top_p=0.9 if key % 2 else 1.0), key, index)
        for i, (key, index, t) in enumerate(rows)
    ]
    together = tokens_of(logits, draws)
    alone = [tokens_of(logits[i : i + 1], [Draw(0, d.params, d.key, d.number)])[0]
             for i, d in enumerate(draws)]  # fmt: skip
    shuffled = random.sample(draws, len(draws))
    again = dict(zip([d.row for d in shuffled], tokens_of(logits, shuffled), strict=True))
    assert together == alone == [again[i] for i in range(len(draws))]


def test_greedy_takes_the_lowest_id_of_equal_ones_and_tiny_temperatures_agree() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -2.0]])
    for temperature in (0.0, 1e-300, 1e-30):
        drawn = tokens_of(logits, [Draw(0, SamplingParams(temperature=temperature), 1, 1)])
        assert drawn[0] in ((1,) if temperature == 0 else (1, 2))
    scores = torch.tensor([[1.0, 3.0, 2.9999]])
    assert tokens_of(scores, [Draw(0, SamplingParams(temperature=1e-300), 1, 1)]) == [1]


ids = st.integers(0, 19)
some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([-1, 3, 12]),
    top_p=st.sampled_from([1.0, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    presence_penalty=st.sampled_from([0.0, 2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.5]),
    logit_bias=st.dictionaries(ids, st.sampled_from([-2.0, 3.0]), max_size=3),
)
some_draws = st.lists(
    st.builds(
        dict,
        params=some_params,
        key=KEYS,
        number=st.integers(0, 99),
        prompt=st.lists(ids, max_size=6),
        generated=st.lists(ids, max_size=6),
        barred=st.frozensets(st.integers(0, 9), max_size=3),
        allowed=st.none() | st.lists(ids, min_size=4, max_size=8, unique=True),
        probs=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def adjusted(logits: list[float], draw: Draw) -> list[float]:
    """Bias, penalties, bars, one number after another."""
    found = list(logits)
    for token, bias in draw.params.logit_bias:
        found[token] += bias
    for token in {*draw.prompt.tolist(), *draw.generated}:
        factor = draw.params.repetition_penalty
        found[token] = found[token] / factor if found[token] > 0 else found[token] * factor
    for token in set(draw.generated):
        times = draw.generated.count(token)
        found[token] -= draw.params.frequency_penalty * times + draw.params.presence_penalty
    for token in range(len(found)):
        left_out = draw.allowed is not None and token not in draw.allowed
        if left_out or token in draw.barred:
            found[token] = -np.inf
    return found


@settings(max_examples=200, deadline=None)
@given(some_draws, st.integers(0, 2**32))
def test_rows_are_adjusted_and_drawn_as_one_by_one(given_draws: list[dict], seed: int) -> None:
    logits = torch.randn(len(given_draws), 20, generator=torch.Generator().manual_seed(seed)) * 2
    before = logits.clone()
    draws = []
    for row, made in enumerate(given_draws):
        allowed = None if made["allowed"] is None else np.array(made["allowed"])
        prompt = np.array(made["prompt"], dtype=np.int64)
        draws.append(Draw(row, **(made | {"allowed": allowed, "prompt": prompt})))
    got = sample(logits, draws)
    assert torch.equal(logits, before)
    for draw, drawn in zip(draws, got, strict=True):
        scores = np.array(adjusted(logits[draw.row].tolist(), draw))
        temperature = draw.params.temperature
        kept = range(20)
        if temperature:
            scores = (scores - scores.max()) / temperature
            kept = brute_force(scores.tolist(), draw.params)
        noise = [gumbel(draw.key, draw.number, t) if temperature else 0.0 for t in range(20)]
        best = max(scores[t] + noise[t] for t in kept)
        assert scores[drawn.token] + noise[drawn.token] == pytest.approx(best, abs=1e-4)
        assert drawn.token in kept
        weights = np.array(
            [np.exp(scores[t] - scores.max()) if t in kept else 0 for t in range(20)]
        )
        exact = weights[drawn.token] / weights.sum() if draw.probs else None
        assert drawn.prob == (None if exact is None else pytest.approx(exact, abs=1e-4))


def test_absurd_values_make_no_nan() -> None:
    logits = torch.tensor([[0.0, 3e38, -3e38, 5.0]]).repeat(4, 1)
    tiny = SamplingParams(repetition_penalty=1e-320, temperature=1e-300)
    draws = [
        Draw(0, tiny, 1, 1, generated=[0, 1, 2, 3], probs=True),
        Draw(1, SamplingParams(top_p=0.5), 1, 1, barred=frozenset(range(4)), probs=True),
        Draw(2, SamplingParams(temperature=1000, min_p=1.0), 1, 1, probs=True),
        Draw(3, SamplingParams(temperature=0), 1, 1, allowed=np.array([2]), probs=True),
    ]
    drawn = sample(logits, draws)
    assert [d.token for d in drawn[2:]] == [1, 2]
    assert all(0 <= d.token < 4 for d in drawn)
    assert drawn[3].prob == 1.0


def test_a_device_is_read_from_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that hold nothing stand for a device: whatever reads one of them raises."""
    reads: list[tuple[int, ...]] = []

    def read(tensor: torch.Tensor) -> torch.Tensor:
        reads.append(tuple(tensor.shape))
        return torch.ones(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(torch.Tensor, "cpu", read)
    monkeypatch.setattr(sampler, "form_of", lambda x: "triton")
    monkeypatch.setattr(sampler, "apply_bitmask", lambda logits, masks, rows: None)
    monkeypatch.setattr(sampler, "draw", lambda x, *_: x.new_empty((3, len(x)), dtype=torch.int32))
    params = SamplingParams(
        temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.2,
        frequency_penalty=0.5, logit_bias={3: 1.0},
    )  # fmt: skip
    mask, ids = np.full(2, -1, dtype=np.int32), np.arange(4)
    draws = [
        Draw(2, params, 1, 1, ids, [4, 5], probs=True),
        Draw(0, params, 1, 2, ids, [4, 5], frozenset([7]), mask=mask),
        Draw(3, SamplingParams(temperature=0), 1, 1, allowed=ids),
    ]
    logits = torch.empty(4, 64, device="meta")
    drawn = sample(logits, draws, sampler.Model(Predictions(logits), [2, 0, 3]))
    assert reads == [(4, 3)]
    assert [d.token for d in drawn] == [1, 1, 1]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([0.5, 3.0, 30.0]), st.booleans(),
    st.sampled_from([-1, 1, 40, 1023, 1024, 1500]), st.sampled_from([0.02, 0.6, 0.99, 1.0]),
    st.sampled_from([0.0, 0.01, 0.7]),
)  # fmt: skip
def test_a_large_vocabulary_is_truncated_as_a_sorted_one(
    seed: int, spread: float, rounded: bool, top_k: int, top_p: float, min_p: float
) -> None:
    vocab = 3_000
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    logits = logits.round() if rounded else logits  # many equal ones, at the cut too
    limits = (
        torch.full((3,), top_k if top_k > 0 else vocab),
        torch.full((3,), top_p),
        torch.full((3,), min_p),
    )
    got, exact = truncate(logits, *limits), _truncate_in_order(logits, *limits)
    different = (got != exact).sum(dim=-1)
    assert (different <= (0 if rounded or top_p == 1.0 else 1)).all()  # rounding, just at the cut
