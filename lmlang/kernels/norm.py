"""RMS normalisation, alone and fused with the residual addition before it."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to a mean square of one, then by ``weight``.

    All of it happens in float32, whatever the dtypes of ``x`` and ``weight``.

    Args:
        x: ``[..., hidden]``, read only.
        weight: ``[hidden]``, or any shape that broadcasts to that of ``x``.
        eps: Added to the mean square.

    Returns:
        ``[..., hidden]`` in the dtype of ``x``, new.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return (wide * scale).mul_(weight).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``x`` to the residual stream, then normalise the sum as `rms_norm` does.

    Args:
        x: ``[T, hidden]``, read only.
        residual: ``[T, hidden]``; **written**: it becomes ``residual + x``.
        weight: ``[hidden]``.
        eps: Added to the mean square.

    Returns:
        ``[T, hidden]`` in the dtype of ``residual``, new.
    """
    residual.add_(x)
    return rms_norm(residual, weight, eps)
