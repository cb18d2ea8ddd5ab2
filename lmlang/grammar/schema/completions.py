"""The bytes that complete an output: the shortest end of each level, from the last one outwards.

    {"a": [1, 2      2   ends at once      ]   ends the array      , "b": null}   ends the object

Where what a value turns out to be besides changes what may come behind it, such an end may be
forbidden (see `unique.needs_care`): there it is walked, and another way is taken where it ends.
"""

from __future__ import annotations

from typing import Protocol

from lmlang.grammar.schema.frames import Numerals, Strings, Words
from lmlang.grammar.schema.moves import Goals
from lmlang.grammar.schema.places import Fork, Place, Where, places_of


class Walks(Protocol):
    """Rules, as far as completions are walked by them (see `automaton.Rules`)."""

    def push(self, key: Where, byte: int) -> Where | None:
        """The key behind one more byte; None where no output goes on so."""

    def run(self, key: Where, data: bytes) -> Where | None:
        """The key behind some bytes; None where no output goes on so."""

    def following(self, key: Where) -> bytes:
        """The bytes for which `push` gives a key, in ascending order."""

    def accepting(self, key: Where) -> bool:
        """Whether the output may end here."""

    def behind(self, outer: Place, goals: Goals) -> Place:
        """The place behind a value of some goals inside of one where no items must differ."""


def plain(key: Where) -> bytes:
    """A completion, in which items may be equal that must not, or be counted otherwise."""
    if isinstance(key, Fork):
        return min([plain(place) for place in key.places], key=len)
    text, goals = key.level.finish()
    outer = key.outer
    if outer is None:
        return text
    rest = outer.rest
    return text + (rest[1] if rest is not None and rest[0] == goals else _rest(outer, goals))


class Completions:
    """Completions that hold where care is needed. Thread-safe: what it keeps is a cache.

    Args:
        rules: By which they are walked.
    """

    def __init__(self, rules: Walks) -> None:
        self._rules = rules

    def of(self, key: Where) -> bytes:
        """The fewest bytes, or nearly, that complete an output; what is walked is remembered."""
        if not isinstance(key, Place):
            return self._walked(key)
        rest, begun, place = None, [], key
        while rest is None:
            step = self._own_end(place)
            if step is None:
                rest = self._walked(place)
            else:
                begun.append((place, step[0]))
                place = step[1]
                rest = place.ending
        for place, text in reversed(begun):
            rest = text + rest
            place.ending = rest
        return rest

    def _own_end(self, place: Place) -> tuple[bytes, Place] | None:
        """The shortest end of the last level and the place behind it; None: that is not known."""
        level, outer = place.level, place.outer
        if outer is None or place.begun or outer.level.unique:
            return None
        text, goals = level.finish()
        behind = self._rules.behind(outer, goals)
        sure = isinstance(level.frame, (Strings, Numerals, Words)) and len(level.goals) == 1
        return (text, behind) if sure or self._rules.run(place, text) is behind else None

    def _walked(self, key: Where) -> bytes:
        """A completion that has been walked, with another way taken where the plain one ends."""
        found = bytearray()
        while not self._rules.accepting(key):
            text = plain(key)
            end = self._rules.run(key, text)
            if end is not None:
                found += text
                key = end
                continue
            for number, byte in enumerate(text):
                onward = self._rules.push(key, byte)
                if onward is None:
                    byte, key = self._other_way(key, len(text) - number)
                    found.append(byte)
                    break
                found.append(byte)
                key = onward
        return bytes(found)

    def _other_way(self, key: Where, enough: int) -> tuple[int, Where]:
        """A byte behind which a short completion parts from what was written.

        Args:
            key: Where.
            enough: Bytes of a completion that need not be improved.
        """
        best: tuple[int, int, Where] | None = None
        for byte in self._rules.following(key):
            onward = self._rules.push(key, byte)
            assert onward is not None, "it follows"
            length = min(len(plain(place)) + place.crowd for place in places_of(onward))
            if best is None or length < best[0]:
                best = (length, byte, onward)
                if length <= enough and not any(place.crowd for place in places_of(onward)):
                    break
        assert best is not None, "some byte follows"
        return best[1:]


def _rest(place: Place | None, goals: Goals) -> bytes:
    """The same behind a value of some goals inside of a place."""
    rest, unknown = b"", []
    while place is not None:
        if place.rest is not None and place.rest[0] == goals:
            rest = place.rest[1]
            break
        text, around = place.level.resume(goals, None).finish()
        unknown.append((place, goals, text))
        place, goals = place.outer, around
    for place, goals, text in reversed(unknown):
        rest = text + rest
        place.rest = (goals, rest)
    return rest
