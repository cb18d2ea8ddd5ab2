"""What a batch took, and how much of it was not computed but taken from a journal."""

from __future__ import annotations

from dataclasses import dataclass

from lmlang.protocol import Usage


@dataclass(frozen=True, slots=True)
class Reused:
    """What a journal had, of one run or of many (``+``).

    Args:
        rows: Whole rows.
        generations: Generations and selects, those of whole rows left out.
        tokens: Tokens of all these outputs and choices.
    """

    rows: int = 0
    generations: int = 0
    tokens: int = 0

    def __add__(self, other: Reused) -> Reused:
        return Reused(
            self.rows + other.rows,
            self.generations + other.generations,
            self.tokens + other.tokens,
        )


@dataclass(frozen=True, slots=True)
class BatchUsage:
    """Tokens of all rows of a batch, as `Usage` has them, and what of it a journal had.

    Args:
        prompt_tokens: Of all requests: cached and computed ones.
        cached_tokens: Those of them that were not computed anew.
        generated_tokens: Sampled and forced ones.
        scored_tokens: Of choices.
        forced_tokens: Those that a constraint left no choice about.
        forced_closes: Outputs that were completed by the shortest way to fit their budget.
        reused_rows: Rows that were taken from the journal whole.
        reused_generations: Generations and selects of other rows that were taken from it.
        reused_tokens: Generated and scored tokens of both, which no model has computed again; they
            are part of the sums above.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    scored_tokens: int = 0
    forced_tokens: int = 0
    forced_closes: int = 0
    reused_rows: int = 0
    reused_generations: int = 0
    reused_tokens: int = 0

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens

    @classmethod
    def of(cls, usage: Usage, reused: Reused) -> BatchUsage:
        """The sums of all rows."""
        return cls(
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.generated_tokens,
            usage.scored_tokens,
            usage.forced_tokens,
            usage.forced_closes,
            reused.rows,
            reused.generations,
            reused.tokens,
        )
