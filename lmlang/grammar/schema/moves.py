"""What a byte does to one level of an output: it goes on, a value begins inside, or it has ended.

    [1, {"a": 2      level 0   an array, behind 1, waits for its item
                     level 1   an object, waits for the value of "a"
                     level 2   a number

A level holds all readings that are still possible: of each goal, which is a node that the value may
turn out to be of, the places inside of its shapes. When the value has ended, the goals that it has
reached move the readings of the level around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from lmlang.grammar.automaton import Content
from lmlang.grammar.schema.shapes import Node
from lmlang.grammar.schema.style import Layout

Goals: TypeAlias = tuple[Node, ...]
"""Nodes in ascending order."""


class Phase(IntEnum):
    """Where inside of an array or object, between its values and keys."""

    OPEN, BEFORE, COLON, WAIT, AFTER, CLOSING = range(6)
    """Behind the bracket; in the white space before an item or key; behind a key; at a value;
    behind a value; in the white space before the closing bracket."""


class Start(NamedTuple):
    """A value that begins.

    Attributes:
        goals: What it may turn out to be.
        depth: Of the value, where it is indented; else 0.
        canonical: Whether it has one spelling.
    """

    goals: Goals
    depth: int
    canonical: bool


class Frame(Protocol):
    """What is known at one level; immutable, equal ones have the same future.

    They are named tuples, as many of them are made, compared and hashed; no two kinds are equal.
    """

    @property
    def goals(self) -> Goals:
        """What the value may still turn out to be."""

    def push(self, byte: int, context: Context) -> tuple[Move, ...]:
        """What one more byte does; several moves where it can only be read in separate ways."""

    def following(self, context: Context) -> bytes:
        """The bytes that do something, but for those that end a number."""

    def runs(self, context: Context) -> tuple[bytes, ...] | None:
        """All that comes next, in ascending order (see `automaton.Swift`); None: not known.

        No value begins or ends inside of a run.
        """

    def run(self, data: bytes, at: int) -> tuple[Frame, int]:
        """The frame behind some of the bytes from a place on, and the place behind these.

        It may be as if none of them had come; no value begins or ends with one of them.
        """

    def begins(self, context: Context) -> Start | None:
        """The value inside that begins with the next byte, if one may."""

    def ended(self) -> Goals:
        """What the value is of if it ends without another byte, as a number does."""

    def finish(self, context: Context) -> tuple[bytes, Goals]:
        """The fewest bytes, or nearly, that end the value, and what it is of then."""

    def contents(self) -> tuple[Content, ...]:
        """Tables for the bytes that come next (see `automaton.Rules`)."""


class Move(NamedTuple):
    """What one byte does to a level.

    Attributes:
        frame: What the level becomes; None: the value has ended with this byte.
        inner: The value that begins inside; None: none.
        again: Whether the byte belongs to the value that begins.
        goals: What the value that has ended is of.
    """

    frame: Frame | None
    inner: Start | None = None
    again: bool = False
    goals: Goals = ()


@dataclass(frozen=True, slots=True)
class Context:
    """What frames need to know besides.

    Args:
        layout: White space.
        shortest: The shortest text of a node at depth 0; None where there is none.
    """

    layout: Layout
    shortest: Callable[[Node], bytes | None]

    def text(self, node: Node, depth: int) -> bytes:
        """The shortest text of a node that has one, at a depth."""
        found = self.shortest(node)
        assert found is not None, f"node {node} is empty"
        return self.layout.at(depth, found)


def ended(goals: Goals) -> tuple[Move, ...]:
    """The move by which a value ends."""
    return (Move(None, goals=goals),) if goals else ()
