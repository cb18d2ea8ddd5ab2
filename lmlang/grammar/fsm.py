r"""An automaton run over text or UTF-8 bytes: states are sets of its nodes, made as they are met.

    text   "é"        state --letter--> state       a letter: which of the sets hold a character,
    bytes  C3 A9      state, "\xc3" --> state       and what an assertion may want to know of it

Every character costs at most one pass over the nodes, however the pattern is written; nothing
goes back. States and their ways are kept, up to a bound. Thread-safe: they are caches, no more.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from lmlang.grammar.charset import LAST, category, contains
from lmlang.grammar.regex import END, Assertion, Automaton

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
    is_ascii = assertion in (Assertion.ASCII_BOUNDARY, Assertion.NO_ASCII_BOUNDARY)
    words = (ASCII_WORD,) if is_ascii else (ASCII_WORD, WORD)
    boundary = (before in words) != (behind in words)
    if assertion in (Assertion.BOUNDARY, Assertion.ASCII_BOUNDARY):
        return boundary
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


class State:
    """A place in a text: nodes that may come next, none of them where nothing can match any more.

    Attributes:
        accepting: Whether the text up to here matches.
    """

    __slots__ = ("accepting", "before", "nodes", "viable", "ways")

    def __init__(self, nodes: frozenset[int], before: int, accepting: bool) -> None:
        self.nodes = nodes
        self.before = before
        self.accepting = accepting
        self.ways: dict[Letter, State] = {}
        self.viable: dict[tuple[int, int], bool] = {}


@dataclass(frozen=True, slots=True)
class Place:
    """A place in UTF-8: behind whole characters, or in the middle of one.

    Args:
        state: Behind the last whole character.
        part: The bytes of the character that has begun.
    """

    state: State
    part: bytes = b""

    @property
    def accepting(self) -> bool:
        """Whether the text up to here matches in full."""
        return not self.part and self.state.accepting


class Fsm:
    """A deterministic automaton: what one of some patterns matches in full. Thread-safe."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._alphabet = Alphabet(automaton)
        self._states: dict[tuple[frozenset[int], int], State] = {}
        self._kept = 0
        self.start = self._state([automaton.start], NOTHING)

    def step(self, state: State, character: str) -> State:
        """The state behind one more character."""
        letter = self._alphabet.letter(character)
        found = state.ways.get(letter)
        if found is None:
            here = reached(self._automaton, state.nodes, state.before, letter.kind, set())
            found = self._state(moved(self._automaton, here, letter), letter.kind)
            state.ways[letter] = found
        return found

    def matches(self, text: str) -> bool:
        """Whether the whole of a text matches."""
        state = self.start
        for character in text:
            state = self.step(state, character)
            if not state.nodes:
                return False
        return state.accepting

    def push(self, place: Place, byte: int) -> Place | None:
        """The place behind one more byte; None where no text that goes on so can match."""
        part = place.part + bytes((byte,))
        codes = _codes(part)
        if codes is None:
            return None
        first, last, whole = codes
        if whole:
            state = self.step(place.state, chr(first))
            return Place(state) if state.nodes else None
        return Place(place.state, part) if self._viable(place.state, first, last) else None

    def _viable(self, state: State, first: int, last: int) -> bool:
        """Whether a character among these code points leads anywhere."""
        found = state.viable.get((first, last))
        if found is None:
            firsts = self._alphabet.firsts
            inside = firsts[bisect_right(firsts, first) : bisect_right(firsts, last)]
            found = any(self.step(state, chr(code)).nodes for code in (first, *inside))
            state.viable[first, last] = found
        return found

    def _state(self, starts: Iterable[int], before: int) -> State:
        automaton = self._automaton
        nodes = frozenset(reached(automaton, starts, before, None, set()))
        if all(automaton.nodes[number].asserts is None for number in nodes):
            before = OTHER  # which nothing here looks at
        known = self._states.get((nodes, before))
        if known is not None:
            return known
        accepting = END in reached(automaton, nodes, before, NOTHING, set())
        if self._kept > MAX_KEPT:
            for state in list(self._states.values()):
                state.ways.clear()
                state.viable.clear()
            self._states.clear()
            self._kept = 0
        self._kept += len(nodes) + 1
        return self._states.setdefault((nodes, before), State(nodes, before, accepting))


_LEADS = ((0xC2, 0xDF, 2), (0xE0, 0xEF, 3), (0xF0, 0xF4, 4))
"""First bytes of characters of several bytes, and how many they have."""


def _codes(part: bytes) -> tuple[int, int, bool] | None:
    """The first and last code point whose UTF-8 begins so, and whether it is whole."""
    lead = part[0]
    if lead < 0x80:
        return lead, lead, True
    length = next((size for low, high, size in _LEADS if low <= lead <= high), 0)
    if not length or any(byte & 0xC0 != 0x80 for byte in part[1:]):
        return None
    code = lead & (0x7F >> length)
    for byte in part[1:]:
        code = code << 6 | byte & 0x3F
    missing = 6 * (length - len(part))
    first, last = code << missing, ((code + 1) << missing) - 1
    first, last = max(first, (0, 0, 0x80, 0x800, 0x10000)[length]), min(last, LAST)
    if 0xD800 <= first <= 0xDFFF:
        first = 0xE000
    if 0xD800 <= last <= 0xDFFF:
        last = 0xD7FF
    return (first, last, not missing) if first <= last else None
