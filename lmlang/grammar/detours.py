"""Looks for fewer tokens than a completion has, along ways that part from it.

    ": 0}       the completion, 4 tokens; at each place other bytes may come
    ": {}}      with the completion behind one of these: 3 tokens

The ways of which most is to be hoped are looked at first, and those that part from them in turn.
Many part into the same state: what follows there is worked out once.
"""

from __future__ import annotations

import heapq
from typing import TypeAlias

from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.fewest import NONE, Opens, Spelled, Tokens, go_on, least, reach
from lmlang.grammar.vocabulary import Vocabulary

MAX_TRIED = 2_048
"""What may be spent on looking for fewer tokens."""
MAX_TRIED_TO_SPELL = 1 << 16
"""The same where the vocabulary lacks bytes."""
AT_A_PLACE, AT_A_TRY = 2, 8
"""What is spent on looking at a place of a completion, and on trying another one."""
WIDE = 80
"""Where more bytes than this may follow, one is as good as the other."""


class _Trail:
    """The completion of a state, and what else may come along it.

    Attributes:
        rest: The completion.
        spelled: The same as tokens.
        forks: For each place that has been looked at: the other bytes, and what follows them.
        here: The state at the first place that has not.
        alone: The fewest tokens behind a border with a byte before it.
    """

    __slots__ = ("alone", "forks", "here", "rest", "spelled", "wide")

    def __init__(self, state: State, spelled: Spelled) -> None:
        self.rest = spelled.data
        self.spelled = spelled
        self.forks: list[list[tuple[int, _Trail]]] = []
        self.here = state
        self.alone: dict[int, int] = {}
        self.wide = set[int]()


_Item: TypeAlias = tuple[int, int, bytes, int, int, _Trail, Opens]
"""Tokens, bytes, a whole completion; where it begins to differ from those that have been looked
at, and how far it can be spelled; its trail from there, and the tokens under way before that."""


class Search:
    """One search.

    Args:
        vocabulary: Whose tokens.
        automaton: Whose states.
        state: Where the completion begins.
        tokens: Those of the completion, None where it cannot be spelled.
        reached: How many of its bytes can.
        spelled: The completion.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        automaton: Automaton,
        state: State,
        spelled: Spelled,
        best: Tokens | None,
    ) -> None:
        self._vocabulary = vocabulary
        self._trie = vocabulary.trie
        self._automaton = automaton
        self._last = spelled
        self._trails: dict[State, _Trail] = {}
        self.best = best
        self._left = MAX_TRIED if best is not None else MAX_TRIED_TO_SPELL
        data = spelled.data
        count, reached = (
            (len(best), len(data)) if best is not None else (NONE, reach(self._trie, data))
        )
        trail = _Trail(state, spelled)
        self._open: list[_Item] = [(count, len(data), data, 0, reached, trail, [])]

    def run(self, enough: int) -> bool:
        """Look on until so few tokens are found; whether everything has been looked at."""
        while self._open and self._left > 0:
            self._part(heapq.heappop(self._open))
            if self.best is not None and len(self.best) <= enough:
                return len(self.best) <= 1
        return True

    def _part(self, item: _Item) -> None:
        """Try what parts from a completion."""
        _, _, data, first, reached, trail, opens = item
        opens = go_on(self._trie, opens, data[first - 1]) if first else [(0, 0)]
        opened = first
        for at in range(first, min(len(data), reached + 1)):
            self._left -= AT_A_PLACE
            if self._left <= 0:
                break
            if at - first == len(trail.forks):
                self._walk(trail)
            fork = trail.forks[at - first]
            if not fork or (self.best is not None and at - first in trail.wide):
                continue
            while opened < at:
                opens = go_on(self._trie, opens, data[opened])
                opened += 1
            for byte, other in fork:
                whole = b"%b%c%b" % (data[:at], byte, other.rest)
                count, size = least(self._trie, opens, byte, other.spelled, other.alone), len(whole)
                if count >= NONE or self.best is None or count < len(self.best):
                    spelled = Spelled(self._trie, whole, other.spelled)
                    tokens = spelled.tokens()
                    if tokens is None:
                        size = reach(self._trie, whole)
                    else:
                        self.best = tokens
                heapq.heappush(self._open, (count, len(whole), whole, at + 1, size, other, opens))
                self._left -= AT_A_TRY + len(whole) // 16

    def _walk(self, trail: _Trail) -> None:
        here, on = trail.here, trail.rest[len(trail.forks)]
        following = self._automaton.following(here)
        fork = list[tuple[int, _Trail]]()
        if len(following) > 1 and (len(following) <= WIDE or self.best is None):
            missing = self._vocabulary.missing_bytes
            for byte in following:
                if byte != on and byte not in missing:
                    fork.append((byte, self._trail(here, byte)))
        if len(following) > WIDE:
            trail.wide.add(len(trail.forks))
        trail.forks.append(fork)
        onward = self._automaton.push(here, on)
        assert onward is not None, "completions are possible"
        trail.here = onward

    def _trail(self, here: State, byte: int) -> _Trail:
        state = self._automaton.push(here, byte)
        assert state is not None, "what follows leads somewhere"
        found = self._trails.get(state)
        if found is None:
            rest = self._automaton.completion(state)
            self._last = Spelled(self._trie, rest, self._last)
            found = self._trails[state] = _Trail(state, self._last)
        return found
