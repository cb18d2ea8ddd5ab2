"""Where an output is: a stack of levels, and the items under way that must differ from others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from lmlang.grammar.automaton import Content, State
from lmlang.grammar.schema.levels import Level
from lmlang.grammar.schema.moves import Context, Goals, Move, Start
from lmlang.grammar.schema.numerals import Texts


class Begun(NamedTuple):
    """An item, under way, of an array whose items must differ.

    Attributes:
        typed: Its text so far.
        rivals: The texts that it must not become.
        first: The first of them that begins so.
        last: Behind the last one.
    """

    typed: bytes
    rivals: Texts
    first: int
    last: int

    def on(self, byte: int) -> Begun:
        """Behind one more byte."""
        typed = self.typed + bytes((byte,))
        if self.first == self.last:
            return Begun(typed, NO_TEXTS, 0, 0)
        first = bisect_left(self.rivals, typed, self.first, self.last)
        last = bisect_left(self.rivals, typed + b"\xff", first, self.last)
        return (
            Begun(typed, self.rivals, first, last) if first < last else Begun(typed, NO_TEXTS, 0, 0)
        )

    def is_rival(self) -> bool:
        """Whether it is a text that it must not become."""
        return self.first < self.last and self.rivals[self.first] == self.typed

    def left(self) -> Iterator[bytes]:
        """The rests of the rivals that begin as it does."""
        size = len(self.typed)
        return (rival[size:] for rival in self.rivals[self.first : self.last])

    def heads(self) -> set[int]:
        """The bytes with which those go on."""
        found, size, at = set[int](), len(self.typed), self.first + self.is_rival()
        while at < self.last:
            head = self.rivals[at][size]
            found.add(head)
            behind = self.typed + bytes((head,)) + b"\xff"
            at = bisect_left(self.rivals, behind, at, self.last)
        return found


NO_TEXTS = Texts()


class Place(State):
    """Where an output is: the last level and those around it; one object for each.

    Attributes:
        outer: The place of the level around it, which waits; None: there is none.
        level: The last level.
        begun: The items under way that must differ from others, the innermost last.
        lives: Whether all of them still can; None: nobody has asked.
        inside: The places whose outer one this is, where no items are under way.
        rest: Goals of a value inside, and the shortest text behind it; None: nobody has asked.
        ending: A completion that has been walked; None: nobody has asked.
        wide: The one of all that differ in the keys that have been written; None: nobody has asked.
    """

    __slots__ = ("begun", "ending", "inside", "level", "lives", "outer", "rest", "wide")

    def __init__(self, outer: Place | None, level: Level, begun: tuple[Begun, ...]) -> None:
        ends = outer is None and (bool(level.ended) or isinstance(level.frame, End))
        super().__init__(None, ends)
        self.outer = outer
        self.level = level
        self.begun = begun
        self.lives: bool | None = None
        self.inside: dict[Level, Place] | None = None
        self.rest: tuple[Goals, bytes] | None = None
        self.ending: bytes | None = None
        self.wide: Place | None = None

    @property
    def is_safe(self) -> bool:
        """Whether no item under way begins like one that it must not become."""
        return not self.level.needs_item and all(item.first == item.last for item in self.begun)

    @property
    def crowd(self) -> int:
        """About how many bytes more it takes to part from all that begin like the items."""
        return sum(len(str(item.last - item.first)) for item in self.begun if item.rivals)


class Fork(NamedTuple):
    """Several ways to read an output that must be told apart."""

    places: tuple[Place, ...]


Where: TypeAlias = Place | Fork
"""The keys of these rules."""


def places_of(key: Where) -> Iterator[Place]:
    """All ways to read an output, each its place."""
    return iter((key,) if isinstance(key, Place) else key.places)


class End(NamedTuple):
    """The frame behind the whole output."""

    goals: Goals = ()

    def push(self, byte: int, context: Context) -> tuple[Move, ...]:
        """Nothing comes."""
        return ()

    def following(self, context: Context) -> bytes:
        """Nothing comes."""
        return b""

    def runs(self, context: Context) -> tuple[bytes, ...] | None:
        """Nothing comes."""
        return ()

    def run(self, data: bytes, at: int) -> tuple[End, int]:
        """Nothing comes."""
        return self, at

    def begins(self, context: Context) -> Start | None:
        """Nothing comes."""
        return None

    def ended(self) -> Goals:
        """There is no value."""
        return ()

    def finish(self, context: Context) -> tuple[bytes, Goals]:
        """Nothing is missing."""
        return b"", ()

    def contents(self) -> tuple[Content, ...]:
        """Nothing comes."""
        return ()
