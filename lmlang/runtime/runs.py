"""What the engine knows of programs under way: since when, how much they got, where they stand."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.cache.radix import Mark, Node
from lmlang.runtime.sequence import Sequence

MAX_RUNS = 1 << 16
"""Runs remembered; beyond that the one that began first is forgotten."""


@dataclass(slots=True)
class Run:
    """One run of a program.

    Args:
        begun: Number of the run among all that were served.
        served: Tokens computed for it.
        marks: For each of its states, where its last prompt ends in the tree.
    """

    begun: int
    served: int = 0
    marks: dict[str, Mark | None] = field(default_factory=dict)


class Runs:
    """Runs by their id; the engine thread's own. Requests without a run id belong to none."""

    def __init__(self, cache: CacheManager) -> None:
        self._cache = cache
        self._runs: dict[str, Run] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._runs)

    def begun(self, run_id: str) -> int | None:
        """The run's number among those that have been served; None for a new one."""
        run = self._runs.get(run_id)
        return None if run is None else run.begun

    def served(self, run_id: str) -> int:
        """Tokens computed for a run."""
        run = self._runs.get(run_id)
        return 0 if run is None else run.served

    def begin(self, run_id: str) -> None:
        """A request of the run is served."""
        if not run_id or run_id in self._runs:
            return
        self._count += 1
        self._runs[run_id] = Run(self._count)
        if len(self._runs) > MAX_RUNS:
            self.end(next(iter(self._runs)))

    def serve(self, run_id: str, tokens: int) -> None:
        """Tokens were computed for a run."""
        if run_id in self._runs:
            self._runs[run_id].served += tokens

    def stands(self, sequence: Sequence, node: Node) -> None:
        """A state of a run stands at a node now, and no longer where it stood before."""
        run = self._runs.get(sequence.tag.run_id)
        if run is None:
            return
        state = sequence.tag.op_path.rpartition("/")[0]
        before = run.marks.pop(state, None)
        run.marks[state] = self._cache.mark(node)
        self._cache.unmark(before)

    def end(self, run_id: str) -> None:
        """The run will ask for nothing more."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            for mark in run.marks.values():
                self._cache.unmark(mark)
