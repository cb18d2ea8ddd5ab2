"""Where an output may be inside of one rule of a grammar: sets of nodes, alone and as tables."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lmlang.grammar.automaton import DEAD, LEAVE
from lmlang.grammar.ebnf_network import Prepared

MAX_KEPT = 1_000_000
"""Nodes in all spots that are kept for other outputs."""


class Spot:
    """Nodes of one rule, any of which may be where the output is; equal ones are one object.

    Attributes:
        number: Of its own.
        nodes: The nodes.
        calls: A rule that begins here, and the node where it comes back.
        ends: Whether the rule may end here.
        first: Bytes that it reads itself, as bits.
        cost: Bytes of the shortest text to the end of the rule.
        nearest: The node where that text begins.
    """

    __slots__ = ("_all", "_moves", "_ways", "calls", "cost", "ends", "first", "nearest", "nodes",
                 "number")  # fmt: skip

    def __init__(self, number: int, nodes: frozenset[int], spots: Spots) -> None:
        grammar = spots.grammar
        self.number, self.nodes, self._all = number, nodes, spots
        self._moves = [move for node in nodes for move in grammar.moves[node]]
        self.calls = tuple(call for node in nodes for call in grammar.calls[node])
        self.ends = not grammar.ends.isdisjoint(nodes)
        self.first = 0
        for low, high, _ in self._moves:
            self.first |= ((2 << high - low) - 1) << low
        self.nearest = min(nodes, key=lambda node: (grammar.cost[node], node))
        self.cost = grammar.cost[self.nearest]
        self._ways: dict[int, Spot | None] = {}

    @property
    def only_ends(self) -> bool:
        """Whether there is nothing here but the end of the rule."""
        return not (self.first or self.calls)

    def push(self, byte: int) -> Spot | None:
        """Where its own nodes come to by a byte."""
        try:
            return self._ways[byte]
        except KeyError:
            targets = [to for low, high, to in self._moves if low <= byte <= high]
            found = self._ways[byte] = self._all.landed(targets) if targets else None
            return found

    def ways(self) -> list[tuple[int, int, Spot]]:
        """All that `push` leads to: (first byte, byte behind the last, spot), ascending."""
        cuts = sorted({cut for low, high, _ in self._moves for cut in (low, high + 1)})
        found = []
        for low, high in pairwise(cuts):
            spot = self.push(low)
            if spot is not None:
                found.append((low, high, spot))
        return found

    def forget(self) -> None:
        """Let go of where bytes lead."""
        self._ways.clear()


class Spots:
    """All spots of a grammar. Thread-safe."""

    def __init__(self, grammar: Prepared) -> None:
        self.grammar = grammar
        self._known: dict[frozenset[int], Spot] = {}
        self._at: dict[int, Spot] = {}
        self._corners: dict[int, frozenset[int]] = {}
        self._called: dict[int, int] = {}
        self._made = self._kept = 0
        self._lock = threading.Lock()
        self._callers: dict[int, list[tuple[int, int]]] | None = None

    def at(self, node: int) -> Spot:
        """Of a node that is landed on."""
        found = self._at.get(node)
        if found is None:
            found = self._at[node] = self.landed([node])
        return found

    def start(self, rule: int) -> Spot:
        """Where a rule begins."""
        return self.at(self.grammar.starts[rule])

    def landed(self, nodes: Iterable[int]) -> Spot:
        """Of several nodes."""
        return self.of(self.grammar.reach(nodes))

    def of(self, nodes: frozenset[int]) -> Spot:
        """Of nodes that reach nothing else without a byte."""
        found = self._known.get(nodes)
        if found is None:
            with self._lock:
                if self._kept >= MAX_KEPT:
                    for spot in self._known.values():
                        spot.forget()
                    self._known.clear()
                    self._at.clear()
                    self._kept = 0
                self._made += 1
                self._kept += len(nodes) + 1
                found = self._known.setdefault(nodes, Spot(self._made, nodes, self))
        return found

    def unended(self, spot: Spot) -> Spot | None:
        """The spot without the end of the rule; None where nothing is left."""
        if not spot.ends:
            return spot
        nodes = spot.nodes - self.grammar.ends
        return self.of(nodes) if nodes else None

    def inside(self, spot: Spot) -> Spot | None:
        """The nodes that read bytes; None where there are none."""
        if not spot.calls and not spot.ends:
            return spot
        nodes = frozenset(node for node in spot.nodes if self.grammar.moves[node])
        return self.of(nodes) if nodes else None

    def begun(self, rule: int) -> frozenset[int]:
        """A rule and all that begin where it begins."""
        found = self._corners.get(rule)
        if found is None:
            seen, todo = {rule}, [rule]
            while todo:
                onward = {other for other, _ in self.start(todo.pop()).calls} - seen
                seen |= onward
                todo += onward
            found = self._corners[rule] = frozenset(seen)
        return found

    def callers(self, rule: int) -> Sequence[tuple[int, int]]:
        """Rules that call a rule where they begin, and the nodes where it comes back."""
        if self._callers is None:
            callers: dict[int, list[tuple[int, int]]] = {}
            for caller, start in enumerate(self.grammar.starts):
                if start in self.grammar.cost:
                    for called, back in self.start(caller).calls:
                        callers.setdefault(called, []).append((caller, back))
            self._callers = callers
        return self._callers.get(rule, ())

    def called(self, spot: Spot) -> int:
        """The bytes, as bits, that rules read which a spot calls."""
        bits = 0
        for rule, _ in spot.calls:
            if rule not in self._called:
                found = 0
                for each in self.begun(rule):
                    found |= self.start(each).first
                self._called[rule] = found
            bits |= self._called[rule]
        return bits


class EbnfTable:
    """What is read inside of a rule as a table: its states are numbers of spots.

    Args:
        spots: Of the grammar.
        behind: The bytes that may come behind the rule, as bits.
    """

    def __init__(self, spots: Spots, behind: int) -> None:
        self._spots, self._behind = spots, behind
        self._known: dict[int, Spot] = {}
        self._rows: dict[int, Any] = {}

    def state(self, spot: Spot) -> int:
        """The number of a spot, which the table knows from now on."""
        self._known[spot.number] = spot
        return spot.number

    def rows(self, states: Any) -> Any:
        """The rows of some states, int32 [len(states), 256]."""
        return np.stack([self._row(int(state)) for state in states])

    def push(self, state: int, byte: int) -> int:
        """One entry of a row."""
        return int(self._row(state)[byte])

    def following(self, state: int) -> bytes:
        """The bytes that are not `DEAD`, in ascending order."""
        return bytes(np.flatnonzero(self._row(state) != DEAD).tolist())

    def accepting(self, state: int) -> bool:
        """Whether the rule may end here."""
        return self._known[state].ends

    def completion(self, state: int) -> bytes:
        """The fewest bytes to the end of the rule."""
        return self._spots.grammar.shortest(self._known[state].nearest)

    def alike(self, state: int, length: int) -> int:
        """The state itself."""
        return state

    def _row(self, state: int) -> Any:
        row = self._rows.get(state)
        if row is None:
            spot = self._known[state]
            row = np.full(256, DEAD, dtype=np.int32)
            for low, high, onward in spot.ways():
                row[low:high] = self.state(onward)
            asks = self._spots.called(spot) | (self._behind if spot.ends else 0)
            if asks:
                bits = np.frombuffer(asks.to_bytes(32, "little"), dtype=np.uint8)
                row[np.unpackbits(bits, bitorder="little").astype(bool)] = LEAVE
            row.flags.writeable = False
            self._rows[state] = row
        return row
