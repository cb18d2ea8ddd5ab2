"""C forms of what goes over rows once: norms, gates, rotary positions, stores, merges of states.

Their contracts are in lmlang/kernels: norm.py, activation.py, rope.py, paged.py and
paged_attention.py.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from lmlang.kernels import native

_WIDE = {torch.int32: False, torch.int64: True}
"""Whether indices of a dtype are of 8 bytes."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to a mean square of one, then by ``weight``."""
    fits = weight.is_cpu and x.ndim in (2, 3) and weight.shape in (x.shape[-1:], x.shape[1:])
    _need(fits, x, weight)
    x = _dense(x)
    heads = x.shape[1] if x.ndim == 3 else 1
    strides = (x.stride(0), x.stride(1) if x.ndim == 3 else 0)
    return _norm(x, None, weight, eps, heads, strides)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``x`` to the residual stream, then normalise the sum."""
    if x.dtype != residual.dtype or residual.stride(-1) != 1:
        residual.add_(x)
        return rms_norm(residual, weight, eps)
    fits = x.ndim == 2 and x.shape == residual.shape and weight.shape == x.shape[1:]
    _need(fits and weight.is_cpu and residual.is_cpu, x, residual, weight)
    x = _dense(x)
    return _norm(x, residual, weight, eps, 1, (x.stride(0), 0))


def _norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    heads: int,
    strides: tuple[int, int],
) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    weight = _dense(weight)
    job = native.NormRows(
        x.data_ptr(),
        None if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        *strides,
        0 if residual is None else residual.stride(0),
        weight.stride(0) if weight.ndim == 2 else 0,
        native.TYPES[x.dtype],
        native.TYPES[weight.dtype],
        len(x),
        heads,
        x.shape[-1],
        eps,
        native.threads(),
    )
    native.library().lm_norm(ctypes.byref(job))
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``."""
    return _gate(gate_up, gelu=False)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """``gelu(gate) * up`` with gelu's tanh approximation."""
    return _gate(gate_up, gelu=True)


def _gate(gate_up: Tensor, *, gelu: bool) -> Tensor:
    _need(gate_up.ndim == 2 and gate_up.shape[1] % 2 == 0, gate_up)
    x = _dense(gate_up)
    rows, size = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, size), dtype=x.dtype)
    numbers = (native.TYPES[x.dtype], rows, size, gelu, native.threads())
    job = native.GateRows(x.data_ptr(), out.data_ptr(), x.stride(0), *numbers)
    native.library().lm_gate(ctypes.byref(job))
    return out


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn every head of ``x`` in place."""
    rows, heads, size = x.shape
    fits = size % 2 == 0 and cos.shape == sin.shape == (rows, 1, size // 2)
    _need(fits and x.stride(2) == 1 and cos.dtype == sin.dtype == x.dtype, x, cos, sin)
    cos, sin = cos.contiguous(), sin.contiguous()
    job = native.RopeRows(
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        x.stride(0),
        x.stride(1),
        size // 2,
        native.TYPES[x.dtype],
        rows,
        heads,
        size,
        native.threads(),
    )
    native.library().lm_rope(ctypes.byref(job))


def store(
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """Write new keys and values to their slots."""
    slots = slots.contiguous()
    jobs = (_store_job(slots, k, k_pool, k_scale), _store_job(slots, v, v_pool, v_scale))
    native.check_fault(native.library().lm_store((native.StoreRows * 2)(*jobs), 2))


def _store_job(slots: Tensor, x: Tensor, pool: Tensor, scales: Tensor | None) -> native.StoreRows:
    rows, heads, size = x.shape
    fits = slots.shape == (rows,) and pool.shape[1:] == (heads, size) and pool.stride(2) == 1
    fits = fits and slots.is_cpu and pool.is_cpu and slots.dtype in _WIDE
    if scales is not None:
        fits = fits and scales.shape == pool.shape[:2] and scales.is_contiguous()
    _need(fits and (scales is not None) == (pool.dtype == torch.int8), slots, x, pool)
    x = _dense(x)
    return native.StoreRows(
        x.data_ptr(),
        pool.data_ptr(),
        None if scales is None else scales.data_ptr(),
        slots.data_ptr(),
        *x.stride()[:2],
        *pool.stride()[:2],
        native.TYPES[x.dtype],
        native.TYPES[pool.dtype],
        0 if scales is None else native.TYPES[scales.dtype],
        rows,
        heads,
        size,
        len(pool),
        _WIDE[slots.dtype],
        native.threads(),
    )


def _need(fits: bool, *tensors: Tensor) -> None:
    """Refuse tensors that do not belong together.

    Raises:
        ValueError: They do not.
    """
    if not fits:
        told = ", ".join(f"{x.dtype} {list(x.shape)} on {x.device}" for x in tensors)
        raise ValueError(f"these do not go together in a kernel for the CPU: {told}")


def _dense(x: Tensor) -> Tensor:
    """The tensor, its last axis without gaps."""
    return x if x.stride(-1) == 1 else x.contiguous()
