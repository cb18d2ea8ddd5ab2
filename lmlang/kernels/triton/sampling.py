"""The keyed draw in Triton: what truncation keeps, then the best of it with its noise.

    cut      each row                  -> the last key and id that top-k and top-p may keep
    draw     each stretch of each row  -> best and second best, and the weight of what is kept
    settle   each row                  -> token, probability, and whether rounding could matter

A logit less the largest, divided by the temperature, is 0 or below: the bits of its absolute value
are its *key*, an int32 in the order of likelihood, the likeliest first. The cut is found by a
search on keys, some bits a pass, with ids to tell equal ones apart.

Exponentials, logarithms and sums round here in another way than on a CPU. So top-p and min-p keep
SLACK too much here, and a draw is *sure* only where no rounding could change its token: no other
comes within NEAR of it, and neither it nor a HEAVY token that counts for probabilities stands
within SLACK of the cut. The others, one in thousands, are for the reference to draw. Everything
else (scaling, top-k, ties) is exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmlang.kernels.forms import check

NEAR = tl.constexpr(2.0**-16)
"""Two noisy scores that differ by less may change places by rounding."""
SLACK = tl.constexpr(2.0**-17)
"""What rounding may add to a cumulated probability, or change in a relative one."""
HEAVY = tl.constexpr(2.0**-8)
"""A share of what is kept that is missed where it is told as probability."""
LAST = tl.constexpr(0x7FFFFFFF)
"""Behind every key and id."""
LOWEST = tl.constexpr(-3.4028234663852886e38)
COLDEST = tl.constexpr(1e-30)
"""The lowest temperature that is divided by."""
LEAST_SHARE = tl.constexpr(1.2e-38)
"""A min-p below it leaves out nothing that could be drawn."""
ROWS = 1
"""Rows of a program; more where many short ones are drawn at a time."""
SEARCH_BITS = 2
"""Bits of the key that one pass of the search finds."""
SEARCH_BLOCK = 1024
"""Ids of one step of a pass."""
DRAW_BLOCK = 1024
"""Ids of one step of a draw."""
STRETCH = 16_384
"""Ids of a program of the draw at least."""
STRETCHES = 32
"""Programs of a row at most."""


@triton.jit
def _scaled(scores, ids, vocab, largest, temperature):
    """[ROWS, BLOCK]: logits from the largest down by the temperature; -inf behind the last."""
    logits = tl.load(scores + ids, mask=ids < vocab, other=float("-inf"))
    logits -= largest
    return tl.div_rn(logits, tl.broadcast_to(temperature, logits.shape))


@triton.jit
def _key(scaled):
    return tl.abs(scaled).to(tl.int32, bitcast=True)


@triton.jit
def _kept(key, ids, last_key, last_id):
    return (key < last_key) | ((key == last_key) & (ids <= last_id))


@triton.jit
def _log(x):
    """The natural logarithm of normal numbers, off by two units in the last place at most.

    log(m 2^e) = e log 2 + 2 artanh(f / (2 + f)) with f = m - 1 and m around 1.
    """
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - 127
    m = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    high = m > 1.4142135
    f = tl.where(high, m * 0.5, m) - 1.0
    e = tl.where(high, exponent + 1, exponent).to(tl.float32)
    s = f / (f + 2.0)
    q = s * s
    more = q * (0.33333334 + q * (0.2 + q * (0.14285715 + q * (0.11111111 + q * 0.09090909))))
    # log 2 in two parts, the first of few bits, so that its product is exact.
    return e * 0.693359375 + (e * -0.00021219444 + 2.0 * (s + s * more))


@triton.jit
def _mix(x):
    """`lmlang.noise.mix` of uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _noise(ids, a, b):
    """Standard Gumbel noise of ids, as `lmlang.noise` defines it."""
    w = _mix(_mix(ids.to(tl.uint32) ^ a) + b)
    u = tl.minimum((w.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    left = 1.0 - u
    return -_log(-(_log(left) + ((1.0 - left) - u)))  # what 1 - u rounded off is added again


@triton.jit
def _cut(
    scores, vocab, largest, temperature, last_key, last_id, target, slack,
    WEIGHED: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The last key and id of the first that are kept so far, up to a number or a weight.

    That is ``target`` ids, or WEIGHED as much of their exponentials, at least, with ``slack`` at
    most more of it; inf for all. Kept so far is what comes up to ``last_id`` of ``last_key``.
    ``scores`` are pointers to the rows; all but ``vocab`` are [ROWS, 1].
    """
    ways = tl.arange(0, 1 << BITS)[None, :]
    key_from = tl.zeros((ROWS, 1), tl.int32)
    before = tl.zeros((ROWS, 1), tl.float32)  # the weight of keys below key_from
    excess = tl.full((ROWS, 1), float("inf"), tl.float32)  # of keys up to its end, over the target
    single = tl.full((ROWS, 1), -1, tl.int32)  # the only key from there to its end, or -1
    shift = tl.full((), 31, tl.int32)
    while (shift > 0) & (tl.max(tl.where((excess > slack) & (single < 0), 1, 0)) > 0):
        most, width = tl.minimum((1 << BITS) - 1, (1 << shift) - 1), shift
        shift = tl.maximum(shift - BITS, 0)
        lowest = tl.full((ROWS, BLOCK), LAST, tl.int32)
        highest = tl.full((ROWS, BLOCK), -1, tl.int32)
        reached = tl.zeros((ROWS, BLOCK, 1 << BITS), tl.float32)
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)[None, :]
            scaled = _scaled(scores, ids, vocab, largest, temperature)
            key = _key(scaled)
            weight = tl.exp(scaled) if WEIGHED else tl.full((ROWS, BLOCK), 1.0, tl.float32)
            kept = (ids < vocab) & _kept(key, ids, last_key, last_id)
            weight = tl.where(kept, weight, 0.0)
            inside = kept & (((key - key_from) >> width) == 0)
            lowest = tl.minimum(lowest, tl.where(inside, key, LAST))
            highest = tl.maximum(highest, tl.where(inside, key, -1))
            below = ((key - key_from) >> shift)[:, :, None] <= ways[:, None, :]
            reached += tl.where(below, weight[:, :, None], 0.0)
        total = tl.sum(reached, axis=1)
        way = tl.min(tl.where(total >= target, ways, most), axis=1)[:, None]
        lower = tl.sum(tl.where(ways == way - 1, total, 0.0), axis=1)[:, None]
        before = tl.where(way > 0, lower, before)
        excess = tl.sum(tl.where(ways == way, total, 0.0), axis=1)[:, None] - target
        key_from += way << shift
        first = tl.min(lowest, axis=1)[:, None]
        single = tl.where(first == tl.max(highest, axis=1)[:, None], first, -1)
    key_end = key_from + ((1 << shift) - 1)
    id_end = tl.full((ROWS, 1), LAST, tl.int32)
    if tl.max(tl.where(excess > slack, 1, 0)) > 0:  # equal ones at the cut: lower ids come first
        key_from = tl.where(single >= 0, single, key_from)
        each = tl.full((ROWS, 1), 1.0, tl.float32)
        if WEIGHED:
            each = tl.exp(-key_from.to(tl.float32, bitcast=True))
        is_tied = excess > slack
        wanted = tl.ceil(tl.where(is_tied, (target - before) / each, 0.0)).to(tl.int32)
        last_equal = tl.full((ROWS, 1), -1, tl.int32)
        seen = tl.zeros((ROWS, 1), tl.int32)
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)[None, :]
            key = _key(_scaled(scores, ids, vocab, largest, temperature))
            equal = (ids < vocab) & (key == key_from) & _kept(key, ids, last_key, last_id)
            number = seen + tl.cumsum(equal.to(tl.int32), axis=1)
            found = tl.where(equal & (number <= wanted), ids, -1)
            last_equal = tl.maximum(last_equal, tl.max(found, axis=1)[:, None])
            seen += tl.sum(equal.to(tl.int32), axis=1)[:, None]
        id_end = tl.where(is_tied, last_equal, id_end)
        key_end = tl.where(is_tied, key_from, key_end)
    # Nothing that was cut off before comes back.
    id_end = tl.where(key_end == last_key, tl.minimum(id_end, last_id), id_end)
    id_end = tl.where(key_end > last_key, last_id, id_end)
    return tl.minimum(key_end, last_key), id_end


@triton.jit
def _row_numbers(largest, temperatures, row, there):
    """[ROWS, 1]: the largest logit, the temperature to divide by, and whether it is above 0."""
    most = tl.maximum(tl.load(largest + row, mask=there, other=0.0), LOWEST)
    temperature = tl.load(temperatures + row, mask=there, other=0.0)
    is_hot = temperature > 0
    return most, tl.where(is_hot, tl.maximum(temperature, COLDEST), 1.0), is_hot


@triton.jit
def cut_kernel(
    scores, largest, temperatures, top_k, top_p, last_keys, last_ids, totals, doubts,
    rows, vocab, stride,
    BITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The last key and id that top-k and top-p keep, and the weight of what top-k keeps.

    A doubt is a heavy last token that rounding may have kept: it changes all probabilities.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    there = row < rows
    scores += tl.where(there, row, 0).to(tl.int64) * stride
    most, temperature, is_hot = _row_numbers(largest, temperatures, row, there)
    limit = tl.load(top_k + row, mask=there, other=vocab).to(tl.int32)
    share = tl.load(top_p + row, mask=there, other=1.0)
    limited, shared = is_hot & (limit < vocab), is_hot & (share < 1)
    last_key = tl.full((ROWS, 1), LAST, tl.int32)
    last_id = tl.full((ROWS, 1), LAST, tl.int32)
    total = tl.zeros((ROWS, 1), tl.float32)
    doubt = is_hot & (share > 1)  # none
    if tl.max(limited.to(tl.int32)) > 0:
        target = tl.where(limited, limit.to(tl.float32), float("inf"))
        last_key, last_id = _cut(
            scores, vocab, most, temperature, last_key, last_id, target,
            tl.zeros((ROWS, 1), tl.float32), False, BITS, ROWS, BLOCK,
        )  # fmt: skip
    if tl.max(shared.to(tl.int32)) > 0:
        sums = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)[None, :]
            scaled = _scaled(scores, ids, vocab, most, temperature)
            sums += tl.where(_kept(_key(scaled), ids, last_key, last_id), tl.exp(scaled), 0.0)
        total = tl.sum(sums, axis=1)[:, None]
        target = tl.where(shared, (share + SLACK) * total, float("inf"))
        last_key, last_id = _cut(
            scores, vocab, most, temperature, last_key, last_id, target, SLACK * total,
            True, BITS, ROWS, BLOCK,
        )  # fmt: skip
        sums = tl.zeros((ROWS, BLOCK), tl.float32)
        lightest = tl.full((ROWS, BLOCK), float("inf"), tl.float32)
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)[None, :]
            scaled = _scaled(scores, ids, vocab, most, temperature)
            weight, kept = tl.exp(scaled), _kept(_key(scaled), ids, last_key, last_id)
            sums += tl.where(kept, weight, 0.0)
            lightest = tl.minimum(lightest, tl.where(kept & (ids < vocab), weight, float("inf")))
        weight, last = tl.sum(sums, axis=1)[:, None], tl.min(lightest, axis=1)[:, None]
        is_heavy = (last > HEAVY * weight) & (last < weight)
        doubt = shared & is_heavy & (weight - last >= (share - SLACK) * total)
    tl.store(doubts + row, doubt.to(tl.int32), mask=there)
    tl.store(last_keys + row, last_key, mask=there)
    tl.store(last_ids + row, last_id, mask=there)
    tl.store(totals + row, total, mask=there)


@triton.jit
def draw_kernel(
    scores, largest, words, temperatures, min_p, last_keys, last_ids,
    best_of, second_of, id_of, weight_of,
    rows, vocab, stride, words_row, words_word, stretch,
    CUTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a stretch of ids: the best noisy score, its id, the second best, and the kept weight."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    there, part = row < rows, tl.program_id(1)
    scores += tl.where(there, row, 0).to(tl.int64) * stride
    most, temperature, is_hot = _row_numbers(largest, temperatures, row, there)
    a = tl.load(words + row * words_row, mask=there, other=0)
    b = tl.load(words + row * words_row + words_word, mask=there, other=0)
    a, b = a.to(tl.uint32, bitcast=True), b.to(tl.uint32, bitcast=True)
    last_key = tl.full((ROWS, 1), LAST, tl.int32)
    last_id = tl.full((ROWS, 1), LAST, tl.int32)
    least = tl.full((ROWS, 1), float("-inf"), tl.float32)
    if CUTS:
        last_key = tl.load(last_keys + row, mask=there, other=LAST)
        last_id = tl.load(last_ids + row, mask=there, other=LAST)
        share = tl.load(min_p + row, mask=there, other=0.0)
        lower = _log(tl.maximum(share, LEAST_SHARE))
        lower -= SLACK * (1.0 - lower)
        least = tl.where(is_hot & (share > 0), lower, least)
    best = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
    second = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
    best_id = tl.full((ROWS, BLOCK), LAST, tl.int32)
    weight = tl.zeros((ROWS, BLOCK), tl.float32)
    is_any_hot = tl.max(is_hot.to(tl.int32)) > 0
    end = tl.minimum((part + 1) * stretch, vocab)
    for start in range(part * stretch, end, BLOCK):
        ids = start + tl.arange(0, BLOCK)[None, :]
        scaled = _scaled(scores, ids, end, most, temperature)
        if CUTS:
            kept = _kept(_key(scaled), ids, last_key, last_id) & (scaled >= least)
            scaled = tl.where(kept, scaled, float("-inf"))
        weight += tl.exp(scaled)
        noisy = scaled
        if is_any_hot:
            noisy = tl.where(is_hot, scaled + _noise(ids, a, b), scaled)
        is_better = noisy > best  # of equal ones the first, whose id is lower
        second = tl.where(is_better, best, tl.maximum(second, noisy))
        best_id = tl.where(is_better, ids, best_id)
        best = tl.where(is_better, noisy, best)
    highest = tl.max(best, axis=1)[:, None]
    winner = tl.min(tl.where(best == highest, best_id, LAST), axis=1)[:, None]
    runner_up = tl.max(tl.where(best_id == winner, second, best), axis=1)[:, None]
    place = row * tl.num_programs(1) + part
    tl.store(best_of + place, highest, mask=there)
    tl.store(id_of + place, winner, mask=there)
    tl.store(second_of + place, runner_up, mask=there)
    tl.store(weight_of + place, tl.sum(weight, axis=1)[:, None], mask=there)


@triton.jit
def settle_kernel(
    scores, largest, temperatures, top_p, min_p, totals, doubts,
    best_of, second_of, id_of, weight_of, drawn,
    rows, vocab, stride, parts,
    CUTS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token of a row, its probability, and whether rounding could not change it."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    there = row < rows
    scores += tl.where(there, row, 0).to(tl.int64) * stride
    most, temperature, is_hot = _row_numbers(largest, temperatures, row, there)
    part = tl.arange(0, PARTS)[None, :]
    place, are = row * parts + part, there & (part < parts)
    best = tl.load(best_of + place, mask=are, other=float("-inf"))
    second = tl.load(second_of + place, mask=are, other=float("-inf"))
    ids = tl.load(id_of + place, mask=are, other=LAST)
    weight = tl.sum(tl.load(weight_of + place, mask=are, other=0.0), axis=1)[:, None]
    highest = tl.max(best, axis=1)[:, None]
    winner = tl.min(tl.where(best == highest, ids, LAST), axis=1)[:, None]
    runner_up = tl.max(tl.where(ids == winner, second, best), axis=1)[:, None]
    winner = tl.where(winner == LAST, 0, winner)  # nothing at all can be drawn
    is_open = highest > float("-inf")
    own = _scaled(scores, winner, vocab, most, temperature)
    is_sure = (is_hot == 0) | (highest - runner_up > NEAR)
    if CUTS:
        is_sure &= tl.load(doubts + row, mask=there, other=0) == 0
        share = tl.load(min_p + row, mask=there, other=0.0)
        least = _log(tl.maximum(share, LEAST_SHARE))
        is_above = (own == 0) | (own > least + SLACK * (1.0 - least))
        is_sure &= is_above | (is_hot == 0) | (share <= 0)
        share = tl.load(top_p + row, mask=there, other=1.0)
        shared = is_hot & is_open & (share < 1)
        if tl.max(shared.to(tl.int32)) > 0:
            key = _key(own)
            before = tl.zeros((ROWS, BLOCK), tl.float32)
            for start in range(0, vocab, BLOCK):
                others = start + tl.arange(0, BLOCK)[None, :]
                scaled = _scaled(scores, others, vocab, most, temperature)
                is_before = _kept(_key(scaled), others, key, winner - 1)
                before += tl.where(is_before, tl.exp(scaled), 0.0)
            likelier = tl.sum(before, axis=1)[:, None]
            total = tl.load(totals + row, mask=there, other=1.0)
            is_within = (likelier == 0) | (likelier < (share - SLACK) * total)
            is_sure &= is_within | (shared == 0)
    is_sure |= is_open == 0
    prob = tl.where(is_open, tl.exp(own) / weight, 0.0)
    tl.store(drawn + row, winner, mask=there)
    tl.store(drawn + rows + row, prob.to(tl.int32, bitcast=True), mask=there)
    tl.store(drawn + 2 * rows + row, is_sure.to(tl.int32), mask=there)


def draw(
    scores: Tensor,
    words: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    truncates: bool,
) -> Tensor:
    """See `lmlang.kernels.sampling.draw`."""
    check("scores", scores, (None, None), (torch.float32,))
    (rows, vocab), device = scores.shape, scores.device
    check("words", words, (rows, 2), (torch.int32,), device, dense=0)
    check("top_k", top_k, (rows,), (torch.int64, torch.int32), device)
    for name, x in (("temperatures", temperatures), ("top_p", top_p), ("min_p", min_p)):
        check(name, x, (rows,), (torch.float32,), device)
    if not vocab:
        raise ValueError("scores has no columns: there must be a token to draw")
    drawn = torch.empty((3, rows), dtype=torch.int32, device=device)
    if not rows:
        return drawn
    largest, grid = torch.amax(scores, dim=-1), triton.cdiv(rows, ROWS)
    parts = min(STRETCHES, triton.cdiv(vocab, STRETCH))
    stretch = triton.cdiv(triton.cdiv(vocab, parts), DRAW_BLOCK) * DRAW_BLOCK
    parts = triton.cdiv(vocab, stretch)
    floats = torch.empty((3 * parts + 1, rows), dtype=torch.float32, device=device)
    ints = torch.empty((parts + 3, rows), dtype=torch.int32, device=device)
    best, second, weight = (floats[i * parts :] for i in range(3))
    totals, last_keys, last_ids, doubts, ids = floats[3 * parts], *ints[:3], ints[3:]
    stride = scores.stride(0)
    # Products and sums stay apart, so that the noise is rounded here as it is under test.
    options = {"num_warps": 8, "enable_fp_fusion": False}
    if truncates:
        cut_kernel[(grid,)](
            scores, largest, temperatures, top_k, top_p, last_keys, last_ids, totals, doubts,
            rows, vocab, stride, BITS=SEARCH_BITS, ROWS=ROWS, BLOCK=SEARCH_BLOCK, **options,
        )  # fmt: skip
    draw_kernel[(grid, parts)](
        scores, largest, words, temperatures, min_p, last_keys, last_ids, best, second, ids, weight,
        rows, vocab, stride, words.stride(0), words.stride(1), stretch,
        CUTS=truncates, ROWS=ROWS, BLOCK=DRAW_BLOCK, **options,
    )  # fmt: skip
    settle_kernel[(grid,)](
        scores, largest, temperatures, top_p, min_p, totals, doubts,
        best, second, ids, weight, drawn, rows, vocab, stride, parts,
        CUTS=truncates, PARTS=triton.next_power_of_2(parts), ROWS=ROWS, BLOCK=SEARCH_BLOCK,
        **options,
    )  # fmt: skip
    return drawn
