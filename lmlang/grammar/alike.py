"""A table of a content as tokens see it: states that none of them tells apart are one."""

from __future__ import annotations

from typing import Any

import numpy as np

from lmlang.grammar.automaton import Table


class Alike:
    """A table as far as tokens can tell its states apart: of those that are alike there is one.

    Args:
        table: The table.
        longest: Bytes of the longest token.
    """

    def __init__(self, table: Table, longest: int) -> None:
        self.table = table
        self._longest = longest
        self._ones: dict[int, int] = {}
        self._known = np.full(64, -1, dtype=np.int64)  # the same, for many at once

    def one(self, state: int) -> int:
        """The one that stands for a state."""
        found = self._ones.get(state)
        if found is None:
            found = self._ones[state] = self.table.alike(state, self._longest)
        return found

    def rows(self, states: Any) -> Any:
        """The rows of some states."""
        rows = self.table.rows(states)
        if len(rows) == 1:
            distinct = set(rows[0].tolist())
            if all(state < 0 or self.one(state) == state for state in distinct):
                return rows
        last = int(rows.max())
        if last < 0:
            return rows
        known = self._known
        if last >= len(known):
            known = np.full(2 * last, -1, dtype=np.int64)
            known[: len(self._known)] = self._known
        met = np.zeros(last + 1, dtype=np.bool_)
        met[rows[rows >= 0]] = True
        fresh = np.flatnonzero(met & (known[: last + 1] < 0))
        for state in fresh.tolist():
            known[state] = self.one(state)
        self._known = known
        return np.where(rows >= 0, known[rows], rows)

    def push(self, state: int, byte: int) -> int:
        """One entry of a row."""
        onward = self.table.push(state, byte)
        return self.one(onward) if onward >= 0 else onward

    def following(self, state: int) -> bytes:
        """The bytes that are possible in a row."""
        return self.table.following(state)
