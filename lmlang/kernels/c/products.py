"""The C form of products with packed weights; the contract is in lmlang/kernels/packed.py."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from lmlang.kernels import native
from lmlang.kernels.packed import BLOCK, PackedWeight


def packed_product(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """The product x · weightᵀ of rows that are quantised for it, and the bias added."""
    rows, inputs = x.shape
    if x.dtype != torch.float32 or inputs != weight.shape[1]:
        raise ValueError(f"x is {x.dtype} {tuple(x.shape)}: it must be float32, {weight.shape}")
    if bias is not None:
        if bias.dtype != torch.float32 or bias.shape != weight.shape[:1]:
            raise ValueError(
                f"bias is {bias.dtype} {tuple(bias.shape)}: it must be float32, {weight.shape[:1]}"
            )
        bias = bias.contiguous()
    if x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty((rows, weight.shape[0]), dtype=torch.float32)
    blocks = -(-inputs // BLOCK)
    space = native.workspace(blocks + rows * blocks * (2 * BLOCK // 4 + 2))
    product = native.Product(
        x.data_ptr(),
        weight.data.data_ptr(),
        weight.digits.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        space.data_ptr(),
        space.nbytes,
        x.stride(0),
        weight.bits,
        rows,
        inputs,
        weight.shape[0],
        native.threads(),
    )
    native.check_fault(native.library().lm_multiply(ctypes.byref(product)))
    return out
