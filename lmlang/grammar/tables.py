r"""A language spelled as bytes: a table of rows that are made when they are first asked for.

    between characters   -- C3 -->  in a character    -- A9 -->  between characters
                         -- \  -->  in an escape      -- u0 0 e 9 -->
                         -- "  -->  LEAVE, where the text so far is of the language (JSON only)

Every state leads to acceptance. A state in a character or an escape belongs to the state before it,
or, where every way to end it leads to one state, to that one: so most of them are shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any, TypeAlias

import numpy as np

from lmlang.errors import Unsatisfiable
from lmlang.grammar.alphabet import bits
from lmlang.grammar.automaton import DEAD, LEAVE
from lmlang.grammar.language import Language
from lmlang.grammar.machine import GONE, NEVER, Edges
from lmlang.grammar.machines import Lengths, Texts
from lmlang.grammar.row_plan import SEVERAL, RowPlan, RowPlans
from lmlang.grammar.spelling import (
    ESCAPES,
    FREE_ESCAPES,
    HEX,
    NO_HALF,
    PAIR,
    Spelling,
    characters_of,
    shared_digits,
)
from lmlang.grammar.text_ends import Ends

__all__ = ["Spelling", "TextTable", "spelled"]

TRIED = 32
"""States of a language that are looked at when its table is made."""
MANY = 16
"""Edges of a state from which on they are looked up by letter."""
MAX_RESTS = 64
"""Texts that are written out."""
MAX_ROWS = 16_384
"""Rows that are kept of one table; a row is a kilobyte."""


# Keys of states. A source is a state of the machine, or ~state where all ways lead to that one.
#   (state,)                                between characters
#   "in", source, first, last, missing      in UTF-8: the code points that are left, bytes to come
#   "to", source, first, last, missing      in UTF-8, all alike: the next byte, bytes to come
#   "escape", source, written               behind a backslash
#   "hex", source, value, missing, high     in the digits of \u, behind a high half or `NO_HALF`
#   "pair", source, high, written           behind a high half: how much of \u is there
Key: TypeAlias = tuple[Any, ...]


class TextTable:
    """The table of a language in one spelling (see `automaton.Table`).

    Attributes:
        spelling: How they are written.
        start: The state of the empty text.
    """

    def __init__(self, language: Language, spelling: Spelling) -> None:
        self._machine = machine = language.machine
        self._alphabet = machine.alphabet
        self.spelling = spelling
        self._json = spelling is not Spelling.PLAIN
        self._free = spelling is Spelling.JSON_FREE
        self._keys: list[Key] = []
        self._numbers: dict[Key, int] = {}
        self._living: dict[int, Edges] = {}
        self._by_letter: dict[int, dict[int, int]] = {}
        self._lock = Lock()
        self._rows: dict[int, Any] = {}
        self._following: dict[int, bytes] = {}
        self._heads: dict[bytes, bytes] = {}  # one object for equal ones
        self._plans = RowPlans(self._alphabet, spelling)
        self._ends = Ends(machine, spelling)
        self._blocks: dict[tuple[int, int, int], list[list[tuple[int, int, int]]]] = {}
        if machine.distance(machine.start) >= NEVER:
            raise Unsatisfiable(f"{language.name}: no text at all is possible.")
        self.start = self._number((machine.start,))
        if not machine.sure:
            self._try()

    @property
    def full(self) -> bool:
        """Whether it has as many states as it may."""
        return self._machine.full

    def rows(self, states: Any) -> Any:
        """The rows of some states, int32 [len(states), 256]: a state, `DEAD` or `LEAVE`."""
        wanted = np.asarray(states).tolist()
        with self._lock:
            rows = [self._row(s) if len(self._keys[s]) == 1 else self._kept(s) for s in wanted]
        return np.stack(rows)

    def push(self, state: int, byte: int) -> int:
        """One entry of a row."""
        with self._lock:
            return self._pushed(state, byte)

    def run(self, state: int, data: bytes, at: int) -> tuple[int, int]:
        """The state behind bytes that stay inside, from a place on, and the place behind them."""
        with self._lock:
            while at < len(data):
                onward = self._pushed(state, data[at])
                if onward < 0:
                    break
                state, at = onward, at + 1
        return state, at

    def rests(self, state: int) -> list[bytes] | None:
        """All texts that lead from a state to the end, where these are known to be few."""
        key, kind = self._keys[state], self._machine.kind
        if self._free or len(key) > 1 or not isinstance(kind, Texts):
            return None
        rests = kind.rests(self._machine.key(key[0]), MAX_RESTS)
        return None if rests is None else [self._ends.spelled(rest) for rest in rests]

    def counted(self, state: int) -> tuple[int, int | None] | None:
        """Where only their number matters: how many characters must come at least, and may at most.

        Returns:
            Both, the second None for any number; None where it matters which come.
        """
        key, kind = self._keys[state], self._machine.kind
        if len(key) > 1 or not isinstance(kind, Lengths):
            return None
        return kind.left(self._machine.key(key[0]))

    def following(self, state: int) -> bytes:
        """The bytes that are not `DEAD`, in ascending order."""
        found = self._following.get(state)
        if found is None:
            with self._lock:
                found = self._followed(state)
            self._following[state] = found = self._heads.setdefault(found, found)
        return found

    def firsts(self, state: int) -> bytes | None:
        """For each byte the first of those that lead alike, from a state and from all behind it.

        Behind a backslash they do not, unless texts are written as they are. None: an escape has
        begun.
        """
        kind = self._keys[state][0]
        return None if kind in ("escape", "hex", "pair") else self._plans.firsts

    def is_between(self, state: int) -> bool:
        """Whether no character has begun."""
        return len(self._keys[state]) == 1

    def accepting(self, state: int) -> bool:
        """Whether the text may end here."""
        key = self._keys[state]
        return len(key) == 1 and self._machine.accepting(key[0])

    def completion(self, state: int) -> bytes:
        """The fewest bytes, or nearly, that lead to where it may end, without a closing quote."""
        return self._ends.completion(self._keys[state])

    def alike(self, state: int, length: int) -> int:
        """A state where runs of at most ``length`` bytes do the same; this one, or one for many."""
        key = self._keys[state]
        if len(key) > 1:
            return state
        alike = self._machine.alike(key[0], length)
        with self._lock:
            return self._number((alike,))

    # States and rows -----------------------------------------------------------------------------

    def _number(self, key: Key) -> int:
        """The state of a key; the lock is held, or nobody else knows this table."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._keys)
            self._keys.append(key)
        return found

    def _pushed(self, state: int, byte: int) -> int:
        """One entry of a row, which is not made for a character that is one byte."""
        key = self._keys[state]
        some = self._plans.classes[byte]
        if len(key) > 1 or not some:
            return int(self._kept(state)[byte])
        edges = self._alive(key[0])
        if len(edges) > MANY:
            target = self._targets(key[0]).get(some.bit_length() - 1)
            return DEAD if target is None else self._number((target,))
        for others, target in edges:
            if some & others:
                return self._number((target,))
        return DEAD

    def _followed(self, state: int) -> bytes:
        key = self._keys[state]
        if len(key) > 1:
            return bytes(np.flatnonzero(self._kept(state) != DEAD).tolist())
        found = self._planned(key[0])[0].following
        if self._json and self._machine.accepting(key[0]):
            found = bytes(sorted(found + b'"'))
        return found

    def _kept(self, state: int) -> Any:
        """The row of a state; the lock is held."""
        row = self._rows.get(state)
        if row is None:
            if len(self._rows) >= MAX_ROWS:
                self._rows.clear()
            row = self._rows[state] = self._row(state)
        return row

    def _row(self, state: int) -> Any:
        key = self._keys[state]
        onward: Key
        row = np.full(256, DEAD, np.int32)
        if len(key) == 1:
            self._fill_between(row, key[0])
        elif key[0] == "in":
            self._fill_inside(row, *key[1:])
        elif key[0] == "to":
            _, source, first, last, missing = key
            onward = ("to", source, 0x80, 0xBF, missing - 1) if missing > 1 else (~source,)
            row[first : last + 1] = self._number(onward)
        elif key[0] == "escape":
            self._fill_escape(row, *key[1:])
        elif key[0] == "hex":
            self._fill_hex(row, *key[1:])
        else:
            _, source, high, written = key
            onward = ("hex", source, 0, 4, high) if written else ("pair", source, high, 1)
            row[PAIR[written]] = self._number(onward)
        return row

    def _alive(self, source: int) -> Edges:
        """Where characters lead that are possible."""
        if source < 0:
            return ((self._alphabet.all, ~source),)
        found = self._living.get(source)
        if found is None:
            found = self._living[source] = self._machine.alive(source)
        return found

    def _try(self) -> None:
        """Take the first states up front: a language that is too large is seldom so later only."""
        found = [self._machine.start]
        for state in found:
            new = dict.fromkeys(target for _, target in self._alive(state)).keys() - set(found)
            found += sorted(new)[: TRIED - len(found)]

    def _way(self, source: int, ranges: Iterable[tuple[int, int]]) -> int | None:
        """The source behind a part of a character that may become any in some ranges.

        Returns:
            ~state where all of them lead to one state, None where they lead nowhere, else the same.
        """
        edges, targets = self._alive(source), set[int]()
        if len(edges) <= MANY:
            for first, last in ranges:
                some = self._alphabet.within(first, last)
                for other, target in edges:
                    if some & other:
                        targets.add(target)
                        some &= ~other
                if some:
                    targets.add(GONE)
        else:
            by_letter = self._targets(source)
            for first, last in ranges:
                for letter in self._alphabet.letters(first, last):
                    targets.add(by_letter.get(letter, GONE))
                    if len(targets) > 1:
                        return source
        if targets <= {GONE}:
            return None
        return ~targets.pop() if len(targets) == 1 else source

    def _targets(self, source: int) -> dict[int, int]:
        """Where each class leads that is possible, for a source with many edges."""
        found = self._by_letter.get(source)
        if found is None:
            edges = self._alive(source)
            found = {letter: target for some, target in edges for letter in bits(some)}
            self._by_letter[source] = found
        return found

    def _planned(self, state: int) -> tuple[RowPlan, list[int]]:
        """What bytes do between characters, and the targets of the edges in it."""
        joined: dict[int, int] = {}
        for some, target in self._alive(state):
            joined[target] = joined.get(target, 0) | some
        return self._plans.of(tuple(joined.values())), list(joined)

    def _fill_between(self, row: Any, state: int) -> None:
        plan, targets = self._planned(state)
        onward = [self._number((target,)) for target in targets]
        for edge, (first, last, missing) in plan.leads:
            onward.append(self._number(("to", ~targets[edge], first, last, missing)))
        if plan.escape is not None:
            source = state if plan.escape == SEVERAL else ~targets[plan.escape]
            onward.append(self._number(("escape", source, b"")))
        row[:] = np.array([*onward, DEAD], np.int32)[plan.index]
        for lead, span in plan.parted:
            row[lead] = self._number(("in", state, *span))
        if self._json and self._machine.accepting(state):
            row[ord('"')] = LEAVE

    def _fill_inside(self, row: Any, source: int, first: int, last: int, missing: int) -> None:
        for blocks in self._blocks_of(first, last, missing):
            inner = self._way(source, [blocks[0][1:]])
            if inner is None:
                continue
            if inner < 0:
                onward = ("to", inner, 0x80, 0xBF, missing - 1) if missing > 1 else (~inner,)
                row[[byte for byte, _, _ in blocks]] = self._number(onward)
            else:
                for byte, low, high in blocks:
                    row[byte] = self._number(("in", source, low, high, missing - 1))

    def _blocks_of(self, first: int, last: int, missing: int) -> list[list[tuple[int, int, int]]]:
        """The next bytes of UTF-8 with the code points behind them, those that go on alike."""
        found = self._blocks.get((first, last, missing))
        if found is None:
            size = 1 << 6 * (missing - 1)
            alike: dict[int, list[tuple[int, int, int]]] = {}
            for low in range(first, last + 1, size):
                some = self._alphabet.within(low, low + size - 1)
                alike.setdefault(some, []).append((0x80 | low // size & 0x3F, low, low + size - 1))
            found = self._blocks[first, last, missing] = list(alike.values())
        return found

    def _fill_escape(self, row: Any, source: int, written: bytes) -> None:
        ways: dict[int, int | None] = {}  # of classes
        for code, text in (FREE_ESCAPES if self._free else ESCAPES).items():
            if not text.startswith(written):
                continue
            letter = self._alphabet.letter(code)
            if letter not in ways:
                ways[letter] = self._way(source, [(code, code)])
            way = ways[letter]
            if way is not None:
                rest = text[len(written) :]
                onward = ("escape", source, written + rest[:1]) if rest[1:] else (~way,)
                row[rest[0]] = self._number(onward)
        if self._free:
            row[ord("u")] = self._number(("hex", source, 0, 4, NO_HALF))

    def _fill_hex(self, row: Any, source: int, value: int, missing: int, high: int) -> None:
        for digit in HEX:
            wider = value << 4 | int(chr(digit), 16)
            inner = self._way(source, characters_of(wider, missing - 1, high))
            if inner is None:
                continue
            onward: Key
            if missing > 1:
                shared = shared_digits(wider, missing - 1, high) if inner < 0 else (wider, high)
                onward = ("hex", inner, shared[0], missing - 1, shared[1])
            elif not high and 0xD800 <= wider <= 0xDBFF:
                onward = ("pair", inner, 0xD800 if inner < 0 else wider, 0)
            else:
                onward = (~inner,)
            row[digit] = self._number(onward)


_spelled_lock = Lock()


def spelled(language: Language, spelling: Spelling) -> TextTable:
    """The table of a language in a spelling; one for both, until it has grown too large.

    Raises:
        Unsatisfiable: No text belongs to the language.
        GrammarTooLarge: It cannot be told whether one does.
    """
    found: TextTable | None = language.tables.get(spelling)
    if found is None or found.full:
        made = TextTable(language, spelling)
        with _spelled_lock:
            found = language.tables.get(spelling)
            if found is None or found.full:
                found = language.tables[spelling] = made
    return found
