"""The gated activation in Triton: a stretch of one row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmlang.kernels.forms import check
from lmlang.kernels.triton.norm import FLOATS

BLOCK = 1024
"""Numbers of a program."""


@triton.jit
def gate_kernel(gate_up, out, width, token_stride, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """``activation(gate) * up`` of one token; the activation is rounded to the dtype between."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    places = gate_up + token * token_stride + column
    gate = tl.load(places, mask=there, other=0.0).to(tl.float32)
    up = tl.load(places + width, mask=there, other=0.0).to(tl.float32)
    exponent = gate
    if GELU:  # (1 + tanh z) / 2 = 1 / (1 + exp(-2z))
        exponent = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    active = (gate / (1.0 + tl.exp(-exponent))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + token * width + column, (active * up).to(out.dtype.element_ty), mask=there)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `lmlang.kernels.activation.silu_mul`."""
    return _gated(gate_up, gelu=False)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """See `lmlang.kernels.activation.gelu_tanh_mul`."""
    return _gated(gate_up, gelu=True)


def _gated(gate_up: Tensor, *, gelu: bool) -> Tensor:
    check("gate_up", gate_up, (None, None), FLOATS)
    tokens, both = gate_up.shape
    if both % 2:
        raise ValueError(f"gate_up has {both:,} numbers a row: it must be two equal halves")
    width = both // 2
    out = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        gate_kernel[(tokens, triton.cdiv(width, BLOCK))](
            gate_up, out, width, gate_up.stride(0),
            GELU=gelu, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return out
