"""The rules of alternatives: those that the output so far has not ruled out, side by side."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TypeAlias

from lmlang.grammar.automaton import Content, Key, Leaving, Rules, Swift

Alive: TypeAlias = tuple[tuple[int, Key], ...]
"""Numbers of alternatives in ascending order, each with its own key."""


class EitherRules:
    """What any of some grammars allows. The keys are of the type `Alive`.

    Args:
        alternatives: Their rules, at least one.
    """

    def __init__(self, alternatives: Sequence[Rules]) -> None:
        self._alternatives = tuple(alternatives)
        self._swift = [rules if isinstance(rules, Swift) else None for rules in alternatives]

    def start(self) -> Alive:
        """All alternatives."""
        return tuple((number, rules.start()) for number, rules in enumerate(self._alternatives))

    def push(self, key: Alive, byte: int) -> Alive | None:
        """Those that go on with the byte."""
        found = []
        for number, inner in key:
            onward = self._alternatives[number].push(inner, byte)
            if onward is not None:
                found.append((number, onward))
        return tuple(found) or None

    def run(self, key: Alive, data: bytes) -> Alive | None:
        """Those that go on with some bytes."""
        found = []
        for number, inner in key:
            swift = self._swift[number]
            onward = self._pushed(number, inner, data) if swift is None else swift.run(inner, data)
            if onward is not None:
                found.append((number, onward))
        return tuple(found) or None

    def runs(self, key: Alive) -> tuple[bytes, ...] | None:
        """Those of the one that is left."""
        swift = self._swift[key[0][0]]
        return None if swift is None or len(key) > 1 else swift.runs(key[0][1])

    def ahead(self) -> Iterator[tuple[Content, ...]]:
        """Those of all, in turn."""
        for swift in self._swift:
            if swift is not None:
                yield from swift.ahead()

    def same(self, key: Alive) -> tuple[int, Hashable] | None:
        """What is the same in the one that is left."""
        number, inner = key[0]
        swift = self._swift[number]
        found = None if swift is None or len(key) > 1 else swift.same(inner)
        return None if found is None else (found[0], (number, found[1]))

    def widened(self, key: Alive) -> Alive:
        """Where at least as much may come in each of them."""
        found = []
        for number, inner in key:
            swift = self._swift[number]
            found.append((number, inner if swift is None else swift.widened(inner)))
        return tuple(found)

    def following(self, key: Alive) -> bytes:
        """What may follow in any of them."""
        sets = [self._alternatives[number].following(inner) for number, inner in key]
        return sets[0] if len(sets) == 1 else bytes(sorted(set().union(*sets)))

    def accepting(self, key: Alive) -> bool:
        """Whether any of them may end."""
        return any(self._alternatives[number].accepting(inner) for number, inner in key)

    def completion(self, key: Alive) -> bytes:
        """The shortest of their completions, the first of equally short ones."""
        return min((self._alternatives[number].completion(inner) for number, inner in key), key=len)

    def contents(self, key: Alive) -> tuple[Content, ...]:
        """The tables of all; none where one of them has none, since it is asked byte by byte."""
        found: list[Content] = []
        for number, inner in key:
            contents = self._alternatives[number].contents(inner)
            if not contents:
                return ()
            found += contents
        return tuple(dict.fromkeys(found))

    def leaving(self, key: Alive) -> Leaving:
        """What is known of one, or of all: of several each may be left or not."""
        known = min(self._alternatives[number].leaving(inner) for number, inner in key)
        return known if len(key) == 1 else min(known, Leaving.FREE)

    def asked(self, key: Alive) -> frozenset[bytes]:
        """Those of any."""
        return frozenset().union(*(self._alternatives[n].asked(inner) for n, inner in key))

    def pointer(self, key: Alive) -> str:
        """Where in the one that is left; "" while there are several."""
        return self._alternatives[key[0][0]].pointer(key[0][1]) if len(key) == 1 else ""

    def _pushed(self, number: int, key: Key | None, data: bytes) -> Key | None:
        for byte in data:
            if key is None:
                return None
            key = self._alternatives[number].push(key, byte)
        return key
