"""The parts of a text as a machine: what stands in it as it is, letter by letter.

    "abab"   ab  ->  has been read up to 2 or 4   aba  ->  up to 3, where only b can follow

A state is one of the text's suffix automaton (Blumer et al., "The smallest automaton recognizing
the subwords of a text", 1985): the places up to which the text may have been read, of which there
are no more than twice the characters. A key has how much has been read besides, as far as that
matters.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, TypeAlias

from lmlang.grammar.alphabet import alphabet_of_characters

Key: TypeAlias = tuple[int, int]
"""How many characters have been read, as far as it matters, and the state."""


class _Automaton(NamedTuple):
    """A suffix automaton; what leads on from state i is from ``starts[i]`` to ``starts[i + 1]``.

    Args:
        starts: Where the edges of each state begin.
        letters: Of each edge the character.
        targets: And where it leads.
        first: Of each state the first place up to which the text may have been read.
    """

    starts: array[int]
    letters: str
    targets: array[int]
    first: array[int]


class Substrings:
    """What stands in a text, of some length (see `machine.Kind`).

    Args:
        text: The text.
        least: Characters at least.
        most: Characters at most; None: any number.
    """

    sure = True

    def __init__(self, text: str, least: int, most: int | None) -> None:
        characters = sorted(set(text))
        self.alphabet, masks = alphabet_of_characters(characters)
        self.reach: int | None = least
        self._masks = dict(zip(characters, masks, strict=True))
        self._automaton = _automaton_of(text)
        self._size = len(text)
        self._least, self._most = least, most

    def start(self) -> Key | None:
        """Nothing has been read."""
        enough = self._least <= self._size and (self._most is None or self._least <= self._most)
        return (0, 0) if enough else None

    def edges(self, key: Key) -> list[tuple[int, Key]]:
        """The characters that follow somewhere, where enough is left behind them."""
        length, state = key
        if length == self._most:
            return []
        starts, letters, targets, first = self._automaton
        length += 1
        last = self._size - max(0, self._least - length)
        matters = length if self._most is not None else min(length, self._least)
        return [
            (self._masks[letters[edge]], (matters, targets[edge]))
            for edge in range(starts[state], starts[state + 1])
            if first[targets[edge]] <= last
        ]

    def accepts(self, key: Key) -> bool:
        """Whether enough has been read."""
        return key[0] >= self._least

    def bound(self, key: Key) -> int:
        """The characters that are missing."""
        return max(0, self._least - key[0])

    def weight(self, key: Key) -> int:
        """What leads on."""
        starts = self._automaton.starts
        return max(1, starts[key[1] + 1] - starts[key[1]])

    def doubts(self, key: Key) -> int:
        """None: every key leads to acceptance."""
        return 0

    def alike(self, key: Key, length: int) -> Key:
        """No other: what follows differs from place to place."""
        return key


def _automaton_of(text: str) -> _Automaton:
    """The suffix automaton of a text, made character by character."""
    onward: list[dict[str, int]] = [{}]
    longest, first, shorter = [0], array("i", [0]), [-1]
    whole = 0
    for place, char in enumerate(text, 1):
        new = len(onward)
        onward.append({})
        longest.append(place)
        first.append(place)
        shorter.append(0)
        at, whole = whole, new
        while at >= 0 and char not in onward[at]:
            onward[at][char] = new
            at = shorter[at]
        if at < 0:
            continue
        known = onward[at][char]
        if longest[known] == longest[at] + 1:
            shorter[new] = known
            continue
        split = len(onward)  # what is as short as this may also have been read up to here
        onward.append(dict(onward[known]))
        longest.append(longest[at] + 1)
        first.append(first[known])
        shorter.append(shorter[known])
        shorter[known] = shorter[new] = split
        while at >= 0 and onward[at].get(char) == known:
            onward[at][char] = split
            at = shorter[at]
    starts = array("i", [0])
    targets = array("i")
    for edges in onward:
        targets.extend(edges.values())
        starts.append(len(targets))
    letters = "".join([char for edges in onward for char in edges])
    return _Automaton(starts, letters, targets, first)
