"""Device functions of attention: a tile of queries over a stretch of keys, and who has which tile.

A tile of queries is [M, Dk], of keys [N, Dk], gathered by slot. Per query three numbers go from
tile to tile: ``acc`` [Dv], the sum of weights times values; ``total``, the sum of weights; ``top``,
the largest score, with weight = 2^(score - top). Scores are in units of log 2, so that the
exponential is one instruction.

Source: Dao et al., "FlashAttention" (2022); Milakov & Gimelshein, "Online normalizer calculation
for softmax" (2018).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def attend(
    acc,
    top,
    total,
    q,
    k,
    v,
    k_scale,
    v_scale,
    table,
    low,
    high,
    position,
    scale,
    K_SLOT: tl.constexpr,
    V_SLOT: tl.constexpr,
    SCALE_SLOT: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    N: tl.constexpr,
    BLOCK_DK: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """The state with keys low .. high - 1 of the table added.

    Args:
        acc: float32 [M, BLOCK_DV].
        top: float32 [M], -inf at first.
        total: float32 [M].
        q: [M, BLOCK_DK], zero behind DK.
        k: Pointer to the head's key in slot 0; so are v, and k_scale and v_scale or None.
        table: Pointer to the first slot of the row.
        low: The first key; the tiles start there.
        high: Behind the last key. Without MASKED, a multiple of N behind ``low``.
        position: int32 [M], the last key that a query sees; looked at where MASKED, as WINDOW is.
        scale: Factor on the scores.
    """
    size = tl.arange(0, BLOCK_DK)
    value_size = tl.arange(0, BLOCK_DV)
    for start in tl.range(low, high, N, num_stages=STAGES):
        key = start + tl.arange(0, N)
        if MASKED:  # behind the last one stands the last one again, so no number is ever made up
            slot = tl.load(table + tl.minimum(key, high - 1)).to(tl.int64)
        else:
            slot = tl.load(table + key).to(tl.int64)

        at = k + slot[:, None] * K_SLOT + size[None, :]
        keys = tl.load(at) if DK == BLOCK_DK else tl.load(at, size[None, :] < DK, 0)
        score = tl.dot(q, tl.trans(keys.to(q.dtype)), input_precision=PRECISION)
        if k_scale is not None:
            score *= tl.load(k_scale + slot * SCALE_SLOT).to(tl.float32)[None, :]
        if SOFTCAP > 0:
            # tanh x = 1 - 2 / (e^2x + 1), right at both infinities
            grown = tl.exp2(score * (2 * LOG2E / SOFTCAP * scale))
            score = (SOFTCAP * LOG2E) * (1 - 2 / (grown + 1))
            factor = 1.0
        else:
            factor = scale * LOG2E
        if MASKED:
            seen = key[None, :] <= position[:, None]
            if WINDOW:
                seen &= key[None, :] > position[:, None] - WINDOW
            score = tl.where(seen, score, float("-inf"))

        new_top = tl.maximum(top, tl.max(score, 1) * factor)
        # Of queries that have seen nothing yet it stays -inf.
        base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
        weight = tl.exp2(score * factor - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weight, 1)
        top = new_top

        at = v + slot[:, None] * V_SLOT + value_size[None, :]
        values = tl.load(at) if DV == BLOCK_DV else tl.load(at, value_size[None, :] < DV, 0)
        if v_scale is not None:
            weight *= tl.load(v_scale + slot * SCALE_SLOT).to(tl.float32)[None, :]
        acc = acc * shrink[:, None]
        acc = tl.dot(weight.to(q.dtype), values.to(q.dtype), acc, input_precision=PRECISION)
    return acc, top, total


@triton.jit
def state(acc, top, total):
    """The outputs [M, BLOCK_DV] and their lse [M] in units of log 2; (0, -inf) over no keys."""
    some = tl.where(total > 0, total, 1.0)
    return acc / some[:, None], top + tl.log2(some)


@triton.jit
def first_unit(starts, row, even, size, FACTOR: tl.constexpr):
    """The first unit of work of a row, whose units are of ``size`` items.

    Row r has starts[r + 1] - starts[r] things (no more than ``even`` where that is not 0) of
    FACTOR items each. Its units begin at floor(items before it / size) + r: from there to the next
    row's there is room for all of them, and no row needs a sum over the others.
    """
    begin = tl.load(starts + row) - tl.load(starts)
    begin = tl.where(even > 0, row * even, begin)
    return begin * FACTOR // size + row


@triton.jit
def row_of(starts, rows, unit, even, size, FACTOR: tl.constexpr, STEP: tl.constexpr):
    """The row among ``rows`` that a unit belongs to, as `first_unit` counts them."""
    found = 0
    base = tl.load(starts)
    for first in range(0, rows, STEP):
        row = first + tl.arange(0, STEP)
        begin = tl.load(starts + row, mask=row < rows, other=0) - base
        begin = tl.where(even > 0, row * even, begin)
        mine = (begin * FACTOR // size + row <= unit) & (row < rows)
        found += tl.sum(mine.to(tl.int32))
    return found - 1
