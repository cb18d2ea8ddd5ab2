"""A level inside of an array, between its brackets."""

from __future__ import annotations

from typing import NamedTuple

from lmlang.grammar.automaton import Content
from lmlang.grammar.schema.array_plan import ArrayPlan, Spot
from lmlang.grammar.schema.moves import Context, Goals, Move, Phase, Start, ended
from lmlang.grammar.schema.shapes import Node

COMMA, CLOSE = ord(","), ord("]")


class Reading(NamedTuple):
    """One way to understand an array."""

    goal: Node
    plan: ArrayPlan
    spot: Spot


class Items(NamedTuple):
    """Inside of an array.

    Attributes:
        readings: How it may be understood; with `written`, all by one plan.
        phase: Where between the items.
        rest: White space, and a bracket behind it, that is still to come.
        depth: Of the array, where it is indented; else 0.
        canonical: Whether it has one spelling.
        written: The texts of its items where no two may be equal; None: they may.
    """

    readings: tuple[Reading, ...]
    phase: Phase
    rest: bytes
    depth: int
    canonical: bool
    written: frozenset[bytes] | None

    @property
    def goals(self) -> Goals:
        """What it may still turn out to be."""
        return tuple(sorted({reading.goal for reading in self.readings}))

    def push(self, byte: int, context: Context) -> tuple[Move, ...]:
        """What one more byte does."""
        layout = context.layout
        if self.rest:
            return self._literal(self.rest, byte, context)
        closing = layout.ending((), self.phase is Phase.OPEN, self.depth, b"]")
        if byte == closing[0]:
            done = tuple([r for r in self.readings if r.plan.may_end(r.spot)])
            return self._at(done, Phase.CLOSING, b"")._literal(closing, byte, context)
        wanting = tuple([r for r in self.readings if r.plan.items(r.spot)])
        before = self._at(wanting, Phase.BEFORE, b"")
        if self.phase is Phase.AFTER:
            return before._literal(layout.between(self.depth), byte, context)
        opening = layout.opening(self.depth)
        if opening:
            return before._literal(opening, byte, context)
        return tuple([Move(move.frame, move.inner, True) for move in before._begun(context)])

    def following(self, context: Context) -> bytes:
        """The bytes that do something, but for those of an item that begins at once."""
        if self.rest:
            return self.rest[:1]
        tried = {COMMA, CLOSE, *context.layout.closing(self.depth)[:1]}
        found = {b for b in tried if any(not move.again for move in self.push(b, context))}
        return bytes(sorted(found))

    def runs(self, context: Context) -> tuple[bytes, ...] | None:
        """Where an item may begin there are many."""
        return (self.rest,) if self.rest and self.written is None else None

    def run(self, data: bytes, at: int) -> tuple[Items, int]:
        """Byte by byte."""
        return self, at

    def begins(self, context: Context) -> Start | None:
        """The item that begins with the next byte, if one may."""
        if self.phase is not Phase.OPEN or context.layout.indent:
            return None
        moves = self.push(COMMA, context)
        return moves[0].inner if moves else None

    def ended(self) -> Goals:
        """An array does not end by itself."""
        return ()

    def contents(self) -> tuple[Content, ...]:
        """White space and brackets have no tables."""
        return ()

    def resume(self, goals: Goals, text: bytes | None) -> Items:
        """Behind an item that is of some goals."""
        onward: dict[Reading, None] = {}
        for goal, plan, spot in self.readings:
            for node, then in plan.items(spot):
                if node in goals:
                    onward[Reading(goal, plan, then)] = None
                    break
        written = self.written
        if written is not None and text is not None:
            written = written | {text}
        return Items(tuple(onward), Phase.AFTER, b"", self.depth, self.canonical, written)

    def finish(self, context: Context) -> tuple[bytes, Goals]:
        """The fewest bytes, or nearly, that end the array."""
        layout, inner = context.layout, context.layout.inner(self.depth)
        if self.phase is Phase.CLOSING:
            return self.rest, self.goals
        best: tuple[int, Reading, Node | None, Spot] | None = None
        for reading in self.readings:
            options: list[tuple[int, Node | None, Spot]] = [(0, None, reading.spot)]
            if self.phase is Phase.BEFORE:
                items = reading.plan.items(reading.spot)
                options = [(len(context.text(n, 0)), n, then) for n, then in items]
            for size, node, spot in options:
                cost = reading.plan.cost(spot)
                if cost is not None and (best is None or size + cost < best[0]):
                    best = (size + cost, reading, node, spot)
        assert best is not None, "every reading has an end"
        _, reading, item, spot = best
        text = b"" if item is None else context.text(item, inner)
        first = self.phase is Phase.OPEN
        text += reading.plan.ending(spot, first, self.depth, layout)
        return self.rest + text, (reading.goal,)

    def _literal(self, text: bytes, byte: int, context: Context) -> tuple[Move, ...]:
        """The first byte of what must come now."""
        if byte != text[0] or not self.readings:
            return ()
        if text[1:]:
            return (Move(self._at(self.readings, self.phase, text[1:])),)
        return ended(self.goals) if self.phase is Phase.CLOSING else self._begun(context)

    def _begun(self, context: Context) -> tuple[Move, ...]:
        """The next item begins."""
        nodes = {item.node for r in self.readings for item in r.plan.items(r.spot)}
        if not nodes:
            return ()
        depth = context.layout.inner(self.depth)
        start = Start(tuple(sorted(nodes)), depth, self.canonical)
        return (Move(self._at(self.readings, Phase.WAIT, b""), start),)

    def _at(self, readings: tuple[Reading, ...], phase: Phase, rest: bytes) -> Items:
        return Items(readings, phase, rest, self.depth, self.canonical, self.written)
