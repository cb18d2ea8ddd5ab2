"""Draws the next token of every row that samples, in one pass over the logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lmlang.kernels.sampling import gumbel_noise, truncate
from lmlang.noise import draw_words
from lmlang.protocol import SamplingParams
from lmlang.runtime.cache.radix import IntArray


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
    """

    row: int
    params: SamplingParams
    key: int
    index: int
    prompt: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    generated: Seq[int] = ()
    barred: frozenset[int] = frozenset()


@torch.inference_mode()
def sample(logits: Tensor, draws: Seq[Draw]) -> list[int]:
    """One token id for each draw, in their order.

    Args:
        logits: float32 [K, V], the model's own; not written.
        draws: Of R <= K rows.
    """
    scores = logits[torch.tensor([draw.row for draw in draws], device=logits.device)]
    for i, draw in enumerate(draws):
        _adjust(scores[i], draw)
    hot = [i for i, draw in enumerate(draws) if draw.params.temperature > 0]
    if hot:
        scores[hot] = _noisy(scores[hot], [draws[i] for i in hot])
    return torch.argmax(scores, dim=-1).tolist()  # the first, so the lowest id, of equal ones


def _adjust(logits: Tensor, draw: Draw) -> None:
    """Bias, penalties and bars of one row, in place on float32 [V]."""
    params, device = draw.params, logits.device
    if params.logit_bias:
        ids, bias = zip(*params.logit_bias, strict=True)
        logits[torch.tensor(ids, device=device)] += torch.tensor(bias, device=device)
    if params.repetition_penalty != 1.0:
        seen = np.union1d(draw.prompt, np.array(draw.generated, dtype=np.int64))
        at = torch.from_numpy(seen).to(device)
        old = logits[at]
        factor = params.repetition_penalty
        logits[at] = torch.where(old > 0, old / factor, old * factor)
    if draw.generated and (params.frequency_penalty or params.presence_penalty):
        drawn, counts = np.unique(np.array(draw.generated, dtype=np.int64), return_counts=True)
        less = params.frequency_penalty * counts + params.presence_penalty
        logits[torch.from_numpy(drawn).to(device)] -= torch.from_numpy(less).float().to(device)
    if draw.barred:
        logits[torch.tensor(sorted(draw.barred), device=device)] = float("-inf")


def _noisy(logits: Tensor, draws: list[Draw]) -> Tensor:
    """Truncated logits / T plus each row's noise, float32 [R, V]."""
    device, vocab = logits.device, logits.shape[-1]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    # From the largest down, so that no temperature, however small, makes an infinity.
    temperatures = column([max(draw.params.temperature, 1e-30) for draw in draws])
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperatures[:, None]
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
    words = np.array([draw_words(draw.key, draw.index) for draw in draws], dtype=np.uint32)
    noise = gumbel_noise(torch.from_numpy(words.view(np.int32)).to(device), vocab)
    return scaled + noise
