"""The shortest way to the end of an array or object, by Dijkstra's algorithm."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heappop, heappush
from typing import Generic, TypeAlias, TypeVar

from lmlang.errors import GrammarTooLarge
from lmlang.grammar.budget import spend

Spot = TypeVar("Spot", bound=Hashable)
Step = TypeVar("Step")

MAX_KEPT = 20_000
"""What is kept of each kind of answer about spots, for the next sequences."""
MAX_STEPS = 100_000
"""Steps that are looked at for the shortest way to the end of one array or object."""


class Ways(Generic[Spot, Step]):
    """Shortest ways from spots to an end. Thread-safe: what it keeps is a cache.

    Args:
        is_end: Whether a spot is an end.
        steps: What may come behind a spot: its bytes, the step, the spot behind it.
        what: What is filled so, for messages.
    """

    def __init__(
        self,
        is_end: Callable[[Spot], bool],
        steps: Callable[[Spot], Iterable[tuple[int, Step, Spot]]],
        what: str,
    ) -> None:
        self._is_end = is_end
        self._steps = steps
        self._what = what
        self._known: dict[Spot, Way[Step]] = {}

    def of(self, spot: Spot) -> Way[Step]:
        """The bytes of the way from a spot, or nearly, and its first step.

        Returns:
            None where there is none; no step where the spot is an end.
        """
        known = self._known
        if spot not in known:
            if len(known) >= MAX_KEPT:
                known = self._known = {}
            self._search(spot, known)
        return known[spot]

    def too_many(self) -> GrammarTooLarge:
        """The error for what takes too long to fill."""
        return GrammarTooLarge(
            f"{self._what} of the schema takes more than {MAX_STEPS:,} steps to fill: let it need "
            "less."
        )

    def _search(self, start: Spot, ways: dict[Spot, Way[Step]]) -> None:
        """Find the way from a spot, and keep it among others for all spots on it."""
        tries: list[tuple[int, int, Spot]] = [(0, 0, start)]
        came: dict[Spot, tuple[int, Spot, Step]] = {}
        costs, done, number = {start: 0}, set[Spot](), 0
        while tries:
            cost, _, spot = heappop(tries)
            if spot in done:
                continue
            done.add(spot)
            if spot in ways or self._is_end(spot):
                known = ways.setdefault(spot, (0, None))
                if known is None:
                    continue
                total = known[0]
                while spot in came:
                    size, spot, step = came[spot]
                    total += size
                    ways[spot] = (total, step)
                return
            spend()
            if len(done) > MAX_STEPS:
                raise self.too_many()
            for size, step, then in self._steps(spot):
                if then not in costs or cost + size < costs[then]:
                    number += 1
                    costs[then] = cost + size
                    came[then] = (size, spot, step)
                    heappush(tries, (cost + size, number, then))
        for spot in done:
            ways[spot] = None


Way: TypeAlias = "tuple[int, Step | None] | None"
