"""Products with a weight: laid out once for the CPU's matrix kernels, applied many times.

Shapes: R rows · I inputs · O outputs.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from lmlang.kernels.forms import use_reference

ROWS_HINT = 64
"""Rows for which the layout is chosen; it serves fewer and more rows as well."""


def pack_weight(weight: Tensor) -> Tensor:
    """A weight in the layout that `linear` is fastest with; the same numbers.

    Args:
        weight: [O, I]; on a CPU it comes back as oneDNN lays it out, where that serves its dtype,
            else as is.
    """
    if weight.device.type != "cpu" or not _packs(weight.dtype):
        return weight
    return _packed(weight.contiguous())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product x · weightᵀ, and the bias added.

    Args:
        x: [R, I]; R may be 0.
        weight: [O, I], packed or plain; of x's dtype.
        bias: [O] or None; of x's dtype.

    Returns:
        [R, O].
    """
    if weight.is_mkldnn and len(x):
        return _product(x, weight, bias)
    if weight.is_mkldnn:
        return x.new_empty(0, weight.shape[0])
    return F.linear(x, weight, bias)


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
    return packed


def _product(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


@cache
def _packs(dtype: torch.dtype) -> bool:
    """Whether this build of torch on this CPU has oneDNN's packed products and they are right."""
    if use_reference() or dtype not in (torch.float32, torch.bfloat16):
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    x, weight = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
    x, weight, bias = x.to(dtype), weight.to(dtype), torch.arange(4.0).to(dtype)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False  # the CPU would compute them in float32, after a conversion each time
        product = _product(x, _packed(weight), bias)
    except (AttributeError, RuntimeError):  # another build of torch: the plain product it is
        return False
    return bool(torch.allclose(product, F.linear(x, weight, bias)))
