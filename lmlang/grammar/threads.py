r"""A regular expression at work: the nodes that a text may have come to, and what each still owes.

    a(?=..x)b*    behind "a":   node b*, owes "..x"
                  behind "ab":  node b*, owes ".x"        a duty is a set of threads of its own

A look-ahead makes the threads behind it owe that its pattern matches (or never matches) what comes.
A look-behind asks a monitor: its pattern, begun anew at every character. A thread whose duty fails
is gone; one whose duties are met accepts where its node does.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import TypeAlias

from lmlang.grammar.alphabet import bits
from lmlang.grammar.letters import NOTHING, OTHER, Letters, holds
from lmlang.grammar.likeness import Likeness
from lmlang.grammar.machine import NEVER, too_large
from lmlang.grammar.nodes import ANYTHING, END, Automaton, without_anchors

MAX_THREADS = 10_000
"""Threads of one state."""
MAX_WAYS = 100_000
"""Ways from node to node by a character of an automaton whose states are compared."""

FEW_LETTERS = 16
"""For so many classes of characters each, readers are looked at one by one."""

Thread: TypeAlias = "tuple[int, frozenset[Duty]]"
"""A node, and what has to hold of the text that comes besides."""
Threads: TypeAlias = frozenset[Thread]
Duty: TypeAlias = tuple[bool, Threads]
"""Whether the text must not match, and the threads of what it must (not) match."""
Key: TypeAlias = tuple[Threads, int, tuple[Threads, ...]]
"""Threads, the kind of the character before, the threads of the monitors."""

FREE: frozenset[Duty] = frozenset()
DONE: Thread = (ANYTHING, FREE)


class Pattern:
    """What a regular expression matches in full."""

    def __init__(self, automaton: Automaton, name: str) -> None:
        automaton = without_anchors(automaton)
        self._nodes = automaton.nodes
        letters = Letters(automaton)
        self.alphabet = letters.alphabet
        self._name = name
        self._asserts = letters.asserts
        self._sets = letters.sets
        self._kinds = letters.kinds
        self._of_kind: dict[int, int] = {}
        for letter, kind in enumerate(self._kinds):
            self._of_kind[kind] = self._of_kind.get(kind, 0) | 1 << letter
        self._monitors = automaton.monitors
        self._distances_of_nodes = _distances(automaton)
        self._looks = any(node.looks is not None for node in automaton.nodes)
        self._behind: dict[int, Threads] = {}
        self._alike: dict[int, dict[int, int]] = {}
        self._read_by: list[int] | None = None  # for each class, the sets that have it, as bits
        self._likeness: Likeness | None = None
        self._lock = Lock()
        self._firsts: dict[tuple[int, frozenset[int]], Key] = {}
        self.sure = not self._asserts and not self._looks
        farthest = max(d for d in self._distances_of_nodes if d < NEVER)
        self.reach = farthest if self.sure else None
        self._start = automaton.start

    def start(self) -> Key | None:
        """Where the automaton begins."""
        key = self._key({(self._start, FREE)}, [[] for _ in self._monitors], NOTHING)
        return key if key[0] else None

    def alike(self, key: Key, length: int) -> Key:
        """The first key that was met of those whose threads do the same."""
        if not self.sure:
            return key
        classes = self._alike.get(length)
        if classes is None:
            with self._lock:
                if self._likeness is None:
                    self._likeness = Likeness(*self._led())
            classes = self._alike[length] = self._likeness.classes(length)
        if not classes:
            return key
        threads = frozenset([classes[number] for number, _ in key[0]])
        return self._firsts.setdefault((length, threads), key)

    def _led(self) -> tuple[dict[int, int], dict[int, frozenset[int]]]:
        """What each node reads, and where it leads; nothing if there are too many ways."""
        kinds: dict[int, int] = {END: -1, ANYTHING: -2}
        onward: dict[int, frozenset[int]] = {END: frozenset(), ANYTHING: frozenset((ANYTHING,))}
        ways = 0
        for number, node in enumerate(self._nodes):
            if node.reads is not None and number != ANYTHING:
                kinds[number] = node.reads
                threads = self._plainly_reached(list(node.onward))
                onward[number] = frozenset([other for other, _ in threads])
                ways += len(threads)
                if ways > MAX_WAYS:
                    return {}, {}
        return kinds, onward

    def _key(self, starts: Iterable[Thread], begun: Iterable[list[Thread]], before: int) -> Key:
        if self.sure:
            return self._plainly_reached([number for number, _ in starts]), OTHER, ()
        threads = self._reached(starts, before, None, ())
        monitors = tuple(
            self._reached([*more, (start, FREE)], before, None, ())
            for start, more in zip(self._monitors, begun, strict=True)
        )
        if not self._asserts or not (monitors or self._looks_back(threads)):
            before = OTHER
        return threads, before, monitors

    def _plainly_reached(self, numbers: list[int]) -> Threads:
        """What lies behind some nodes without a character, where nothing is asserted."""
        found = set[Thread]()
        for number in numbers:
            behind = self._behind.get(number)
            if behind is None:
                behind = self._behind[number] = self._reached([(number, FREE)], OTHER, None, ())
            found |= behind
        return frozenset((DONE,)) if DONE in found else frozenset(found)

    def _looks_back(self, threads: Threads) -> bool:
        """Whether the character before still matters."""
        return any(
            self._nodes[number].reads is None or any(self._looks_back(duty) for _, duty in duties)
            for number, duties in threads
        )

    def edges(self, key: Key) -> list[tuple[int, Key]]:
        """Where the threads lead that read a character, for classes that none tells apart."""
        threads, _, monitors = key
        joined: dict[Key, int] = {}
        if not monitors and all(
            not duties and (number == END or self._nodes[number].reads is not None)
            for number, duties in threads
        ):
            for some, onward in self._parts(threads):
                starts = [(number, FREE) for number in onward]
                for kind, members in self._of_kind.items():
                    if some & members:
                        target = self._key(starts, (), kind)
                        joined[target] = joined.get(target, 0) | some & members
        else:
            for letter in range(self.alphabet.count):
                target = self._moved(key, letter)
                joined[target] = joined.get(target, 0) | 1 << letter
        return [(some, to) for to, some in joined.items() if to[0]]

    def _parts(self, threads: Threads) -> list[tuple[int, set[int]]]:
        """Classes that the same of some readers take, and where these lead."""
        onward: dict[int, set[int]] = {}
        for number, _ in threads:
            node = self._nodes[number]
            if node.reads is not None:
                onward.setdefault(node.reads, set()).update(node.onward)
        if len(onward) * FEW_LETTERS > self.alphabet.count:
            return self._parts_by_letter(onward)
        parts: list[tuple[int, list[int]]] = [(self.alphabet.all, [])]
        for number in sorted(onward):
            classes, finer = self._sets[number], []
            for some, taken in parts:
                if some & classes:
                    finer.append((some & classes, [*taken, number]))
                if some & ~classes:
                    finer.append((some & ~classes, taken))
            parts = finer
        return [(some, set().union(*(onward[n] for n in taken))) for some, taken in parts if taken]

    def _parts_by_letter(self, onward: dict[int, set[int]]) -> list[tuple[int, set[int]]]:
        """The same in the same order, where each class is looked at rather than each reader."""
        last, readers, classes = len(self._sets) - 1, 0, 0
        if self._read_by is None:
            self._read_by = [
                sum(1 << last - number for number, some in enumerate(self._sets) if some >> n & 1)
                for n in range(self.alphabet.count)
            ]
        for number in onward:
            readers |= 1 << last - number
            classes |= self._sets[number]
        parts: dict[int, int] = {}
        for letter in bits(classes):
            here = self._read_by[letter] & readers
            parts[here] = parts.get(here, 0) | 1 << letter
        return [
            (parts[here], set().union(*(onward[last - place] for place in bits(here))))
            for here in sorted(parts, reverse=True)
        ]

    def _moved(self, key: Key, letter: int) -> Key:
        threads, before, monitors = key
        known: dict[Threads, Threads | None] = {}
        step = (before, letter, monitors)
        begun = [self._onward(monitor, step, known) for monitor in monitors]
        return self._key(self._onward(threads, step, known), begun, self._kinds[letter])

    def _onward(
        self,
        threads: Threads,
        step: tuple[int, int, tuple[Threads, ...]],
        known: dict[Threads, Threads | None],
    ) -> list[Thread]:
        """Where threads come by one more character, that of a duty on the way too."""
        before, letter, monitors = step
        kind, found = self._kinds[letter], []
        for number, duties in self._reached(threads, before, kind, monitors):
            node = self._nodes[number]
            if node.reads is None or not self._sets[node.reads] >> letter & 1:
                continue
            owed: frozenset[Duty] | None = FREE
            for negated, duty in duties:
                after = known.get(duty)
                if after is None:
                    moved = self._onward(duty, step, known)
                    after = known[duty] = self._reached(moved, kind, None, ())
                more = _owed(negated, after)
                owed = None if owed is None or more is None else owed | more
            if owed is not None:
                found += [(other, owed) for other in node.onward]
        return found

    def _reached(
        self,
        starts: Iterable[Thread],
        before: int,
        behind: int | None,
        monitors: tuple[Threads, ...],
    ) -> Threads:
        """What lies behind some threads without a character: readers, ends, what is still open.

        Args:
            starts: Where to begin.
            before: The kind of the character before.
            behind: That of the character behind; None leaves open what looks at it.
            monitors: What look-behinds ask; unused where they stay open.
        """
        found, seen, todo = set(), set(), list(starts)
        while todo:
            thread = todo.pop()
            if thread in seen:
                continue
            seen.add(thread)
            number, duties = thread
            node = self._nodes[number]
            if number == END or node.reads is not None:
                found.add(thread)
                continue
            owed: frozenset[Duty] | None = duties
            if node.asserts is not None:
                if behind is None and not node.asserts.looks_back_only:
                    found.add(thread)
                    continue
                if not holds(node.asserts, before, OTHER if behind is None else behind):
                    continue
            elif node.looks is not None and node.looks.monitor is not None:
                if behind is None:
                    found.add(thread)
                    continue
                monitor = self._reached(monitors[node.looks.monitor], before, behind, monitors)
                if ((END, FREE) in monitor) == node.looks.negated:
                    continue
            elif node.looks is not None:
                inner = self._reached([(node.looks.start, FREE)], before, behind, monitors)
                more = _owed(node.looks.negated, inner)
                owed = None if more is None else duties | more
            if owed is not None:
                todo += [(other, owed) for other in node.onward]
        if len(found) > MAX_THREADS:
            raise too_large(self._name, MAX_THREADS)
        return _reduced(found)

    def accepts(self, key: Key) -> bool:
        """Whether the text up to here is accepted."""
        threads, before, monitors = key
        if self.sure:
            return any(number in (END, ANYTHING) for number, _ in threads)
        return self._ends(threads, before, monitors)

    def _ends(self, threads: Threads, before: int, monitors: tuple[Threads, ...]) -> bool:
        """Whether some threads accept at the end of the text."""
        return any(
            number in (END, ANYTHING)
            and all(self._ends(duty, before, monitors) != negated for negated, duty in duties)
            for number, duties in self._reached(threads, before, NOTHING, monitors)
        )

    def bound(self, key: Key) -> int:
        """No more than the characters that lead to acceptance."""
        return self._least(key[0])

    def weight(self, key: Key) -> int:
        """How many threads there are, the owed ones too."""
        threads, _, monitors = key
        if self.sure:
            return len(threads)
        owed = sum(len(duty) for _, duties in threads for _, duty in duties)
        return 2 * (len(threads) + owed + sum(map(len, monitors)))

    def doubts(self, key: Key) -> int:
        """One where something is asserted."""
        return 0 if self.sure else 1

    def _least(self, threads: Threads) -> int:
        if self.sure:
            distances = self._distances_of_nodes
            return min([distances[number] for number, _ in threads], default=NEVER)
        found = NEVER
        for number, duties in threads:
            here = self._distances_of_nodes[number]
            for negated, duty in duties:
                if not negated:
                    here = max(here, self._least(duty))
            found = min(found, here)
        return found


def _owed(negated: bool, threads: Threads) -> frozenset[Duty] | None:
    """What is owed of a duty at these threads; None where it has failed."""
    if DONE in threads:
        return None if negated else FREE
    if not threads:
        return FREE if negated else None
    return frozenset(((negated, threads),))


def _reduced(threads: set[Thread]) -> Threads:
    """The threads without those that owe more than another at the same place."""
    if DONE in threads:
        return frozenset((DONE,))
    if not any(duties for _, duties in threads):
        return frozenset(threads)
    kept: list[Thread] = []
    for number, duties in sorted(
        threads, key=lambda thread: (thread[0] != ANYTHING, len(thread[1]))
    ):
        if not any(other in (number, ANYTHING) and owed <= duties for other, owed in kept):
            kept.append((number, duties))
    return frozenset(kept)


def _distances(automaton: Automaton) -> list[int]:
    """For every node the fewest characters to an end, if all that is asserted holds."""
    before: list[list[int]] = [[] for _ in automaton.nodes]
    for number, node in enumerate(automaton.nodes):
        for other in node.onward:
            before[other].append(number)
    found = [NEVER] * len(automaton.nodes)
    found[END] = found[ANYTHING] = 0
    level, distance = [END, ANYTHING], 0
    while level:
        further: list[int] = []
        while level:
            for number in before[level.pop()]:
                cost = distance + (automaton.nodes[number].reads is not None)
                if cost < found[number]:
                    found[number] = cost
                    (further if cost > distance else level).append(number)
        level, distance = [n for n in further if found[n] == distance + 1], distance + 1
    return found
