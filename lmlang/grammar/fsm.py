"""One step of a regular expression without look-around: from nodes by a character to nodes.

    nodes  --what needs no character-->  readers, ends, assertions  --a letter-->  nodes

A letter is which of the sets hold a character, and what an assertion may want to know of it. Every
character costs at most one pass over the nodes, however the pattern is written; nothing goes back.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from lmlang.grammar.charset import category, contains
from lmlang.grammar.nodes import END, Assertion, Automaton

MAX_KEPT = 50_000
"""Nodes in all states that are kept of one automaton."""

NOTHING, LINE_END, ASCII_WORD, WORD, OTHER = range(5)
"""What an assertion may want to know of a character, or that there is none."""

_EMPTY_HAS_NO_BOUNDARY = re.search(r"\B", "") is not None  # since Python 3.14


@dataclass(frozen=True, slots=True, eq=False)
class Letter:
    """Characters that no node tells apart; one object for each letter of an alphabet.

    Args:
        sets: Bit i is set where set i holds them.
        kind: What assertions see of them; `OTHER` where there is no assertion.
    """

    sets: int
    kind: int


class Alphabet:
    """The letters of one automaton."""

    def __init__(self, automaton: Automaton) -> None:
        self._sets = automaton.sets
        self._asserts = any(node.asserts is not None for node in automaton.nodes)
        kinds = [category("w", False), category("w", True), ((10, 10),)] if self._asserts else []
        firsts = {0}
        for ranges in (*self._sets, *kinds):
            for first, last in ranges:
                firsts |= {first, last + 1}
        self.firsts = sorted(firsts)
        """The first code points of all intervals of which every set holds all or nothing."""
        self._letters: dict[tuple[int, int], Letter] = {}
        self._by_interval: dict[int, Letter] = {}
        self._by_character: dict[str, Letter] = {}

    def letter(self, character: str) -> Letter:
        """The letter of a character."""
        found = self._by_character.get(character)
        if found is None:
            interval = bisect_right(self.firsts, ord(character)) - 1
            found = self._by_interval.get(interval)
            if found is None:
                found = self._by_interval[interval] = self._made(self.firsts[interval])
            if len(self._by_character) >= MAX_KEPT:
                self._by_character.clear()
            self._by_character[character] = found
        return found

    def _made(self, code: int) -> Letter:
        sets = sum(1 << i for i, ranges in enumerate(self._sets) if contains(ranges, code))
        kind = _kind(code) if self._asserts else OTHER
        return self._letters.setdefault((sets, kind), Letter(sets, kind))


def _kind(code: int) -> int:
    if code == ord("\n"):
        return LINE_END
    if contains(category("w", True), code):
        return ASCII_WORD
    return WORD if contains(category("w", False), code) else OTHER


def holds(assertion: Assertion, before: int, behind: int) -> bool:
    """Whether an assertion holds between two kinds of characters."""
    if assertion is Assertion.BEGINNING:
        return before == NOTHING
    if assertion is Assertion.BEGINNING_OF_LINE:
        return before in (NOTHING, LINE_END)
    if assertion in (Assertion.DOLLAR, Assertion.END):
        return behind == NOTHING
    if assertion is Assertion.END_OF_LINE:
        return behind in (NOTHING, LINE_END)
    in_unicode = assertion in (Assertion.BOUNDARY, Assertion.NO_BOUNDARY)
    words = (ASCII_WORD, WORD) if in_unicode else (ASCII_WORD,)
    boundary = (before in words) != (behind in words)
    if assertion in (Assertion.BOUNDARY, Assertion.ASCII_BOUNDARY):
        return boundary
    if assertion is Assertion.ECMA_NO_BOUNDARY:
        return not boundary
    return not boundary and (before != behind or before != NOTHING or _EMPTY_HAS_NO_BOUNDARY)


def reached(
    automaton: Automaton, starts: Iterable[int], before: int, behind: int | None, seen: set[int]
) -> list[int]:
    """What lies behind some nodes without a character: readers, the end, open assertions.

    Args:
        automaton: Whose nodes.
        starts: Where to begin.
        before: The kind of the character before.
        behind: That of the character behind; None leaves assertions open that look at it.
        seen: Nodes to leave out; gains those that were passed.
    """
    found, todo = [], list(starts)
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        node = automaton.nodes[number]
        if number == END or node.reads is not None:
            found.append(number)
        elif node.asserts is None:
            todo += node.onward
        elif behind is None and not node.asserts.looks_back_only:
            found.append(number)
        elif holds(node.asserts, before, OTHER if behind is None else behind):
            todo += node.onward
    return found


def moved(automaton: Automaton, numbers: Iterable[int], letter: Letter) -> list[int]:
    """Where readers of a letter lead."""
    found: list[int] = []
    for number in numbers:
        node = automaton.nodes[number]
        if node.reads is not None and letter.sets >> node.reads & 1:
            found += node.onward
    return found
