"""Weights of a GGUF file as packed blocks: the file's own numbers where they are of 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from lmlang.kernels.packed import BLOCK, PackedWeight, pack, pack_floats
from lmlang.runtime.models.gguf_file import GGUFFile

PLAIN = frozenset({Kind.F32, Kind.F16, Kind.BF16, Kind.F64})
"""Kinds of numbers that were not quantised."""
HEADS = {Kind.Q4_0: 2, Kind.Q4_1: 4, Kind.Q8_0: 2}
"""Bytes before the numbers of a block: its scale, and perhaps its offset, in float16."""
SIGNED = 8
"""What is added to the signed numbers of Q4_0."""

Blocks = tuple[Tensor, Tensor, Tensor | None]
"""Numbers uint8 [O, I], scales and offsets float16 [O, B] as `pack` takes them."""


def is_quantised(file: GGUFFile) -> bool:
    """Whether a file's matrices are quantised."""
    return any(len(t.shape) > 1 and t.kind not in PLAIN for t in file.tensors.values())


def packed_rows(parts: Seq[tuple[Kind, NDArray[np.uint8]]]) -> PackedWeight:
    """A weight from the rows of some tensors, one below the other.

    Numbers of 4 and of 8 bits are kept. Where the tensors are of several kinds, or of others, such
    as the K-quants, all are quantised to 8 bits, which loses less than was lost before.

    Args:
        parts: Kind and rows as stored of each tensor.
    """
    kinds = {kind for kind, _ in parts}
    if kinds == {Kind.Q8_0} or kinds <= {Kind.Q4_0, Kind.Q4_1}:
        numbers, scales, offsets = zip(*(_blocks(*part) for part in parts), strict=True)
        whole = None if kinds == {Kind.Q8_0} else torch.cat(offsets)
        return pack(torch.cat(numbers), torch.cat(scales), whole)
    wide = [torch.from_numpy(np.array(dequantize(rows, kind))) for kind, rows in parts]
    return pack_floats(torch.cat(wide))


def _blocks(kind: Kind, rows: NDArray[np.uint8]) -> Blocks:
    head = HEADS[kind]
    size = head + (BLOCK if kind == Kind.Q8_0 else BLOCK // 2)
    blocks = torch.from_numpy(np.array(rows)).view(len(rows), -1, size)
    floats = blocks[..., :head].contiguous().view(torch.float16)
    scales, offsets, numbers = floats[..., 0], floats[..., -1], blocks[..., head:]
    if kind == Kind.Q8_0:
        return (numbers ^ 128).reshape(len(rows), -1), scales, None  # as int8, plus 128
    numbers = torch.cat((numbers & 15, numbers >> 4), -1).view(len(rows), -1)
    return numbers, scales, offsets if kind == Kind.Q4_1 else scales * -SIGNED
