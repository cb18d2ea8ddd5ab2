"""Rope and the store of keys and values in Triton, alone and in one pass.

A program has some heads of one token, each as its two halves:

    token t   q q q q | q q q q | k k v v        heads of one token, some a program
              turned    turned    k turned, k and v to slot[t] (as int8: with a scale a head)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmlang.kernels.forms import check
from lmlang.kernels.triton.norm import FLOATS, warps_of

AT_ONCE = 1024
"""Numbers of a program's heads together."""
LARGEST = tl.constexpr(127.0)
"""Of an int8 number here."""
ROUND = tl.constexpr(12582912.0)
"""Added and taken away it rounds a small float32 to a whole number, halves to even: 3 * 2^22."""


@triton.jit
def _scale(largest, scales):
    """The scale of heads whose largest numbers these are, in the dtype of the scales."""
    least = 1.1754943508222875e-38  # what the dtype holds in full precision, at the least
    if scales.dtype.element_ty == tl.float16:
        least = 6.103515625e-05
    return tl.maximum(tl.div_rn(largest, LARGEST), least).to(scales.dtype.element_ty)


@triton.jit
def _whole(x, scale):
    """Numbers [HEADS, N] by the scales [HEADS] of their heads, as int8."""
    whole = tl.div_rn(x, tl.broadcast_to(scale.to(tl.float32)[:, None], x.shape)) + ROUND
    return tl.minimum(tl.maximum(whole - ROUND, -LARGEST), LARGEST).to(tl.int8)


@triton.jit
def _store_halves(pool, scales, scales_there, places, first, second, half, there):
    """Heads as their two halves [HEADS, HALF], zero where not ``there``, to a slot of the pool."""
    if scales is None:
        tl.store(places, first.to(pool.dtype.element_ty), mask=there)
        tl.store(places + half, second.to(pool.dtype.element_ty), mask=there)
    else:
        largest = tl.maximum(tl.max(tl.abs(first), axis=1), tl.max(tl.abs(second), axis=1))
        scale = _scale(largest, scales)
        tl.store(scales, scale, mask=scales_there)
        tl.store(places, _whole(first, scale), mask=there)
        tl.store(places + half, _whole(second, scale), mask=there)


@triton.jit
def rope_kernel(
    x, cos, sin, slots, k, v, k_scale, v_scale,
    heads, queries, kv_heads,
    x_token, x_head, k_slot, v_slot, k_scale_slot, v_scale_slot,
    STORE: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Turn heads 0 .. heads - 1 of x in place; with STORE, put keys and values to their slots.

    ``heads`` counts queries and keys; the values stand behind them.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)
    half = DIM // 2
    dtype = x.dtype.element_ty
    inside = (pair < half)[None, :]
    turning = (head < heads)[:, None] & inside
    there = turning
    if STORE:
        there = (head < heads + kv_heads)[:, None] & inside
    places = x + token * x_token + head[:, None] * x_head + pair[None, :]
    first = tl.load(places, mask=there, other=0.0).to(tl.float32)
    second = tl.load(places + half, mask=there, other=0.0).to(tl.float32)
    c = tl.load(cos + token * half + pair, mask=pair < half, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + token * half + pair, mask=pair < half, other=0.0).to(tl.float32)[None, :]
    turned = (first * c - second * s).to(dtype)
    other = (second * c + first * s).to(dtype)
    tl.store(places, turned, mask=turning)
    tl.store(places + half, other, mask=turning)
    if STORE:
        slot = tl.load(slots + token).to(tl.int64)
        last = (tl.program_id(1) + 1) * HEADS - 1
        if last >= queries:
            own = head - queries
            are = (own >= 0) & (head < heads)
            some = are[:, None] & inside
            _store_halves(
                k, None if k_scale is None else k_scale + slot * k_scale_slot + own, are,
                k + slot * k_slot + own[:, None] * DIM + pair[None, :],
                tl.where(some, turned.to(tl.float32), 0.0),
                tl.where(some, other.to(tl.float32), 0.0), half, some,
            )  # fmt: skip
        if last >= heads:
            own = head - heads
            are = (own >= 0) & (own < kv_heads)
            some = are[:, None] & inside
            _store_halves(
                v, None if v_scale is None else v_scale + slot * v_scale_slot + own, are,
                v + slot * v_slot + own[:, None] * DIM + pair[None, :],
                tl.where(some, first, 0.0), tl.where(some, second, 0.0), half, some,
            )  # fmt: skip


@triton.jit
def store_kernel(
    slots, new, pool, scales, heads, new_token, new_head, pool_slot, scale_slot,
    DIM: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Heads of one token's keys, or of its values, to its slot."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, BLOCK)
    there = (head < heads)[:, None] & (column < DIM)[None, :]
    places = new + token * new_token + head[:, None] * new_head + column[None, :]
    x = tl.load(places, mask=there, other=0.0)
    slot = tl.load(slots + token).to(tl.int64)
    places = pool + slot * pool_slot + head[:, None] * DIM + column[None, :]
    if scales is None:
        tl.store(places, x.to(pool.dtype.element_ty), mask=there)
    else:
        x = x.to(tl.float32)
        scale = _scale(tl.max(tl.abs(x), axis=1), scales)
        tl.store(scales + slot * scale_slot + head, scale, mask=head < heads)
        tl.store(places, _whole(x, scale), mask=there)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """See `lmlang.kernels.rope.apply_rope`."""
    check("x", x, (None, None, None), FLOATS)
    heads = x.shape[1]
    _check_angles(x, cos, sin)
    if x.numel():
        _launch(x, cos, sin, heads, heads, x, (x, x, None, None), store=False)


def rope_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """See `lmlang.kernels.rope.rope_store`."""
    kv_heads, size = _check_pool("k", k, k_scale, qkv)
    _check_pool("v", v, v_scale, qkv)
    check("v", v, tuple(k.shape), (k.dtype,), dense=2)
    check("qkv", qkv, (None, heads + 2 * kv_heads, size), FLOATS)
    check("slots", slots, (len(qkv),), (torch.int64, torch.int32), qkv.device)
    _check_angles(qkv, cos, sin)
    if qkv.numel():
        pool = (k, v, k_scale, v_scale)
        _launch(qkv, cos, sin, heads + kv_heads, heads, slots, pool, store=True)


def store(
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """See `lmlang.kernels.paged.store_kv`."""
    check("slots", slots, (len(k),), (torch.int64, torch.int32), k.device)
    parts = (("k", k, k_pool, k_scale), ("v", v, v_pool, v_scale))
    for name, new, pool, scale in parts:
        heads, size = _check_pool(f"the pool's {name}", pool, scale, new)
        check(name, new, (len(slots), heads, size), FLOATS)
    for _, new, pool, scale in parts:
        _, heads, size = new.shape
        if new.numel():
            block = triton.next_power_of_2(size)
            tile = min(max(1, AT_ONCE // block), triton.next_power_of_2(heads))
            store_kernel[(len(new), triton.cdiv(heads, tile))](
                slots, new, pool, scale, heads, new.stride(0), new.stride(1),
                pool.stride(0), 0 if scale is None else scale.stride(0),
                DIM=size, BLOCK=block, HEADS=tile, num_warps=warps_of(tile * block),
                enable_fp_fusion=True,
            )  # fmt: skip


def _check_angles(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    tokens, _, size = x.shape
    if size % 2:
        raise ValueError(f"a head has {size} numbers: it must be two equal halves")
    check("cos", cos, (tokens, 1, size // 2), (x.dtype,), x.device, dense=3)
    check("sin", sin, (tokens, 1, size // 2), (x.dtype,), x.device, dense=3)


def _check_pool(name: str, pool: Tensor, scale: Tensor | None, like: Tensor) -> tuple[int, int]:
    """A pool's heads and their size."""
    dtypes = FLOATS if scale is None else (torch.int8,)
    check(name, pool, (None, None, None), dtypes, like.device, dense=2)
    slots, heads, size = pool.shape
    if scale is not None:
        half = (torch.float32, torch.float16)
        check(f"{name}'s scales", scale, (slots, heads), half, like.device)
    return heads, size


def _launch(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    turned: int,
    queries: int,
    slots: Tensor,
    pool: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    *,
    store: bool,
) -> None:
    tokens, heads, size = x.shape
    k, v, k_scale, v_scale = pool
    half = triton.next_power_of_2(size // 2)
    tile = min(max(1, AT_ONCE // (2 * half)), triton.next_power_of_2(heads))
    rope_kernel[(tokens, triton.cdiv(heads, tile))](
        x, cos, sin, slots, k, v, k_scale, v_scale,
        turned, queries, heads - turned, x.stride(0), x.stride(1), k.stride(0), v.stride(0),
        0 if k_scale is None else k_scale.stride(0), 0 if v_scale is None else v_scale.stride(0),
        STORE=store, DIM=size, HALF=half, HEADS=tile, num_warps=warps_of(2 * tile * half),
        enable_fp_fusion=True,
    )  # fmt: skip
