"""Norms, rope, stores, activations, bitmasks and draws in Triton against their references."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmlang.kernels import activation, forms, norm, paged, rope, sampling
from lmlang.kernels.bitmask import apply_bitmask_reference
from lmlang.noise import draw_words, gumbel
from lmlang.protocol import SamplingParams
from lmlang.runtime.sampler import Draw, sample
from tests.runtime.test_cuda_graphs import graphs_of, stepped
from tests.runtime.test_engine import expected, request

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
from lmlang.kernels.triton import activation as triton_activation
from lmlang.kernels.triton import bitmask as triton_bitmask
from lmlang.kernels.triton import norm as triton_norm
from lmlang.kernels.triton import rope as triton_rope
from lmlang.kernels.triton import sampling as triton_sampling

INTERPRETED = True

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
dtypes = st.sampled_from(list(TOLERANCE))
counts = st.sampled_from([0, 1, 2, 5, 33])
widths = st.sampled_from([1, 2, 7, 32, 96, 576, 1_000])
some = settings(max_examples=20)


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got: Tensor, wanted: Tensor) -> None:
    assert got.dtype == wanted.dtype
    tolerance = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=4 * tolerance)


@some
@given(counts, widths, dtypes, st.sampled_from([0, 3]))
def test_a_norm_is_that_of_the_reference(
    tokens: int, width: int, dtype: torch.dtype, gap: int
) -> None:
    x, residual = (noise(tokens, width + gap, dtype=dtype, seed=i)[:, :width] for i in (0, 1))
    weight = noise(width, seed=2)
    close(triton_norm.rms_norm(x, weight, 1e-5), norm.rms_norm_reference(x, weight, 1e-5))
    total = residual.clone()
    wanted = norm.add_rms_norm_reference(x, total, weight, 1e-5)
    at = torch.arange(tokens).flip(0).repeat(2)[: tokens + 1]
    at_wanted = norm.add_rms_norm_at_reference(x, residual, at, weight, 1e-5)
    before = residual.clone()
    close(triton_norm.add_rms_norm_at(x, residual, at, weight, 1e-5), at_wanted)
    assert torch.equal(residual, before)
    close(triton_norm.add_rms_norm(x, residual, weight, 1e-5), wanted)
    assert torch.equal(residual, total)


@some
@given(counts, st.integers(1, 9), st.sampled_from([8, 24, 64, 96]), dtypes)
def test_a_norm_of_heads_has_a_weight_for_each(
    tokens: int, heads: int, size: int, dtype: torch.dtype
) -> None:
    x, weight = noise(tokens, heads + 2, size, dtype=dtype)[:, :heads], noise(heads, size, seed=1)
    close(triton_norm.rms_norm(x, weight, 1e-5), norm.rms_norm_reference(x, weight, 1e-5))


@some
@given(counts, st.sampled_from([1, 7, 32, 1_000, 1_025]), dtypes, st.booleans())
def test_a_gate_is_that_of_the_reference(
    tokens: int, width: int, dtype: torch.dtype, gelu: bool
) -> None:
    gate_up = noise(tokens, 2 * width, dtype=dtype) * 4
    if tokens:
        gate_up[0, 0] = -200  # whose exponential is infinite
    got = (triton_activation.gelu_tanh_mul if gelu else triton_activation.silu_mul)(gate_up)
    wanted = activation.gelu_tanh_mul_reference if gelu else activation.silu_mul_reference
    close(got, wanted(gate_up))


def pool(slots: int, heads: int, size: int, dtype: torch.dtype, scales: torch.dtype | None):
    """The tensors of one layer, and a copy of them."""
    kept = dtype if scales is None else torch.int8
    numbers = [torch.zeros(slots, heads, size, dtype=kept) for _ in "kv"]
    factors = [None if scales is None else torch.zeros(slots, heads, dtype=scales) for _ in "kv"]
    tensors = [*numbers, *factors]
    return tensors, [None if each is None else each.clone() for each in tensors]


@some
@given(
    counts, st.integers(1, 9), st.integers(1, 3), st.sampled_from([2, 8, 24, 64, 96]), dtypes,
    st.sampled_from([None, torch.float32, torch.float16]),
)  # fmt: skip
def test_heads_are_turned_and_stored(
    tokens: int, heads: int, kv_heads: int, size: int, dtype: torch.dtype, scales
) -> None:
    qkv = noise(tokens, heads + 2 * kv_heads, size, dtype=dtype)
    positions = torch.arange(tokens) * 37
    angles = rope.rope_angles(positions, rope.rope_frequencies(size, 1e4))
    cos, sin = (each.to(dtype) for each in angles)
    slots = torch.randperm(tokens + 9, generator=torch.Generator().manual_seed(1))[:tokens]
    got, wanted = pool(tokens + 9, kv_heads, size, dtype, scales)
    turned, rest = qkv.clone(), qkv.clone()
    triton_rope.apply_rope(rest[:, :heads], cos, sin)
    triton_rope.rope_store(qkv, cos, sin, heads, slots, *got)
    rope.rope_store_reference(turned, cos, sin, heads, slots, *wanted)
    close(qkv, turned)
    close(rest[:, :heads], turned[:, :heads])
    close_pools(got, wanted, dtype)
    assert torch.equal(got[1], wanted[1])  # values are not turned: the same to the bit


def close_pools(got: list, wanted: list, dtype: torch.dtype) -> None:
    for mine, its in zip(got[2:], wanted[2:], strict=True):
        if its is not None:
            torch.testing.assert_close(mine.float(), its.float(), atol=0, rtol=2e-3)
    for mine, its in zip(got[:2], wanted[:2], strict=True):
        if its.dtype == torch.int8:  # a number half way may go to either side
            assert not its.numel() or int((mine.int() - its.int()).abs().max()) <= 1
        else:
            close(mine, its)


@some
@given(
    counts, st.integers(1, 5), st.tuples(st.integers(1, 70), st.integers(1, 70)), dtypes,
    st.sampled_from([None, torch.float32, torch.float16]), st.sampled_from([0.0, 1e-4, 1.0, 50.0]),
)  # fmt: skip
def test_keys_and_values_of_any_sizes_are_stored_to_the_bit(
    tokens: int, heads: int, sizes: tuple[int, int], dtype: torch.dtype, scales, spread: float
) -> None:
    k, v = (noise(tokens, heads, n, dtype=dtype) * spread for n in sizes)
    slots = torch.randperm(tokens + 3, generator=torch.Generator().manual_seed(2))[:tokens].int()
    halves = [pool(tokens + 3, heads, n, dtype, scales) for n in sizes]
    got, wanted = ([halves[0][i][0], halves[1][i][1], halves[0][i][2], halves[1][i][3]]
                   for i in (0, 1))  # fmt: skip
    triton_rope.store(slots, k, v, *got)
    paged.store_reference(slots, k, v, *wanted)
    for mine, its in zip(got, wanted, strict=True):
        assert mine is its is None or torch.equal(mine, its)


@some
@given(counts, st.sampled_from([1, 31, 32, 33, 1_000, 4_097]), st.integers(0, 9))
def test_a_bitmask_leaves_what_it_allows_and_other_rows(rows: int, vocab: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = noise(rows, vocab, seed=seed)
    masked = torch.randperm(rows, generator=generator)[: rows // 2 + rows % 2]
    bounds = (-(2**31), 2**31)
    words = (len(masked), (vocab + 31) // 32)
    masks = torch.randint(*bounds, words, generator=generator).to(torch.int32)
    wanted = logits.clone()
    for row, mask in zip(masked.tolist(), masks.tolist(), strict=True):
        for token in range(vocab):
            if not mask[token // 32] >> token % 32 & 1:
                wanted[row, token] = float("-inf")
    again = logits.clone()
    triton_bitmask.apply_bitmask(logits, masks, masked)
    apply_bitmask_reference(again, masks, masked)
    assert torch.equal(logits, wanted)
    assert torch.equal(again, wanted)


def words_of(keys: np.ndarray) -> Tensor:
    pairs = np.array([draw_words(int(key), int(key) % 999) for key in keys], dtype=np.uint32)
    return torch.from_numpy(pairs.view(np.int32))


@pytest.fixture
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short rows a program, which the interpreter draws at a time."""
    monkeypatch.setattr(triton_sampling, "ROWS", 256)
    monkeypatch.setattr(triton_sampling, "SEARCH_BITS", 4)
    monkeypatch.setattr(triton_sampling, "SEARCH_BLOCK", 256)
    monkeypatch.setattr(triton_sampling, "DRAW_BLOCK", 256)


def drawn_both_ways(
    scores: Tensor,
    keys: np.ndarray,
    temperature: list[float],
    top_k: list[int],
    top_p: list[float],
    min_p: list[float],
) -> tuple[Tensor, Tensor]:
    """int32 [3, R] by the kernel and by the reference; row r takes number r % n of each list."""
    rows, vocab = scores.shape
    limits = (
        torch.tensor(temperature)[torch.arange(rows) % len(temperature)],
        torch.tensor([min(k, vocab) for k in top_k])[torch.arange(rows) % len(top_k)],
        torch.tensor(top_p)[torch.arange(rows) // 2 % len(top_p)],
        torch.tensor(min_p)[torch.arange(rows) // 3 % len(min_p)],
    )
    truncates = bool(((limits[1] < vocab) | (limits[2] < 1) | (limits[3] > 0)).any())
    before = scores.clone()
    got = triton_sampling.draw(scores, words_of(keys), *limits, truncates)
    wanted = sampling.draw_reference(scores, words_of(keys), *limits, truncates)
    assert torch.equal(scores, before)
    return got, wanted


NO_LIMIT = 10**9


@pytest.mark.parametrize(
    ("rows", "vocab", "spread", "rounded", "limits"),
    [
        (4_096, 250, 3.0, False, ([1.0], [NO_LIMIT], [1.0], [0.0])),
        (1_024, 250, 3.0, False, ([0.7, 0.0, 2.0], [NO_LIMIT, 1, 9, 249], [1.0], [0.0])),
        (1_024, 77, 2.0, True, ([1.0, 1e-30], [7, 40, NO_LIMIT], [0.9, 0.01, 1.0], [0.0])),
        (1_024, 250, 1.0, True, ([1.0], [NO_LIMIT], [0.5, 0.999, 0.1], [0.0, 0.05, 1.0])),
    ],
)
def test_thousands_of_rows_draw_the_tokens_of_the_reference(
    many_rows: None, rows: int, vocab: int, spread: float, rounded: bool, limits: tuple
) -> None:
    scores = noise(rows, vocab, seed=vocab) * spread
    scores = scores.bfloat16().float() if rounded else scores  # many equal ones, at cuts too
    got, wanted = drawn_both_ways(scores, np.arange(rows) * 7919, *limits)
    sure = got[2] == 1
    assert torch.equal(got[0][sure], wanted[0][sure])
    assert int((~sure).sum()) <= rows // 500 + 1
    if not rounded:
        probs = [each[1].view(torch.float32)[sure] for each in (got, wanted)]
        torch.testing.assert_close(*probs, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("vocab", [49_152, 50_257])
def test_a_large_vocabulary_is_drawn_from_in_stretches(vocab: int, monkeypatch) -> None:
    monkeypatch.setattr(triton_sampling, "ROWS", 8)
    for block in ("SEARCH_BLOCK", "DRAW_BLOCK"):
        monkeypatch.setattr(triton_sampling, block, 8_192)
    scores = noise(8, vocab, seed=vocab) * 3
    scores[:4] = scores[:4].bfloat16().float()
    limits = ([1.0, 0.0, 0.8], [NO_LIMIT, 40], [1.0, 0.9], [0.0, 0.01])
    got, wanted = drawn_both_ways(scores, np.arange(8), *limits)
    assert got[2].all()
    assert torch.equal(got[0], wanted[0])


@settings(max_examples=15)
@given(
    st.integers(0, 2**32), st.integers(1, 40), st.sampled_from([1, 3, 8]),
    st.lists(st.sampled_from([1, 2, 5, 39, NO_LIMIT]), min_size=1, max_size=3),
    st.lists(st.sampled_from([0.03, 0.33, 0.7, 1.0]), min_size=1, max_size=3),
    st.lists(st.sampled_from([0.0, 0.2, 1.0]), min_size=1, max_size=2),
)  # fmt: skip
def test_ties_and_cuts_fall_as_in_the_reference(
    seed: int, vocab: int, levels: int, top_k: list[int], top_p: list[float], min_p: list[float]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, (32, vocab), generator=generator) * 0.75
    scores[torch.rand(32, vocab, generator=generator) < 0.2] = float("-inf")
    keys = np.arange(32) + seed
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ROWS", 32), ("STRETCH", 32), ("SEARCH_BLOCK", 16)):
            patch.setattr(triton_sampling, name, value)
        patch.setattr(triton_sampling, "DRAW_BLOCK", 16)
        got, wanted = drawn_both_ways(scores, keys, [1.0, 0.0, 0.5], top_k, top_p, min_p)
    sure = got[2] == 1
    assert torch.equal(got[0][sure], wanted[0][sure])
    # What is not sure stands at a cut of top-p, where the sum of what is likelier is top_p itself.
    assert sure.all() or any(p < 1 for p in top_p)


def test_a_draw_that_rounding_could_change_is_not_sure() -> None:
    key = 5
    gap = gumbel(key, key % 999, 0) - gumbel(key, key % 999, 1)
    scores = torch.tensor([[0.0, gap], [0.0, gap + 1e-3], [0.0, gap - 1e-3]])
    got, _ = drawn_both_ways(scores, np.array([key] * 3), [1.0], [NO_LIMIT], [1.0], [0.0])
    assert got[2].tolist() == [0, 1, 1]
    assert got[0].tolist()[1:] == [1, 0]


def test_a_token_at_the_cut_of_top_p_is_not_sure(many_rows: None) -> None:
    scores = torch.zeros(256, 4)  # what is likelier than the third is 0.5, but for rounding
    got, _ = drawn_both_ways(scores, np.arange(256), [1.0], [NO_LIMIT], [0.5], [0.0])
    tokens, sure = got[0], got[2] == 1
    assert not sure.any()
    assert set(tokens.tolist()) == {0, 1, 2}
    got, wanted = drawn_both_ways(scores, np.arange(256), [1.0], [NO_LIMIT], [0.51], [0.0])
    assert got[2].all()
    assert torch.equal(got[0], wanted[0])


def test_a_light_token_at_the_cut_of_top_p_is_not_sure_itself(many_rows: None) -> None:
    keys = np.arange(4_096)
    winners = sampling.gumbel_noise(words_of(keys), 1_000)[:, :501].argmax(dim=-1)
    there, before = keys[(winners == 500).numpy()], keys[(winners < 490).numpy()][:20]
    assert len(there) > 2
    scores = torch.zeros(len(there) + 20, 1_000)  # half of the weight is likelier than id 500
    both = np.concatenate([there, before])
    got, wanted = drawn_both_ways(scores, both, [1.0], [NO_LIMIT], [0.5], [0.0])
    assert got[2].tolist() == [0] * len(there) + [1] * 20
    assert torch.equal(got[0, len(there) :], wanted[0, len(there) :])


def test_where_nothing_can_be_drawn_it_is_token_0_and_has_no_probability() -> None:
    scores = torch.full((3, 9), float("-inf"))
    got, wanted = drawn_both_ways(scores, np.arange(3), [1.0, 0.0], [4], [0.9], [0.1])
    assert torch.equal(got, wanted)
    assert got.tolist() == [[0] * 3, [0] * 3, [1] * 3]


@pytest.fixture
def in_triton(monkeypatch: pytest.MonkeyPatch):
    """Ops of CPU tensors run in Triton in this block; call it for the reference's turn."""

    def use(value: str) -> None:
        monkeypatch.setenv("LMLANG_KERNELS", value)
        forms._chosen.cache_clear()

    use("triton")
    yield use
    monkeypatch.undo()
    forms._chosen.cache_clear()


def test_the_sampler_draws_the_same_with_either_form(many_rows: None, in_triton) -> None:
    vocab, rng = 90, np.random.default_rng(0)
    logits = noise(200, vocab) * 3
    draws = [
        Draw(
            row=int(row),
            params=SamplingParams(
                temperature=[0.0, 1.0, 0.7][i % 3],
                top_k=[-1, 5][i % 2],
                top_p=[1.0, 0.8][i // 2 % 2],
                min_p=[0.0, 0.1][i // 4 % 2],
                repetition_penalty=[1.0, 1.3][i // 8 % 2],
                logit_bias={int(i % vocab): 2.0} if i % 5 == 0 else {},
            ),
            key=i * 31,
            number=i % 7,
            prompt=rng.integers(0, vocab, 4),
            generated=[i % vocab],
            barred=frozenset([3]) if i % 11 == 0 else frozenset(),
            mask=rng.integers(-(2**31), 2**31, 3).astype(np.int32) if i % 3 else None,
            probs=i % 2 == 0,
            top=2 if i % 40 == 0 else 0,
        )
        for i, row in enumerate(rng.permutation(200))
    ]
    assert forms.form_of(logits) == "triton"
    got = sample(logits, draws)
    in_triton("reference")
    wanted = sample(logits, draws)
    assert [d.token for d in got] == [d.token for d in wanted]
    for mine, its in zip(got, wanted, strict=True):
        assert (mine.prob is None) == (its.prob is None)
        assert mine.prob is None or mine.prob == pytest.approx(its.prob, abs=1e-5)
        assert [token for token, _ in mine.top] == [token for token, _ in its.top]


def test_a_draw_that_is_not_sure_is_made_again_by_the_reference(in_triton) -> None:
    scores = torch.zeros(64, 4)
    draws = [Draw(i, SamplingParams(top_p=0.5), i, 0, probs=True) for i in range(64)]
    got = sample(scores, draws)
    in_triton("reference")
    assert got == sample(scores, draws)


def test_an_engine_gives_the_tokens_of_the_reference_with_all_kernels_in_triton(in_triton) -> None:
    asked = [
        request("the user and", 3, max_tokens=4, temperature=0.8, top_p=0.9, ignore_eos=True),
        request("the user and the world", 4, max_tokens=3, ignore_eos=True, temperature=0),
    ]
    assert forms.form_of(torch.ones(1)) == "triton"
    engine = stepped(graphs_of())
    generations = [engine.generate(one) for one in asked]
    engine.run()
    got = [list(generation.result(timeout=0).ids) for generation in generations]
    in_triton("reference")
    assert got == [expected(one) for one in asked]


CASES: list[tuple[Callable[[], object], str]] = [
    (lambda: triton_norm.rms_norm(noise(2, 8).double(), noise(8), 1e-5), "x is torch.float64"),
    (lambda: triton_norm.rms_norm(noise(2, 8), noise(7), 1e-5), "weight has the shape"),
    (lambda: triton_norm.rms_norm(noise(8, 2).T, noise(8), 1e-5), "x has the strides"),
    (lambda: triton_norm.rms_norm(noise(2, 1 << 15), noise(1 << 15), 1e-5), "at most 16,384"),
    (lambda: triton_norm.add_rms_norm(noise(2, 8), noise(2, 8).half(), noise(8), 1e-5), "residual"),
    (
        lambda: triton_norm.rms_norm(noise(2, 8), noise(8).to("meta"), 1e-5),
        "weight lies on meta: it must lie on cpu",
    ),
    (lambda: triton_activation.silu_mul(noise(2, 7)), "two equal halves"),
    (lambda: triton_activation.silu_mul(noise(8)), "gate_up has the shape"),
    (
        lambda: triton_rope.apply_rope(noise(2, 3, 8), noise(2, 1, 4), noise(2, 1, 5)),
        "sin has the shape",
    ),
    (lambda: triton_rope.apply_rope(noise(2, 3, 7), noise(2, 1, 3), noise(2, 1, 3)), "halves"),
    (
        lambda: triton_rope.store(
            torch.zeros(2), noise(2, 1, 4), noise(2, 1, 4), *pool(3, 1, 4, torch.float32, None)[0]
        ),
        "slots is torch.float32",
    ),
    (
        lambda: triton_bitmask.apply_bitmask(
            noise(2, 33), torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        ),
        "masks has the shape",
    ),
    (lambda: drawn_both_ways(noise(2, 0), np.arange(2), [1.0], [1], [1.0], [0.0]), "no columns"),
]


@pytest.mark.parametrize(("call", "said"), CASES, ids=[said for _, said in CASES])
def test_what_is_out_of_contract_is_refused_before_a_launch(
    call: Callable[[], object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        call()
