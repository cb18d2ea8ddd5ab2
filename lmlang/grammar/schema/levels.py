"""Levels of outputs: each frame is kept once, with what it has been asked."""

from __future__ import annotations

from bisect import bisect_right
from itertools import count
from typing import NamedTuple, TypeAlias

from lmlang.grammar.automaton import Content
from lmlang.grammar.schema.frames import Numerals, Plans
from lmlang.grammar.schema.items import Items
from lmlang.grammar.schema.members import Key, Members
from lmlang.grammar.schema.moves import Context, Frame, Goals, Move, Phase, Start
from lmlang.grammar.schema.numerals import Texts

MAX_KEPT = 100_000
"""Levels of one schema that are kept."""
MAX_WAYS = 200_000
"""Ways from them that are kept."""


_UNKNOWN = (b"",)
"""Runs of a level that nobody has asked for."""


class Way(NamedTuple):
    """What a byte does to a level (see `Move`)."""

    level: Level | None
    inner: Level | None
    again: bool
    goals: Goals


Ways: TypeAlias = "Level | Way | tuple[Way, ...]"
"""What a byte does to a level: the one that it becomes, where that is all; else one way, several,
or none where the byte is not possible."""


class Level:
    """One level of an output; one object for each frame. Made by `Levels`.

    Attributes:
        frame: What is known of it.
        unique: Whether it is inside of an array whose items must differ.
        needs_item: Whether it is behind the comma of such an array.
        ended: What the value is of if it ends here without another byte.
        rivals: What an item that begins in it must not become; None: nobody has asked.
    """

    __slots__ = (
        "_contents", "_finish", "_following", "_levels", "_like", "_number", "_resumed", "_runs",
        "_strides", "ended", "frame", "needs_item", "rivals", "unique",
    )  # fmt: skip

    def __init__(self, frame: Frame | Start, levels: Levels) -> None:
        self.frame = frame
        self._levels = levels
        self._number = next(levels.numbers)
        self._like: Level | None = None if isinstance(frame, Key) else self
        self.unique = isinstance(frame, Items) and frame.written is not None
        self.needs_item = self.unique and isinstance(frame, Items) and frame.phase is Phase.BEFORE
        self.ended: Goals = () if isinstance(frame, Start) else frame.ended()
        self.rivals: Texts | None = None
        waits = isinstance(frame, (Start, Numerals))
        self._strides = bool(frame.rest) if isinstance(frame, (Members, Items)) else not waits
        self._resumed: dict[tuple[Goals, bytes | None], Level] | None = None
        self._finish: tuple[bytes, Goals] | None = None
        self._following: bytes | None = None
        self._contents: tuple[Content, ...] | None = None
        many = isinstance(frame, Key) and frame.states
        self._runs: tuple[bytes, ...] | None = None if many else _UNKNOWN

    @property
    def goals(self) -> Goals:
        """What the value may still turn out to be."""
        return self.frame.goals

    @property
    def like(self) -> Level:
        """One in which the same may come, perhaps itself: what is asked of it serves many."""
        found = self._like
        if found is None:
            assert isinstance(self.frame, Key), "other levels are like no others"
            like = self.frame.like()
            found = self._like = self if like is self.frame else self._levels.of(like)
        return found

    def push(self, byte: int) -> Ways:
        """What one more byte does."""
        ways, way = self._levels.ways, self._number << 8 | byte
        found = ways.get(way)
        if found is None:
            found = self._levels.push(self.frame, byte)
            if len(ways) >= MAX_WAYS:
                ways.clear()
            ways[way] = found
        return found

    def stride(self, data: bytes, at: int) -> tuple[Ways, int]:
        """What some of the bytes from a place on do, and the place behind these."""
        runs = self._runs
        if runs is _UNKNOWN:
            runs = self.runs()
        if runs:
            run = runs[bisect_right(runs, data[at:]) - 1]
            if len(run) > 1 and data.startswith(run, at):
                return self.along(run), at + len(run)
        frame = self.frame
        if self._strides and not isinstance(frame, Start):
            onward, end = frame.run(data, at)
            if end > at:
                return self if onward is frame else self._along_key(self._levels.of(onward)), end
        return self.push(data[at]), at + 1

    def _along_key(self, onward: Level) -> Level:
        """A level behind more of a key; what this one is like, that one is like too.

        Where as many states are left and they are the same, no way to read it has been lost.
        """
        like, frame, longer = self._like, self.frame, onward.frame
        if onward._like is None and like is not None and like is not self:
            assert isinstance(frame, Key), "others are like themselves"
            assert isinstance(longer, Key), "it has not ended"
            if longer.states == frame.states:
                onward._like = like
        return onward

    def along(self, run: bytes) -> Ways:
        """What one of its runs does."""
        ways, way = self._levels.ways, (self._number, run)
        found = ways.get(way)
        if found is None:
            found = self._levels.along(self.frame, run)
            if len(ways) >= MAX_WAYS:
                ways.clear()
            ways[way] = found
        return found

    def runs(self) -> tuple[bytes, ...] | None:
        """All that comes next (see `automaton.Swift`); None: not known."""
        if self._runs is _UNKNOWN:
            self._runs = self._levels.runs(self.frame)
        return self._runs

    def resume(self, goals: Goals, text: bytes | None) -> Level:
        """The level behind a value inside that is of some goals.

        Args:
            goals: What it is of.
            text: Its text, where items must differ.
        """
        resumed = self._resumed
        if resumed is None:
            resumed = self._resumed = {}
        found = resumed.get((goals, text))
        if found is None:
            frame = self.frame
            assert isinstance(frame, (Items, Members)), "no value begins in others"
            found = resumed[goals, text] = self._levels.of(frame.resume(goals, text))
        return found

    def following(self) -> bytes:
        """The bytes that do something, but for those that end a number."""
        found = self._following
        if found is None:
            runs = self.runs()
            if runs is not None:
                found = bytes(sorted({run[0] for run in runs}))
            elif self.like is not self:
                found = self.like.following()
            else:
                found = self._levels.following(self.frame)
            self._following = found
        return found

    def finish(self) -> tuple[bytes, Goals]:
        """The fewest bytes, or nearly, that end the value, and what it is of then."""
        found = self._finish
        if found is None:
            like = self.like
            found = self._levels.finish(self.frame) if like is self else like.finish()
            self._finish = found
        return found

    def contents(self) -> tuple[Content, ...]:
        """Tables for the bytes that come next (see `automaton.Rules`)."""
        found = self._contents
        if found is None:
            like, frame = self.like, self.frame
            if like is not self:
                found = like.contents()
            else:
                found = () if isinstance(frame, Start) else frame.contents()
            self._contents = found
        return found

    def forget(self) -> None:
        """Drop the levels that it leads to."""
        self._resumed = None


class Levels:
    """All levels of one schema. Thread-safe: what it keeps is a cache.

    Args:
        plans: The shapes.
        context: What frames need to know.
        start: The whole output.

    Attributes:
        start: The level of the whole output.
        numbers: The numbers of its levels.
        ways: What bytes and runs do to levels, by their numbers.
    """

    def __init__(self, plans: Plans, context: Context, start: Start) -> None:
        self._plans = plans
        self._context = context
        self._levels: dict[Frame | Start, Level] = {}
        self.numbers = count()
        self.ways: dict[int | tuple[int, bytes], Ways] = {}
        self.start = self.of(start)

    def of(self, frame: Frame | Start) -> Level:
        """The level of a frame."""
        found = self._levels.get(frame)
        if found is None:
            if len(self._levels) >= MAX_KEPT:
                for level in list(self._levels.values()):
                    level.forget()
                self._levels.clear()
                self.ways.clear()
                self._levels[self.start.frame] = self.start  # else its ways stay for ever
            found = self._levels.setdefault(frame, Level(frame, self))
        return found

    def widened(self, level: Level) -> Level:
        """A level where at least as much may come (see `automaton.Swift`)."""
        frame = level.frame
        return self.of(frame.widened()) if isinstance(frame, (Members, Key)) else level

    def push(self, frame: Frame | Start, byte: int) -> Ways:
        """What a byte does to a frame, in levels."""
        moves = self._moves(frame, byte)
        if len(moves) == 1:
            onward, inner, _, _ = moves[0]
            if inner is None and onward is not None:
                return self.of(onward)
            return self._way(moves[0])
        return tuple([self._way(move) for move in moves])

    def along(self, frame: Frame | Start, run: bytes) -> Ways:
        """What a run does to a frame, in levels."""
        at, inside = 0, run[:-1]
        while at < len(inside):
            if not isinstance(frame, Start):
                frame, end = frame.run(inside, at)
                if end > at:
                    at = end
                    continue
            ((onward, inner, _, _),) = self._moves(frame, inside[at])
            assert onward is not None, "no value ends inside of a run"
            assert inner is None, "no value begins inside of a run"
            frame, at = onward, at + 1
        return self.push(frame, run[-1])

    def _moves(self, frame: Frame | Start, byte: int) -> tuple[Move, ...]:
        if isinstance(frame, Start):
            return self._plans.push(frame, byte)
        return frame.push(byte, self._context)

    def runs(self, frame: Frame | Start) -> tuple[bytes, ...] | None:
        """All that comes next in a frame; None: not known."""
        if isinstance(frame, Start):
            return self._plans.runs(frame)
        return frame.runs(self._context)

    def following(self, frame: Frame | Start) -> bytes:
        """The bytes that do something to a frame."""
        if isinstance(frame, Start):
            return self._plans.following(frame)
        found = frame.following(self._context)
        begins = frame.begins(self._context)
        if begins is None:
            return found
        return bytes(sorted({*found, *self._plans.following(begins)}))

    def finish(self, frame: Frame | Start) -> tuple[bytes, Goals]:
        """The fewest bytes, or nearly, that end the value of a frame."""
        if isinstance(frame, Start):
            return self._plans.finish(frame)
        return frame.finish(self._context)

    def _way(self, move: Move) -> Way:
        frame, inner, again, goals = move
        level = None if frame is None else self.of(frame)
        return Way(level, None if inner is None else self.of(inner), again, goals)
