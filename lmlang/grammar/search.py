"""Finds in a growing text the first end of a match, and says what may yet become one.

    a.c | b      text "xab…"      live: "ab" may still become a.c; "b" is a match and ends first

Of the matches that end first the longest one counts. For every node the earliest start from which
it is reached is enough to know; so a state is the list of starts that are still alive, the earliest
first, each with the nodes that it alone or it first reaches, and never holds a node twice. A step
costs one pass over the nodes at most; nothing goes back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from lmlang.errors import ProgramError, quote
from lmlang.grammar.letters import MAX_KEPT, NOTHING, OTHER, Letters, moved, reached
from lmlang.grammar.nodes import END, leading_to
from lmlang.grammar.regex import compile_regex, refused

_NO_LOOKS = {
    "$": "$ stands before what may be a line's end; write (?m:$) or leave it out",
    "ASSERT": "look-around cannot be searched for in a text that still grows; write what may "
    "stand there as part of the pattern",
}

Groups = tuple[frozenset[int], ...]


class _Step(NamedTuple):
    """What a letter does to a state.

    ``kept`` are the numbers of the groups that go on, the one that begins here the last number;
    ``matched`` is the number of the earliest one that is a match now, -1 for none.
    """

    state: _State
    kept: tuple[int, ...]
    matched: int


class _State:
    """Nodes by their starts, the earliest start first, and the kind of the last character."""

    __slots__ = ("before", "groups", "ways")

    def __init__(self, groups: Groups, before: int) -> None:
        self.groups = groups
        self.before = before
        self.ways: dict[int, _Step] = {}


class Search:
    """A search for any of some patterns; immutable but for caches, so thread-safe.

    Args:
        patterns: In Python's syntax, at least one.

    Raises:
        GrammarSyntaxError: One is none, is not regular, or looks at what comes behind its end.
        GrammarTooLarge: They are too large together.
        ProgramError: One may match nothing at all, which would be found everywhere.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        for pattern in patterns:
            _check(pattern)
        self._automaton = compile_regex(*patterns)
        self._letters = Letters(self._automaton)
        self._states: dict[tuple[Groups, int], _State] = {}
        self._kept = 0

    def begin(self, before: str = "") -> Stream:
        """A search of its own; ``before`` is what stands before its text."""
        kind = self._letters.kinds[self._letters.letter(before[-1])] if before else NOTHING
        return Stream(self, self._state((), kind))

    def step(self, state: _State, character: str) -> _Step:
        """What one more character does."""
        letter = self._letters.letter(character)
        found = state.ways.get(letter)
        if found is None:
            found = state.ways[letter] = self._stepped(state, letter)
        return found

    def _stepped(self, state: _State, letter: int) -> _Step:
        automaton, before = self._automaton, state.before
        kind = self._letters.kinds[letter]
        here: set[int] = set()
        ahead: set[int] = set()
        groups: list[frozenset[int]] = []
        kept: list[int] = []
        matched = -1
        for number, nodes in enumerate((*state.groups, (automaton.start,))):
            readers = reached(automaton, nodes, before, kind, here)
            onward = moved(automaton, self._letters, readers, letter)
            group = frozenset(reached(automaton, onward, kind, None, ahead))
            if END in group and matched < 0:
                matched = number
            if group:
                groups.append(group)
                kept.append(number)
        return _Step(self._state(tuple(groups), kind), tuple(kept), matched)

    def _state(self, groups: Groups, before: int) -> _State:
        key = (groups, before if self._letters.asserts else OTHER)
        known = self._states.get(key)
        if known is not None:
            return known
        if self._kept > MAX_KEPT:
            for state in list(self._states.values()):
                state.ways.clear()
            self._states.clear()
            self._kept = 0
        self._kept += 1 + sum(map(len, groups))
        return self._states.setdefault(key, _State(*key))


class Stream:
    """One text that is searched as it grows. Not thread-safe."""

    def __init__(self, search: Search, state: _State) -> None:
        self._search = search
        self._state = state
        self._starts: list[int] = []
        self._length = 0

    @property
    def first_live(self) -> int:
        """The first character that may yet belong to a match; the text's length for none."""
        return self._starts[0] if self._starts else self._length

    def push(self, text: str) -> tuple[int, int] | None:
        """Take more text; where the match lies that is found first: its start and end."""
        step, state = self._search.step, self._state
        for character in text:
            state, kept, matched = step(state, character)
            starts = [*self._starts, self._length]
            self._length += 1
            if matched >= 0:
                return starts[matched], self._length
            self._starts = [starts[number] for number in kept]
        self._state = state
        return None


@lru_cache(maxsize=64)
def search_for(patterns: tuple[str, ...]) -> Search:
    """The search for these patterns, made once."""
    return Search(patterns)


def _check(pattern: str) -> None:
    automaton = compile_regex(pattern)
    if automaton.may_be_empty:
        raise ProgramError(
            f"the pattern {quote(pattern)} may match no character at all, so it would end every "
            "output at once: write what must stand there, as in x+ for x*."
        )
    nodes = automaton.nodes
    look = next((node.looks for node in nodes if node.looks is not None), None)
    if look is not None:
        raise refused(pattern, automaton.positions, look.spelling, _NO_LOOKS[look.spelling])
    for number in leading_to(nodes, [END]):
        asserts = nodes[number].asserts
        if asserts is not None and not asserts.looks_back_only:
            spelling = asserts.value[:2] if asserts.value[0] == "\\" else "$"
            why = f"{spelling} at its end looks at what comes behind, which is not written yet"
            raise refused(pattern, automaton.positions, spelling, f"{why}; leave it out")
