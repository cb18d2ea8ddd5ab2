"""Products with a weight: laid out once for the CPU's matrix kernels, applied many times.

Shapes: R rows · I inputs · O outputs.

A matrix kernel adds up a row's products in an order that depends on how many rows there are. The
row-invariant form cuts the rows into blocks of numbers of rows that were found to give the same
bits, and fills up the last one:

    11 rows in sizes 1, 2, 4, 8, ...     ████████ ███░       ░ zeros

A quantised weight goes two ways. Few rows are multiplied by torch's own kernel, which reads the
bytes as they are and so is faster than any product with wider numbers; it takes and gives
bfloat16. For many rows the weight is widened, a part at a time, and multiplied like any other.
Weights in blocks have a product of their own (`lmlang.kernels.packed`).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from collections.abc import Sequence as Seq
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lmlang.kernels.forms import dispatch, is_row_invariant, use_reference
from lmlang.kernels.packed import PackedWeight, packed_product, tell
from lmlang.kernels.quant import Int8Weight, Weight

ROWS_HINT = 64
"""Rows for which the layout is chosen; it serves fewer and more rows as well."""
BLOCK = 8
"""Rows whose product defines the bits of the row-invariant form."""
BLOCKS = (1, 2, 4, BLOCK, 16, 32, 64)
"""Rows that are tried for the same bits."""
FEW_ROWS = 16
"""Up to so many rows of a quantised weight torch's kernel is the faster way."""
INPUTS = 16
"""That kernel reads beyond the end of weights whose inputs are no multiple of this."""
WIDENED = 1 << 21
"""Numbers of a quantised weight that are widened at a time: so many stay in the cache."""
WIDENED_ON_DEVICE = 1 << 26
"""The same on a GPU, where each part is a launch."""
_sizes_of: MutableMapping[Tensor, tuple[int, ...]] = WeakTensorKeyDictionary()
"""Of each weight that has been used so: what `_agreeing` found."""


def pack_weight(weight: Weight) -> Weight:
    """A weight in the layout that `linear` is fastest with; the same numbers.

    Args:
        weight: [O, I]; on a CPU it comes back as oneDNN lays it out, where that serves its dtype,
            else as is, and so does a quantised one.
    """
    if not isinstance(weight, Tensor):
        return weight
    if weight.device.type != "cpu" or not _packs(weight.dtype):
        return weight
    return _packed(weight.contiguous())


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """The product x · weightᵀ, and the bias added.

    Args:
        x: [R, I]; R may be 0.
        weight: [O, I], packed, plain or quantised; of x's dtype.
        bias: [O] or None; of x's dtype.

    Returns:
        [R, O].
    """
    if not len(x):
        return x.new_empty(0, weight.shape[0])
    if isinstance(weight, PackedWeight):
        tell(x, weight)
        return dispatch("packed_product", packed_product, x)(x, weight, bias)
    return _in_blocks(x, weight, bias) if is_row_invariant() else _applied(x, weight, bias)


def product(x: Tensor, y: Tensor) -> Tensor:
    """The product x · yᵀ of two matrices that are both new.

    By oneDNN where torch has it: on a CPU that is not Intel's, the library that torch otherwise
    takes for float32 is two to three times as slow.

    Args:
        x: [R, I].
        y: [O, I], of x's dtype.

    Returns:
        [R, O].
    """
    x, y = x.contiguous(), y.contiguous()  # others go through a slow path
    if x.device.type == "cpu" and x.dtype == torch.float32 and _packs(x.dtype):
        return _product(x, y)
    return F.linear(x, y)


def int8_product(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """The product with a quantised weight: x · (values · scale)ᵀ.

    Args:
        x: [R, I].
        values: int8 [O, I], dense.
        scale: bfloat16 [O].

    Returns:
        [R, O] in x's dtype.
    """
    return dispatch("int8_product", int8_product_reference, x)(x, values, scale)


def int8_product_reference(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """`int8_product` in torch; on a CPU by whichever way is the faster one."""
    outputs, inputs = values.shape
    cpu = x.device.type == "cpu"
    if cpu and len(x) <= FEW_ROWS and inputs % INPUTS == 0 and _multiplies_int8():
        return torch._weight_int8pack_mm(x.to(torch.bfloat16), values, scale).to(x.dtype)
    step = max(1, (WIDENED if cpu else WIDENED_ON_DEVICE) // inputs)
    times = _times_part if cpu else _times_part_on_device
    out = x.new_empty((len(x), outputs))
    for start in range(0, outputs, step):
        part = slice(start, start + step)
        out[:, part] = times(x, values[part], scale[part])
    return out


def _times_part(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """Sums that no scale has made small yet: they do not fit float16."""
    dtype = torch.bfloat16 if x.dtype == torch.bfloat16 and _packs(x.dtype) else torch.float32
    rows, wide = x.to(dtype).contiguous(), values.to(dtype)
    return (_product(rows, wide) if _packs(dtype) else F.linear(rows, wide)).mul_(scale)


def _times_part_on_device(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, (values.float() * scale.float()[:, None]).to(x.dtype))


def _applied(x: Tensor, weight: Tensor | Int8Weight, bias: Tensor | None = None) -> Tensor:
    """The product as fast as it goes, for at least one row."""
    if isinstance(weight, Int8Weight):
        out = int8_product(x, weight.values, weight.scale)
        return out if bias is None else out.add_(bias)
    if weight.is_mkldnn:
        return _product(x, weight, bias)
    return F.linear(x, weight, bias)


def _in_blocks(x: Tensor, weight: Tensor | Int8Weight, bias: Tensor | None) -> Tensor:
    """The row-invariant form: every row is computed in a block of an agreeing size."""
    key = weight.values if isinstance(weight, Int8Weight) else weight
    packed = isinstance(weight, Tensor) and weight.is_mkldnn
    sizes = _sizes_of.get(key)
    if sizes is None:
        sizes = _sizes_of[key] = _agreeing(weight)
    products: list[Tensor] = []
    for rows, size in _cut(x, sizes):
        filled = rows if len(rows) == size else F.pad(rows, (0, 0, 0, size - len(rows)))
        # Kernels of plain weights mind alignment, and new memory is all aligned alike.
        products.append(_applied(filled if packed else filled.clone(), weight))
    out = products[0] if len(products) == 1 else torch.cat(products)
    out = out[: len(x)]
    return out if bias is None else out.add_(bias)


def _cut(x: Tensor, sizes: Seq[int]) -> Iterator[tuple[Tensor, int]]:
    """The rows in blocks, each with its size, which the last one may not fill."""
    done = 0
    while done < len(x):
        left = len(x) - done
        enough = [size for size in sizes if size >= left]
        # Few rows cost what the weight's memory costs: better one block too large than two.
        small = left <= BLOCK and enough
        size = enough[0] if small else max(size for size in sizes if size <= left)
        yield x[done : done + size], size
        done += size


def _agreeing(weight: Tensor | Int8Weight) -> tuple[int, ...]:
    """Which `BLOCKS` give every row the bits that a block of `BLOCK` rows gives it.

    A sum of many products hardly ever has the same bits in two orders: where all outputs of a
    block of random rows agree, the order is the same. Rounding to less than float32 hides most
    differences, so there it is `BLOCK` only.
    """
    generator = torch.Generator(weight.device).manual_seed(0)
    shape = (BLOCKS[-1], weight.shape[1])
    x = torch.randn(shape, generator=generator, device=weight.device).to(weight.dtype)

    def product(rows: Tensor, size: int) -> Tensor:
        return torch.cat([_applied(block.clone(), weight) for block in torch.split(rows, size)])

    wanted = product(x, BLOCK)
    moved = product(x.roll(3, 0), BLOCK).roll(-3, 0)
    if not torch.equal(wanted, moved):  # the place in a block matters: no block, then
        return (1,)
    if weight.dtype != torch.float32 or isinstance(weight, Int8Weight):
        return (BLOCK,)
    tried = {size: max(size, 2 * BLOCK) for size in BLOCKS}
    return tuple(n for n, rows in tried.items() if torch.equal(product(x[:rows], n), wanted[:rows]))


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
    x, weight, bias = (torch.arange(n, dtype=dtype) for n in (6, 12, 4))
    x, weight = x.view(2, 3), weight.view(4, 3)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False  # the CPU would compute them in float32, after a conversion each time
        product = _product(x, _packed(weight), bias)
    except (AttributeError, RuntimeError):  # another build of torch: the plain product it is
        return False
    return bool(torch.allclose(product, F.linear(x, weight, bias)))


@cache
def _multiplies_int8() -> bool:
    """Whether this build of torch on this CPU has the product of few rows, and it is right."""
    if use_reference():
        return False
    x = torch.arange(-16, 16, dtype=torch.float32).view(2, INPUTS)
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float32)
    values = torch.arange(-24, 24).view(3, INPUTS)
    try:
        product = torch._weight_int8pack_mm(x.bfloat16(), values.to(torch.int8), scale.bfloat16())
    except (AttributeError, RuntimeError):  # another build: the weight is widened
        return False
    return bool(torch.allclose(product.float(), x @ values.float().T * scale, rtol=2**-7))
