"""Which nodes of an automaton do the same for a while, so that what is known of one holds for many.

    .{1,1000}     . -> . -> ... -> . -> . -> end      for 3 characters all but the last 3 are alike

Two nodes are alike for no character if they read the same, and for one more than before if they
lead to nodes that are alike. In each round only nodes are looked at whose successors were told
apart in the last one, so that a long chain costs one node a round.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from threading import Lock


class Likeness:
    """Classes of nodes that do the same for a while. Thread-safe: what it keeps is a cache.

    Args:
        kinds: What each node is, for no character.
        onward: Where each leads by a character that it reads.
    """

    def __init__(self, kinds: Mapping[int, Hashable], onward: Mapping[int, frozenset[int]]) -> None:
        numbers: dict[Hashable, int] = {}
        self._onward = onward
        self._first = {node: numbers.setdefault(kind, len(numbers)) for node, kind in kinds.items()}
        self._last = dict(self._first)
        self._members: dict[int, set[int]] = {}
        self._before: dict[int, list[int]] = {}
        for node, number in self._first.items():
            self._members.setdefault(number, set()).add(node)
            for other in onward[node]:
                self._before.setdefault(other, []).append(node)
        self._looked_at = set(self._first)
        self._told: list[dict[int, int]] = []  # in each round: the nodes that get other numbers
        self._lock = Lock()

    def classes(self, length: int) -> dict[int, int]:
        """Classes of nodes that do the same for so many characters.

        Args:
            length: How many.
        """
        with self._lock:
            while len(self._told) < length and self._looked_at:
                self._told.append(self._round())
            found = dict(self._first)
            for told in self._told[:length]:
                found.update(told)
        return found

    def _round(self) -> dict[int, int]:
        """Tell apart what leads to nodes that were told apart."""
        found, members, told = self._last, self._members, dict[int, int]()
        parts: dict[int, dict[frozenset[int], set[int]]] = {}
        for node in self._looked_at:
            leads = frozenset([found[other] for other in self._onward[node]])
            parts.setdefault(found[node], {}).setdefault(leads, set()).add(node)
        for number, groups in parts.items():
            rest = len(members[number]) - sum(map(len, groups.values()))
            some = sorted(groups.values(), key=len)
            for group in some if rest else some[:-1]:
                fresh = len(members)
                members[number] -= group
                members[fresh] = group
                told.update(dict.fromkeys(group, fresh))
        found.update(told)
        self._looked_at = {other for node in told for other in self._before.get(node, ())}
        return told
