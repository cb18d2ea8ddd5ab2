"""Places between the properties of an object, and what may come there."""

from __future__ import annotations

from typing import NamedTuple

from lmlang.grammar.language import Language
from lmlang.grammar.schema.shapes import Node

NONE: frozenset[bytes] = frozenset()
"""No keys."""
MANY = 4096
"""Keys of a cell that are counted at first."""


class Spot(NamedTuple):
    """A place between the properties of an object.

    Attributes:
        next: The first of the names that may still come.
        total: Properties so far; 0 where their number does not matter, and no more than matter.
        open: The demands that are not met yet, as bits.
        written: Keys that are no names and have been written, spelled; where keys must ascend,
            the last one alone.
    """

    next: int
    total: int
    open: int
    written: frozenset[bytes]


class Value(NamedTuple):
    """One thing that the value of a property may be."""

    node: Node
    then: Spot


class Cell(NamedTuple):
    """Keys that are no names and are alike.

    Attributes:
        keys: Them.
        node: Of their values.
        meets: The demands that a value may meet.
        size: How many there are, up to `MANY`.
    """

    keys: Language
    node: Node
    meets: int
    size: int


class Step(NamedTuple):
    """One step of the shortest way to the end: a property; without a key, a name is passed over."""

    key: bytes | None
    node: Node
    then: Spot
