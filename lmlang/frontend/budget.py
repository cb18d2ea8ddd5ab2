"""The generated tokens that one run may take: ``max_program_tokens``."""

from __future__ import annotations

from dataclasses import replace

from lmlang.errors import BudgetExceeded
from lmlang.protocol import SamplingParams


class Budget:
    """What a run may still generate. Whoever asks holds the run's lock.

    Args:
        most: Generated tokens of all its generations; None: any number.

    Attributes:
        over: Whether more was needed.
    """

    __slots__ = ("_shortened", "most", "over")

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.over = False
        self._shortened: set[str] = set()

    def within(self, path: str, params: SamplingParams, taken: int) -> SamplingParams:
        """The parameters of the generation at ``path``, its length within what is left.

        Raises:
            BudgetExceeded: Nothing is left.
        """
        if self.most is None or params.max_tokens == 0:
            return params
        left = self.most - taken
        if left >= params.max_tokens:
            return params
        if left <= 0:
            self.over = True
            raise self._exceeded(taken)
        self._shortened.add(path)
        return replace(params, max_tokens=left, min_tokens=min(left, params.min_tokens))

    def check(self, path: str, finish: str | None, taken: int) -> None:
        """Look at what is taken; what a shortened generation left unsaid is beyond the budget.

        Raises:
            BudgetExceeded: More has been generated than may be, or would have.
        """
        cut = path in self._shortened and finish in ("length", "forced_close")
        if self.most is not None and (taken > self.most or cut):
            self.over = True
            raise self._exceeded(taken)

    def refused(self, path: str, taken: int) -> BudgetExceeded | None:
        """What to raise where a generation was told that its tokens do not do: they are ours."""
        return self._exceeded(taken) if path in self._shortened else None

    def _exceeded(self, taken: int) -> BudgetExceeded:
        return BudgetExceeded(
            f"the program needs more than max_program_tokens={self.most:,} generated tokens "
            f"({taken:,} have been generated): raise it, or lower the max_tokens of its "
            "generations."
        )
