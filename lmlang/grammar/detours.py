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

MAX_TRIED_AT_START = 2_048
"""What may be spent on looking for the fewest tokens of an output, for which a budget must do."""
MAX_TRIED = 768
"""The same within an output; where there are fewer, they are nearly always found sooner."""
MAX_TRIED_TO_SPELL = 1 << 16
"""The same where the vocabulary lacks bytes."""
AT_A_PLACE, AT_A_TRY = 2, 8
"""What is spent on looking at a place of a completion, and on trying another one."""
WIDE = 80
"""Where more bytes than this may follow, one is as good as the other."""
MOST = 64
"""Bytes of a step."""
Runs: TypeAlias = tuple[bytes, ...]
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


class Step:
    """Some bytes of a completion; the last one is where others may come, if any is.

    Attributes:
        rest: They and what comes behind them.
        size: How many they are.
        state: Behind them.
        runs: What may come there, where it is inside of runs of bytes (see `Swift`).
        others: The other bytes, and what follows them.
        wide: Whether more may come than are looked at where something has been found.
        ways: What it does to the tokens under way that it has been met with.
        onward: What comes next; None: nothing, or nobody has looked.
    """

    __slots__ = ("onward", "others", "rest", "runs", "size", "state", "ways", "wide")

    def __init__(self, rest: bytes, state: State, runs: Runs) -> None:
        self.rest = rest
        self.size = 0
        self.state = state
        self.runs = runs
        self.others: list[tuple[int, Trail]] = []
        self.wide = False
        self.ways: dict[Opens, Way] = {}
        self.onward: Step | None = None


class Way(NamedTuple):
    """What a step does to tokens under way.

    Attributes:
        before: How many more are before all of those that are under way at its last byte.
        begun: These.
        tries: How many more it is with another byte there, the byte, and what follows it.
        more: How many more are before all of those that are under way behind it.
        opens: These.
    """

    before: int
    begun: Opens
    tries: list[tuple[int, int, Trail]]
    more: int
    opens: Opens


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
        if best is None:
            self._left = MAX_TRIED_TO_SPELL
        else:
            self._left = MAX_TRIED_AT_START if state is automaton.start else MAX_TRIED
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
            step = trail.step = self._step(trail.spelled.data, trail.state)
        while at < end:
            assert step is not None, "it is looked for below"
            way = step.ways.get(opens)
            if way is None:
                way = step.ways[opens] = self._way(step, opens)
            size = min(step.size, end - at)
            self._left -= AT_A_PLACE * size
            if self._left <= 0 or size < step.size:
                return
            at += size
            if step.others and (self.best is None or not step.wide):
                count = more + way.before
                hopeful = self.best is None or (bool(way.begun) and count + 1 < len(self.best))
                if not hopeful and not self._has_hope():
                    return
                self._try(data[: at - 1], count, way, hopeful)
            opens, more = way.opens, more + way.more
            if step.onward is None and at < end:
                step.onward = self._step(step.rest[size:], step.state, step.runs)
            step = step.onward

    def _try(self, before: bytes, more: int, way: Way, hopeful: bool) -> None:
        """Try other bytes behind some of which the tokens are known."""
        opens, first = way.begun, len(before) + 1
        for count, byte, trail in way.tries:
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
        trie, last = self._trie, step.size - 1
        begun, before = go_on(trie, opens, step.rest[:last])
        tries = [(least(trie, begun, byte, end.spelled), byte, end) for byte, end in step.others]
        opens, more = go_on(trie, begun, step.rest[last : step.size])
        return Way(before, begun, tries, before + more, opens)

    def _step(self, rest: bytes, state: State, runs: Runs = ()) -> Step:
        """What comes first in the rest of a completion."""
        known = self._steps.setdefault(state, [])
        for step in known:
            if step.rest == rest:
                return step
        step = Step(rest, state, runs)
        known.append(step)
        while not step.others and step.size < min(MOST, len(rest)):
            self._lengthen(step)
        return step

    def _lengthen(self, step: Step) -> None:
        """Add a byte to a step; or some of a run, up to where another run parts from it."""
        automaton, here, at, rest = self._automaton, step.state, step.size, step.rest
        runs = step.runs or automaton.runs(here) or ()
        run = next((run for run in runs if rest.startswith(run, at)), b"")  # the shortest one
        step.runs = ()
        if not run:
            run = rest[at : at + 1]
            self._fork(step, here, automaton.following(here), run[0])
            runs = ()
        for place, byte in enumerate(run if len(runs) > 1 else b""):
            following = {each[place] for each in runs}
            if len(following) > 1:
                before = automaton.run(here, run[:place])
                self._fork(step, before, bytes(sorted(following)), byte)
                if place + 1 < len(run):
                    run = run[: place + 1]
                    step.runs = tuple(each[place + 1 :] for each in runs if each[place] == byte)
                break
        onward = automaton.run(here, run)
        assert onward is not None, "completions are possible"
        step.state = onward
        step.size += len(run)

    def _fork(self, step: Step, here: State | None, following: bytes, on: int) -> None:
        """Let others part from the next byte of a step."""
        assert here is not None, "completions are possible"
        wide = len(following) > WIDE
        if len(following) > 1 and (not wide or self.best is None):
            step.wide = wide
            step.others = [
                (byte, self._trail(here, byte))
                for byte in following
                if byte != on and byte not in self._missing
            ]

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
