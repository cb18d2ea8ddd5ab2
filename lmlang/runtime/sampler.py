"""Draws the next token of every row that samples, in one pass over the logits."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmlang.kernels.bitmask import apply_bitmask
from lmlang.kernels.c.draws import DrawRow, draw_rows, rows_of
from lmlang.kernels.forms import form_of
from lmlang.kernels.sampling import COLDEST, draw, drawn_from
from lmlang.noise import draw_words
from lmlang.protocol import SamplingParams, TopProbs
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.output import Drawn
from lmlang.runtime.predictions import MaskArray, Predictions

CACHED = 2**18
"""Logits that a CPU draws from at a time, so that what is made on the way stays in its cache."""
LARGEST = 1e30
"""What bias and penalties leave of a logit at most, so that no difference is infinite."""

NO_IDS: IntArray = np.empty(0, dtype=np.int64)


class Draw(NamedTuple):
    """One draw to make: from which row of the logits, how, and with which noise.

    Args:
        row: Row of the logits.
        params: Penalties, bias, temperature, truncation.
        key: 64 bits.
        number: The token's number in its output.
        prompt: int64, what the repetition penalty looks at beside the output.
        generated: The output so far.
        barred: Ids that cannot be drawn here.
        allowed: int64, the ids that alone can be drawn here; None: all.
        probs: Whether the probability of the token is wanted.
        top: How many of the likeliest tokens are wanted beside it, with theirs.
        mask: int32 [ceil(V / 32)], bit i % 32 of word i // 32 set where id i can be drawn here;
            None: all.
    """

    row: int
    params: SamplingParams
    key: int
    number: int
    prompt: IntArray = NO_IDS
    generated: Seq[int] = ()
    barred: frozenset[int] = frozenset()
    allowed: IntArray | None = None
    probs: bool = False
    top: int = 0
    mask: MaskArray | None = None


class Model(NamedTuple):
    """What the model says itself of the rows that are drawn from.

    Args:
        said: Its own logits, [K, V].
        rows: The row of each draw there.
    """

    said: Predictions
    rows: Seq[int]

    def logprobs(self, tokens: Tensor) -> Tensor:
        """float32 [R] of tokens, int64 [R]; NaN where a row's logits are not finite."""
        rows = _there(self.rows, np.int64, tokens)
        normalisers = self.said.normalisers[rows]
        found = self.said.logits[rows, tokens] - normalisers
        return found.masked_fill_(~torch.isfinite(normalisers), torch.nan)

    def logprob(self, index: int, token: int) -> float:
        """The same of one token, for a draw by its number."""
        one = self._replace(rows=[self.rows[index]])
        return float(one.logprobs(_there([token], np.int64, self.said.logits))[0])


def sample(logits: Tensor, draws: Seq[Draw], model: Model | None = None) -> list[Drawn]:
    """One token for each draw, in their order.

    A greedy one is told with its probability at a temperature of 1. On a GPU the host waits for
    the device once, to read the tokens; before that, nothing is read from it.

    Args:
        logits: float32 [K, V], the model's own or what became of them; not written. Where they
            are not finite, any token may be drawn.
        draws: Of any of the rows.
        model: Where the model's own log-probabilities of the tokens are wanted too.
    """
    form = form_of(logits)
    if form == "c":
        return _drawn_in_c(logits, draws, model)
    with torch.inference_mode():
        rows = [draw.row for draw in draws]
        in_place = rows == list(range(len(logits)))
        scores = logits if in_place else logits.index_select(0, _there(rows, np.int64, logits))
        if any(draw.mask is not None or _is_adjusted(draw) for draw in draws):
            scores = scores.clone(memory_format=torch.contiguous_format) if in_place else scores
            _adjust(scores, draws)
        if form == "triton":
            return _drawn_at_once(scores, draws, model)
        found = _drawn_in_parts(scores, draws)
        if model is None or not found:
            return found
        tokens = _there([drawn.token for drawn in found], np.int64, logits)
        logprobs = model.logprobs(tokens).tolist()
        return [drawn._replace(logprob=p) for drawn, p in zip(found, logprobs, strict=True)]


def _drawn_in_c(logits: Tensor, draws: Seq[Draw], model: Model | None) -> list[Drawn]:
    """The same by the C kernel, which reads logits where they lie; few rows are copied."""
    own = logits if model is None else model.said.logits
    own, logits = (rows_of(logits),) * 2 if own is logits else (rows_of(own), rows_of(logits))
    vocab = logits.shape[1]
    changed = [i for i, draw in enumerate(draws) if _is_adjusted(draw)]
    copies: dict[int, Tensor] = {}
    if changed:
        copies.update(zip(changed, _adjusted(logits, [draws[i] for i in changed]), strict=True))
    start, stride = logits.data_ptr(), 4 * logits.stride(0)
    own_start, own_stride = own.data_ptr(), 4 * own.stride(0)
    rows = []
    for i, one in enumerate(draws):
        mask, p = one.mask, one.params
        scores, masked = start + stride * one.row, (0, 0)
        if i in copies:
            scores = copies[i].data_ptr()
        elif mask is not None:
            masked = mask.__array_interface__["data"][0], len(mask)
        plain = scores if model is None else own_start + own_stride * model.rows[i]
        temperature = max(p.temperature, COLDEST) if p.temperature > 0 else 0.0
        top_k = min(p.top_k, vocab) if p.top_k > 0 else vocab
        how = one.key, one.number, temperature, p.top_p, p.min_p, top_k
        rows.append(DrawRow(scores, plain, masked[0], *how, masked[1]))
    found, again = [], []
    for i, (token, sure, prob, logprob) in enumerate(draw_rows(rows, vocab)):
        one = draws[i]
        if not sure or one.top or (one.probs and _is_truncated(one)):
            again.append(i)
        told = prob if one.probs else None
        found.append(Drawn(token, told, (), None if model is None else logprob))
    if again:
        _draw_again(found, again, _adjusted(logits, [draws[i] for i in again]), draws, model)
    return found


def _drawn_at_once(scores: Tensor, draws: Seq[Draw], model: Model | None) -> list[Drawn]:
    """The tokens of some rows from their adjusted logits [R, V], by the fused kernel of a GPU."""
    there = draw(scores, *_settings(scores, draws))
    if model is not None:
        there = torch.cat([there, model.logprobs(there[0].long()).view(torch.int32)[None]])
    read = there.cpu().numpy()
    tokens, floats = read[0].tolist(), read.view(np.float32)
    logprobs = [None] * len(draws) if model is None else floats[3].tolist()
    found = [
        Drawn(token, prob if draw.probs else None, (), logprob)
        for token, prob, draw, logprob in zip(
            tokens, floats[1].tolist(), draws, logprobs, strict=True
        )
    ]
    again = [i for i, draw in enumerate(draws) if not read[2, i] or draw.top]
    if again:
        own = scores.index_select(0, _there(again, np.int64, scores)).cpu()
        _draw_again(found, again, own, draws, model)
    return found


def _draw_again(
    found: list[Drawn], again: list[int], scores: Tensor, draws: Seq[Draw], model: Model | None
) -> None:
    """Draw as the reference does where rounding in a kernel could have changed the token.

    And where the likeliest tokens are wanted.

    Args:
        found: What the kernel drew; those that are drawn again are replaced.
        again: Which.
        scores: Their adjusted logits, on the CPU.
        draws: All draws.
        model: See `sample`.
    """
    for i, redrawn in zip(again, _drawn_in_parts(scores, [draws[i] for i in again]), strict=True):
        if redrawn.token == found[i].token:
            redrawn = redrawn._replace(logprob=found[i].logprob)
        elif model is not None:
            redrawn = redrawn._replace(logprob=model.logprob(i, redrawn.token))
        found[i] = redrawn


def _settings(
    scores: Tensor, draws: Seq[Draw]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, bool]:
    """What `draw` must know of each row but its scores, in one copy to their device."""
    vocab, params = scores.shape[-1], [draw.params for draw in draws]
    columns = np.empty((6, len(draws)), dtype=np.int32)
    columns[:2] = np.array(
        [draw_words(draw.key, draw.number) for draw in draws], dtype=np.uint32
    ).T.view(np.int32)
    floats = columns[2:5].view(np.float32)
    floats[0] = [max(p.temperature, COLDEST) if p.temperature > 0 else 0 for p in params]
    floats[1] = [p.top_p for p in params]
    floats[2] = [p.min_p for p in params]
    columns[5] = [min(p.top_k, vocab) if p.top_k > 0 else vocab for p in params]
    truncates = any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params)
    there = _there(columns, np.int32, scores)
    temperatures, top_p, min_p = there[2:5].view(torch.float32)
    return there[:2].T, temperatures, there[5], top_p, min_p, truncates


def _drawn_in_parts(scores: Tensor, draws: Seq[Draw]) -> list[Drawn]:
    """The same as `_drawn`, on a CPU so many rows at a time as its cache holds."""
    size = max(1, CACHED // scores.shape[-1]) if scores.device.type == "cpu" else len(draws)
    if all(draw.params.temperature == 0 for draw in draws):
        size = len(draws)
    found: list[Drawn] = []
    for start in range(0, len(draws), size):
        found += _drawn(scores[start : start + size], draws[start : start + size])
    return found


def _drawn(scores: Tensor, draws: Seq[Draw]) -> list[Drawn]:
    """The tokens of some rows from their adjusted logits [R, V], which are not written."""
    drawn, weights = drawn_from(scores, *_settings(scores, draws))
    tokens: list[int] = drawn.tolist()
    asked = [i for i, draw in enumerate(draws) if draw.probs]
    if not asked:
        return [Drawn(token) for token in tokens]
    weights = torch.softmax(weights[asked], dim=-1)
    probs = weights.gather(-1, drawn[asked][:, None])[:, 0].tolist()
    told = {
        i: (prob, _likeliest(row, draws[i].top))
        for i, prob, row in zip(asked, probs, weights, strict=True)
    }
    return [Drawn(token, *told.get(i, ())) for i, token in enumerate(tokens)]


def _likeliest(probs: Tensor, count: int) -> TopProbs:
    """The likeliest tokens of one row that could be drawn at all."""
    if not count:
        return ()
    values, ids = torch.topk(probs, min(count, len(probs)))
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return tuple((token, prob) for token, prob in pairs if prob > 0)


def _is_adjusted(draw: Draw) -> bool:
    """Whether more than a mask changes its logits."""
    p = draw.params
    penal = p.repetition_penalty != 1.0 or p.frequency_penalty or p.presence_penalty
    return bool(penal or p.logit_bias or draw.barred or draw.allowed is not None)


def _is_truncated(draw: Draw) -> bool:
    p = draw.params
    return p.temperature > 0 and (p.top_k > 0 or p.top_p < 1 or p.min_p > 0)


def _adjusted(logits: Tensor, draws: Seq[Draw]) -> Tensor:
    """A copy of the logits of some draws, [R, V], with all that changes them."""
    scores = logits.index_select(0, _there([draw.row for draw in draws], np.int64, logits))
    _adjust(scores, draws)
    return scores


def _adjust(scores: Tensor, draws: Seq[Draw]) -> None:
    """Bias, penalties, bars and what alone is allowed, in place on float32 [R, V]."""
    vocab = scores.shape[-1]
    flat = scores.view(-1)

    def places(ids: Iterable[tuple[int, Iterable[int]]]) -> IntArray:
        """Places in ``flat`` of ids by their rows, row by row."""
        parts = []
        for i, given in ids:
            own = given if isinstance(given, np.ndarray) else np.fromiter(given, np.int64)
            if len(own) and own.max() >= vocab:
                raise IndexError(f"token id {own.max()} of a model with {vocab} tokens")
            parts.append(i * vocab + own)
        return np.concatenate(parts) if parts else NO_IDS

    def there(values: IntArray) -> Tensor:
        return _there(values, np.int64, scores)

    def floats(values: npt.ArrayLike) -> Tensor:
        return _there(values, np.float32, scores)

    def for_each(values: Iterable[float], counts: Iterable[int]) -> Tensor:
        """float32: a value of each row, as often as it has ids."""
        return floats(np.repeat(np.fromiter(values, np.float64), np.fromiter(counts, np.int64)))

    biased = [(i, draw.params.logit_bias) for i, draw in enumerate(draws)]
    at = places((i, [token for token, _ in bias]) for i, bias in biased)
    if len(at):
        more = np.fromiter((value for _, bias in biased for _, value in bias), np.float64)
        flat[there(at)] += floats(more)
    again = [(i, draw) for i, draw in enumerate(draws) if draw.params.repetition_penalty != 1.0]
    if again:
        # An id that came twice is here twice; both times it is given the same value.
        seen = there(places((i, ids) for i, draw in again for ids in (draw.prompt, draw.generated)))
        factors = for_each(
            (max(draw.params.repetition_penalty, 1 / LARGEST) for _, draw in again),
            (len(draw.prompt) + len(draw.generated) for _, draw in again),
        )
        old = flat[seen]
        new = torch.where(old > 0, old / factors, old * factors)
        flat[seen] = new.clamp_(-LARGEST, LARGEST)
    frequent = [
        (i, draw)
        for i, draw in enumerate(draws)
        if draw.params.frequency_penalty or draw.params.presence_penalty
    ]
    drawn, counts = np.unique(
        places((i, draw.generated) for i, draw in frequent), return_counts=True
    )
    if len(drawn):
        row = drawn // vocab
        frequency = np.array([draw.params.frequency_penalty for draw in draws])[row]
        presence = np.array([draw.params.presence_penalty for draw in draws])[row]
        flat[there(drawn)] -= floats(frequency * counts + presence)
    alone = [(i, draw.allowed) for i, draw in enumerate(draws) if draw.allowed is not None]
    if alone:
        kept = there(places(alone))
        values = flat[kept]
        scores.index_fill_(0, there(np.array([i for i, _ in alone])), float("-inf"))
        flat[kept] = values
    masks = [(i, draw.mask) for i, draw in enumerate(draws) if draw.mask is not None]
    if masks:
        words = _there(np.stack([mask for _, mask in masks]), np.int32, scores)
        apply_bitmask(scores, words, there(np.array([i for i, _ in masks])))
    barred = places((i, draw.barred) for i, draw in enumerate(draws) if draw.barred)
    if len(barred):
        flat[there(barred)] = float("-inf")


def _there(values: npt.ArrayLike, dtype: npt.DTypeLike, like: Tensor) -> Tensor:
    """Numbers on the device of a tensor, without a wait for it."""
    here = torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))
    if like.device.type == "cuda":
        here = here.pin_memory()
    return here.to(like.device, non_blocking=True)
