"""Which slots of the KV pool are free: a sorted list of runs, so that what is taken lies together.

free:  [0, 40) [57, 64) [100, 4096)      take(5) -> [57, 62): the smallest run that is enough
"""

from __future__ import annotations

import bisect

import numpy as np

from lmlang.runtime.cache.radix import IntArray


class SlotAllocator:
    """Hands out slot numbers 0 .. total-1; not thread-safe (the engine thread's own)."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free_count = total
        self._starts: list[int] = [0] if total else []
        self._ends: list[int] = [total] if total else []

    def take(self, count: int, after: int | None = None) -> IntArray:
        """``count`` slots, ascending; in one run where any free run is long enough.

        With ``after``, those that follow this slot come first, as far as they are free. The
        caller has made sure that ``count`` slots are free.
        """
        assert 0 <= count <= self.free_count, (count, self.free_count)
        taken: list[IntArray] = []
        if after is not None and count:
            i = bisect.bisect_left(self._starts, after + 1)
            if i < len(self._starts) and self._starts[i] == after + 1:
                taken.append(self._cut(i, min(count, self._ends[i] - after - 1)))
                count -= len(taken[0])
        while count:
            lengths = [end - start for start, end in zip(self._starts, self._ends, strict=True)]
            enough = [(length, i) for i, length in enumerate(lengths) if length >= count]
            length, i = min(enough) if enough else max((n, -j) for j, n in enumerate(lengths))
            i = abs(i)
            taken.append(self._cut(i, min(length, count)))
            count -= len(taken[-1])
        return np.sort(np.concatenate(taken)) if taken else np.empty(0, dtype=np.int64)

    def _cut(self, run: int, size: int) -> IntArray:
        """The first ``size`` slots of a free run."""
        start = self._starts[run]
        if start + size == self._ends[run]:
            del self._starts[run], self._ends[run]
        else:
            self._starts[run] += size
        self.free_count -= size
        return np.arange(start, start + size, dtype=np.int64)

    def give(self, slots: IntArray) -> None:
        """Take slots back; each must be out."""
        if not len(slots):
            return
        ordered = np.sort(slots)
        breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
        for run in np.split(ordered, breaks):
            self._give_run(int(run[0]), int(run[-1]) + 1)
        self.free_count += len(slots)

    def _give_run(self, start: int, end: int) -> None:
        i = bisect.bisect_left(self._starts, start)
        left = i > 0 and self._ends[i - 1] == start
        right = i < len(self._starts) and self._starts[i] == end
        twice = f"slots [{start}, {end}) were given back twice"
        assert i == 0 or self._ends[i - 1] <= start, twice
        assert i == len(self._starts) or end <= self._starts[i], twice
        if left and right:
            self._ends[i - 1] = self._ends[i]
            del self._starts[i], self._ends[i]
        elif left:
            self._ends[i - 1] = end
        elif right:
            self._starts[i] = start
        else:
            self._starts.insert(i, start)
            self._ends.insert(i, end)

    def free_slots(self) -> IntArray:
        """All free slots, ascending."""
        runs = [
            np.arange(start, end, dtype=np.int64)
            for start, end in zip(self._starts, self._ends, strict=True)
        ]
        return np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)
