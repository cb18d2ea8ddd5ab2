"""Looks for fewer tokens than a completion has, along ways that part from it.

    ": 0}       the completion, 4 tokens; at each place other bytes may come
    ": {}}      with the completion behind one of these: 3 tokens

The ways of which most is to be hoped are looked at first, and those that part from them in turn.
Many lead to the same state: what may come there, and what it does to the tokens under way, is
worked out once. The search ends where nothing that is left can have fewer tokens, or where too
much has been looked at.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple, TypeAlias

from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.fewest import BEGIN, NONE, Opens, Spelled, Tokens, go_on, goes_on, least, reach
from lmlang.grammar.vocabulary import Vocabulary

MAX_TRIED = 2_048
"""What may be spent on looking for fewer tokens."""
MAX_TRIED_TO_SPELL = 1 << 16
"""The same where the vocabulary lacks bytes."""
AT_A_PLACE, AT_A_TRY = 2, 8
"""What is spent on looking at a place of a completion, and on trying another one."""
WIDE = 80
"""Where more bytes than this may follow, one is as good as the other."""
MOST = 64
"""Bytes of a step."""
SINGLE = [bytes([byte]) for byte in range(256)]


class Trail:
    """The completion of a state.

    Attributes:
        state: The state.
        spelled: Its completion.
        step: What comes first; None: nobody has looked.
    """

    __slots__ = ("spelled", "state", "step")

    def __init__(self, state: State, spelled: Spelled) -> None:
        self.state = state
        self.spelled = spelled
        self.step: Step | None = None


class Fork(NamedTuple):
    """A place of a step where other bytes may come; whether many may; and what follows them."""

    place: int
    wide: bool
    others: list[tuple[int, Trail]]


class Step:
    """Some bytes of a completion, up to the first fork or a little behind it.

    Attributes:
        rest: They and what comes behind them.
        size: How many they are.
        state: Behind them.
        forks: Where other bytes may come.
        ways: What it does to the tokens under way that it has been met with.
        onward: What comes next; None: nothing, or nobody has looked.
    """

    __slots__ = ("forks", "onward", "rest", "size", "state", "ways")

    def __init__(self, rest: bytes, state: State) -> None:
        self.rest = rest
        self.size = 0
        self.state = state
        self.forks: list[Fork] = []
        self.ways: dict[Opens, Way] = {}
        self.onward: Step | None = None


class Tries(NamedTuple):
    """What is tried at a fork.

    Attributes:
        place: Where in its step it is.
        wide: Whether many bytes may come.
        more: How many tokens there are from the step to the fork.
        opens: Those under way.
        others: How many more it is with a byte, that byte, and what follows it.
    """

    place: int
    wide: bool
    more: int
    opens: Opens
    others: list[tuple[int, int, Trail]]


class Way(NamedTuple):
    """What a step does to tokens under way: at its forks, and the tokens under way behind it."""

    tries: list[Tries]
    opens: Opens
    more: int


Item: TypeAlias = tuple[int, int, bytes, int, int, int, Opens, Trail]
"""Tokens and bytes of a whole completion, and the completion; from where on others part from it
and up to where, as it cannot be spelled further; a byte before that, how many tokens there are,
those under way, and behind it the trail. The first ones are the best."""


class Detours:
    """One search, always the same for the same state. Not thread-safe.

    Args:
        vocabulary: Whose tokens.
        automaton: Whose states.
        state: Where the completions begin.
        spelled: The first of them.
        best: Its tokens; None where it cannot be spelled.

    Attributes:
        best: The fewest tokens that have been found, of equally few the first.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        automaton: Automaton,
        state: State,
        spelled: Spelled,
        best: Tokens | None,
    ) -> None:
        self.best = best
        self._trie = vocabulary.trie
        self._missing = vocabulary.missing_bytes
        self._automaton = automaton
        self._last = spelled
        self._spelled: dict[bytes, Spelled] = {}
        self._trails: dict[State, Trail] = {}
        self._steps: dict[State, list[Step]] = {}
        self._left = MAX_TRIED if best is not None else MAX_TRIED_TO_SPELL
        data = spelled.data
        count, reached = NONE, len(data)
        if best is None:
            reached = reach(self._trie, data)
        else:
            count = len(best)
        first: Item = (count, len(data), data, 0, reached, 0, BEGIN, Trail(state, spelled))
        self._open = [first]
        self._hopes = [first]  # of those that are open, what may have fewer tokens, and others
        self._looked_at = set[bytes]()

    def look(self, enough: int) -> bool:
        """Look on until so few tokens are found; whether there is nothing left to look at."""
        while self._left > 0 and self._has_hope():
            self._part(heapq.heappop(self._open))
            if self.best is not None and len(self.best) <= enough:
                return len(self.best) <= 1
        return True

    def _has_hope(self) -> bool:
        """Whether anything that is left may have fewer tokens."""
        if self.best is None:
            return bool(self._open)
        while self._hopes:
            _, _, data, first, _, more, opens, _ = self._hopes[-1]
            if data not in self._looked_at:
                more += 1 if not first or goes_on(self._trie, opens, data[first - 1]) else 2
                if more < len(self.best):
                    return True
            self._hopes.pop()
        return False

    def _begun(self, item: Item) -> tuple[Opens, int]:
        """The tokens under way where others part from a completion, and how many are before."""
        _, _, data, first, _, more, opens, _ = item
        if not first:
            return opens, more
        opens, further = go_on(self._trie, opens, data[first - 1 : first])
        return opens, more + further

    def _part(self, item: Item) -> None:
        """Try what parts from a completion."""
        _, _, data, at, reached, _, _, trail = item
        self._looked_at.add(data)
        opens, more = self._begun(item)
        end = min(len(data), reached + 1)
        step = trail.step
        if step is None and at < end:
            step = trail.step = self._step(trail.state, trail.spelled.data)
        while at < end:
            assert step is not None, "it is looked for below"
            way = step.ways.get(opens)
            if way is None:
                way = step.ways[opens] = self._way(step, opens)
            seen = 0
            for tries in way.tries:
                if at + tries.place >= end:
                    return
                self._left -= AT_A_PLACE * (tries.place + 1 - seen)
                seen = tries.place + 1
                if self._left <= 0:
                    return
                if tries.wide and self.best is not None:
                    continue
                count = more + tries.more
                hopeful = self.best is None or (bool(tries.opens) and count + 1 < len(self.best))
                if not hopeful and not self._has_hope():
                    return
                self._try(data[: at + tries.place], count, tries, hopeful)
            self._left -= AT_A_PLACE * (step.size - seen)
            if self._left <= 0:
                return
            opens, more, at = way.opens, more + way.more, at + step.size
            if step.onward is None and at < end:
                step.onward = self._step(step.state, step.rest[step.size :])
            step = step.onward

    def _try(self, before: bytes, more: int, tries: Tries, hopeful: bool) -> None:
        """Try other bytes behind some of which the tokens are known."""
        opens, first = tries.opens, len(before) + 1
        for count, byte, trail in tries.others:
            data = before + SINGLE[byte] + trail.spelled.data
            size = reached = len(data)
            count += more
            if count >= NONE:
                count, reached = NONE, reach(self._trie, data)
            elif self.best is None or count < len(self.best):
                self.best = Spelled(self._trie, data, trail.spelled).tokens()
            item = (count, size, data, first, reached, more, opens, trail)
            heapq.heappush(self._open, item)
            if hopeful:
                self._hopes.append(item)
            self._left -= AT_A_TRY + size // 16

    def _way(self, step: Step, opens: Opens) -> Way:
        """What a step does to tokens under way."""
        trie, found, more, at = self._trie, list[Tries](), 0, 0
        for place, wide, others in step.forks:
            opens, further = go_on(trie, opens, step.rest[at:place])
            more, at = more + further, place
            counted = [
                (least(trie, opens, byte, trail.spelled), byte, trail) for byte, trail in others
            ]
            found.append(Tries(place, wide, more, opens, counted))
        opens, further = go_on(trie, opens, step.rest[at : step.size])
        return Way(found, opens, more + further)

    def _step(self, state: State, rest: bytes) -> Step:
        """What comes first in the rest of a completion."""
        known = self._steps.setdefault(state, [])
        for step in known:
            if step.rest == rest:
                return step
        step = Step(rest, state)
        known.append(step)
        while step.size < min(MOST, len(rest)) and not step.forks:
            self._lengthen(step)
        return step

    def _lengthen(self, step: Step) -> None:
        """Add a byte to a step, or a run where the automaton knows them."""
        automaton, here, at, rest = self._automaton, step.state, step.size, step.rest
        runs = automaton.runs(here) or ()
        run = next((run for run in runs if rest.startswith(run, at)), b"")  # the shortest one
        if run:
            for place in range(len(run)):
                runs = tuple(each for each in runs if each.startswith(run[:place]))
                if len(runs) == 1:
                    break
                following = bytes(sorted({each[place] for each in runs}))
                if len(following) > 1:
                    inside = automaton.run(here, run[:place])
                    self._fork(step, at + place, inside, following)
        else:
            run = rest[at : at + 1]
            self._fork(step, at, here, automaton.following(here))
        onward = automaton.run(here, run)
        assert onward is not None, "completions are possible"
        step.state = onward
        step.size += len(run)

    def _fork(self, step: Step, place: int, here: State | None, following: bytes) -> None:
        assert here is not None, "completions are possible"
        wide = len(following) > WIDE
        if len(following) > 1 and (not wide or self.best is None):
            skipped = self._missing + step.rest[place : place + 1]
            others = [(byte, self._trail(here, byte)) for byte in following if byte not in skipped]
            step.forks.append(Fork(place, wide, others))

    def _trail(self, here: State, byte: int) -> Trail:
        """The completion behind another byte."""
        state = self._automaton.push(here, byte)
        assert state is not None, "what follows leads somewhere"
        found = self._trails.get(state)
        if found is None:
            rest = self._automaton.completion(state)
            spelled = self._spelled.get(rest)
            if spelled is None:
                self._last = spelled = self._spelled[rest] = Spelled(self._trie, rest, self._last)
            found = self._trails[state] = Trail(state, spelled)
        return found
