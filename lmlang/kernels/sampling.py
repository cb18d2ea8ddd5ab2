"""Sampling: the keyed Gumbel draw, truncation and log-probabilities, over rows of logits.

The drawn token is  argmax over tokens t that survive truncation of  logit[t]/T + G(key, index, t),
lowest id on ties, with Gumbel noise G that is a pure function of a 64-bit draw key, the token's
index in its output and the token id (`lmlang.noise` defines it word by word). So a draw depends on
no batch, no device and no order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmlang.kernels.forms import dispatch

_MULTIPLIERS = (0x7FEB352D, 0x846CA68B - (1 << 32))  # as int32
HEAD = 1024
"""So many of the likeliest tokens are looked at before all are put in order."""
COLDEST = 1e-30
"""The lowest temperature that is divided by."""


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


def draw(
    scores: Tensor,
    words: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    truncates: bool,
) -> Tensor:
    """One token of every row: the likeliest where the temperature is 0, else the keyed draw.

    Args:
        scores: float32 [R, V] with a dense last axis, V > 0; -inf what cannot be drawn.
        words: int32 [R, 2], the bits of each row's two words (`lmlang.noise.draw_words`).
        temperatures: float32 [R], 0 or above; what is left out by the limits counts above 0 only.
        top_k: int32 or int64 [R], V for no limit.
        top_p: float32 [R], 1 for no limit.
        min_p: float32 [R], 0 for no limit.
        truncates: Whether any row has a limit.

    Returns:
        int32 [3, R]: the tokens; the bits of their float32 probabilities among what could be drawn,
        at a temperature of 1 where it is 0; and 1 where the token is the reference's for sure, 0
        where only the reference itself can tell, for rounding.
    """
    run = dispatch("draw", draw_reference, scores)
    return run(scores, words, temperatures, top_k, top_p, min_p, truncates)


def draw_reference(
    scores: Tensor,
    words: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    truncates: bool,
) -> Tensor:
    """`draw` in plain torch."""
    tokens, weights = drawn_from(scores, words, temperatures, top_k, top_p, min_p, truncates)
    probs = torch.softmax(weights, dim=-1).gather(-1, tokens[:, None])[:, 0]
    probs = probs.nan_to_num_(0.0)
    return torch.stack([tokens.int(), probs.view(torch.int32), torch.ones_like(tokens).int()])


def drawn_from(
    scores: Tensor,
    words: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    truncates: bool,
) -> tuple[Tensor, Tensor]:
    """The tokens of `draw`, int64 [R], and what they were drawn from.

    That is float32 [R, V] whose softmax are the probabilities; it may be ``scores`` itself.
    """
    hot = (temperatures > 0).nonzero()[:, 0]
    if not len(hot):
        return torch.argmax(scores, dim=-1), scores  # the first of equal ones
    if len(hot) == len(scores):
        weights = scaled(scores, temperatures, top_k, top_p, min_p, truncates)
        return torch.argmax(weights + gumbel_noise(words, scores.shape[-1]), dim=-1), weights
    found = scaled(scores[hot], temperatures[hot], top_k[hot], top_p[hot], min_p[hot], truncates)
    weights, noisy = scores.clone(), scores.clone()
    weights[hot] = found
    noisy[hot] = found + gumbel_noise(words[hot], scores.shape[-1])
    return torch.argmax(noisy, dim=-1), weights


def scaled(
    scores: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    truncates: bool,
) -> Tensor:
    """Logits, less the largest, divided by temperatures above 0, truncated: new, as `draw`'s."""
    # From the largest down, so that no temperature, however small, makes an infinity; where
    # nothing at all can be drawn the largest is none.
    largest = scores.amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).min)
    found = (scores - largest).div_(temperatures.clamp(min=COLDEST)[:, None])
    if not truncates:
        return found
    cut = ((top_k < scores.shape[-1]) | (top_p < 1) | (min_p > 0)).nonzero()[:, 0]
    if len(cut) == len(found):
        return truncate(found, top_k, top_p, min_p)
    if len(cut):
        found[cut] = truncate(found[cut], top_k[cut], top_p[cut], min_p[cut])
    return found


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
    # In double precision: a sum of many small numbers is otherwise off by more than one of them.
    gone = _gone(torch.softmax(ordered, dim=-1, dtype=torch.float64), top_p, min_p)
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
    return dispatch("log_normalisers", normalisers_reference, logits)(logits)


def normalisers_reference(logits: Tensor) -> Tensor:
    """`log_normalisers` in plain torch."""
    return torch.logsumexp(logits, dim=-1)
