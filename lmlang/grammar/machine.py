"""A deterministic automaton over classes of characters, whose states are made as they are met.

    state 0  -- a-f -->  state 1  -- 0-9 -->  state 2 accepts         all others lead nowhere

It answers how far a state is from acceptance, exactly: by a search for the shortest way, best
first, that keeps what it learns. What a machine keeps is a cache: threads may share it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from threading import Lock
from typing import Any, Protocol, TypeAlias

from lmlang.errors import GrammarTooLarge
from lmlang.grammar.alphabet import Alphabet

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


class Kind(Protocol):
    """What a machine is of: a state is a key here, and equal keys have the same future.

    Attributes:
        alphabet: The classes of characters that it tells apart.
        sure: Whether `bound` is the distance, and every key leads to acceptance.
        reach: No key that leads to acceptance is farther from it; None: not known.
    """

    alphabet: Alphabet
    sure: bool
    reach: int | None

    def start(self) -> Hashable | None:
        """The key of the empty text; None where nothing is accepted."""

    def edges(self, key: Any) -> Iterable[tuple[int, Hashable]]:
        """Where classes of characters lead, no class twice; nowhere where there is none."""

    def accepts(self, key: Any) -> bool:
        """Whether the text up to here is accepted."""

    def bound(self, key: Any) -> int:
        """No more than the characters that lead to acceptance; consistent along all edges."""

    def weight(self, key: Any) -> int:
        """The size of a key, which is the time that its edges take."""

    def doubts(self, key: Any) -> int:
        """How many parts of it may yet forbid what the others allow."""

    def alike(self, key: Any, length: int) -> Hashable:
        """A key with which texts of so many characters do the same: this one, or one for many."""


class Machine:
    """An automaton of some kind; its states are numbers.

    Args:
        kind: What it is of.
        name: What that is called in messages.

    Attributes:
        alphabet, sure, reach: As its kind has them.
        start: The first state, or `GONE`.
    """

    def __init__(self, kind: Kind, name: str) -> None:
        self.kind = kind
        self.alphabet, self.sure, self.reach = kind.alphabet, kind.sure, kind.reach
        self._name = name
        self._keys: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self._edges: dict[int, Edges] = {}
        self._accepting: dict[int, bool] = {}
        self._distances: dict[int, int] = {}
        self._hops: dict[int, tuple[int, int]] = {}
        self._lock = Lock()
        start = kind.start()
        self.start = GONE if start is None else self._number(start)

    @property
    def full(self) -> bool:
        """Whether it has as many states as it may; a new one is then made for new outputs."""
        return len(self._keys) >= MAX_STATES

    def key(self, state: int) -> Any:
        """What its kind knows of a state."""
        return self._keys[state]

    def edges(self, state: int) -> Edges:
        """Where classes of characters lead from a state."""
        found = self._edges.get(state)
        if found is None:
            edges = self.kind.edges(self._keys[state])
            found = tuple((some, self._number(target)) for some, target in edges)
            self._edges[state] = found
        return found

    def accepting(self, state: int) -> bool:
        """Whether the text up to a state is accepted."""
        if state == GONE:
            return False
        found = self._accepting.get(state)
        if found is None:
            found = self._accepting[state] = self.kind.accepts(self._keys[state])
        return found

    def bound(self, state: int) -> int:
        """No more than the characters that lead from a state to acceptance."""
        return NEVER if state == GONE else self.kind.bound(self._keys[state])

    def weight(self, state: int) -> int:
        """The size of a state, which is the time that its edges take."""
        return 1 if state == GONE else self.kind.weight(self._keys[state])

    def doubts(self, state: int) -> int:
        """How many parts of a state may yet forbid what the others allow."""
        return 0 if state == GONE or self.sure else self.kind.doubts(self._keys[state])

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
        return self._number(self.kind.alike(self._keys[state], length))

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


def too_large(name: str, limit: int) -> GrammarTooLarge:
    """The error for a language with too many states."""
    return GrammarTooLarge(
        f"{name}: it needs more than {limit:,} states of an automaton; lower its counts and "
        "lengths, or combine fewer patterns."
    )
