"""The parts of a text as a machine: what stands in it as it is, letter by letter.

    "abab"   ab  ->  has been read up to 2 or 4   aba  ->  up to 3, where only b can follow

A state is the places up to which the text may have been read, in ascending order, and how much has
been read as far as that matters. These are the states of the text's suffix automaton (Blumer et
al., "The smallest automaton recognizing the subwords of a text", 1985), made as they are met.
"""

from __future__ import annotations

from typing import TypeAlias

from lmlang.grammar.alphabet import alphabet_of_characters

Key: TypeAlias = tuple[int, tuple[int, ...]]
"""How many characters have been read, as far as it matters, and the places behind them."""


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
        self._text = text
        self._least, self._most = least, most

    def start(self) -> Key | None:
        """All places from which there is enough left."""
        if self._most is not None and self._least > self._most:
            return None
        places = tuple(range(len(self._text) - self._least + 1))
        return (0, places) if places else None

    def edges(self, key: Key) -> list[tuple[int, Key]]:
        """The characters that follow somewhere, where enough is left behind them."""
        length, places = key
        if length == self._most:
            return []
        text = self._text
        length += 1
        last = len(text) - max(0, self._least - length)
        behind: dict[str, list[int]] = {}
        for place in places:
            if place < last:
                behind.setdefault(text[place], []).append(place + 1)
        matters = length if self._most is not None else min(length, self._least)
        return [(self._masks[char], (matters, tuple(found))) for char, found in behind.items()]

    def accepts(self, key: Key) -> bool:
        """Whether enough has been read."""
        return key[0] >= self._least

    def bound(self, key: Key) -> int:
        """The characters that are missing."""
        return max(0, self._least - key[0])

    def weight(self, key: Key) -> int:
        """The places."""
        return len(key[1])

    def doubts(self, key: Key) -> int:
        """None: every key leads to acceptance."""
        return 0

    def alike(self, key: Key, length: int) -> Key:
        """No other: what follows differs from place to place."""
        return key
