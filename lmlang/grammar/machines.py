"""Kinds of machines: those that need no pattern, and those that are made of other machines.

texts      {"cat", "car"}    a slice of the sorted texts and how much of them has been read
lengths    2 to 5            how much has been read
all, any   several           the states of all of them side by side
others     what one is not
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import TypeAlias

from lmlang.errors import GrammarTooLarge
from lmlang.grammar.alphabet import Alphabet, alphabet_of, alphabet_of_characters, bits, product_of
from lmlang.grammar.charset import EVERYTHING
from lmlang.grammar.machine import GONE, Machine


@lru_cache(maxsize=1)
def _one_class() -> Alphabet:
    return alphabet_of([EVERYTHING])[0]


class Lengths:
    """Texts of some length; a state is the number of characters read, as far as it matters."""

    sure = True

    def __init__(self, least: int, most: int | None) -> None:
        self.alphabet = _one_class()
        self.reach: int | None = least
        self._least, self._most = least, most

    def free(self, key: int, length: int) -> bool:
        """Whether neither end matters within some characters from here."""
        return key >= self._least and (self._most is None or key + length <= self._most)

    def left(self, key: int) -> tuple[int, int | None]:
        """How many characters must come at least, and may at most; None: any number."""
        return max(0, self._least - key), None if self._most is None else self._most - key

    def start(self) -> int | None:
        """Nothing has been read."""
        return 0 if self._most is None or self._least <= self._most else None

    def edges(self, key: int) -> tuple[tuple[int, int], ...]:
        """One more, if there may be."""
        if self._most is None:
            key = min(key + 1, self._least)
        elif key < self._most:
            key += 1
        else:
            return ()
        return ((self.alphabet.all, key),)

    def alike(self, key: int, length: int) -> int:
        """The least length, where neither end matters."""
        return self._least if self.free(key, length) else key

    def accepts(self, key: int) -> bool:
        """Whether the text up to here is accepted."""
        return key >= self._least

    def bound(self, key: int) -> int:
        """No more than the characters that lead to acceptance."""
        return max(0, self._least - key)

    def weight(self, key: int) -> int:
        """The size of a key: always the same."""
        return 1

    def doubts(self, key: int) -> int:
        """None: every key leads to acceptance."""
        return 0


Slice: TypeAlias = tuple[int, int, int]
"""The first of some sorted texts, the one behind the last, and the characters that were read."""


class Texts:
    """One of some texts; a state is the slice of the sorted texts that begin with what was read."""

    sure = True

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(texts)
        characters = sorted({character for text in self._texts for character in text})
        self.alphabet, masks = alphabet_of_characters(characters)
        self.reach: int | None = max(map(len, self._texts), default=0)
        self._masks = dict(zip(characters, masks, strict=True))

    def start(self) -> Slice | None:
        """All of them."""
        return (0, len(self._texts), 0) if self._texts else None

    def edges(self, key: Slice) -> list[tuple[int, Slice]]:
        """Those that go on with each character."""
        low, high, depth = key
        texts, found = self._texts, list[tuple[int, Slice]]()
        while low < high and len(texts[low]) == depth:
            low += 1
        while low < high:
            prefix = texts[low][: depth + 1]
            after = prefix[:-1] + chr(ord(prefix[-1]) + 1) if ord(prefix[-1]) < 0x10FFFF else None
            end = high if after is None else bisect_left(texts, after, low, high)
            found.append((self._masks[prefix[-1]], (low, end, depth + 1)))
            low = end
        return found

    def rests(self, key: Slice, most: int) -> list[str] | None:
        """What may come, up to the end of each text; None: there is more than ``most``."""
        low, high, depth = key
        return None if high - low > most else [text[depth:] for text in self._texts[low:high]]

    def accepts(self, key: Slice) -> bool:
        """Whether the text up to here is accepted."""
        return len(self._texts[key[0]]) == key[2]

    def bound(self, key: Slice) -> int:
        """No more than the characters that lead to acceptance."""
        low, high, depth = key
        if len(self._texts[low]) == depth:
            return 0
        return min(map(len, self._texts[low:high])) - depth

    def weight(self, key: Slice) -> int:
        """The size of a key: always the same."""
        return 1

    def doubts(self, key: Slice) -> int:
        """None: every key leads to acceptance."""
        return 0

    def alike(self, key: Slice, length: int) -> Slice:
        """No other: texts are seldom alike."""
        return key


States: TypeAlias = tuple[int, ...]
"""A state of each machine, `GONE` where it accepts nothing any more."""


MAX_EXPLORED = 2_048
"""States of several parts that are looked at to find how far they are from what they accept."""


class Product:
    """What all of some machines accept, or any of them; a state is the tuple of their states."""

    def __init__(self, machines: Sequence[Machine], every: bool) -> None:
        self.alphabet, self._lifted = product_of([machine.alphabet for machine in machines])
        self._machines = tuple(machines)
        self._every = every
        self._lifts: list[dict[int, list[tuple[int, int]]]] = [{} for _ in machines]
        self.sure = not every and all(machine.sure for machine in machines)
        reaches = [machine.reach for machine in machines if machine.reach is not None]
        self.reach = max(reaches) if not every and len(reaches) == len(machines) else None

    def start(self) -> States | None:
        """All at their starts."""
        starts = tuple(machine.start for machine in self._machines)
        return None if self._is_gone(starts) else starts

    def alike(self, key: States, length: int) -> States:
        """The parts alike; of all, for as long as it then takes to what they accept together.

        Where a length is near one of its ends it is as it is.
        """
        alike = self._alike(key, length)
        if not self._every or alike == key:  # the longer texts are, the fewer are alike
            return alike
        reach = self._reach_of_others
        if reach is None or not self._is_long_enough(key, length + reach):
            return key
        return self._alike(key, length + reach) if self._parts > 1 else alike

    def _alike(self, key: States, length: int) -> States:
        return tuple(
            GONE if state == GONE else machine.alike(state, length)
            for machine, state in zip(self._machines, key, strict=True)
        )

    def _is_long_enough(self, key: States, length: int) -> bool:
        """Whether no length forbids what the other parts allow, for so many characters."""
        return all(
            machine.kind.free(machine.key(state), length)
            for machine, state in zip(self._machines, key, strict=True)
            if isinstance(machine.kind, Lengths)
        )

    @property
    def _parts(self) -> int:
        """Parts that are no lengths."""
        return sum(not isinstance(machine.kind, Lengths) for machine in self._machines)

    @cached_property
    def _reach_of_others(self) -> int | None:
        """How far off what all parts but lengths accept is at most; None: not known."""
        others = [m for m in self._machines if not isinstance(m.kind, Lengths)]
        if len(others) == 1:
            return others[0].reach
        machine = Machine(Product(others, every=True), "a part of another")
        met, before = [machine.start], dict[int, list[int]]()
        before[machine.start] = []
        for state in met:
            try:
                edges = machine.edges(state)
            except GrammarTooLarge:  # where lengths end it, the whole may be small
                return None
            for _, target in edges:
                if target not in before:
                    before[target] = []
                    met.append(target)
                before[target].append(state)
            if len(met) > MAX_EXPLORED:
                return None
        level = {state for state in met if machine.accepting(state)}
        near, farthest = set(level), 0
        while level := {state for target in level for state in before[target]} - near:
            near |= level
            farthest += 1
        return farthest

    def _is_gone(self, states: States) -> bool:
        return GONE in states if self._every else all(state == GONE for state in states)

    def _lift(self, index: int, state: int) -> list[tuple[int, int]]:
        """The edges of a part, in classes of the whole."""
        if state == GONE:
            return []
        edges = self._lifts[index].get(state)
        if edges is None:
            every, lifted, edges = self._machines[index].alphabet.all, self._lifted[index], []
            for some, target in self._machines[index].edges(state):
                found, few = 0, some if some.bit_count() * 2 <= every.bit_count() else every ^ some
                for letter in bits(few):
                    found |= lifted[letter]
                edges.append((found if few == some else found ^ self.alphabet.all, target))
            self._lifts[index][state] = edges
        return edges

    def edges(self, key: States) -> Iterable[tuple[int, States]]:
        """Where all of them lead, for classes that none of them tells apart."""
        parts: list[tuple[int, States]] = [(self.alphabet.all, ())]
        for index, state in enumerate(key):
            lifted = self._lift(index, state)
            finer = []
            for some, targets in parts:
                for other, target in lifted:
                    both = some & other
                    if both:
                        finer.append((both, (*targets, target)))
                        some ^= both
                        if not some:
                            break
                if some and not self._every:
                    finer.append((some, (*targets, GONE)))
            parts = finer
        return self._joined(parts)

    def _joined(self, parts: Iterable[tuple[int, States]]) -> Iterable[tuple[int, States]]:
        joined: dict[States, int] = {}
        for some, targets in parts:
            if not self._is_gone(targets):
                joined[targets] = joined.get(targets, 0) | some
        return [(some, targets) for targets, some in joined.items()]

    def accepts(self, key: States) -> bool:
        """Whether the text up to here is accepted."""
        verdicts = (m.accepting(state) for m, state in zip(self._machines, key, strict=True))
        return all(verdicts) if self._every else any(verdicts)

    def bound(self, key: States) -> int:
        """No more than the characters that lead to acceptance."""
        bounds = (m.bound(state) for m, state in zip(self._machines, key, strict=True))
        return max(bounds) if self._every else min(bounds)

    def weight(self, key: States) -> int:
        """The size of a key."""
        return sum(m.weight(state) for m, state in zip(self._machines, key, strict=True))

    def doubts(self, key: States) -> int:
        """How many parts may yet forbid what the others allow."""
        return sum(m.doubts(state) for m, state in zip(self._machines, key, strict=True))


class Others:
    """All texts that a machine does not accept; a state is one of its states, or `GONE`."""

    sure = False

    def __init__(self, machine: Machine) -> None:
        self.alphabet = machine.alphabet
        self.reach = 1 if isinstance(machine.kind, Texts) else None
        self._machine = machine

    def start(self) -> int:
        """That of the machine."""
        return self._machine.start

    def edges(self, key: int) -> list[tuple[int, int]]:
        """Those of the machine; all other characters lead to where all is accepted."""
        every = self.alphabet.all
        if key == GONE:
            return [(every, GONE)]
        found = []
        for some, target in self._machine.edges(key):
            found.append((some, target))
            every ^= some
        return [*found, (every, GONE)] if every else found

    def alike(self, key: int, length: int) -> int:
        """No other: what leads to a text that is not accepted may be far away."""
        return key

    def accepts(self, key: int) -> bool:
        """Whether the text up to here is accepted."""
        return not self._machine.accepting(key)

    def bound(self, key: int) -> int:
        """No more than the characters that lead to acceptance."""
        return 1 if self._machine.accepting(key) else 0

    def weight(self, key: int) -> int:
        """The size of a key."""
        return self._machine.weight(key)

    def doubts(self, key: int) -> int:
        """How many parts may yet forbid what the others allow."""
        return 0 if key == GONE else 1
