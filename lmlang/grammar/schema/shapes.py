"""What a JSON Schema comes to: nodes, each a union of shapes, each of one JSON type.

    node 0   object { "name": node 1, "tags": node 2, others: none }     or   null
    node 1   string of a language
    node 2   array of node 1, 0 to 5

Every keyword has become part of a shape: unions stand beside each other (several shapes of one
node may hold for the same value), complements have been pushed into the leaves. No shape of a
node is empty, and what a shape names can be filled: a name whose value would be empty is not among
its names and not among its others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lmlang.grammar.language import Language
from lmlang.grammar.schema.numbers import Numbers

Node: TypeAlias = int
"""A part of a schema, or what several parts come to together."""


@dataclass(frozen=True, slots=True)
class Word:
    """One of null, true and false."""

    text: bytes


@dataclass(frozen=True, slots=True)
class String:
    """Strings of a language.

    Args:
        language: Which.
        free: Whether every spelling with escapes is allowed; else there is one.
    """

    language: Language
    free: bool


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers of a set."""

    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Tally:
    """How many items of an array are of a node.

    Args:
        inside: The items that count.
        outside: All others: the complement; anything where ``most`` is None.
        least: How many at least.
        most: How many at most; None: any number.
    """

    inside: Node
    outside: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Array:
    """Arrays.

    Args:
        prefix: Nodes of the first items.
        rest: Node of all others; None: there are none.
        least: Items at least.
        most: Items at most; None: any number. Never more than there can be.
        tallies: What some items must be besides.
        unique: Whether no two items are equal.
    """

    prefix: tuple[Node, ...]
    rest: Node | None
    least: int
    most: int | None
    tallies: tuple[Tally, ...] = ()
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """A property that the schema names, at its place in the order.

    Args:
        key: The key.
        node: Of its value.
        required: Whether it must be there.
    """

    key: str
    node: Node
    required: bool


@dataclass(frozen=True, slots=True)
class Others:
    """Properties that it does not name.

    Args:
        keys: Their keys; none of the schema's names, nor a key of the other `Others`.
        node: Of their values.
    """

    keys: Language
    node: Node


@dataclass(frozen=True, slots=True)
class Some:
    """At least one property, named or not, whose key is of a language must have such a value.

    Args:
        keys: The language.
        node: Of the value, besides what the property must be anyway.
    """

    keys: Language
    node: Node


@dataclass(frozen=True, slots=True)
class Object:
    """Objects.

    Args:
        names: In their order, which is the order of the output.
        others: What may come behind them, in any order.
        least: Properties at least.
        most: Properties at most; None: any number.
        some: What must be there besides.
    """

    names: tuple[Name, ...]
    others: tuple[Others, ...]
    least: int
    most: int | None
    some: tuple[Some, ...] = ()


Shape: TypeAlias = Word | String | Number | Array | Object


def inner_nodes(shape: Shape) -> tuple[Node, ...]:
    """The nodes of the items or properties of a shape."""
    if isinstance(shape, Array):
        return shape.prefix if shape.rest is None else (*shape.prefix, shape.rest)
    if isinstance(shape, Object):
        named = [name.node for name in shape.names]
        return tuple(dict.fromkeys(named + [others.node for others in shape.others]))
    return ()


class Graph(Protocol):
    """The nodes of one schema; complete when it has been compiled, immutable from then on."""

    root: Node

    def shapes(self, node: Node) -> tuple[Shape, ...]:
        """What a node comes to; none where it is empty."""

    def both(self, one: Node, other: Node) -> Node:
        """The node of what is of both; every pair that shapes imply is known after compiling."""

    def shortest(self, node: Node) -> bytes | None:
        """The shortest JSON text of a node in the style of the spec; None where it is empty."""

    def pointer(self, node: Node) -> str:
        """Where in the schema it comes from."""
