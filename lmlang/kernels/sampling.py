"""Sampling: the keyed Gumbel draw, truncation and log-probabilities, over rows of logits.

The drawn token is  argmax over tokens t that survive truncation of  logit[t]/T + G(key, index, t),
lowest id on ties, with Gumbel noise G that is a pure function of a 64-bit draw key, the token's
index in its output and the token id. So a draw depends on no batch, no device and no order.

The noise, the same in every implementation (all words 32-bit unsigned, * and + mod 2^32):

    mix(x):  x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16
    a = mix(low(key) ^ mix(index ^ 0x9e3779b9))          b = mix(high(key) ^ mix(a + 0x85ebca6b))
    w = mix(mix(t ^ a) + b)                               one word for each token id t
    u = min((float32(w) + 0.5) * 2^-32, 1 - 2^-24)        in (0, 1)
    G = -log(-log1p(-u))                                  float32

Sources: Gumbel (1954), the Gumbel-max trick; Wellons, "Prospecting for Hash Functions" (2018),
for the constants of mix ("lowbias32").
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0x7FEB352D, 0x846CA68B - (1 << 32))  # as int32
_WORD = 0xFFFFFFFF


def _mix_word(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def draw_words(key: int, index: int) -> tuple[int, int]:
    """The words a and b of one draw.

    Args:
        key: 0 .. 2^64 - 1.
        index: The token's index in its output, 0 .. 2^32 - 1.
    """
    a = _mix_word((key & _WORD) ^ _mix_word(index ^ 0x9E3779B9))
    return a, _mix_word((key >> 32) ^ _mix_word((a + 0x85EBCA6B) & _WORD))


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
        words: int32 [R, 2], the words a and b of each row (their bits).
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
