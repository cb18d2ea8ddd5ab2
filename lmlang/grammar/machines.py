"""The kinds of machines that need no pattern, and those that are made of others.

texts      {"cat", "car"}    a slice of the sorted texts and how much of them has been read
lengths    2 to 5            how much has been read
all, any   several           the states of all of them side by side
others     what one is not
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache

from lmlang.grammar.alphabet import Alphabet, alphabet_of, alphabet_of_characters, bits, product_of
from lmlang.grammar.charset import EVERYTHING
from lmlang.grammar.machine import GONE, Edges, Machine


@lru_cache(maxsize=1)
def _one_class() -> Alphabet:
    return alphabet_of([EVERYTHING])[0]


class Lengths(Machine):
    """Texts of some length; a state is the number of characters read, as far as it matters."""

    sure = True

    def __init__(self, least: int, most: int | None) -> None:
        super().__init__(_one_class(), f"texts of {least:,} to {most} characters")
        self._least, self._most = least, most
        if most is None or least <= most:
            self.start = self._number(0)
        self.reach = least

    def free(self, state: int, length: int) -> bool:
        """Whether neither end matters within some characters from a state."""
        read: int = self._keys[state]
        return read >= self._least and (self._most is None or read + length <= self._most)

    def _made(self, key: int) -> Edges:
        if self._most is None:
            key = min(key + 1, self._least)
        elif key < self._most:
            key += 1
        else:
            return ()
        return ((self.alphabet.all, self._number(key)),)

    def alike(self, state: int, length: int) -> int:
        """The first state that is as far from both ends."""
        return self._number(self._least) if self.free(state, length) else state

    def _accepts(self, key: int) -> bool:
        return key >= self._least

    def _bound(self, key: int) -> int:
        return max(0, self._least - key)


class Texts(Machine):
    """One of some texts; a state is the slice of the sorted texts that begin with what was read."""

    sure = True

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(texts)
        characters = sorted({character for text in self._texts for character in text})
        alphabet, masks = alphabet_of_characters(characters)
        super().__init__(alphabet, f"{len(self._texts):,} texts")
        self._masks = dict(zip(characters, masks, strict=True))
        if self._texts:
            self.start = self._number((0, len(self._texts), 0))
        self.reach = max(map(len, self._texts), default=0)

    def _made(self, key: tuple[int, int, int]) -> Edges:
        low, high, depth = key
        texts, found = self._texts, []
        while low < high and len(texts[low]) == depth:
            low += 1
        while low < high:
            prefix = texts[low][: depth + 1]
            after = prefix[:-1] + chr(ord(prefix[-1]) + 1) if ord(prefix[-1]) < 0x10FFFF else None
            end = high if after is None else bisect_left(texts, after, low, high)
            found.append((self._masks[prefix[-1]], self._number((low, end, depth + 1))))
            low = end
        return tuple(found)

    def _accepts(self, key: tuple[int, int, int]) -> bool:
        return len(self._texts[key[0]]) == key[2]

    def _bound(self, key: tuple[int, int, int]) -> int:
        low, high, depth = key
        if len(self._texts[low]) == depth:
            return 0
        return min(map(len, self._texts[low:high])) - depth


class Product(Machine):
    """What all of some machines accept, or any of them; a state is the tuple of their states."""

    def __init__(self, machines: Sequence[Machine], every: bool, name: str) -> None:
        alphabet, lifted = product_of([machine.alphabet for machine in machines])
        super().__init__(alphabet, name)
        self._machines = tuple(machines)
        self._every = every
        self._lifted = lifted
        self._lifts: list[dict[int, int]] = [{} for _ in machines]
        self.sure = not every and all(machine.sure for machine in machines)
        reaches = [machine.reach for machine in machines if machine.reach is not None]
        self.reach = max(reaches) if not every and len(reaches) == len(machines) else None
        starts = tuple(machine.start for machine in machines)
        if not self._is_gone(starts):
            self.start = self._number(starts)

    def alike(self, state: int, length: int) -> int:
        """The parts alike: of any, or of a length that does not matter beside one other part."""
        key = self._keys[state]
        if self._every:
            if len(key) != 2 or not any(isinstance(m, Lengths) for m in self._machines):
                return state
            at = 0 if isinstance(self._machines[0], Lengths) else 1
            lengths, reach = self._machines[at], self._machines[1 - at].reach
            if reach is None or not isinstance(lengths, Lengths):
                return state
            if not lengths.free(key[at], length + reach):
                return state
        return self._number(
            tuple(
                GONE if part == GONE else machine.alike(part, length)
                for machine, part in zip(self._machines, key, strict=True)
            )
        )

    def _is_gone(self, states: tuple[int, ...]) -> bool:
        return GONE in states if self._every else all(state == GONE for state in states)

    def _lift(self, index: int, some: int) -> int:
        found = self._lifts[index].get(some)
        if found is None:
            every, lifted = self._machines[index].alphabet.all, self._lifted[index]
            found, few = 0, some if some.bit_count() * 2 <= every.bit_count() else every ^ some
            for letter in bits(few):
                found |= lifted[letter]
            found = self._lifts[index][some] = found if few == some else found ^ self.alphabet.all
        return found

    def _made(self, key: tuple[int, ...]) -> Edges:
        parts: list[tuple[int, tuple[int, ...]]] = [(self.alphabet.all, ())]
        for index, machine in enumerate(self._machines):
            edges = () if key[index] == GONE else machine.edges(key[index])
            lifted = [(self._lift(index, some), target) for some, target in edges]
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

    def _joined(self, parts: Iterable[tuple[int, tuple[int, ...]]]) -> Edges:
        joined: dict[tuple[int, ...], int] = {}
        for some, targets in parts:
            if not self._is_gone(targets):
                joined[targets] = joined.get(targets, 0) | some
        return tuple((some, self._number(targets)) for targets, some in joined.items())

    def _accepts(self, key: tuple[int, ...]) -> bool:
        verdicts = (m.accepting(state) for m, state in zip(self._machines, key, strict=True))
        return all(verdicts) if self._every else any(verdicts)

    def _bound(self, key: tuple[int, ...]) -> int:
        bounds = (m.bound(state) for m, state in zip(self._machines, key, strict=True))
        return max(bounds) if self._every else min(bounds)

    def _weight(self, key: tuple[int, ...]) -> int:
        return sum(m.weight(state) for m, state in zip(self._machines, key, strict=True))

    def _doubts(self, key: tuple[int, ...]) -> int:
        return sum(m.doubts(state) for m, state in zip(self._machines, key, strict=True))


class Others(Machine):
    """All texts that a machine does not accept; a state is one of its states, or `GONE`."""

    def __init__(self, machine: Machine, name: str) -> None:
        super().__init__(machine.alphabet, name)
        self._machine = machine
        self.start = self._number(machine.start)
        self.reach = 1 if isinstance(machine, Texts) else None

    def _made(self, key: int) -> Edges:
        every = self.alphabet.all
        if key == GONE:
            return ((every, self._number(GONE)),)
        found = []
        for some, target in self._machine.edges(key):
            found.append((some, self._number(target)))
            every ^= some
        return (*found, (every, self._number(GONE))) if every else tuple(found)

    def _accepts(self, key: int) -> bool:
        return not self._machine.accepting(key)

    def _bound(self, key: int) -> int:
        return 1 if self._machine.accepting(key) else 0

    def _weight(self, key: int) -> int:
        return self._machine.weight(key)

    def _doubts(self, key: int) -> int:
        return 0 if key == GONE else 1
