"""Which stretches of slots the rows of a batch share: a walk over the trie of their contexts.

    row 0   ███████████████▓▓▓▓▓▓··>      █ stretch of all three rows
    row 1   ███████████████▓▓▓▓▓▓···>     ▓ stretch of rows 0 and 1, inside of what █ left
    row 2   ███████████████······>        · the rest of each row, its own

Whether a stretch is worth a call of its own is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from lmlang.runtime.cache.radix import IntArray, common_prefix


@dataclass(frozen=True, slots=True)
class RowSlots:
    """A row as attention sees it: its queries in the batch, and the slots of its context.

    Args:
        start: Index of its first token in the batch.
        count: Tokens that it computes.
        table: int64 [context + count] slots of all its positions so far, these included.
    """

    start: int
    count: int
    table: IntArray

    @property
    def context(self) -> IntArray:
        """Slots of all positions before its queries."""
        return self.table[: len(self.table) - self.count]

    @property
    def own(self) -> IntArray:
        """Slots of its queries."""
        return self.table[len(self.table) - self.count :]

    @property
    def queries(self) -> IntArray:
        """Places of its tokens in the batch."""
        return np.arange(self.start, self.start + self.count)

    def first_seen(self, window: int) -> int:
        """The first position that its first query sees."""
        return max(0, len(self.table) - self.count + 1 - window) if window else 0

    def is_banded(self, window: int) -> bool:
        """Whether its queries see different parts of what lies before them."""
        return bool(window) and self.count > 1 and len(self.table) > window


@dataclass(frozen=True, slots=True)
class Stretch:
    """Slots that all queries of some rows see.

    Args:
        rows: Their indices, at least two.
        slots: int64 [L].
    """

    rows: tuple[int, ...]
    slots: IntArray


def share(
    rows: Seq[RowSlots], members: Iterable[int], window: int, pays: Callable[[int, int], bool]
) -> tuple[list[Stretch], dict[int, list[IntArray]]]:
    """Cut the contexts of some rows into what they share and what is their own.

    Of a stretch, rows share what all that see any of it see; what some see more is their own.

    Args:
        rows: Of a batch.
        members: Those to look at, none of them banded.
        window: That their queries see.
        pays: Whether a stretch of so many slots is to be shared by so many rows.

    Returns:
        The stretches, outer ones before those inside of them, and by member the parts of its
        context that are in none, as far as it sees them.
    """
    seen = {i: rows[i].first_seen(window) for i in members}
    stretches: list[Stretch] = []
    rest: dict[int, list[IntArray]] = {i: [] for i in seen}
    stack = [(list(seen), 0)]
    while stack:
        here, depth = stack.pop()
        branches: dict[int, list[int]] = {}
        for i in here:
            context = rows[i].context
            if len(context) > depth:
                branches.setdefault(int(context[depth]), []).append(i)
        for branch in branches.values():
            first = rows[branch[0]].context
            if len(branch) == 1:
                rest[branch[0]].append(first[max(depth, seen[branch[0]]) :])
                continue
            end = depth + min(common_prefix(first[depth:], rows[i].context[depth:]) for i in branch)
            sharing = [i for i in branch if seen[i] < end]
            begin = max([depth, *(seen[i] for i in sharing)])
            if len(sharing) > 1 and pays(end - begin, len(sharing)):
                stretches.append(Stretch(tuple(sharing), first[begin:end]))
            else:
                begin = end
            for i in sharing:
                rest[i].append(first[max(depth, seen[i]) : begin])
            stack.append((branch, end))
    return stretches, rest
