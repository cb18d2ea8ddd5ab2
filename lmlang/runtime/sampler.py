"""Draws the next token of every row that samples, in one pass over the logits."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from lmlang.kernels.sampling import gumbel_noise, truncate
from lmlang.noise import draw_words
from lmlang.protocol import SamplingParams, TopProbs
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.output import Drawn

CACHED = 2**18
"""Logits that a CPU draws from at a time, so that what is made on the way stays in its cache."""
LARGEST = 1e30
"""What bias and penalties leave of a logit at most, so that no difference is infinite."""

MaskArray: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int32]]"

NO_IDS: IntArray = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw to make: from which row of the logits, how, and with which noise.

    Args:
        row: Row of the logits.
        params: Penalties, bias, temperature, truncation.
        key: 64 bits.
        index: The token's index in its output.
        prompt: int64, what the repetition penalty looks at beside the output.
        generated: The output so far.
        barred: Ids that cannot be drawn here.
        allowed: int64, the ids that alone can be drawn here; None: all.
        mask: int32 [ceil(V / 32)], bit i % 32 of word i // 32 set where id i can be drawn here;
            None: all.
        probs: Whether the probability of the token is wanted.
        top: How many of the likeliest tokens are wanted beside it, with theirs.
    """

    row: int
    params: SamplingParams
    key: int
    index: int
    prompt: IntArray = field(default_factory=lambda: NO_IDS)
    generated: Seq[int] = ()
    barred: frozenset[int] = frozenset()
    allowed: IntArray | None = None
    probs: bool = False
    top: int = 0
    mask: MaskArray | None = None


@torch.inference_mode()
def sample(logits: Tensor, draws: Seq[Draw]) -> list[Drawn]:
    """One token for each draw, in their order.

    A greedy one is told with its probability at a temperature of 1.

    Args:
        logits: float32 [K, V], the model's own, finite; not written.
        draws: Of R <= K rows.
    """
    rows = [draw.row for draw in draws]
    in_place = rows == list(range(len(logits)))
    scores = logits if in_place else logits[torch.tensor(rows, device=logits.device)]
    if any(map(_is_adjusted, draws)):
        scores = scores.clone(memory_format=torch.contiguous_format) if in_place else scores
        _adjust(scores, draws)
    cached = max(1, CACHED // logits.shape[-1])
    size = cached if logits.device.type == "cpu" else len(draws)
    if all(draw.params.temperature == 0 for draw in draws):
        size = len(draws)
    found: list[Drawn] = []
    for start in range(0, len(draws), size):
        found += _drawn(scores[start : start + size], draws[start : start + size])
    return found


def _drawn(scores: Tensor, draws: Seq[Draw]) -> list[Drawn]:
    """The tokens of some rows from their adjusted logits [R, V], which are not written."""
    hot = [i for i, draw in enumerate(draws) if draw.params.temperature > 0]
    asked = [i for i, draw in enumerate(draws) if draw.probs]
    weights = scores
    if hot:
        some = len(hot) < len(draws)
        scaled = _scaled(scores[hot] if some else scores, [draws[i] for i in hot])
        noisy = scaled + _noise([draws[i] for i in hot], scores)
        if some and asked:
            weights = scores.clone()
            weights[hot] = scaled
        elif asked:
            weights = scaled
        if some:
            scores = scores.clone()
            scores[hot] = noisy
        else:
            scores = noisy
    tokens: list[int] = torch.argmax(scores, dim=-1).tolist()  # the first of equal ones
    if not asked:
        return [Drawn(token) for token in tokens]
    weights = weights[asked]
    drawn = torch.tensor([[tokens[i]] for i in asked], device=weights.device)
    weights = torch.softmax(weights, dim=-1)
    probs = weights.gather(-1, drawn)[:, 0].tolist()
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
    p = draw.params
    penal = p.repetition_penalty != 1.0 or p.frequency_penalty or p.presence_penalty
    only = draw.allowed is not None or draw.mask is not None
    return bool(penal or p.logit_bias or draw.barred or only)


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
        return torch.from_numpy(values).to(scores.device)

    def for_each(values: Iterable[float], counts: Iterable[int]) -> Tensor:
        """float32: a value of each row, as often as it has ids."""
        repeated = np.repeat(np.fromiter(values, np.float64), np.fromiter(counts, np.int64))
        return torch.from_numpy(repeated).float().to(scores.device)

    biased = [(i, draw.params.logit_bias) for i, draw in enumerate(draws)]
    at = places((i, [token for token, _ in bias]) for i, bias in biased)
    if len(at):
        more = np.fromiter((value for _, bias in biased for _, value in bias), np.float64)
        flat[there(at)] += torch.from_numpy(more).float().to(scores.device)
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
        flat[there(drawn)] -= there(frequency * counts + presence).float()
    alone = [(i, draw.allowed) for i, draw in enumerate(draws) if draw.allowed is not None]
    if alone:
        kept = there(places(alone))
        values = flat[kept]
        scores[torch.tensor([i for i, _ in alone], device=scores.device)] = float("-inf")
        flat[kept] = values
    masks = [(i, draw.mask) for i, draw in enumerate(draws) if draw.mask is not None]
    if masks:
        out = ~allowed_by([mask for _, mask in masks], vocab).to(scores.device)
        if len(masks) == len(draws):
            scores.masked_fill_(out, float("-inf"))
        else:
            rows = torch.tensor([i for i, _ in masks], device=scores.device)
            scores[rows] = scores[rows].masked_fill_(out, float("-inf"))
    barred = places((i, draw.barred) for i, draw in enumerate(draws) if draw.barred)
    if len(barred):
        flat[there(barred)] = float("-inf")


def allowed_by(masks: Seq[MaskArray], vocab: int) -> Tensor:
    """Bitmasks as bool [R, vocab]."""
    words = np.stack(masks).view(np.uint8)
    bits = np.unpackbits(words, axis=-1, count=vocab, bitorder="little")
    return torch.from_numpy(bits.view(np.bool_))


def _scaled(scores: Tensor, draws: list[Draw]) -> Tensor:
    """Adjusted logits, less the largest, divided by the temperature, truncated: float32 [R, V]."""
    device, vocab = scores.device, scores.shape[-1]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    # From the largest down, so that no temperature, however small, makes an infinity; where
    # nothing at all can be drawn the largest is none.
    largest = scores.amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).min)
    temperatures = column([max(draw.params.temperature, 1e-30) for draw in draws])
    scaled = (scores - largest).div_(temperatures[:, None])
    cut = [
        i
        for i, draw in enumerate(draws)
        if draw.params.top_k > 0 or draw.params.top_p < 1 or draw.params.min_p > 0
    ]
    if cut:
        params = [draws[i].params for i in cut]
        top_k = [min(p.top_k, vocab) if p.top_k > 0 else vocab for p in params]
        scaled[cut] = truncate(
            scaled[cut],
            torch.tensor(top_k, device=device),
            column([p.top_p for p in params]),
            column([p.min_p for p in params]),
        )
    return scaled


def _noise(draws: list[Draw], like: Tensor) -> Tensor:
    """Each row's noise, float32 [R, V]."""
    words = np.array([draw_words(draw.key, draw.index) for draw in draws], dtype=np.uint32)
    on_device = torch.from_numpy(words.view(np.int32)).to(like.device)
    return gumbel_noise(on_device, like.shape[-1])
