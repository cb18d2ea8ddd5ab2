"""Weights in blocks of 4 or 8 bits, laid out for the C product; `c/products.c` draws the layout.

Shapes: R rows · O outputs · I inputs · B blocks of 32 inputs · T tiles of 16 outputs.

A weight is d * q + m with the scale d and the offset m of its block: what GGUF's Q4_0, Q4_1 and
Q8_0 blocks hold, number by number. The rows that are multiplied with it are quantised on the way:
each 32 numbers of a row to int8 with the scale of their largest, or, in the blocks of columns that
are said to need it, to two such digits, which keep 15 bits. A row's product does not depend on the
rows beside it, so these products are row-invariant as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

BLOCK, TILE, GROUPS = 32, 16, 8
NUMBERS = {4: 256, 8: 512}
"""Bytes of the numbers of a block of a tile, by bits."""
MIDDLE = 128
"""What is added to the signed numbers of 8 bits."""
LARGEST = 127


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight [O, I] in blocks.

    Args:
        data: uint8 [T, B, bytes of a block]; what fills up the last tile and block is zeros.
        shape: O and I.
        bits: 4 or 8.
        digits: uint8 [B], 1 or 2: of the numbers of the rows in each block of columns.
    """

    data: Tensor
    shape: tuple[int, int]
    bits: int
    digits: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """That of the rows that it is multiplied with, and of the products."""
        return torch.float32

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.data.nbytes

    def to(self, device: torch.device | str) -> PackedWeight:
        """The same on a device."""
        return replace(self, data=self.data.to(device), digits=self.digits.to(device))

    def unpacked(self) -> Tensor:
        """float32 [O, I]: the numbers that it stands for."""
        return rows_of(torch.arange(self.shape[0], device=self.device), self)


def rows_of(ids: Tensor, weight: PackedWeight) -> Tensor:
    """Some rows of a weight, as of an embedding.

    Args:
        ids: int64 [n], each below O.
        weight: [O, I].

    Returns:
        float32 [n, I].
    """
    size, (tiles, blocks, _) = NUMBERS[weight.bits], weight.data.shape
    laid = weight.data[..., :size].view(tiles, blocks, -1, TILE, 4)
    numbers = laid[ids // TILE, :, :, ids % TILE]
    if weight.bits == 4:
        numbers = torch.stack((numbers & 15, numbers >> 4), 3)
    floats = weight.data[..., size:].view(torch.float16).view(tiles, blocks, -1, TILE)
    found = floats[ids // TILE, :, :, ids % TILE].float()[..., None]
    scales, offsets = found[:, :, 0], found[:, :, -1]
    if weight.bits == 8:
        offsets = scales * -MIDDLE
    values = numbers.reshape(len(ids), blocks, BLOCK) * scales + offsets
    return values.view(len(ids), blocks * BLOCK)[:, : weight.shape[1]]


def pack(numbers: Tensor, scales: Tensor, offsets: Tensor | None = None) -> PackedWeight:
    """A weight d * q + m of 4 bits, or without offsets d * (q - 128) of 8.

    Args:
        numbers: uint8 [O, I], q; below 16 where there are offsets; I is a multiple of 32.
        scales: float16 [O, B], d.
        offsets: float16 [O, B], m.
    """
    outputs, inputs = numbers.shape
    tiles, blocks = -(-outputs // TILE), inputs // BLOCK

    def filled(part: Tensor) -> Tensor:
        return F.pad(part, (0, 0, 0, tiles * TILE - outputs))

    laid = filled(numbers).view(tiles, TILE, blocks, GROUPS, 4).permute(0, 2, 3, 1, 4)
    laid = laid.reshape(tiles, blocks, GROUPS, TILE * 4)
    if offsets is not None:
        laid = laid[:, :, 0::2] | laid[:, :, 1::2] << 4
    floats = [part for part in (scales, offsets) if part is not None]
    turned = [filled(part).view(tiles, TILE, blocks).transpose(1, 2) for part in floats]
    parts = [part.contiguous().view(torch.uint8) for part in turned]
    data = torch.cat([laid.reshape(tiles, blocks, -1), *parts], -1)
    return PackedWeight(data, (outputs, inputs), 8 if offsets is None else 4, _two_digits(blocks))


def pack_floats(weight: Tensor) -> PackedWeight:
    """A weight [O, I] of any floating dtype in 8 bits, each block with the scale of its largest."""
    outputs, inputs = weight.shape
    blocks = F.pad(weight.float(), (0, -inputs % BLOCK)).view(outputs, -1, BLOCK)
    scales = (blocks.abs().amax(-1) / LARGEST).half()
    step = torch.where(scales > 0, scales.float(), 1.0)[..., None]
    numbers = (blocks / step).round_().clamp_(-LARGEST, LARGEST).add_(MIDDLE).to(torch.uint8)
    return replace(pack(numbers.view(outputs, -1), scales), shape=(outputs, inputs))


def _two_digits(blocks: int) -> Tensor:
    return torch.full((blocks,), 2, dtype=torch.uint8)


_SEE: ContextVar[Callable[[Tensor, PackedWeight], None] | None] = ContextVar("see", default=None)


@contextmanager
def watching(see: Callable[[Tensor, PackedWeight], None]) -> Iterator[None]:
    """In this block and on this thread, tell a function the rows and weight of packed products."""
    token = _SEE.set(see)
    try:
        yield
    finally:
        _SEE.reset(token)


def tell(x: Tensor, weight: PackedWeight) -> None:
    """Tell who is `watching` of a product."""
    see = _SEE.get()
    if see is not None:
        see(x, weight)


def packed_product(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """The product x · weightᵀ of rows that are quantised for it, and the bias added.

    Args:
        x: float32 [R, I].
        weight: [O, I].
        bias: float32 [O] or None.

    Returns:
        float32 [R, O].
    """
    rows, inputs = x.shape
    blocks = F.pad(x, (0, -inputs % BLOCK)).view(rows, -(-inputs // BLOCK), BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    steps = blocks * torch.where(largest > 1e-30, LARGEST / largest, 0.0)
    rounded = steps.round()
    second = ((steps - rounded) * 256).round_().clamp_(max=LARGEST) / 256
    rounded += torch.where((weight.digits == 2)[:, None], second, 0.0)
    rounded *= largest / LARGEST
    return F.linear(rounded.flatten(1)[:, :inputs], weight.unpacked(), bias)
