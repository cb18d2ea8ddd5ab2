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


HEAD = 1024
"""So many of the likeliest tokens are looked at before all are put in order."""


def _mix(x: Tensor, other: Tensor) -> None:
    """`lmlang.noise.mix` of int32, in place; ``other`` is a tensor of that shape to write to."""
    for bits, multiplier in ((16, _MULTIPLIERS[0]), (15, _MULTIPLIERS[1]), (16, 1)):
        torch.bitwise_right_shift(x, bits, out=other)
        other &= (1 << (32 - bits)) - 1  # a logical shift
        x ^= other
        x *= multiplier


def gumbel_noise(words: Tensor, vocab: int) -> Tensor:
    """The noise of every token id.

    Args:
        words: int32 [R, 2], the bits of each row's two words (`lmlang.noise.draw_words`).
        vocab: V.

    Returns:
        float32 [R, V].
    """
    ids = torch.arange(vocab, dtype=torch.int32, device=words.device)
    w = ids[None, :] ^ words[:, :1]
    other = torch.empty_like(w)
    _mix(w, other)
    w += words[:, 1:]
    _mix(w, other)
    u = w.view(torch.uint32).to(torch.float32)
    u.add_(0.5).mul_(2.0**-32).clamp_(max=1.0 - 2.0**-24)
    return u.neg_().log1p_().neg_().log_().neg_()


def truncate(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits with the tokens that top-k, then top-p, then min-p leave out at -inf.

    Each rule weighs what the ones before it left; among equal logits lower ids come first.

    Args:
        logits: float32 [R, V], divided by the temperature already.
        top_k: int64 [R], V for no limit.
        top_p: float32 [R], 1 for no limit: the smallest set of likeliest tokens that reaches it.
        min_p: float32 [R], 0 for no limit: tokens at least this fraction of the likeliest.
    """
    vocab = logits.shape[-1]
    if vocab <= HEAD:
        return _truncate_in_order(logits, top_k, top_p, min_p)
    ordered = torch.topk(logits, HEAD, dim=-1).values
    limited = _first(ordered, top_k)
    total = torch.where(
        top_k < HEAD, torch.logsumexp(limited, dim=-1), torch.logsumexp(logits, dim=-1)
    )
    gone = _gone(torch.exp(limited - total[:, None]), top_p, min_p)
    gone |= torch.isneginf(limited)
    count = HEAD - gone.sum(dim=-1)
    last = ordered.gather(-1, (count - 1).clamp_(min=0)[:, None])
    following = ordered.gather(-1, count.clamp(max=HEAD - 1)[:, None])
    # Enough where the cut lies inside of the head and between different logits.
    enough = (count > 0) & (count < HEAD) & (last > following)[:, 0]
    enough &= (top_k < HEAD) | (top_k >= vocab)
    found = logits.masked_fill(logits < last, float("-inf"))
    rest = (~enough).nonzero()[:, 0]
    if len(rest):
        found[rest] = _truncate_in_order(logits[rest], top_k[rest], top_p[rest], min_p[rest])
    return found


def _truncate_in_order(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`truncate` by sorting all tokens."""
    ordered, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    ordered = _first(ordered, top_k)
    gone = _gone(torch.softmax(ordered, dim=-1), top_p, min_p)
    return torch.empty_like(logits).scatter_(-1, ids, ordered.masked_fill(gone, float("-inf")))


def _first(ordered: Tensor, top_k: Tensor) -> Tensor:
    rank = torch.arange(ordered.shape[-1], device=ordered.device)[None, :]
    return ordered.masked_fill(rank >= top_k[:, None], float("-inf"))


def _gone(probs: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Which of some probabilities, the highest first, top-p and min-p leave out."""
    before = torch.cumsum(probs, dim=-1) - probs
    gone = (before >= top_p[:, None]) & (top_p[:, None] < 1.0)
    gone |= probs < min_p[:, None] * probs[:, :1]
    gone[:, 0] = False
    return gone


def log_normalisers(logits: Tensor) -> Tensor:
    """float32 [R]: log Σ exp(logits [R, V]); logit minus it is the model's log-probability."""
    return torch.logsumexp(logits, dim=-1)
