"""The gated activation between the two feed-forward products.

torch computes the last elements of a row, and of a thread's share, with other code than the rest,
which may differ in the last bit. In the row-invariant form only exp and tanh are left to it, which
treat all elements alike; the rest is arithmetic that IEEE 754 rounds in one way only.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from lmlang.kernels.forms import dispatch, is_row_invariant


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``.

    Args:
        gate_up: ``[T, 2 * intermediate]``, the gate first; read only.

    Returns:
        ``[T, intermediate]`` in the same dtype, new and contiguous.
    """
    return dispatch("silu_mul", silu_mul_reference, gate_up)(gate_up)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """``gelu(gate) * up`` with gelu's tanh approximation; shapes as in `silu_mul`."""
    return dispatch("gelu_tanh_mul", gelu_tanh_mul_reference, gate_up)(gate_up)


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """`silu_mul` in plain torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    if is_row_invariant():
        wide = gate.float()
        return (wide / torch.exp(-wide).add_(1)).to(gate.dtype).mul_(up)
    return F.silu(gate).mul_(up)


def gelu_tanh_mul_reference(gate_up: Tensor) -> Tensor:
    """`gelu_tanh_mul` in plain torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    if is_row_invariant():
        wide = gate.float()
        inner = (wide * wide * wide).mul_(0.044715).add_(wide).mul_(math.sqrt(2 / math.pi))
        return torch.tanh(inner).add_(1).mul_(wide).mul_(0.5).to(gate.dtype).mul_(up)
    return F.gelu(gate, approximate="tanh").mul_(up)
