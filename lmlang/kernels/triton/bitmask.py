"""Bitmasks onto logits in Triton: only what is not allowed is written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmlang.kernels.forms import check

BLOCK = 4096
"""Ids of a program."""


@triton.jit
def bitmask_kernel(
    logits, masks, rows, vocab, logits_stride, masks_stride, BLOCK: tl.constexpr
):  # fmt: skip
    """A stretch of one mask onto its row."""
    index = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(masks + index * masks_stride + ids // 32, mask=ids < vocab, other=-1)
    gone = (ids < vocab) & (((word >> (ids % 32)) & 1) == 0)
    row = tl.load(rows + index).to(tl.int64)
    places = logits + row * logits_stride + ids
    tl.store(places, tl.full((BLOCK,), float("-inf"), tl.float32), mask=gone)


def apply_bitmask(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """See `lmlang.kernels.bitmask.apply_bitmask`."""
    check("logits", logits, (None, None), (torch.float32,))
    vocab, device = logits.shape[1], logits.device
    check("masks", masks, (None, (vocab + 31) // 32), (torch.int32,), device)
    check("rows", rows, (len(masks),), (torch.int64, torch.int32), device)
    if len(masks) and vocab:
        bitmask_kernel[(len(masks), triton.cdiv(vocab, BLOCK))](
            logits, masks, rows, vocab, logits.stride(0), masks.stride(0),
            BLOCK=BLOCK, num_warps=8, enable_fp_fusion=True,
        )  # fmt: skip
