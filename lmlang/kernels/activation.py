"""The gated activation between the two feed-forward products."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``.

    Args:
        gate_up: ``[T, 2 * intermediate]``, the gate first; read only.

    Returns:
        ``[T, intermediate]`` in the same dtype, new and contiguous.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """``gelu(gate) * up`` with gelu's tanh approximation; shapes as in `silu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)
