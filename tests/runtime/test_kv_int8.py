"""Keys and values as int8: how much more fits, how far results are off, and that reuse is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmlang.errors import ProgramError
from lmlang.kernels.paged import PagedKV
from lmlang.protocol import Output
from lmlang.runtime.attention import plan_attention, run_attention
from lmlang.runtime.cache.pool import KVPool, bytes_per_slot
from lmlang.runtime.exact_attention import plan_exact, run_exact
from lmlang.runtime.local import Runtime
from lmlang.runtime.shape import KVLayer
from lmlang.runtime.sharing import RowSlots
from tests.runtime import oracle
from tests.runtime.test_engine import MODEL, TOKENIZER, request
from tests.tiny import tiny_model

CPU = torch.device("cpu")
SLOTS = 400
HEADS, KV_HEADS = 4, 2


def layer(size: int, value: int = 0, window: int = 0) -> KVLayer:
    return KVLayer(HEADS, KV_HEADS, size, value or size, size**-0.5, window=window)


@pytest.mark.parametrize("size", [64, 80, 96, 112, 128, 192, 256])
@pytest.mark.parametrize("value", [0, 128])
def test_the_same_bytes_hold_almost_twice_as_many_tokens(size: int, value: int) -> None:
    layers = [layer(size, value)] * 3
    plain = bytes_per_slot(layers, torch.bfloat16)
    assert plain >= 1.9 * bytes_per_slot(layers, torch.int8)
    pool = KVPool(layers, 7, torch.int8, CPU)
    kept = [part for each in pool.layers for part in each.tensors()]
    assert sum(part.nbytes for part in kept) == 7 * bytes_per_slot(layers, torch.int8)
    assert len(kept) == 4 * 3


def test_slots_move_with_their_scales() -> None:
    layers = [layer(8, 5)]
    here, there = (KVPool(layers, 9, torch.int8, CPU) for _ in range(2))
    for part in (*here.layers[0].tensors(), *there.layers[0].tensors()):
        part.copy_(torch.randint(-9, 9, part.shape))
    before = [part.clone() for part in there.layers[0].tensors()]
    there.copy_from(here, np.array([3, 8]), np.array([1, 0]))
    moved = zip(here.layers[0].tensors(), there.layers[0].tensors(), before, strict=True)
    for source, target, kept in moved:
        assert torch.equal(target[[1, 0]], source[[3, 8]])
        assert torch.equal(target[2:], kept[2:])


def rows_of(counts: list[tuple[int, int]], seed: int) -> list[RowSlots]:
    """Rows of (shared + own tokens before, new tokens), whose slots are in no order."""
    free = list(np.random.default_rng(seed).permutation(SLOTS))
    shared, rows, start = [int(free.pop()) for _ in range(40)], [], 0
    for before, count in counts:
        own = [int(free.pop()) for _ in range(max(0, before - 40) + count)]
        rows.append(RowSlots(start, count, np.array(shared[:before] + own, dtype=np.int64)))
        start += count
    return rows


def attended(
    rows: list[RowSlots], of: KVLayer, dtype: torch.dtype, seed: int, *, exact: bool = False
) -> tuple[Tensor, PagedKV, Tensor]:
    """What a batch gets from a pool of a dtype, the pool, and its queries."""
    generator = torch.Generator().manual_seed(seed)

    def noise(count: int, heads: int, size: int) -> Tensor:
        return torch.randn(count, heads, size, generator=generator)

    pool, tokens = KVPool([of], SLOTS, dtype, CPU), rows[-1].start + rows[-1].count
    before = plan_attention([RowSlots(0, SLOTS, np.arange(SLOTS))], CPU)
    known = noise(SLOTS, KV_HEADS, of.key_dim), noise(SLOTS, KV_HEADS, of.value_dim)
    run_attention(
        before, noise(SLOTS, HEADS, of.key_dim), *known, pool.layers[0], layer(of.key_dim)
    )
    q = noise(tokens, HEADS, of.key_dim)
    new = noise(tokens, KV_HEADS, of.key_dim), noise(tokens, KV_HEADS, of.value_dim)
    if exact:
        out = run_exact(plan_exact(rows, CPU, (of.window,)), q, *new, pool.layers[0], of)
    else:
        out = run_attention(plan_attention(rows, CPU, (of.window,)), q, *new, pool.layers[0], of)
    return out, pool.layers[0], q


COUNTS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=5)


@settings(max_examples=40)
@given(COUNTS, st.integers(0, 99), st.sampled_from([0, 13]), st.booleans())
def test_attention_is_that_over_the_numbers_that_int8_stands_for(
    counts: list[tuple[int, int]], seed: int, window: int, exact: bool
) -> None:
    rows, of = rows_of(counts, seed), layer(16, 24, window)
    out, kv, q = attended(rows, of, torch.int8, seed, exact=exact)
    plain, unrounded, _ = attended(rows, of, torch.float32, seed, exact=exact)
    assert kv.k_scale is not None
    assert kv.v_scale is not None
    for row in rows:
        for i in range(row.count):
            seen = torch.from_numpy(row.table[: len(row.table) - row.count + 1 + i])
            seen = seen[-window:] if window else seen
            keys, values = kv.keys(seen, torch.float32), kv.values(seen, torch.float32)
            for head in range(HEADS):
                query, of_kv = q[row.start + i, head], head // (HEADS // KV_HEADS)
                shares = torch.softmax(keys[:, of_kv] @ query * of.scale, 0)
                got = out[row.start + i, head]
                torch.testing.assert_close(got, shares @ values[:, of_kv], rtol=1e-4, atol=1e-5)
                # Scores are off by `off` at most, so shares by a factor exp(2 off).
                off = (query.abs().sum() * of.scale * kv.k_scale[seen, of_kv].max() / 2).float()
                largest = unrounded.v[seen, of_kv].abs().max()
                bound = largest * (torch.exp(2 * off) - 1) + kv.v_scale[seen, of_kv].max() / 2
                assert ((got - plain[row.start + i, head]).abs() <= bound * 1.001 + 1e-5).all()


TEXTS = [
    "hello world and the user",
    "hello world and the other",
    "in the ",
    "hello world",
    "é 😀 !!",
]


def runtime(**parameters: Any) -> Runtime:
    return Runtime.over(*tiny_model(), **({"kv_tokens": 400, "kv_dtype": "int8"} | parameters))


def asked(rt: Runtime) -> list[Output]:
    generations = [rt.generate(request(text, max_tokens=9, ignore_eos=True)) for text in TEXTS]
    outputs = [generation.result(timeout=60) for generation in generations]
    rt.check()
    return outputs


def one_by_one(rt: Runtime) -> list[Output]:
    requests = [request(text, max_tokens=9, ignore_eos=True) for text in TEXTS]
    return [rt.generate(each).result(timeout=60) for each in requests]


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"max_batch_tokens": 3},
        {"radix_cache": False},
        {"kv_tokens": 40},
        {"kv_tokens": 40, "host_kv_gb": 1e-4},
        {"speculative": "ngram"},
        {"kv_cache_dtype": "int8", "kv_dtype": None},
    ],
    ids=lambda parameters: " ".join(map(str, parameters)) or "plain",
)
def test_answers_are_the_same_cold_cached_moved_and_in_any_chunk(parameters: Any) -> None:
    with runtime(radix_cache=False) as alone:
        wanted = one_by_one(alone)
    with runtime(**parameters) as rt:
        for _ in range(3):
            outputs = asked(rt)
            assert [output.ids for output in outputs] == [output.ids for output in wanted]
            for output, alike in zip(outputs, wanted, strict=True):
                assert output.logprobs == pytest.approx(alike.logprobs, abs=2e-3)


def test_logprobs_are_near_those_of_unrounded_keys_and_values() -> None:
    with runtime() as rt:
        for text, output in zip(TEXTS, asked(rt), strict=True):
            exact = oracle.choice_logprobs(MODEL, TOKENIZER.encode(text), list(output.ids))
            assert output.logprobs == pytest.approx(exact, abs=0.15)
            assert output.logprobs != pytest.approx(exact, abs=1e-5)


def test_a_deterministic_runtime_gives_the_same_bits() -> None:
    with runtime(deterministic=True, radix_cache=False) as alone:
        wanted = one_by_one(alone)
    with runtime(deterministic=True, max_batch_tokens=5) as rt:
        for _ in range(2):
            for output, alike in zip(asked(rt), wanted, strict=True):
                assert (output.ids, output.logprobs) == (alike.ids, alike.logprobs)


@pytest.mark.parametrize("name", ["fp8_e5m2", "int4", "bfloat16"])
def test_other_types_are_refused_by_name(name: str) -> None:
    with pytest.raises(
        ProgramError, match=f"kv_dtype='{name}' is unknown: give one of 'auto', 'int"
    ):
        runtime(kv_dtype=None, kv_cache_dtype=name)
