"""A nondeterministic automaton over characters, as nodes that are numbered.

    [x] reads a character of a set      ^ asserts, or looks around: goes on where that holds
    <   goes on in any of its ways      0 is the end, 1 reads all that comes

Source: Thompson, "Regular expression search algorithm" (1968).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from lmlang.grammar.charset import Ranges

END, ANYTHING = 0, 1
"""The node at the end of every automaton, and one that reads all that comes and ends anywhere."""


class Assertion(Enum):
    r"""What must hold between two characters."""

    BEGINNING = r"\A"
    BEGINNING_OF_LINE = "^"
    DOLLAR = "$"
    END_OF_LINE = "$ of a line"
    END = r"\Z"
    BOUNDARY = r"\b"
    NO_BOUNDARY = r"\B"
    ASCII_BOUNDARY = r"\b in ASCII"
    NO_ASCII_BOUNDARY = r"\B in ASCII"
    ECMA_NO_BOUNDARY = r"\B of ECMA-262"

    @property
    def looks_back_only(self) -> bool:
        """Whether what comes behind does not matter."""
        return self in (Assertion.BEGINNING, Assertion.BEGINNING_OF_LINE)


@dataclass(frozen=True, slots=True)
class Look:
    """What must, or must not, match from a place on, or up to it.

    Args:
        spelling: Which part of a pattern it is, as in `Automaton.positions`.
        start: Where the nodes of it begin; they lead to `ANYTHING`, or to `END` if it looks back.
        negated: Whether it must not match.
        monitor: For one that looks back its number among the `monitors`.
    """

    spelling: str
    start: int
    negated: bool = False
    monitor: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One node: reads a character, or asserts, or looks around, or does none of it.

    Args:
        onward: Nodes that come next.
        reads: Number of the set whose characters it reads; None: none.
        asserts: What it asserts; None: nothing.
        looks: What it looks for; None: nothing.
    """

    onward: tuple[int, ...]
    reads: int | None = None
    asserts: Assertion | None = None
    looks: Look | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """An automaton; immutable.

    Args:
        nodes: `END` and `ANYTHING` first; those that lead nowhere have no ``onward``.
        start: Where it begins.
        monitors: Where the look-behinds begin.
        sets: What the nodes read.
        positions: Of parts of the pattern by their spelling, for messages.
        pattern: What it was made from; of several the last one.
    """

    nodes: tuple[Node, ...]
    start: int
    monitors: tuple[int, ...]
    sets: tuple[Ranges, ...]
    positions: dict[str, int]
    pattern: str

    @property
    def may_be_empty(self) -> bool:
        """Whether it may match no character at all."""
        return self.start in leading_to(self.nodes, [END])


def leading_to(nodes: Sequence[Node], goals: Iterable[int]) -> set[int]:
    """The nodes that lead to a goal without reading a character, if all assertions hold."""
    before: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        if node.reads is None:
            for other in node.onward:
                before[other].append(number)
    found = set(goals)
    todo = list(found)
    while todo:
        new = [number for number in before[todo.pop()] if number not in found]
        found.update(new)
        todo += new
    return found


def pruned(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes, without ways that do not lead to an end."""
    before: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for other in node.onward:
            before[other].append(number)
    alive, todo = {END, ANYTHING}, [END, ANYTHING]
    while todo:
        for number in before[todo.pop()]:
            if number not in alive:
                alive.add(number)
                todo.append(number)
    return tuple(
        node
        if alive.issuperset(node.onward)
        else replace(node, onward=tuple(other for other in node.onward if other in alive))
        for node in nodes
    )


def without_anchors(automaton: Automaton) -> Automaton:
    r"""The same for whole texts, where all that is asserted is their beginning and their end.

    What lies behind a ``\A`` is reached at the beginning or never; what lies behind a ``\Z`` is an
    end or nothing. An automaton that asserts something else, or looks around, stays as it is.
    """
    nodes = automaton.nodes
    asserted = {node.asserts for node in nodes} - {None}
    if not asserted or asserted - _ANCHORS or any(node.looks is not None for node in nodes):
        return automaton
    ends = {Assertion.END, Assertion.DOLLAR}
    first = _reached(nodes, (automaton.start,), {Assertion.BEGINNING})
    changed = list(nodes)
    for number, node in enumerate(nodes):
        if node.asserts is Assertion.BEGINNING:
            changed[number] = Node(())
        elif node.asserts is not None:
            behind = _reached(nodes, node.onward, ends)
            if any(nodes[other].asserts is Assertion.BEGINNING for other in behind):
                return automaton  # as in $^, which only the empty text has
            changed[number] = Node((END,) if behind & {END, ANYTHING} else ())
    begun = [
        number
        for number in sorted(first)
        if number == END or nodes[number].reads is not None or nodes[number].asserts in ends
    ]
    changed.append(Node(tuple(begun)))
    return replace(automaton, nodes=pruned(changed), start=len(nodes))


_ANCHORS = {Assertion.BEGINNING, Assertion.END, Assertion.DOLLAR}


def _reached(nodes: Sequence[Node], starts: Iterable[int], through: set[Assertion]) -> set[int]:
    """What lies behind some nodes without a character, some assertions taken to hold."""
    found, todo = set[int](), list(starts)
    while todo:
        number = todo.pop()
        if number not in found:
            found.add(number)
            node = nodes[number]
            if node.reads is None and (node.asserts is None or node.asserts in through):
                todo += node.onward
    return found
