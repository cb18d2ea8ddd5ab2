"""Which tokens a constraint allows: bitmasks onto logits.

masks  int32 [M, ceil(V / 32)]      bit i % 32 of word i // 32 is set where id i is allowed
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lmlang.kernels.forms import dispatch


def apply_bitmask(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """Set to -inf what a mask does not allow; rows without a mask are not touched.

    Args:
        logits: float32 ``[R, V]`` with a dense last axis; **written**.
        masks: int32 ``[M, ceil(V / 32)]``.
        rows: ``[M]`` int64, the row of each mask; all different.
    """
    dispatch("apply_bitmask", apply_bitmask_reference, logits)(logits, masks, rows)


def apply_bitmask_reference(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """`apply_bitmask` in plain torch."""
    for row, out in zip(rows.tolist(), ~allowed(masks, logits.shape[-1]), strict=True):
        logits[row].masked_fill_(out, float("-inf"))


def allowed(masks: Tensor, vocab: int) -> Tensor:
    """Bitmasks as bool ``[M, vocab]``."""
    if masks.device.type == "cpu":
        words = masks.numpy().view(np.uint8)
        bits = np.unpackbits(words, axis=-1, count=vocab, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))
    bit = torch.arange(32, dtype=torch.int32, device=masks.device)
    set_ = torch.bitwise_right_shift(masks[:, :, None], bit).bitwise_and_(1).bool()
    return set_.view(len(masks), -1)[:, :vocab]
