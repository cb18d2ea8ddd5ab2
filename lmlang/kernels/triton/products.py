"""Products of few rows with an int8 weight in Triton: what they cost is to read its bytes once.

A program has a tile of outputs and, where outputs alone are too few to keep the device busy, a
part of the inputs. The weight is the first factor: its tile is widened in registers, from where
tensor cores take it, and never written anywhere.

    part[s, r, o] = scale[o] * sum over the inputs of part s of values[o, i] * x[r, i]
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmlang.kernels.forms import check
from lmlang.kernels.linear import int8_product_reference
from lmlang.kernels.triton.norm import FLOATS
from lmlang.kernels.triton.tiles import device_of

ROWS = 128
"""Up to so many rows here; for more the weight is widened once, which the product hides."""
N, WARPS, STAGES = 64, 4, 4
"""Outputs of a tile, and how a program works."""
K = {2: 128, 4: 32}
"""Inputs of a tile, by the bytes of a number of x."""
WAVES = 2
"""Programs that a multiprocessor has at once, wanted at least."""


@triton.jit
def int8_kernel(
    x,
    values,
    scale,
    parts,
    rows,
    outputs,
    inputs,
    share,
    x_stride,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of outputs over one part of the inputs: ``share`` of them, a multiple of K."""
    output = tl.program_id(0) * N + tl.arange(0, N)
    row = tl.program_id(1) * M + tl.arange(0, M)
    part = tl.program_id(2)
    # What is behind the end reads the last one again, and is not written.
    weights = values + tl.minimum(output, outputs - 1).to(tl.int64)[:, None] * inputs
    numbers = x + tl.minimum(row, rows - 1).to(tl.int64)[None, :] * x_stride
    acc = tl.zeros((N, M), dtype=tl.float32)
    begin = part * share
    for start in tl.range(begin, tl.minimum(begin + share, inputs), K, num_stages=STAGES):
        place = start + tl.arange(0, K)
        there = place < inputs
        w = tl.load(weights + place[None, :], mask=there[None, :], other=0)
        xs = tl.load(numbers + place[:, None], mask=there[:, None], other=0.0)
        acc = tl.dot(w.to(xs.dtype), xs, acc, input_precision=PRECISION)
    acc *= tl.load(scale + output, mask=output < outputs, other=0.0).to(tl.float32)[:, None]
    places = (part.to(tl.int64) * rows + row[None, :]) * outputs + output[:, None]
    mask = (output[:, None] < outputs) & (row[None, :] < rows)
    tl.store(parts + places, acc.to(parts.dtype.element_ty), mask=mask)


def int8_product(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """See `lmlang.kernels.linear.int8_product`."""
    check("x", x, (None, None), FLOATS)
    rows, inputs = x.shape
    check("values", values, (None, inputs), (torch.int8,), x.device, dense=2)
    outputs = len(values)
    check("scale", scale, (outputs,), (torch.bfloat16,), x.device)
    if rows > ROWS:
        return int8_product_reference(x, values, scale)
    if not rows or not outputs or not inputs:
        return x.new_zeros((rows, outputs))
    m, k = max(16, int(triton.next_power_of_2(rows))), K[x.element_size()]
    m = min(m, 64 if x.element_size() == 2 else 32)
    tiles, blocks = triton.cdiv(outputs, N) * triton.cdiv(rows, m), triton.cdiv(inputs, k)
    wanted = triton.cdiv(WAVES * device_of(x.device).multiprocessors, tiles)
    share = triton.cdiv(blocks, min(wanted, max(1, blocks // STAGES))) * k
    splits = triton.cdiv(inputs, share)
    dtype = x.dtype if splits == 1 else torch.float32
    parts = torch.empty((splits, rows, outputs), dtype=dtype, device=x.device)
    int8_kernel[(triton.cdiv(outputs, N), triton.cdiv(rows, m), splits)](
        x, values, scale, parts, rows, outputs, inputs, share, x.stride(0),
        M=m, N=N, K=k, STAGES=STAGES, PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=WARPS, num_stages=STAGES, enable_fp_fusion=True,
    )  # fmt: skip
    return parts[0] if splits == 1 else parts.sum(0).to(x.dtype)
