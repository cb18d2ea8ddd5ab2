"""RMS normalisation in Triton: a row or several short ones a program, read and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmlang.kernels.forms import check

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 1 << 14
"""Numbers in a row at most: a program keeps it in registers."""
AT_ONCE = 1024
"""Numbers of a program's short rows together."""


@triton.jit
def norm_kernel(
    x, residual, at, weight, out,
    rows, heads, width,
    x_token, x_head, residual_token, weight_head,
    eps,
    ADD: tl.constexpr, KEEP: tl.constexpr, GATHER: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of x, or x + residual (KEEP: written there); row = token * heads + head."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (column < width)[None, :]
    token, head = (row // heads).to(tl.int64), row % heads
    if GATHER:
        token = tl.load(at + token, mask=row < rows, other=0).to(tl.int64)
    places = x + (token * x_token + head * x_head)[:, None] + column[None, :]
    wide = tl.load(places, mask=there, other=0.0).to(tl.float32)
    if ADD:
        places = residual + (token * residual_token)[:, None] + column[None, :]
        total = wide + tl.load(places, mask=there, other=0.0).to(tl.float32)
        total = total.to(residual.dtype.element_ty)  # what the residual stream holds is normalised
        if KEEP:
            tl.store(places, total, mask=there)
        wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / width + eps)
    places = weight + (head * weight_head)[:, None] + column[None, :]
    factor = tl.load(places, mask=there, other=0.0).to(tl.float32)
    normed = wide * scale[:, None] * factor
    places = out + (row.to(tl.int64) * width)[:, None] + column[None, :]
    tl.store(places, normed.to(out.dtype.element_ty), mask=there)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `lmlang.kernels.norm.rms_norm`."""
    rows = x if x.ndim == 3 else x[:, None] if x.ndim == 2 else x
    check("x", rows, (None, None, None), FLOATS)
    heads, width = rows.shape[1:]
    own = weight.ndim == 2
    check("weight", weight, (heads, width) if own else (width,), FLOATS, x.device)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    strides = (rows.stride(0), rows.stride(1), 0, weight.stride(0) if own else 0)
    _launch(rows, rows, rows, weight, out, strides, eps, add=False, keep=False, gather=False)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `lmlang.kernels.norm.add_rms_norm`."""
    _check_addition(x, residual, weight)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    strides = (x.stride(0), 0, residual.stride(0), 0)
    _launch(x, residual, x, weight, out, strides, eps, add=True, keep=True, gather=False)
    return out


def add_rms_norm_at(x: Tensor, residual: Tensor, at: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `lmlang.kernels.norm.add_rms_norm_at`."""
    _check_addition(x, residual, weight)
    check("at", at, (None,), (torch.int64, torch.int32), x.device)
    out = torch.empty((len(at), x.shape[1]), dtype=x.dtype, device=x.device)
    strides = (x.stride(0), 0, residual.stride(0), 0)
    _launch(x, residual, at, weight, out, strides, eps, add=True, keep=False, gather=True)
    return out


def _check_addition(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    check("x", x, (None, None), FLOATS)
    check("residual", residual, tuple(x.shape), (x.dtype,), x.device)
    check("weight", weight, (x.shape[1],), FLOATS, x.device)


def _launch(
    x: Tensor,
    residual: Tensor,
    at: Tensor,
    weight: Tensor,
    out: Tensor,
    strides: tuple[int, int, int, int],
    eps: float,
    *,
    add: bool,
    keep: bool,
    gather: bool,
) -> None:
    width = out.shape[-1]
    if width > WIDEST:
        raise ValueError(f"a row has {width:,} numbers: it must have at most {WIDEST:,}")
    if not out.numel():
        return
    heads = x.shape[1] if x.ndim == 3 else 1
    rows, block = out.numel() // width, triton.next_power_of_2(width)
    tile = max(1, AT_ONCE // block)
    norm_kernel[(triton.cdiv(rows, tile),)](
        x, residual, at, weight, out, rows, heads, width, *strides, eps,
        ADD=add, KEEP=keep, GATHER=gather, ROWS=tile, BLOCK=block,
        num_warps=warps_of(tile * block), enable_fp_fusion=True,
    )  # fmt: skip


def warps_of(numbers: int) -> int:
    """Warps of a program with so many numbers."""
    return min(16, max(1, numbers // 512))
