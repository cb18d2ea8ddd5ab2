r"""Rows of a table between characters: which bytes lead alike, for all states with the same edges.

edges    [a-z] -> 7    [0-9] -> 9                   of another state   [a-z] -> 8    [0-9] -> 8
plan     a … z the first, 0 … 9 the second edge; \ none; C3 …: a character that is none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from lmlang.grammar.alphabet import Alphabet, bits
from lmlang.grammar.spelling import ESCAPES, Spelling, leads_of

SEVERAL = -1
"""In place of an edge: there are several that it may be, or none."""

Lead: TypeAlias = tuple[int, tuple[int, int, int]]
"""An edge or `SEVERAL`; the first and last byte that come next, and how many are missing."""


@dataclass(frozen=True, slots=True, eq=False)
class RowPlan:
    """What the bytes of a row do.

    Args:
        index: int64 [256], for each byte a place: that of an edge, of one of ``leads`` behind the
            edges, of the escape behind those; -1 where it is not possible.
        leads: First bytes of UTF-8 that lead alike.
        parted: First bytes that do not: each with the first and last character, and how many bytes
            are missing.
        escape: The edge of all escaped characters, or `SEVERAL`; None: none is possible.
        following: The bytes that are possible, in ascending order.
    """

    index: Any
    leads: tuple[Lead, ...]
    parted: tuple[tuple[int, tuple[int, int, int]], ...]
    escape: int | None
    following: bytes


class RowPlans:
    """The plans of one alphabet in one spelling, by the sets of classes of the edges.

    Args:
        alphabet: The classes.
        spelling: How characters are written.

    Attributes:
        firsts: For each byte the first of those that lead alike where no escape has begun.
        classes: For each byte that is a character the set of its class, 0 for others.
    """

    def __init__(self, alphabet: Alphabet, spelling: Spelling) -> None:
        self._alphabet = alphabet
        self._leads = leads_of(alphabet)
        self._escaped = 0
        if spelling is Spelling.JSON_FREE:
            self._escaped = alphabet.all
        elif spelling is Spelling.JSON:
            for code in ESCAPES:
                self._escaped |= 1 << alphabet.letter(code)
        bare = (b for b in range(128) if spelling is Spelling.PLAIN or b not in ESCAPES)
        self._bytes: dict[int, list[int]] = {}
        self.classes = [0] * 256
        firsts = bytearray(range(256))
        for byte in bare:
            alike = self._bytes.setdefault(alphabet.letter(byte), [])
            alike.append(byte)
            firsts[byte] = alike[0]
            self.classes[byte] = 1 << alphabet.letter(byte)
        self.firsts = bytes(firsts)
        self._ascii = sum(1 << letter for letter in self._bytes)
        self._known: dict[tuple[int, ...], RowPlan] = {}

    def of(self, edges: tuple[int, ...]) -> RowPlan:
        """The plan of a state.

        Args:
            edges: The classes of each of its edges; no class is in two.
        """
        found = self._known.get(edges)
        if found is None:
            found = self._known[edges] = self._made(edges)
        return found

    def _made(self, edges: tuple[int, ...]) -> RowPlan:
        index = np.full(256, -1, np.int64)
        for number, some in enumerate(edges):
            for letter in bits(some & self._ascii):
                index[self._bytes[letter]] = number
        leads: list[Lead] = []
        parted: list[tuple[int, tuple[int, int, int]]] = []
        for (some, first, last, missing), group in self._leads:
            edge = _edge(edges, some)
            if edge is None:
                continue
            if edge == SEVERAL:
                parted += [(lead, (low, high, missing)) for lead, low, high in group]
            else:
                index[[lead for lead, _, _ in group]] = len(edges) + len(leads)
                leads.append((edge, (first, last, missing)))
        escape = _edge(edges, self._escaped)
        if escape is not None:
            index[ord("\\")] = len(edges) + len(leads)
        following = {*np.flatnonzero(index >= 0).tolist(), *(lead for lead, _ in parted)}
        return RowPlan(index, tuple(leads), tuple(parted), escape, bytes(sorted(following)))


def _edge(edges: tuple[int, ...], some: int) -> int | None:
    """The edge of all of some classes, or `SEVERAL`; None: they have none."""
    for number, classes in enumerate(edges):
        if some & classes:
            return SEVERAL if some & ~classes else number
    return None
