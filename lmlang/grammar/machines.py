"""Deterministic automata over classes of characters, whose states are made as they are met.

    texts      {"cat", "car"}    a slice of the sorted texts and how much of them has been read
    lengths    2 to 5            how much has been read
    all, any   several           the states of all of them side by side
    others     what one is not

Every machine numbers its states. What it keeps is a cache: threads may share it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from threading import Lock
from typing import Any, TypeAlias

from lmlang.errors import GrammarTooLarge
from lmlang.grammar.alphabet import Alphabet, alphabet_of, alphabet_of_characters, bits, product_of
from lmlang.grammar.charset import EVERYTHING

MAX_STATES = 100_000
"""States of one machine."""
MAX_EXPLORED = 20_000
"""States that one search for a way to acceptance may look at."""
MAX_WEIGHT = 8 * MAX_EXPLORED
"""And what these weigh together: the threads in them, and so the time that it takes."""

GONE = -1
"""The state behind which nothing is accepted any more."""
NEVER = 1 << 60
"""The distance to acceptance where there is none."""

Edges: TypeAlias = tuple[tuple[int, int], ...]
"""Sets of classes, no class twice, and the state that each leads to; all others lead to `GONE`."""


class Machine:
    """An automaton; its kinds say what a state is, which edges it has and when it accepts.

    Attributes:
        start: The first state, or `GONE`.
        sure: Whether `bound` is the distance, and no state is without a way to acceptance.
        reach: No state that leads to acceptance is farther from it; None: not known.
    """

    sure = False
    reach: int | None = None

    def __init__(self, alphabet: Alphabet, name: str) -> None:
        self.alphabet = alphabet
        self.start = GONE
        self._name = name
        self._keys: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self._edges: dict[int, Edges] = {}
        self._accepting: dict[int, bool] = {}
        self._distances: dict[int, int] = {}
        self._hops: dict[int, tuple[int, int]] = {}
        self._lock = Lock()

    @property
    def full(self) -> bool:
        """Whether it has as many states as it may; a new one is then made for new outputs."""
        return len(self._keys) >= MAX_STATES

    def edges(self, state: int) -> Edges:
        """Where classes of characters lead from a state."""
        found = self._edges.get(state)
        if found is None:
            found = self._edges[state] = self._made(self._keys[state])
        return found

    def accepting(self, state: int) -> bool:
        """Whether the text up to a state is accepted."""
        if state == GONE:
            return False
        found = self._accepting.get(state)
        if found is None:
            found = self._accepting[state] = self._accepts(self._keys[state])
        return found

    def bound(self, state: int) -> int:
        """No more than the characters that lead from a state to acceptance."""
        return NEVER if state == GONE else self._bound(self._keys[state])

    def weight(self, state: int) -> int:
        """The size of a state, which is the time that its edges take."""
        return 1 if state == GONE else self._weight(self._keys[state])

    def doubts(self, state: int) -> int:
        """How many parts of a state may yet forbid what the others allow."""
        return 0 if state == GONE or self.sure else self._doubts(self._keys[state])

    def step(self, state: int, letter: int) -> int:
        """The state behind one more character, by its class."""
        for some, target in self.edges(state):
            if some >> letter & 1:
                return target
        return GONE

    def distance(self, state: int) -> int:
        """The fewest characters that lead to acceptance; `NEVER` where none do.

        Raises:
            GrammarTooLarge: It cannot be told from `MAX_EXPLORED` states.
        """
        if state == GONE:
            return NEVER
        known = self._distances.get(state)
        if known is None:
            if not self.sure:
                return self._search(state)
            known = self._distances[state] = self.bound(state)
        return known

    def alive(self, state: int) -> Edges:
        """The edges of a state that lead to acceptance."""
        edges = self.edges(state)
        if self.sure:
            return edges
        return tuple(edge for edge in edges if self.distance(edge[1]) < NEVER)

    def alike(self, state: int, length: int) -> int:
        """A state in which short texts do the same, up to a length: this one, or one for many."""
        return state

    def completion(self, state: int) -> str:
        """The fewest characters that lead to acceptance."""
        found = []
        while not self.accepting(state):
            some, state = self._hop(state)
            found.append(self.alphabet.choice(some))
        return "".join(found)

    def _hop(self, state: int) -> tuple[int, int]:
        """The first step of a shortest way to acceptance."""
        found = self._hops.get(state)
        if found is None:
            distance = self.distance(state)
            found = self._hops.get(state)
            if found is None:
                found = next(
                    edge for edge in self.edges(state) if self.distance(edge[1]) < distance
                )
                self._hops[state] = found
        return found

    def _search(self, start: int) -> int:
        """The shortest way to acceptance, best first; what it teaches is kept."""
        costs, before = {start: 0}, dict[int, tuple[int, int]]()
        heap, weight = [(self.bound(start), 0, 0, start)], 0
        while heap:
            _, _, negative, state = heappop(heap)
            cost = -negative
            if cost > costs[state]:
                continue
            rest = 0 if self.accepting(state) else self._distances.get(state, NEVER)
            if rest < NEVER:
                return self._learn(start, state, rest, before)
            if state in self._distances:
                continue
            weight += self.weight(state)
            if len(costs) > MAX_EXPLORED or weight > MAX_WEIGHT:
                raise too_large(self._name, min(len(costs), MAX_EXPLORED))
            for some, target in self.edges(state):
                if cost + 1 < costs.get(target, NEVER):
                    bound = self._distances.get(target, -1)
                    if bound < 0:
                        bound = 0 if self.accepting(target) else self.bound(target)
                    if bound < NEVER:
                        costs[target] = cost + 1
                        before[target] = (state, some)
                        found = (cost + 1 + bound, self.doubts(target), -cost - 1, target)
                        heappush(heap, found)
                    else:
                        self._distances[target] = NEVER
        for state in costs:
            self._distances[state] = NEVER
        return NEVER

    def _learn(self, start: int, state: int, rest: int, before: dict[int, tuple[int, int]]) -> int:
        self._distances[state] = rest
        while state != start:
            target = state
            state, some = before[state]
            rest += 1
            self._distances[state], self._hops[state] = rest, (some, target)
        return rest

    def _number(self, key: Hashable) -> int:
        """The state that a key stands for."""
        found = self._numbers.get(key)
        if found is None:
            with self._lock:
                found = self._numbers.get(key)
                if found is None:
                    found = len(self._keys)
                    if found >= MAX_STATES:
                        raise too_large(self._name, MAX_STATES)
                    self._keys.append(key)
                    self._numbers[key] = found
        return found

    def _made(self, key: Any) -> Edges:
        raise NotImplementedError

    def _accepts(self, key: Any) -> bool:
        raise NotImplementedError

    def _bound(self, key: Any) -> int:
        raise NotImplementedError

    def _weight(self, key: Any) -> int:
        return 1

    def _doubts(self, key: Any) -> int:
        return 1


def too_large(name: str, limit: int) -> GrammarTooLarge:
    """The error for a language with too many states."""
    return GrammarTooLarge(
        f"{name}: it needs more than {limit:,} states of an automaton; lower its counts and "
        "lengths, or combine fewer patterns."
    )


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
