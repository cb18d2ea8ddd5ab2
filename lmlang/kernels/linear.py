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
        weight: [O, I]; on a CPU and in float32 it comes back as oneDNN lays it out, else as is.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not _packs():
        return weight
    return _packed(weight.contiguous())


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """The product x · weightᵀ.

    Args:
        x: [R, I]; R may be 0.
        weight: [O, I], packed or plain.

    Returns:
        [R, O].
    """
    if weight.is_mkldnn and len(x):
        return _product(x, weight)
    if weight.is_mkldnn:
        return x.new_empty(0, weight.shape[0])
    return F.linear(x, weight)


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
    return packed


def _product(x: Tensor, packed: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return product


@cache
def _packs() -> bool:
    """Whether this build of torch has oneDNN's packed products and they are right."""
    if use_reference() or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    x, weight = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
    try:
        product = _product(x, _packed(weight))
    except (AttributeError, RuntimeError):  # another build of torch: the plain product it is
        return False
    return bool(torch.allclose(product, F.linear(x, weight)))
