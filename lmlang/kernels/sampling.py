"""Sampling: the keyed Gumbel draw, truncation and log-probabilities, over rows of logits.

The drawn token is  argmax over tokens t that survive truncation of  logit[t]/T + G(key, index, t),
lowest id on ties, with Gumbel noise G that is a pure function of a 64-bit draw key, the token's
index in its output and the token id (`lmlang.noise` defines it word by word). So a draw depends on
no batch, no device and no order.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0x7FEB352D, 0x846CA68B - (1 << 32))  # as int32


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int32."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 16)) * _MULTIPLIERS[0]
    x = (x ^ _shift(x, 15)) * _MULTIPLIERS[1]
    return x ^ _shift(x, 16)


def gumbel_noise(words: Tensor, vocab: int) -> Tensor:
    """The noise of every token id.

    Args:
        words: int32 [R, 2], the bits of each row's two words (`lmlang.noise.draw_words`).
        vocab: V.

    Returns:
        float32 [R, V].
    """
    ids = torch.arange(vocab, dtype=torch.int32, device=words.device)
    w = _mix(_mix(ids[None, :] ^ words[:, :1]) + words[:, 1:])
    unsigned = w.to(torch.float64).add_((w < 0) * 4294967296.0).to(torch.float32)
    u = unsigned.add_(0.5).mul_(2.0**-32).clamp_(max=1.0 - 2.0**-24)
    return -torch.log(-torch.log1p(-u))


def truncate(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits with the tokens that top-k, then top-p, then min-p leave out at -inf.

    Each rule weighs what the ones before it left; among equal logits lower ids come first.

    Args:
        logits: float32 [R, V], divided by the temperature already.
        top_k: int64 [R], V for no limit.
        top_p: float32 [R], 1 for no limit: the smallest set of likeliest tokens that reaches it.
        min_p: float32 [R], 0 for no limit: tokens at least this fraction of the likeliest.
    """
    ordered, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)[None, :]
    ordered = ordered.masked_fill(rank >= top_k[:, None], float("-inf"))
    probs = torch.softmax(ordered, dim=-1)
    before = torch.cumsum(probs, dim=-1) - probs
    gone = (before >= top_p[:, None]) & (top_p[:, None] < 1.0)
    gone |= probs < min_p[:, None] * probs[:, :1]
    gone[:, 0] = False
    ordered = ordered.masked_fill(gone, float("-inf"))
    return torch.empty_like(logits).scatter_(-1, ids, ordered)


def log_normalisers(logits: Tensor) -> Tensor:
    """float32 [R]: log Σ exp(logits [R, V]); logit minus it is the model's log-probability."""
    return torch.logsumexp(logits, dim=-1)
