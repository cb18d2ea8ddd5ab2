"""What the scores of choices mean: pure functions over log-probabilities (natural logarithm)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lmlang.errors import ModelError
from lmlang.protocol import ChoiceScore


def joint(scores: Sequence[ChoiceScore]) -> tuple[float, ...]:
    """The choices method of `select`: each choice's joint log-probability, the sum of its tokens'.

    Raises:
        ModelError: A log-probability is not a number.
    """
    sums = tuple(math.fsum(score.logprobs) for score in scores)
    if any(math.isnan(total) for total in sums):
        raise ModelError(
            "the model gave NaN as a log-probability of a choice: its weights or its arithmetic "
            "are broken; try dtype='float32'."
        )
    return sums


def softmax(logprobs: Sequence[float]) -> tuple[float, ...]:
    """Probabilities among these choices alone; they sum to 1. All impossible: all alike."""
    highest = max(logprobs)
    if highest == -math.inf:
        return (1.0 / len(logprobs),) * len(logprobs)
    weights = [math.exp(logprob - highest) for logprob in logprobs]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def argmax(values: Sequence[float]) -> int:
    """Index of the largest value, the lowest index on ties."""
    return max(range(len(values)), key=values.__getitem__)


def margin(probs: Sequence[float]) -> float:
    """How much likelier the likeliest choice is than the next; 1.0 where there is no next."""
    ordered = sorted(probs, reverse=True)
    return 1.0 if len(ordered) == 1 else ordered[0] - ordered[1]


def entropy(probs: Sequence[float]) -> float:
    """Entropy in nats: 0 when sure, log(n) when all n are alike."""
    return max(0.0, -math.fsum(p * math.log(p) for p in probs if p > 0.0))
