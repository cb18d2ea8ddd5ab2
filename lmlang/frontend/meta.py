"""What is known of a finished generation or select besides its value."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmlang.errors import BackendError
from lmlang.frontend.choices import argmax, entropy, joint, margin, softmax
from lmlang.protocol import FinishReason, Output, Scores


@dataclass(frozen=True, slots=True)
class Meta:
    """What ``s.meta("x")`` returns; thread-safe, a value.

    Args:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those of them that were not computed anew.
        generated_tokens: Sampled tokens, dropped ones at the end included.
        scored_tokens: Tokens of choices that were scored.
        seed: The seed of its draws.
        finish: "stop", "eos" or "length"; None for a select.
        stop: The stop string or token id that ended it.
        logprob: Sum of ``logprobs``; for a select the joint log-probability of what was chosen.
        tokens: All sampled token ids.
        logprobs: The model's log-probability of each token; for a select the joint one of each
            choice (empty where a single choice needed no scoring).
        probs: Select: probabilities among the choices, in their order; they sum to 1.
        margin: Select: how much likelier the chosen one is than the next.
        entropy: Select: of ``probs``, in nats.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    scored_tokens: int = 0
    seed: int | None = None
    finish: FinishReason | None = None
    stop: str | int | None = None
    logprob: float = 0.0
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    probs: tuple[float, ...] = ()
    margin: float | None = None
    entropy: float | None = None


ONLY_CHOICE = Meta(probs=(1.0,), margin=1.0, entropy=0.0)
"""A select among one choice, which nobody needed to score."""


def of_output(output: Output, seed: int) -> Meta:
    """The metadata of a generation."""
    return Meta(
        prompt_tokens=output.usage.prompt_tokens,
        cached_tokens=output.usage.cached_tokens,
        generated_tokens=output.usage.generated_tokens,
        seed=seed,
        finish=output.finish.reason,
        stop=output.finish.stop,
        logprob=math.fsum(output.logprobs),
        tokens=output.ids,
        logprobs=output.logprobs,
    )


def of_scores(scores: Scores, count: int) -> tuple[int, Meta]:
    """The index of the likeliest of ``count`` choices, and the metadata of the select."""
    if len(scores.choices) != count:
        raise BackendError(
            f"the backend scored {len(scores.choices):,} choices where {count:,} were asked: "
            "this is an error of the backend."
        )
    sums = joint(scores.choices)
    probs = softmax(sums)
    chosen = argmax(sums)
    return chosen, Meta(
        prompt_tokens=scores.usage.prompt_tokens,
        cached_tokens=scores.usage.cached_tokens,
        generated_tokens=scores.usage.generated_tokens,
        scored_tokens=scores.usage.scored_tokens,
        logprob=sums[chosen],
        logprobs=sums,
        probs=probs,
        margin=margin(probs),
        entropy=entropy(probs),
    )
