"""A table of a content as tokens see it: states that none of them tells apart are one.

store   row 0     all DEAD                        places   of a state: which row is its own
        row 1 ... as the table has them, but for states that others stand for
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from lmlang.grammar.automaton import DEAD, Table

MAX_ROWS = 16_384
"""Rows that are kept of one table; a row is a kilobyte."""


class Alike:
    """A table as far as tokens can tell its states apart: of those that are alike there is one.

    Thread-safe: what it keeps is a cache.

    Args:
        table: The table.
        longest: Bytes of the longest token.

    Attributes:
        table: As given.
        walks: How often all tokens have been walked in it; owned by `contents.py`.
    """

    def __init__(self, table: Table, longest: int) -> None:
        self.table = table
        self.walks = 0
        self._longest = longest
        self._ones: dict[int, int] = {}
        self._lock = Lock()
        self._slots = np.full(64, -1, np.int32)
        self._store = np.full((8, 256), DEAD, np.int32)
        self._used = 1

    def one(self, state: int) -> int:
        """The one that stands for a state."""
        found = self._ones.get(state)
        if found is None:
            found = self._ones[state] = self.table.alike(state, self._longest)
        return found

    def places(self, states: Any) -> tuple[Any, Any]:
        """The rows of some states, where they are kept.

        Args:
            states: Array of state numbers; some may be equal.

        Returns:
            Rows, int32 [any number, 256], of which the first is all `DEAD`, to be read only; and
            for each state the number of its row.
        """
        last = int(states.max())
        with self._lock:
            if last >= len(self._slots):
                self._slots = np.append(self._slots, np.full(last + 1, -1, np.int32))
            places = self._slots[states]
            if (places < 0).any():
                fresh = np.unique(states[places < 0])
                if self._used + len(fresh) > MAX_ROWS:  # others may still look at the old ones
                    self._slots.fill(-1)
                    self._store, self._used = self._store[:1], 1
                    fresh = np.unique(states)
                self._keep(fresh)
                places = self._slots[states]
            return self._store, places

    def rows(self, states: list[int]) -> Any:
        """The rows of some states, as one array of their own."""
        store, places = self.places(np.array(states))
        return store[places]

    def row(self, state: int) -> memoryview:
        """The row of a state."""
        with self._lock:
            slot = int(self._slots[state]) if state < len(self._slots) else -1
            store = self._store
        if slot < 0:
            store, (slot,) = self.places(np.array([state]))
        row: memoryview = store[slot].data
        return row

    def following(self, state: int) -> bytes:
        """The bytes that are possible in a row."""
        return self.table.following(state)

    def _keep(self, fresh: Any) -> None:
        """Make the rows of some states; the lock is held."""
        rows = np.asarray(self.table.rows(fresh))
        others = {
            state: one
            for state in set(rows.ravel().tolist())
            if state >= 0 and (one := self.one(state)) != state
        }
        if others:
            ones = np.arange(max(others) + 1, dtype=np.int32)
            ones[list(others)] = list(others.values())
            known = (rows >= 0) & (rows < len(ones))
            rows = np.where(known, ones[np.where(known, rows, 0)], rows)
        end = self._used + len(fresh)
        if end > len(self._store):
            store = np.full((2 * end, 256), DEAD, np.int32)
            store[: self._used] = self._store[: self._used]
            self._store = store
        self._store[self._used : end] = rows
        self._slots[fresh] = np.arange(self._used, end)
        self._used = end
