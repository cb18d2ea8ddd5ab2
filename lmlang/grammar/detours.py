"""Looks for fewer tokens than a completion has, along ways that part from it.

    ": 0}       the completion, 4 tokens; at each place other bytes may come
    ": {}}      with the completion behind one of these: 3 tokens

The ways of which most is to be hoped are looked at first, and those that part from them in turn.
Many lead to the same state: what comes there, and what it does to the tokens under way, is worked
out once.
"""

from __future__ import annotations

import heapq
from typing import TypeAlias

from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.fewest import BEGIN, NONE, Opens, Spelled, Tokens, fewest, go_on, least, reach
from lmlang.grammar.vocabulary import Vocabulary

MAX_TRIED = 2_048
"""What may be spent on looking for fewer tokens."""
MAX_TRIED_TO_SPELL = 1 << 16
"""The same where the vocabulary lacks bytes."""
AT_A_PLACE, AT_A_TRY = 2, 8
"""What is spent on looking at a place of a completion, and on trying another one."""
WIDE = 80
"""Where more bytes than this may follow, one is as good as the other."""
SINGLE = [bytes([byte]) for byte in range(256)]
LONG = 64
"""Bytes of a step."""


class _Trail:
    """The completion of a state.

    Attributes:
        spelled: Its bytes, as tokens.
        alone: The fewest tokens behind a border with a byte before it.
        step: Its first step.
    """

    __slots__ = ("alone", "spelled", "state", "step")

    def __init__(self, state: State, spelled: Spelled) -> None:
        self.state = state
        self.spelled = spelled
        self.alone: dict[int, int] = {}
        self.step: _Step | None = None


class _Step:
    """Some bytes of completions, up to where something else may come.

    Attributes:
        rest: They, and what comes behind them.
        size: How many bytes they are.
        state: Behind them.
        forks: Where other bytes may come, whether these are many, and what follows them.
        ways: What is known of it, for the tokens that may be under way.
        onward: The next one.
    """

    __slots__ = ("forks", "onward", "rest", "size", "state", "ways")

    def __init__(self, rest: bytes, state: State) -> None:
        self.rest = rest
        self.size = 0
        self.state = state
        self.forks: list[tuple[int, bool, list[tuple[int, _Trail]]]] = []
        self.ways: dict[Opens, _Way] = {}
        self.onward: _Step | None = None


_Try: TypeAlias = tuple[int, int, _Trail, Opens]
"""A count of tokens, for a byte, what follows it, and the tokens under way before it."""
_Way: TypeAlias = tuple[list[tuple[int, bool, int, int, list[_Try]]], Opens, int]
"""For each fork its place, whether it is wide, the fewest tokens before it, and what is tried; the
tokens under way behind the step, and how many more of them there are."""

_Item: TypeAlias = tuple[int, int, bytes, int, int, _Trail, Opens, int]
"""Tokens, bytes, a whole completion; where it begins to differ from those that have been looked
at, and how far it can be spelled; its trail from there, and the tokens under way before that."""


class Search:
    """One search.

    Args:
        vocabulary: Whose tokens.
        automaton: Whose states.
        state: Where the completion begins.
        spelled: The completion.
        best: Its tokens, None where it cannot be spelled.

    Attributes:
        best: The fewest tokens that have been found.
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
        self._steps: dict[State, list[_Step]] = {}
        self.best = best
        self._left = MAX_TRIED if best is not None else MAX_TRIED_TO_SPELL
        data = spelled.data
        count = NONE if best is None else len(best)
        reached = reach(self._trie, data) if best is None else len(data)
        trail = _Trail(state, spelled)
        self._open: list[_Item] = [(count, len(data), data, 0, reached, trail, (), 0)]
        self._hopes = self._open.copy()  # what may yet lead to fewer tokens
        self._done = set[bytes]()

    def run(self, enough: int) -> bool:
        """Look on until so few tokens are found; whether everything has been looked at."""
        while self._left > 0 and self._hope():
            self._part(heapq.heappop(self._open))
            if self.best is not None and len(self.best) <= enough:
                return len(self.best) <= 1
        return True

    def _hope(self) -> bool:
        """Whether any of the ways that are left may lead to fewer tokens."""
        if self.best is None:
            return bool(self._open)
        while self._hopes:
            item = self._hopes[-1]
            if item[2] not in self._done:
                opens, more = self._begun(item)
                if more + fewest(opens) < len(self.best):
                    return True
            self._hopes.pop()
        return False

    def _begun(self, item: _Item) -> tuple[Opens, int]:
        """The tokens under way where a completion begins to differ."""
        _, _, data, first, _, _, opens, more = item
        if not first:
            return BEGIN, 0
        opens, further = go_on(self._trie, opens, data[first - 1 : first])
        return opens, more + further

    def _part(self, item: _Item) -> None:
        """Try what parts from a completion."""
        _, _, data, at, reached, trail, _, _ = item
        opens, more = self._begun(item)
        self._done.add(data)
        end = min(len(data), reached + 1)
        step = trail.step
        if step is None and at < end:
            step = trail.step = self._step(trail.state, trail.spelled.data)
        while at < end:
            assert step is not None
            way = step.ways.get(opens)
            if way is None:
                way = step.ways[opens] = self._way(step, opens)
            tried, opens, further = way
            looked = 0
            for place, wide, before, least_, tries in tried:
                if at + place >= end:
                    return
                self._left -= AT_A_PLACE * (place + 1 - looked)
                if self._left <= 0:
                    return
                looked = place + 1
                if wide and self.best is not None:
                    continue
                hopeful = self.best is None or more + before + least_ < len(self.best)
                if not hopeful and not self._hope():
                    return
                self._try(data[: at + place], more + before, tries, hopeful)
            self._left -= AT_A_PLACE * (step.size - looked)
            if self._left <= 0:
                return
            at += step.size
            more += further
            if step.onward is None and at < end:
                step.onward = self._step(step.state, step.rest[step.size :])
            step = step.onward

    def _try(self, before: bytes, more: int, tries: list[_Try], hopeful: bool) -> None:
        """Try other bytes behind some."""
        for count, byte, trail, opens in tries:
            whole = before + SINGLE[byte] + trail.spelled.data
            size = reached = len(whole)
            count += more
            if count >= NONE or self.best is None or count < len(self.best):
                tokens = Spelled(self._trie, whole, trail.spelled).tokens()
                if tokens is None:
                    count, reached = NONE, reach(self._trie, whole)
                else:
                    self.best = tokens
            item = (count, size, whole, len(before) + 1, reached, trail, opens, more)
            heapq.heappush(self._open, item)
            self._left -= AT_A_TRY + size // 16
            if hopeful:
                self._hopes.append(item)

    def _way(self, step: _Step, opens: Opens) -> _Way:
        """What a step does to the tokens under way, and what is tried along it."""
        trie, more, tried, begun = self._trie, 0, [], 0
        for place, wide, fork in step.forks:
            opens, further = go_on(trie, opens, step.rest[begun:place])
            more, begun = more + further, place
            tries = [
                (least(trie, opens, byte, trail.spelled, trail.alone), byte, trail, opens)
                for byte, trail in fork
            ]
            tried.append((place, wide, more, fewest(opens), tries))
        opens, further = go_on(trie, opens, step.rest[begun : step.size])
        return tried, opens, more + further

    def _step(self, state: State, rest: bytes) -> _Step:
        """The step from a state on."""
        known = self._steps.setdefault(state, [])
        for step in known:
            if step.rest == rest:
                return step
        step = _Step(rest, state)
        known.append(step)
        while step.size < min(LONG, len(rest)) and not step.forks:
            self._look(step)
        return step

    def _look(self, step: _Step) -> None:
        """Look at what else may come in one more place of a step; in several where a run comes."""
        automaton, here, at, rest = self._automaton, step.state, step.size, step.rest
        runs = automaton.runs(here) or ()
        run = next((run for run in runs if rest.startswith(run, at)), b"")  # the shortest one
        if not run:
            run = rest[at : at + 1]
            self._fork(step, at, here, automaton.following(here))
        elif len(runs) > 1:
            for place in range(len(run)):
                runs = tuple(each for each in runs if each.startswith(run[:place]))
                if len(runs) == 1:
                    break
                heads = bytes(sorted({each[place] for each in runs}))
                if len(heads) > 1:
                    state = automaton.run(here, run[:place]) if place else here
                    assert state is not None
                    self._fork(step, at + place, state, heads)
        onward = automaton.run(here, run)
        assert onward is not None, "completions are possible"
        step.state = onward
        step.size += len(run)

    def _fork(self, step: _Step, place: int, here: State, following: bytes) -> None:
        wide = len(following) > WIDE
        if len(following) > 1 and (not wide or self.best is None):
            skipped = self._vocabulary.missing_bytes + step.rest[place : place + 1]
            fork = [(byte, self._trail(here, byte)) for byte in following if byte not in skipped]
            step.forks.append((place, wide, fork))

    def _trail(self, here: State, byte: int) -> _Trail:
        state = self._automaton.push(here, byte)
        assert state is not None, "what follows leads somewhere"
        found = self._trails.get(state)
        if found is None:
            rest = self._automaton.completion(state)
            self._last = Spelled(self._trie, rest, self._last)
            found = self._trails[state] = _Trail(state, self._last)
        return found
