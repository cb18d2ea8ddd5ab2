r"""How texts end in some spelling, from within a character too: few bytes behind a state.

\u00      -->  \u0061      behind which the fewest characters complete the text
"""

from __future__ import annotations

import json
from typing import Any

from lmlang.grammar.machine import Edges, Machine
from lmlang.grammar.spelling import (
    ESCAPES,
    FREE_ESCAPES,
    NO_HALF,
    PAIR,
    Spelling,
    characters_of,
)


class Ends:
    """The ends of the texts of a machine. Thread-safe.

    Args:
        machine: The machine.
        spelling: How they are written.
    """

    def __init__(self, machine: Machine, spelling: Spelling) -> None:
        self._machine, self._alphabet = machine, machine.alphabet
        self._json = spelling is not Spelling.PLAIN
        self._free = spelling is Spelling.JSON_FREE

    def completion(self, key: tuple[Any, ...]) -> bytes:
        """The fewest bytes, or nearly, behind a key of a table, without a closing quote."""
        if len(key) == 1:
            return self.spelled(self._machine.completion(key[0]))
        first, target = self.of_character(key)
        return first + self.spelled(self._machine.completion(target))

    def _alive(self, source: int) -> Edges:
        return ((self._alphabet.all, ~source),) if source < 0 else self._machine.alive(source)

    def spelled(self, text: str) -> bytes:
        """A text in the spelling."""
        if self._json:
            text = json.dumps(text, ensure_ascii=False)[1:-1]
        return text.encode()

    def of_character(self, key: tuple[Any, ...]) -> tuple[bytes, int]:
        """The rest of a character that has begun, and the state behind it: one near to an end."""
        kind, source = key[0], key[1]
        if kind == "to":
            _, _, first, _, missing = key
            return bytes([first]) + b"\x80" * (missing - 1), ~source
        if kind == "in":
            _, _, first, last, missing = key
            code, target = self._nearest(source, [(first, last)])
            return chr(code).encode()[-missing:], target
        if kind == "escape":
            written = key[2]
            ends = {
                code: text[len(written) :]
                for code, text in (FREE_ESCAPES if self._free else ESCAPES).items()
                if text.startswith(written)
            }
            letters = 0
            for code in ends:
                letters |= 1 << self._alphabet.letter(code)
            if any(letters & some for some, _ in self._alive(source)):
                code, target = self._nearest(source, [(code, code) for code in sorted(ends)])
                return ends[code], target
            rest, target = self.of_character(("hex", source, 0, 4, NO_HALF))
            return b"u" + rest, target
        value, missing, high = (key[2], key[3], key[4]) if kind == "hex" else (0, 4, key[2])
        code, target = self._nearest(source, characters_of(value, missing, high))
        digits = f"{code:04x}"
        if code > 0xFFFF:
            upper, lower = 0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code & 0x3FF)
            digits = f"{lower:04x}" if high else f"{upper:04x}\\u{lower:04x}"
        if kind == "pair":
            return PAIR[key[3] :] + digits.encode(), target
        return digits[4 - missing :].encode(), target

    def _nearest(self, source: int, ranges: list[tuple[int, int]]) -> tuple[int, int]:
        """The character in some ranges behind which the fewest others complete the text."""
        found: list[tuple[int, int, int, int]] = []
        for index, (first, last) in enumerate(ranges):
            here = self._alphabet.within(first, last)
            for some, target in self._alive(source):
                if some & here:
                    found.append((self._machine.distance(target), index, target, some & here))
        _, index, target, some = min(found)
        code = self._alphabet.first(some, *ranges[index])
        return code, target
