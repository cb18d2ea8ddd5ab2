"""Attention states merged on the device: the parts of one query, and two batches of states."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lmlang.kernels.triton.span import LN2, LOG2E

NUMBERS = 2048
"""Of outputs that one program of `merge_states_kernel` works on, at most."""


@triton.jit
def merge_parts(
    parts,
    lses,
    first,
    count,
    head,
    HEADS: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The state of one query's head from those over parts of its keys.

    Args:
        parts: Pointer to float32 [., HEADS, DV].
        lses: Pointer to float32 [., HEADS], in units of log 2.
        first: The query's first part.
        count: Its parts; of none the state is (0, -inf).
        head: Which head.

    Returns:
        float32 [BLOCK_DV], and its lse in units of log 2.
    """
    size = tl.arange(0, BLOCK_DV)
    acc = tl.zeros([BLOCK_DV], tl.float32)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    for step in range(0, count, AT_ONCE):
        part = step + tl.arange(0, AT_ONCE)
        at = (first + part).to(tl.int64) * HEADS + head
        part_lse = tl.load(lses + at, mask=part < count, other=float("-inf"))
        inside = (part < count)[:, None] & (size < DV)[None, :]
        part_out = tl.load(parts + at[:, None] * DV + size[None, :], mask=inside, other=0.0)
        new_top = tl.maximum(top, tl.max(part_lse, 0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(part_lse - base)
        shrink = tl.exp2(top - base)
        acc = acc * shrink + tl.sum(weight[:, None] * part_out, 0)
        total = total * shrink + tl.sum(weight, 0)
        top = new_top
    some = tl.where(total > 0, total, 1.0)
    return acc / some, top + tl.log2(some)


@triton.jit(do_not_specialize_on_alignment=["lse", "part_lse", "rows"])
def merge_states_kernel(
    out,
    lse,
    part,
    part_lse,
    rows,
    HEADS: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """One program merges some heads of one part into their state."""
    index = tl.program_id(0).to(tl.int64)
    row = index if rows is None else tl.load(rows + index).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    size = tl.arange(0, BLOCK_DV)
    real = head < HEADS
    old = tl.load(lse + row * HEADS + head, mask=real, other=0.0)
    new = tl.load(part_lse + index * HEADS + head, mask=real, other=0.0)
    top = tl.maximum(old, new)
    base = tl.where(top == float("-inf"), 0.0, top)
    old_weight = tl.exp2((old - base) * LOG2E)
    new_weight = tl.exp2((new - base) * LOG2E)
    total = old_weight + new_weight
    some = tl.where(total > 0, total, 1.0)
    tl.store(lse + row * HEADS + head, top + tl.log2(some) * LN2, mask=real)

    at = head[:, None] * DV + size[None, :]
    inside = real[:, None] & (size < DV)[None, :]
    here = out + row * HEADS * DV + at
    a = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(part + index * HEADS * DV + at, mask=inside, other=0.0).to(tl.float32)
    merged = a * (old_weight / some)[:, None] + b * (new_weight / some)[:, None]
    tl.store(here, merged.to(out.dtype.element_ty), mask=inside)


def merge_states(
    out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor, rows: Tensor | None = None
) -> None:
    """Triton form of `lmlang.kernels.paged_attention.merge_states`."""
    members, heads, size = part.shape
    if not part.numel():
        return
    block_dv = triton.next_power_of_2(size)
    block_h = min(triton.next_power_of_2(heads), max(1, NUMBERS // block_dv))
    merge_states_kernel[(members, triton.cdiv(heads, block_h))](
        out, lse, part, part_lse, rows, heads, size, block_h, block_dv,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
