"""Which stretches of slots the rows of a batch share: a walk over the trie of their contexts.

    row 0   ███████████████▓▓▓▓▓▓··>      █ stretch of all three rows
    row 1   ███████████████▓▓▓▓▓▓···>     ▓ stretch of rows 0 and 1, behind the one of all three
    row 2   ███████████████······>        · the rest of each row, its own

Stretches of a row follow one another from its first slot on. Whether one is worth a call of its
own is the caller's to say; one that is not goes to those behind it, else to the rows.
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

    def sees_all(self, window: int) -> bool:
        """Whether all its queries see all that lies before them."""
        return not window or len(self.table) <= window


@dataclass(frozen=True, slots=True)
class Stretch:
    """Slots that all queries of some rows see.

    Args:
        rows: Their indices, at least two.
        slots: int64 [L].
        level: How many stretches stand before it.
    """

    rows: tuple[int, ...]
    slots: IntArray
    level: int


def share(
    rows: Seq[RowSlots],
    members: Iterable[int],
    pays: Callable[[int, Seq[int]], bool],
    span: int = 1,
    levels: int | None = None,
) -> tuple[list[Stretch], dict[int, int]]:
    """Cut the contexts of some rows into what they share and what is their own.

    Args:
        rows: Of a batch.
        members: Those to look at, which see all of their contexts.
        pays: Whether a stretch of so many slots is to be shared by these rows.
        span: Contexts are cut at multiples of so many slots.
        levels: At most so many stretches of one row; None for any number.

    Returns:
        The stretches, and of each member how many slots of its context are in any.
    """
    contexts = {i: rows[i].context for i in members}
    cuts = dict.fromkeys(contexts, 0)
    stretches: list[Stretch] = []
    stack = [(list(cuts), 0, 0)]
    while stack:
        here, depth, level = stack.pop()
        branches: dict[int, list[int]] = {}
        for i in here:
            if len(contexts[i]) > depth:
                branches.setdefault(int(contexts[i][depth]), []).append(i)
        for branch in branches.values():
            if len(branch) == 1:
                continue
            first, begin = contexts[branch[0]], cuts[branch[0]]
            end = len(first)
            for i in branch[1:]:
                end = depth + common_prefix(first[depth:end], contexts[i][depth:end])
            cut, below = end - end % span, level
            if level != levels and cut > begin and pays(cut - begin, branch):
                stretches.append(Stretch(tuple(branch), first[begin:cut], level))
                cuts.update(dict.fromkeys(branch, cut))
                below += 1
            stack.append((branch, end, below))
    return stretches, cuts
