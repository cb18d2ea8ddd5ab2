"""Who of the waiting goes first: an order for each policy, and a bound on being overtaken.

    fcfs      in the order of arrival
    lpm       longest cached prefix first
    dfs       depth-first over the tree of the waiting prompts, going round
    program   runs that have begun before new ones; in both longest cached prefix, then depth-first
    priority  highest priority first, then arrival
    mlq       least served runs first, in levels: each twice as much as the one below it

Under every policy, whoever was overtaken by `MAX_OVERTAKEN` later comers goes before all others.

Sources: lpm and dfs: Zheng et al., "SGLang" (2024), section 3 (depth-first order is optimal where
the cache holds the longest request); mlq: Luo et al., "Autellix" (2025), program-level attained
service over the classic multi-level feedback queue.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Literal, get_args

from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.runs import Runs
from lmlang.runtime.sequence import Sequence

Policy = Literal["fcfs", "lpm", "dfs", "program", "priority", "mlq"]
POLICIES: tuple[str, ...] = get_args(Policy)
MAX_OVERTAKEN = 64
"""Later comers that may be admitted before one that waits."""
WINDOW = 256
"""Waiting sequences that one plan looks at."""
FIRST_LEVEL = 256
"""Tokens served up to which a run is in the lowest level of mlq."""

Key = tuple[Any, ...]


class Waiting:
    """The waiting sequences, in the order of arrival and in that of a policy.

    Not thread-safe (the scheduler's own). Adding and removing takes O(log n) comparisons.

    Args:
        policy: One of `POLICIES`.
        cache: Asked by lpm what it holds.
        runs: Asked by program and mlq what has begun, and what it was served.
    """

    def __init__(self, policy: str, cache: CacheManager, runs: Runs) -> None:
        self._policy = policy
        self._cache = cache
        self._runs = runs
        # In the order of arrival, those that come back before all others.
        self._line: list[tuple[bool, int, Sequence]] = []
        self._served: list[int] = []
        """The arrivals of those that were admitted before somebody who came earlier; ascending."""
        self._keys: dict[Sequence, Key] = {}
        self._sorted: list[tuple[Key, int, Sequence]] = []
        self._of_new_run: dict[str, set[Sequence]] = {}
        self._cursor: Key = ()
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[-1] for entry in self._line)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._put(sequence)

    def add_again(self, sequence: Sequence, *, due: bool) -> None:
        """Queue a sequence that was admitted before: before all others, or where it stood."""
        sequence.due = due
        self._put(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take one out that will not be served."""
        del self._line[bisect.bisect_left(self._line, (not sequence.due, sequence.arrival))]
        if sequence in self._keys:
            self._unsort(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Take one out that is served now."""
        sequence.aged = self._is_due(sequence)
        self._cursor = self._keys.get(sequence, ())
        self.remove(sequence)
        sequence.due = False
        bisect.insort(self._served, sequence.arrival)
        at = bisect.bisect_left(self._line, (True,))  # behind those that come back
        oldest = self._line[at][1] if at < len(self._line) else self._arrivals
        del self._served[: bisect.bisect_left(self._served, oldest)]
        # What else waits of a run that begins now is served before other new runs.
        for other in self._of_new_run.pop(sequence.tag.run_id, ()):
            self._unsort(other)
            self._sort(other, begun=True)

    def _is_due(self, sequence: Sequence) -> bool:
        """Whether it comes back, or was overtaken as often as it may be."""
        overtaken = len(self._served) - bisect.bisect_right(self._served, sequence.arrival)
        return sequence.due or overtaken >= MAX_OVERTAKEN

    def back_to(self, sequence: Sequence) -> None:
        """Go on from here the next time round: it was passed over, and waits no longer then."""
        self._cursor = self._keys.get(sequence, ())

    def candidates(self) -> list[Sequence]:
        """The sequences to serve next, in order, as many as one plan should look at."""
        due = []
        for sequence in islice(self, WINDOW):
            if not self._is_due(sequence):
                break  # whoever came later was overtaken by no more
            due.append(sequence)
        first = set(due)
        rest = (s for s in islice(self._in_order(), 2 * WINDOW) if s not in first)
        return list(islice(chain(due, rest), WINDOW))

    def _in_order(self) -> Iterator[Sequence]:
        if self._policy == "fcfs":
            return iter(self)
        if self._policy == "lpm":
            window = list(islice(self, WINDOW))
            return iter(sorted(window, key=self._uncached))
        if self._policy == "dfs":
            return self._round(0)
        if self._policy == "program":
            begun = bisect.bisect_left(self._sorted, ((True,),))
            window = list(islice(self._round(begun), WINDOW))
            first, new = window[:begun], window[begun:]
            return iter([*sorted(first, key=self._uncached), *sorted(new, key=self._uncached)])
        if self._policy == "mlq":
            window = list(islice(self, WINDOW))
            return iter(sorted(window, key=self._level))
        return (entry[-1] for entry in self._sorted)

    def _put(self, sequence: Sequence) -> None:
        bisect.insort(self._line, (not sequence.due, sequence.arrival, sequence))
        if self._policy in ("dfs", "program", "priority"):
            self._sort(sequence, begun=self._runs.begun(sequence.tag.run_id) is not None)

    def _sort(self, sequence: Sequence, begun: bool) -> None:
        if self._policy == "priority":
            key: Key = (-sequence.tag.priority,)
        else:
            # Sorted by their tokens, prompts are in depth-first order of their tree.
            prompt = sequence.tokens(0, sequence.length)
            key = (sequence.namespace, prompt.astype(">u4").tobytes())
        if self._policy == "program":
            run_id = sequence.tag.run_id
            key = (not begun, self._runs.begun(run_id) or 0, *key)
            if not begun and run_id:
                self._of_new_run.setdefault(run_id, set()).add(sequence)
        self._keys[sequence] = key
        bisect.insort(self._sorted, (key, sequence.arrival, sequence))

    def _unsort(self, sequence: Sequence) -> None:
        key = self._keys.pop(sequence)
        del self._sorted[bisect.bisect_left(self._sorted, (key, sequence.arrival))]
        of_run = self._of_new_run.get(sequence.tag.run_id)
        if of_run is not None:
            of_run.discard(sequence)
            if not of_run:
                del self._of_new_run[sequence.tag.run_id]

    def _round(self, begun: int) -> Iterator[Sequence]:
        """What has begun in its order; the rest from where the last admission was, and round."""
        at = max(begun, bisect.bisect_left(self._sorted, (self._cursor,)))
        for entry in chain(
            islice(self._sorted, begun),
            islice(self._sorted, at, None),
            islice(self._sorted, begun, at),
        ):
            yield entry[-1]

    def _uncached(self, sequence: Sequence) -> int:
        prompt = sequence.tokens(0, sequence.length)
        return -self._cache.probe(prompt, sequence.cacheable, sequence.namespace)

    def _level(self, sequence: Sequence) -> int:
        served = self._runs.served(sequence.tag.run_id)
        return max(0, (served // FIRST_LEVEL).bit_length())
