"""Letters: characters that the nodes of an automaton do not tell apart, and what they do to these.

    nodes  --what needs no character-->  readers, ends, assertions  --a letter-->  nodes

A letter is which of the sets hold a character, and what an assertion may want to know of it. Every
character costs at most one pass over the nodes, however the pattern is written; nothing goes back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lmlang.grammar.alphabet import alphabet_of, bits
from lmlang.grammar.charset import category
from lmlang.grammar.nodes import END, Assertion, Automaton

MAX_KEPT = 50_000
"""Characters, and nodes in all states, that are kept of one automaton."""

NOTHING, LINE_END, ASCII_WORD, WORD, OTHER = range(5)
"""What an assertion may want to know of a character, or that there is none."""

_EMPTY_HAS_NO_BOUNDARY = re.search(r"\B", "") is not None  # since Python 3.14
_KINDS = (WORD, ASCII_WORD, LINE_END)
_IN_UNICODE = {Assertion.BOUNDARY, Assertion.NO_BOUNDARY}


class Letters:
    """The letters of one automaton; immutable but for caches, thread-safe.

    Attributes:
        asserts: Whether anything is asserted; else all letters are of the kind `OTHER`.
        alphabet: The letters, as classes of characters.
        sets: For each set of the automaton the letters in it, as bits.
        kinds: For each letter what an assertion sees of it.
    """

    def __init__(self, automaton: Automaton) -> None:
        asserted = {node.asserts for node in automaton.nodes} - {None}
        self.asserts = bool(asserted)
        words = category("w", not asserted & _IN_UNICODE)
        seen = [words, category("w", True), ((10, 10),)] if asserted else []
        self.alphabet, masks = alphabet_of([*automaton.sets, *seen])
        self.sets = masks[: len(automaton.sets)]
        self.kinds = [OTHER] * self.alphabet.count
        for kind, letters in zip(_KINDS, masks[len(automaton.sets) :], strict=False):
            for letter in bits(letters):
                self.kinds[letter] = kind
        self._known: dict[str, int] = {}

    def letter(self, character: str) -> int:
        """The letter of a character; half of one counts as U+FFFD."""
        found = self._known.get(character)
        if found is None:
            found = self.alphabet.letter(ord(character))
            if found < 0:
                found = self.alphabet.letter(0xFFFD)
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[character] = found
        return found


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


def moved(automaton: Automaton, letters: Letters, numbers: Iterable[int], letter: int) -> list[int]:
    """Where readers of a letter lead."""
    found: list[int] = []
    for number in numbers:
        node = automaton.nodes[number]
        if node.reads is not None and letters.sets[node.reads] >> letter & 1:
            found += node.onward
    return found
