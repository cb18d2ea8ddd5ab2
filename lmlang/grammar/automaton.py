"""The one automaton of all constraints: states over bytes, made as they are met and then shared.

    rules       what one kind of grammar knows, in keys of its own: regex, JSON Schema, EBNF
    automaton   gives each key one `State`, and remembers where each byte leads from there
    contents    of a key inside of text: tables that answer for whole runs of bytes at once

A state that one sequence has met costs the next one a look-up. What a byte leads to is always
viable: from every state a complete output can be reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from enum import IntEnum
from itertools import count
from typing import Any, Protocol, TypeAlias, runtime_checkable

DEAD, LEAVE = -1, -2
"""In a row of a table: the byte is not possible; the byte ends this content."""

MAX_KEPT = 50_000
"""States of one automaton that are kept for the next sequences."""

LETTERS = b"ea"
"""Two bytes that may both come next in most contents."""

MAX_OPEN = 4_096
"""Contents that are known to be open."""

MAX_WAYS = 200_000
"""Ways from its states that are kept."""

MAX_RUN = 256
"""Bytes of a run that is kept."""

Key: TypeAlias = Hashable


class Table(Protocol):
    """Content as a deterministic automaton over bytes; its states are small whole numbers.

    Rows are made when they are first asked for. Thread-safe.
    """

    def rows(self, states: Any) -> Any:
        """The rows of some states, int32 [len(states), 256]: a state, `DEAD` or `LEAVE`.

        Args:
            states: int64 array or list of state numbers, each once.
        """

    def push(self, state: int, byte: int) -> int:
        """One entry of a row."""

    def following(self, state: int) -> bytes:
        """The bytes that are not `DEAD`, in ascending order."""

    def accepting(self, state: int) -> bool:
        """Whether the content may end here."""

    def completion(self, state: int) -> bytes:
        """The fewest bytes that lead to where it may end, without those that leave it."""

    def alike(self, state: int, length: int) -> int:
        """A state, perhaps this one, where runs of at most ``length`` bytes do the same.

        As many states as possible give the same one: what is made of it serves all of them.
        """


Content: TypeAlias = tuple[Table, int]
"""A table and the state in it."""


class Leaving(IntEnum):
    """What `push` does where a run of content has come to a byte that leaves it."""

    UNKNOWN = 0
    """It has to be asked."""
    FREE = 1
    """It gives a key."""
    ALIKE = 2
    """All runs lead to keys behind which the same comes next: their runs, or what follows them."""
    SAME = 3
    """All runs lead to the same key, if the bytes that leave them are the same."""


class Rules(Protocol):
    """One kind of grammar. Keys are immutable; equal keys mean the same future.

    Rules that have one object for each key may let it be the `State` too, of one automaton.
    """

    def start(self) -> Key:
        """The key of the empty output."""

    def push(self, key: Any, byte: int) -> Key | None:
        """The key behind one more byte; None where no output goes on so."""

    def following(self, key: Any) -> bytes:
        """The bytes for which `push` gives a key, in ascending order."""

    def accepting(self, key: Any) -> bool:
        """Whether the output may end here."""

    def completion(self, key: Any) -> bytes:
        """The fewest bytes (or nearly) that complete the output; empty where it is accepting."""

    def contents(self, key: Any) -> tuple[Content, ...]:
        """Tables for the bytes that come next; empty where there are none.

        A run of bytes is possible if any table stays inside of it to its end. Where any table
        says `LEAVE`, `leaving` tells what comes.
        """

    def leaving(self, key: Any) -> Leaving:
        """What is known, without looking, of the keys behind the contents of this key."""

    def asked(self, key: Any) -> frozenset[bytes]:
        """Runs of content of which `leaving` says nothing: behind these `push` has to be asked."""

    def pointer(self, key: Any) -> str:
        """Which part of the spec the next byte belongs to, as a JSON pointer; "" for all of it."""


@runtime_checkable
class Swift(Rules, Protocol):
    """Rules that know whole runs of bytes, so that fewer keys are needed."""

    def runs(self, key: Any) -> tuple[bytes, ...] | None:
        """All that may come next, in ascending order; None: only `following` tells.

        Every output that goes on begins with one of them; each may come to its end, and the output
        may not end inside of it.
        """

    def run(self, key: Any, data: bytes) -> Key | None:
        """The key behind some bytes, as if they were pushed; None where no output goes on so."""

    def ahead(self) -> Iterator[tuple[Content, ...]]:
        """Contents that an output may come to, those that it comes to sooner first."""

    def widened(self, key: Any) -> Key:
        """A key, perhaps this one, where as much may come and hardly more; one for many.

        What those have in common is what nothing but chance would make a difference to: as an
        output goes on, it must not repeat some of what it has written.
        """

    def same(self, key: Any) -> tuple[int, Hashable] | None:
        """What is the same behind all runs that leave the contents `Leaving.ALIKE`; None: nothing.

        Returns:
            How many bytes do the same behind them, but for those that are `asked`; and a name. Keys
            of one name lead to where the same bytes do the same.
        """


_UNKNOWN = (b"",)
"""Runs of a state that nobody has asked for."""
_NONE = 1 << 60
"""More tokens than any budget has."""


class State:
    """A place in an output; one object for each key of an automaton.

    Args:
        key: What the rules know of it; None: it is the key itself.
        accepting: Whether the output may end here.

    Attributes:
        key: What the rules know of it.
        number: Its own in the automaton; below 0: this does not keep it.
        accepting: Whether the output may end here.
        masks: What has been made of this state for masks; owned by `masks.py`.
        closing: The tokens that complete the output from here; owned by `closing.py`.
        enough: So many surely do; owned by it too.
    """

    __slots__ = (
        "_completion",
        "_following",
        "_runs",
        "accepting",
        "closing",
        "enough",
        "key",
        "masks",
        "number",
    )

    def __init__(self, key: Key | None, accepting: bool) -> None:
        self.key: Key = self if key is None else key
        self.number = -1
        self.accepting = accepting
        self.masks: Any = None
        self.closing: Any = None
        self.enough = _NONE
        self._following: bytes | None = None
        self._completion: bytes | None = None
        self._runs: tuple[bytes, ...] | None = _UNKNOWN

    def __repr__(self) -> str:
        return f"<State{', may end' if self.accepting else ''}>"


class Automaton:
    """All states of one grammar. Thread-safe: what it keeps is a cache, no more.

    Args:
        rules: What is allowed.

    Attributes:
        alike: What has been found out of states that do the same; owned by `masks.py`.
        masked: The states that have masks, in the order of these; owned by `masks.py`.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.alike: dict[Hashable, Any] = {}
        self.masked: deque[State] = deque()
        self._swift = rules if isinstance(rules, Swift) else None
        self._open: set[Content] = set()
        self._states: dict[Key, State] = {}  # of keys that are none themselves
        self._kept: list[State] = []
        self._numbers = count()
        self._ways: dict[int | tuple[int, bytes], State | None] = {}  # by the numbers of states
        self.start = self._state(rules.start())

    def __len__(self) -> int:
        """States that are kept."""
        return len(self._kept)

    def push(self, state: State, byte: int) -> State | None:
        """The state behind one more byte; None where no output goes on so."""
        way = state.number << 8 | byte
        found = self._ways.get(way)
        if found is None and way not in self._ways:
            key = self.rules.push(state.key, byte)
            found = None if key is None else self._state(key)
            self._keep(way, found)
        return found

    def run(self, state: State, data: bytes) -> State | None:
        """The state behind some bytes; None where no output goes on so."""
        if self._swift is None or len(data) < 2:
            for byte in data:
                onward = self.push(state, byte)
                if onward is None:
                    return None
                state = onward
            return state
        way = (state.number, data)
        found = self._ways.get(way)
        if found is None:
            key = self._swift.run(state.key, data)
            if key is None:
                return None
            found = self._state(key)
            if len(data) <= MAX_RUN:
                self._keep(way, found)
        return found

    @property
    def is_swift(self) -> bool:
        """Whether its rules know runs of bytes (see `Swift`)."""
        return self._swift is not None

    def ahead(self) -> Iterator[tuple[Content, ...]]:
        """Contents that an output may come to (see `Swift`)."""
        return iter(()) if self._swift is None else self._swift.ahead()

    def same(self, state: State) -> tuple[int, Hashable] | None:
        """What is the same behind contents of a state (see `Swift`); None: nothing is known."""
        return None if self._swift is None else self._swift.same(state.key)

    def widened(self, state: State) -> State:
        """A state where as much may come and hardly more (see `Swift`)."""
        if self._swift is None:
            return state
        key = self._swift.widened(state.key)
        return state if key is state.key else self._state(key)

    def runs(self, state: State) -> tuple[bytes, ...] | None:
        """Runs of bytes, one of which comes next (see `Swift`); None: none are known."""
        if state._runs is _UNKNOWN:
            state._runs = None if self._swift is None else self._swift.runs(state.key)
        return state._runs

    def following(self, state: State) -> bytes:
        """The bytes that may come next, in ascending order."""
        if state._following is None:
            state._following = self.rules.following(state.key)
        return state._following

    def completion(self, state: State) -> bytes:
        """The fewest bytes (or nearly) that complete the output."""
        if state._completion is None:
            state._completion = self.rules.completion(state.key)
        return state._completion

    def forced(self, state: State, most: int = 4096) -> bytes:
        """The bytes that must come next, up to where there is a choice or the output may end."""
        return self.forced_to(state, most)[0][:most]

    def forced_to(self, state: State, most: int) -> tuple[bytes, State]:
        """The same, or some more where they are as many as ``most``; and the state behind them."""
        if self._swift is None or state.accepting:
            return self._forced_one_by_one(state, most)
        swift, key, found = self._swift, state.key, b""
        runs = self.runs(state)
        while len(found) < most:
            run = (
                _beginning_of(runs) if runs else b"" if self._is_open(key) else swift.following(key)
            )
            if not run or (not runs and len(run) > 1):
                break
            found += run
            key = swift.run(key, run)
            assert key is not None, "what is forced leads somewhere"
            if swift.accepting(key):
                break
            runs = swift.runs(key)
        return found, self._state(key) if found else state

    def _forced_one_by_one(self, state: State, most: int) -> tuple[bytes, State]:
        found = bytearray()
        while not state.accepting and len(found) < most:
            following = self.following(state)
            if len(following) != 1:
                break
            found += following
            onward = self.push(state, following[0])
            assert onward is not None, "what is forced leads somewhere"
            state = onward
        return bytes(found), state

    def _is_open(self, key: Key) -> bool:
        """Whether there surely is a choice; False where only `following` tells."""
        for content in self.rules.contents(key):
            if content in self._open:
                return True
            table, state = content
            if all(table.push(state, byte) >= 0 for byte in LETTERS):
                if len(self._open) >= MAX_OPEN:
                    self._open.clear()
                self._open.add(content)
                return True
        return False

    def _keep(self, way: int | tuple[int, bytes], onward: State | None) -> None:
        """Remember where a byte or a run leads from a state, None: nowhere."""
        if len(self._ways) >= MAX_WAYS:
            self._ways.clear()
        self._ways[way] = onward

    def _state(self, key: Key) -> State:
        if isinstance(key, State):
            found: State | None = key
        else:
            found = self._states.get(key)
            if found is None:
                found = self._states.setdefault(key, State(key, self.rules.accepting(key)))
        assert found is not None
        if found.number < 0:
            if len(self._kept) >= MAX_KEPT:
                self._forget()
            found.number = next(self._numbers)
            self._kept.append(found)
        return found

    def _forget(self) -> None:
        """Let all states go; the start is kept anew, else what it leads to would stay for ever."""
        kept, self._kept = self._kept, []
        for state in kept:
            state.masks = state.closing = None
            if state.number >= 0:
                state.number = -2 - state.number  # still its own, for those who stand there
        self._states.clear()
        self._ways.clear()
        self.alike.clear()
        self.masked = deque()  # others may still look at the old one
        start, self.start.number = self.start, next(self._numbers)
        self._kept.append(start)
        if start.key is not start:
            self._states[start.key] = start


def _beginning_of(runs: tuple[bytes, ...]) -> bytes:
    """What runs in ascending order all begin with."""
    first, last = runs[0], runs[-1]
    if first is last or first[0] != last[0]:
        return first if first is last else b""
    end = next((at for at, byte in enumerate(first) if byte != last[at]), len(first))
    return first[:end]
