"""Weights of one byte a number: int8 values and one scale for each output channel.

    weight [O, I]  ~  values int8 [O, I] * scale [O, 1]        |difference| <= scale / 2

Who multiplies with them is `lmlang.kernels.linear`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from lmlang.kernels.forms import dispatch
from lmlang.kernels.packed import PackedWeight, rows_of

LARGEST = 127
"""Of the values; -128 is not used, so that a weight and its negative are alike."""


@dataclass(frozen=True, slots=True, eq=False)
class Int8Weight:
    """A quantised weight [O, I].

    Args:
        values: int8 [O, I], dense.
        scale: bfloat16 [O]; 0 for a channel of zeros.
        dtype: That it was quantised from and stands for.
    """

    values: Tensor
    scale: Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        """[O, I]."""
        return self.values.shape

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.values.device

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.values.nbytes + self.scale.nbytes

    def to(self, device: torch.device | str) -> Int8Weight:
        """The same on a device."""
        return Int8Weight(self.values.to(device), self.scale.to(device), self.dtype)

    def widened(self) -> Tensor:
        """[O, I] of its dtype: the numbers that it stands for."""
        return (self.values.float() * self.scale.float()[:, None]).to(self.dtype)


Weight: TypeAlias = Tensor | Int8Weight | PackedWeight
"""What `linear` multiplies with."""


def quantise_weight(weight: Tensor) -> Int8Weight:
    """Each row to the 255 steps between its largest number and the negative of that.

    Args:
        weight: [O, I] of a floating dtype, finite.
    """
    wide = weight.float().contiguous()
    scale = (wide.abs().amax(1) / LARGEST).to(torch.bfloat16)
    steps = torch.where(scale > 0, scale, 1).float()
    # A scale is rounded, so that the largest number may lie a quarter of a step beyond the last.
    values = (wide / steps[:, None]).round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
    return Int8Weight(values, scale, weight.dtype)


def embedding(ids: Tensor, weight: Weight) -> Tensor:
    """The rows of a weight that ids name.

    Args:
        ids: int64 [T].
        weight: [V, I].

    Returns:
        [T, I] of the weight's dtype, new memory.
    """
    if isinstance(weight, Tensor):
        return F.embedding(ids, weight)
    if isinstance(weight, PackedWeight):
        return dispatch("rows_of", rows_of, ids)(ids, weight)
    rows = F.embedding(ids, weight.values).float()
    return rows.mul_(weight.scale.float()[ids, None]).to(weight.dtype)
