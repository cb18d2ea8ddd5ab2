"""Free text: a state that most bytes lead back to, and how the states of a table differ from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmlang.grammar.alike import Alike
from lmlang.grammar.automaton import DEAD
from lmlang.grammar.token_trie import Bits

MOST = 64
"""Of 256 bytes so many lead to one state, where most do."""


@dataclass(frozen=True, slots=True, eq=False)
class Free:
    """A state that most bytes lead back to, with all that are reached from it.

    Args:
        states: For each node of the trie which of its states the bytes lead to; -1 for none.
        bits: The tokens that stay inside.
        left: Nodes to which a byte leads that leaves it, and the bytes up to them.
    """

    states: NDArray[np.int8]
    bits: Bits
    left: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """Free text as it stands in a table.

    Args:
        table: Kept alive, since its identity is the key.
        free: What tokens do there.
        rows: The rows of its states, in the table's numbers.
    """

    table: Alike
    free: Free
    rows: Any


class Closed:
    """A table of few states, all of whose rows are there.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: Any) -> None:
        dead = np.full((1, 256), DEAD, dtype=np.int32)
        self._store = np.concatenate([dead, rows.astype(np.int32)])

    def places(self, states: Any) -> tuple[Any, Any]:
        """See `Alike`; so are the others."""
        return self._store, states + 1

    def row(self, state: int) -> memoryview:
        """The row of a state."""
        row: memoryview = self._store[state + 1].data
        return row

    def following(self, state: int) -> bytes:
        """The bytes that are possible in a row."""
        return bytes(np.flatnonzero(self._store[state + 1] != DEAD).tolist())


def commonest(row: Any) -> int:
    """The state that most bytes of a row lead to; -1 where there is no such."""
    states = row[row >= 0]
    if len(states) < MOST:
        return -1
    distinct, counts = np.unique(states, return_counts=True)
    most = int(counts.argmax())
    return int(distinct[most]) if counts[most] >= MOST else -1


def differences(base: Base, state: int, known: int) -> list[tuple[int, int, int]]:
    """The bytes that lead elsewhere from a state than in free text: there, and here."""
    (row,) = base.table.rows([state])
    free = base.rows[known] if known >= 0 else np.full(256, DEAD, dtype=np.int32)
    where = np.flatnonzero(row != free)
    return list(zip(where.tolist(), free[where].tolist(), row[where].tolist(), strict=True))
