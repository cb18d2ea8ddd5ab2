"""What the engine must give: the model alone on one sequence, without cache, batch or scheduler."""

from __future__ import annotations

import torch

from lmlang.protocol import SamplingParams
from lmlang.runtime.models.causal import CausalLM, Inputs
from lmlang.runtime.sampler import Draw, sample
from tests.reference import causal_attention


@torch.inference_mode()
def logits(model: CausalLM, ids: list[int]) -> torch.Tensor:
    """``[T, vocab]`` logits of all positions, computed at once."""
    every = torch.arange(len(ids))
    return model.forward(Inputs(torch.tensor(ids), every, every), causal_attention())


def generated(
    model: CausalLM, prompt: list[int], params: SamplingParams, key: int, ends: frozenset[int]
) -> list[int]:
    """The ids of a generation without stop strings, each step from scratch."""
    ids: list[int] = []
    for index in range(params.max_tokens):
        last = logits(model, [*prompt, *ids])[-1:]
        ids.append(sample(last, [Draw(0, params, key, index)])[0].token)
        if ids[-1] in ends and not params.ignore_eos:
            break
    return ids


def choice_logprobs(model: CausalLM, prompt: list[int], choice: list[int]) -> list[float]:
    """The log-probabilities of a choice's ids behind a prompt."""
    if not choice:
        return []
    scores = logits(model, [*prompt, *choice]).log_softmax(-1)
    return [scores[len(prompt) - 1 + i, token].item() for i, token in enumerate(choice)]
