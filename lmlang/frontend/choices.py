"""Choices methods: pure functions from the log-probabilities of choices to the one that is taken.

    a choice's tokens   t0    t1    t2        joint                      sum of the row
    log-probabilities  -0.5  -1.0  -0.1       token_length_normalized    its mean
                                              greedy_token_selection     column by column
    without the prompt  None -3.0  -0.2       unconditional_likelihood…  mean of the differences

Natural logarithms throughout. Called with SGLang's keywords they give SGLang's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lmlang.errors import ModelError, ProgramError, ProgramTypeError

TokenLogprob = Sequence[Any]
"""(log-probability or None, token id, text or None)."""


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """What a choices method decides.

    Args:
        decision: The chosen text.
        meta_info: What it decided by, with SGLang's keys.
    """

    decision: str
    meta_info: dict[str, Any] | None = None


class ChoicesMethod(Protocol):
    """What `select` takes as its choices_method: ours, or one of your own.

    One of your own that has a true attribute ``requires_unconditional_logprobs`` is given those.
    """

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[Any],
        output_token_logprobs: list[Any],
        unconditional_token_logprobs: list[Any] | None = None,
    ) -> Any:
        """A `ChoicesDecision`, or anything with ``decision`` and ``meta_info``."""
        ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """What methods decide by: of each choice its token logprobs, and their means."""

    means: Sequence[float]
    tokens: Sequence[Sequence[float]]
    unconditional: Sequence[Sequence[float | None]] | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """The choice a method takes, its scores of all where it has some, and more for meta_info."""

    index: int
    scores: tuple[float, ...] | None
    more: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A choices method of this library. Thread-safe, a value; ``repr`` is its name."""

    name: str
    requires_unconditional_logprobs: bool
    rank: Callable[[Evidence], Ranking]

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[Sequence[TokenLogprob]],
        output_token_logprobs: Sequence[Any],
        unconditional_token_logprobs: Sequence[Sequence[TokenLogprob]] | None = None,
    ) -> ChoicesDecision:
        """Decide among ``choices``.

        Args:
            choices: Their texts.
            normalized_prompt_logprobs: Mean log-probability of each one's tokens.
            input_token_logprobs: Of each choice a (logprob, id, text) for each token.
            output_token_logprobs: Passed on.
            unconditional_token_logprobs: As input_token_logprobs, without the prompt; the first
                logprob of each may be None.

        Raises:
            ProgramError: There are no choices, the numbers are none or do not fit together, or
                those without the prompt are needed and missing.
            ModelError: A log-probability is not a number.
        """
        try:
            ranking = self._ranked(
                choices,
                normalized_prompt_logprobs,
                input_token_logprobs,
                unconditional_token_logprobs,
            )
        except (TypeError, IndexError, KeyError) as error:
            if isinstance(error, ProgramError):
                raise
            raise ProgramTypeError(
                f"{self.name} takes a text of each choice, its mean log-probability, and a "
                f"(log-probability, id, text) of each of its tokens, all numbers given: {error}."
            ) from error
        info: dict[str, Any] = {
            "normalized_prompt_logprobs": normalized_prompt_logprobs,
            "input_token_logprobs": input_token_logprobs,
            "output_token_logprobs": output_token_logprobs,
        }
        if self.requires_unconditional_logprobs:
            info["unconditional_token_logprobs"] = unconditional_token_logprobs
        return ChoicesDecision(choices[ranking.index], info | dict(ranking.more))

    def _ranked(
        self,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[Sequence[TokenLogprob]],
        unconditional_token_logprobs: Sequence[Sequence[TokenLogprob]] | None,
    ) -> Ranking:
        if not choices:
            raise ProgramError(f"{self.name}: choices is empty: there is nothing to choose from.")
        counts = {
            "normalized_prompt_logprobs": len(normalized_prompt_logprobs),
            "input_token_logprobs": len(input_token_logprobs),
        }
        if unconditional_token_logprobs is not None:
            counts["unconditional_token_logprobs"] = len(unconditional_token_logprobs)
        for name, count in counts.items():
            if count != len(choices):
                raise ProgramError(
                    f"{self.name}: {count:,} {name} for {len(choices):,} choices: give one entry "
                    "for each choice."
                )
        return self.rank(
            Evidence(
                normalized_prompt_logprobs,
                [[token[0] for token in tokens] for tokens in input_token_logprobs],
                None
                if unconditional_token_logprobs is None
                else [[token[0] for token in tokens] for tokens in unconditional_token_logprobs],
            )
        )

    def __repr__(self) -> str:
        return self.name


def joint_logprobs(tokens: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Each choice's joint log-probability: the sum of its tokens'.

    Raises:
        ModelError: A log-probability is not a number.
    """
    sums = tuple(map(math.fsum, tokens))
    if any(map(math.isnan, sums)):
        raise ModelError(
            "the model gave NaN as a log-probability of a choice: its weights or its arithmetic "
            "are broken; try dtype='float32'."
        )
    return sums


def mean(values: Sequence[float]) -> float:
    """The mean, 0 of nothing."""
    return math.fsum(values) / len(values) if values else 0.0


def _by_sum(evidence: Evidence) -> Ranking:
    sums = joint_logprobs(evidence.tokens)
    return Ranking(argmax(sums), sums, {"joint_logprobs": list(sums)})


def _by_mean(evidence: Evidence) -> Ranking:
    means = joint_logprobs([[value] for value in evidence.means])
    return Ranking(argmax(means), means, {})


def _token_by_token(evidence: Evidence) -> Ranking:
    joint_logprobs(evidence.tokens)
    longest = max(map(len, evidence.tokens))
    # A shorter choice goes on with its mean, so that it can be compared with a longer one.
    matrix = [[*row, *[mean(row)] * (longest - len(row))] for row in evidence.tokens]
    left = list(range(len(matrix)))
    for column in range(longest):
        best = max(matrix[row][column] for row in left)
        left = [row for row in left if matrix[row][column] == best]
        if len(left) == 1:
            break
    return Ranking(left[0], None, {"greedy_logprob_matrix": matrix})


def _by_gain(evidence: Evidence) -> Ranking:
    if evidence.unconditional is None:
        raise ProgramError(
            "unconditional_likelihood_normalized needs unconditional_token_logprobs: the "
            "log-probabilities of each choice's tokens without the prompt."
        )
    gains = []
    for tokens, alone in zip(evidence.tokens, evidence.unconditional, strict=True):
        if len(tokens) != len(alone):
            raise ProgramError(
                f"unconditional_likelihood_normalized: a choice has {len(tokens):,} tokens, and "
                f"{len(alone):,} without the prompt: both lists must be of the same tokens."
            )
        # Nothing precedes the first token alone, so it has no log-probability there.
        gains.append(mean([a - (b or 0.0) for a, b in zip(tokens, alone, strict=True)]))
    scores = joint_logprobs([[gain] for gain in gains])
    return Ranking(
        argmax(scores), scores, {"normalized_unconditional_prompt_logprobs": list(scores)}
    )


joint = BuiltIn("joint", False, _by_sum)
"""The likeliest choice as a whole: the largest sum of token log-probabilities."""

token_length_normalized = BuiltIn("token_length_normalized", False, _by_mean)
"""The largest mean log-probability of a choice's tokens, as SGLang's of this name."""

greedy_token_selection = BuiltIn("greedy_token_selection", False, _token_by_token)
"""What greedy decoding among the choices would write, as SGLang's of this name."""

unconditional_likelihood_normalized = BuiltIn("unconditional_likelihood_normalized", True, _by_gain)
"""The largest mean gain of a choice's tokens over themselves without the prompt, as SGLang's."""

METHODS = {
    method.name: method
    for method in (
        joint,
        token_length_normalized,
        greedy_token_selection,
        unconditional_likelihood_normalized,
    )
}
"""The built-in methods by name."""


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
