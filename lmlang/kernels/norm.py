"""RMS normalisation, alone and fused with the residual addition before it."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlang.kernels.forms import dispatch


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to a mean square of one, then by ``weight``.

    All of it happens in float32, whatever the dtypes of ``x`` and ``weight``.

    Args:
        x: ``[T, hidden]`` or ``[T, heads, hidden]``, read only.
        weight: ``[hidden]``, or for each head ``[heads, hidden]``.
        eps: Added to the mean square.

    Returns:
        In the shape and dtype of ``x``, new.
    """
    return dispatch("rms_norm", rms_norm_reference, x)(x, weight, eps)


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
    return dispatch("add_rms_norm", add_rms_norm_reference, x)(x, residual, weight, eps)


def add_rms_norm_at(x: Tensor, residual: Tensor, at: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`add_rms_norm` of some rows only, gathered on the way: those whose logits are wanted.

    Args:
        x: ``[T, hidden]``, read only.
        residual: ``[T, hidden]``, read only.
        at: ``[K]`` int64, the rows.
        weight: ``[hidden]``.
        eps: Added to the mean square.

    Returns:
        ``[K, hidden]`` in the dtype of ``residual``, new.
    """
    return dispatch("add_rms_norm_at", add_rms_norm_at_reference, x)(x, residual, at, weight, eps)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` in plain torch; ``weight`` may have any shape that broadcasts to that of ``x``."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return (wide * scale).mul_(weight).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`add_rms_norm` in plain torch."""
    residual.add_(x)
    return rms_norm_reference(residual, weight, eps)


def add_rms_norm_at_reference(
    x: Tensor, residual: Tensor, at: Tensor, weight: Tensor, eps: float
) -> Tensor:
    """`add_rms_norm_at` by `add_rms_norm`, in whatever form that has."""
    return add_rms_norm(x[at], residual[at], weight, eps)
