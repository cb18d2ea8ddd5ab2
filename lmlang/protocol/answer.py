"""What a backend answers with: events of a stream, outputs, scores, and their token counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lmlang.protocol.prompt import Segment

FinishReason = Literal["stop", "eos", "length", "complete", "forced_close"]


@dataclass(frozen=True, slots=True)
class Finish:
    """Why an output ended: a stop (its text or token), the model's own end, its length.

    Under a constraint also that it is complete, or that it was completed to fit its budget.
    """

    reason: FinishReason
    stop: str | int | None = None


TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]
"""The likeliest tokens at one place, the likeliest first: (id, the model's log-probability)."""


TopProbs: TypeAlias = tuple[tuple[int, float], ...]
"""The likeliest of the tokens that could be drawn at one place: (id, probability among them)."""


@dataclass(frozen=True, slots=True)
class InputLogprobs:
    """Log-probabilities of prompt tokens from index ``start`` on.

    Args:
        start: Index of the first token of ``ids``.
        ids: The prompt's tokens from there on.
        logprobs: Of each; None for the first token of the prompt, which nothing precedes.
        top: The likeliest tokens at each place; empty where none were asked for.
    """

    start: int
    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[TopLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request or of many (``+``).

    prompt_tokens = cached_tokens + prefill_tokens; generated_tokens counts sampled tokens, the
    ones that a stop string or the end of turn dropped included, and forced_tokens, which a
    constraint left no choice about; scored_tokens are those of choices; forced_closes counts the
    outputs that were completed by the shortest way to fit their budget.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    scored_tokens: int = 0
    forced_tokens: int = 0
    forced_closes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.generated_tokens + other.generated_tokens,
            self.scored_tokens + other.scored_tokens,
            self.forced_tokens + other.forced_tokens,
            self.forced_closes + other.forced_closes,
        )

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class Provenance:
    """How one token under a constraint came about.

    Args:
        forced: Whether there was no choice about it.
        legal: How many tokens were possible.
        masked: The model's probability of all that were not, at a temperature of 1.
        best: The likeliest token if there were no constraint.
        pointer: Which part of the constraint it begins in, as a JSON pointer.
    """

    forced: bool
    legal: int
    masked: float
    best: int
    pointer: str


@dataclass(frozen=True, slots=True)
class Event:
    """One atomic record of a stream: some tokens and the text that they completed.

    Args:
        index: Number of the first of ``ids`` in the output.
        ids: New tokens; the text of a held-back one comes in a later event.
        text: New text, final once sent; joined it is ``Output.text``.
        logprobs: The model's log-probability of each id, before temperature and truncation.
        finish: Set in the last event only.
        top_logprobs: The likeliest tokens at the place of each id; empty where none were asked.
    """

    index: int
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: Finish | None = None
    top_logprobs: tuple[TopLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """A finished generation.

    Args:
        text: The value: without the stop string, the end token and control tokens.
        ids: All sampled tokens, the dropped ones at the end included.
        logprobs: The model's log-probability of each id.
        finish: Why it ended.
        usage: Tokens by how they came.
        history: What a state's prompt gains: whole tokens as ids, the kept part of a token that
            a stop string cut as text.
        top_logprobs: The likeliest tokens at the place of each id; empty where none were asked.
        input_logprobs: Those of the prompt, where asked for.
        probs: Probability of each id among those that could be drawn: after bias, penalties,
            what must not come, temperature (1 for a greedy one) and truncation; empty where they
            were not asked for.
        top_probs: The likeliest of those at the place of each id, as many as ``top_logprobs``.
        provenance: How each id came about, where asked for.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    usage: Usage
    history: tuple[Segment, ...]
    top_logprobs: tuple[TopLogprobs, ...] = ()
    input_logprobs: InputLogprobs | None = None
    probs: tuple[float, ...] = ()
    top_probs: tuple[TopProbs, ...] = ()
    provenance: tuple[Provenance, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """One choice's tokens behind the last token common to all choices, and their logprobs.

    ``unconditional`` are those of the same tokens fed alone, the first (which nothing precedes)
    None; empty where they were not asked for.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """The answer to a `ScoreRequest`, in the order of its choices."""

    choices: tuple[ChoiceScore, ...]
    usage: Usage
