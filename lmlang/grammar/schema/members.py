"""A level inside of an object, between its braces, and inside of one of its keys."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from lmlang.grammar.automaton import LEAVE, Content
from lmlang.grammar.language import ANY
from lmlang.grammar.schema.escape import can_leave, leaves_all, stays_open
from lmlang.grammar.schema.keys import beginning, count
from lmlang.grammar.schema.moves import Context, Goals, Move, Phase, Start, ended
from lmlang.grammar.schema.object_plan import ObjectPlan, Spot
from lmlang.grammar.schema.shapes import Node
from lmlang.grammar.schema.style import Layout
from lmlang.grammar.tables import Spelling, TextTable, spelled

COMMA, CLOSE, QUOTE = ord(","), ord("}"), ord('"')

NO_NODE: Node = -1
NO_KEY = b"\xff"
"""No key begins so."""


class Reading(NamedTuple):
    """One way to understand an object.

    Attributes:
        spot: Where; behind a key, the spot behind its property.
        node: Behind a key, what its value must be anyway; else `NO_NODE`.
        meets: Behind a key, the demands that the value may meet.
    """

    goal: Node
    plan: ObjectPlan
    spot: Spot
    node: Node = NO_NODE
    meets: int = 0


@dataclass(frozen=True, slots=True)
class Members:
    """Inside of an object, but not of a key.

    Args:
        readings: How it may be understood.
        phase: Where between the properties.
        rest: What is still to come of white space, with a quote or a brace behind it, or a colon.
        depth: Of the object, where it is indented; else 0.
        canonical: Whether it has one spelling.
    """

    readings: tuple[Reading, ...]
    phase: Phase
    rest: bytes
    depth: int
    canonical: bool

    @property
    def goals(self) -> Goals:
        """What it may still turn out to be."""
        return tuple(sorted({reading.goal for reading in self.readings}))

    def push(self, byte: int, context: Context) -> tuple[Move, ...]:
        """What one more byte does."""
        layout = context.layout
        if self.rest:
            return self._literal(self.rest, byte, context)
        closing = layout.ending((), self.phase is Phase.OPEN, self.depth, b"}")
        if byte == closing[0]:
            done = tuple(r for r in self.readings if r.plan.may_end(r.spot))
            return replace(self, readings=done, phase=Phase.CLOSING)._literal(
                closing, byte, context
            )
        wanting = tuple(r for r in self.readings if r.plan.may_go_on(r.spot))
        first = self.phase is Phase.OPEN
        before = layout.opening(self.depth) if first else layout.between(self.depth)
        going_on = replace(self, readings=wanting, phase=Phase.BEFORE)
        return going_on._literal(before + b'"', byte, context)

    def following(self, context: Context) -> bytes:
        """The bytes that do something."""
        if self.rest:
            return self.rest[:1]
        tried = {COMMA, CLOSE, QUOTE, *context.layout.closing(self.depth)[:1]}
        return bytes(sorted(b for b in tried if self.push(b, context)))

    def runs(self, context: Context) -> tuple[bytes, ...] | None:
        """A bracket, and up to the quote of a key."""
        if self.rest:
            return (self.rest,)
        layout, first, found = context.layout, self.phase is Phase.OPEN, list[bytes]()
        if any(r.plan.may_go_on(r.spot) for r in self.readings):
            before = layout.opening(self.depth) if first else layout.between(self.depth)
            found.append(before + b'"')
        if any(r.plan.may_end(r.spot) for r in self.readings):
            found.append(layout.ending((), first, self.depth, b"}"))
        return tuple(sorted(found))

    def run(self, data: bytes, at: int) -> tuple[Members, int]:
        """Byte by byte."""
        return self, at

    def begins(self, context: Context) -> Start | None:
        """No value begins without a key."""
        return None

    def ended(self) -> Goals:
        """An object does not end by itself."""
        return ()

    def contents(self) -> tuple[Content, ...]:
        """White space and braces have no tables."""
        return ()

    def widened(self) -> Members:
        """Where at least as much may come (see `automaton.Swift`)."""
        readings = (r._replace(spot=r.plan.widened(r.spot)) for r in self.readings)
        return replace(self, readings=tuple(dict.fromkeys(readings)))

    def resume(self, goals: Goals, text: bytes | None) -> Members:
        """Behind a value that is of some goals."""
        onward = dict[Reading, None]()
        for goal, plan, spot, base, meets in self.readings:
            for node, then in plan.values(spot, base, meets):
                if node in goals:
                    onward[Reading(goal, plan, then)] = None
                    break
        return Members(tuple(onward), Phase.AFTER, b"", self.depth, self.canonical)

    def finish(self, context: Context) -> tuple[bytes, Goals]:
        """The fewest bytes, or nearly, that end the object."""
        if self.phase is Phase.CLOSING:
            return self.rest, self.goals
        if self.phase is Phase.BEFORE:
            text, goals = self._key().finish(context)
            return self.rest + text, goals
        if self.phase is Phase.COLON:
            _, text, goal = min(valued(self, context), key=lambda found: found[0])
            return self.rest + text, (goal,)
        best: tuple[int, Reading] | None = None
        for reading in self.readings:
            cost = reading.plan.cost(reading.spot)
            if cost is not None and (best is None or cost < best[0]):
                best = (cost, reading)
        assert best is not None, "every reading has an end"
        goal, plan, spot = best[1][:3]
        ending = plan.ending(spot, self.phase is Phase.OPEN, self.depth, context.layout)
        return ending, (goal,)

    def _literal(self, text: bytes, byte: int, context: Context) -> tuple[Move, ...]:
        """The first byte of what must come now."""
        if byte != text[0] or not self.readings:
            return ()
        if text[1:]:
            return (Move(replace(self, rest=text[1:])),)
        if self.phase is Phase.CLOSING:
            return ended(self.goals)
        if self.phase is Phase.BEFORE:
            return (Move(self._key()),)
        nodes = {
            value.node for r in self.readings for value in r.plan.values(r.spot, r.node, r.meets)
        }
        start = Start(tuple(sorted(nodes)), context.layout.inner(self.depth), self.canonical)
        return (Move(replace(self, phase=Phase.WAIT, rest=b""), start),)

    def _key(self) -> Key:
        readings = []
        for goal, plan, spot, *_ in self.readings:
            cells = []
            for number in plan.open_cells(spot):
                table = plan.cell_table(number, spot)
                cells.append((number, table, table.start))
            readings.append(KeyReading(goal, plan, spot, bool(plan.keys(spot)), tuple(cells)))
        return Key(tuple(readings), b"", self.depth, self.canonical)


def valued(members: Members, context: Context) -> Iterator[tuple[int, bytes, Node]]:
    """For each reading behind a key, the shortest value and rest: its size, the text, the goal."""
    layout = context.layout
    for goal, plan, spot, base, meets in members.readings:
        for node, then in plan.values(spot, base, meets):
            value = context.text(node, layout.inner(members.depth))
            cost = plan.cost(then)
            if cost is not None:
                text = value + plan.ending(then, False, members.depth, layout)
                yield len(text), text, goal


class KeyReading(NamedTuple):
    """One way to understand a key that is being written.

    Attributes:
        named: Whether it may be one of the names that may come next.
        cells: Other keys that it may be: the number of the cell, its table, the state in it.
    """

    goal: Node
    plan: ObjectPlan
    spot: Spot
    named: bool
    cells: tuple[tuple[int, TextTable, int], ...]


@dataclass(frozen=True, slots=True)
class Key:
    """Inside of a key of an object.

    Args:
        readings: How it may be understood.
        typed: What has been written of it.
        depth: Of the object, where it is indented; else 0.
        canonical: Whether the object has one spelling.
    """

    readings: tuple[KeyReading, ...]
    typed: bytes
    depth: int
    canonical: bool

    @property
    def goals(self) -> Goals:
        """What the object may still turn out to be."""
        return tuple(sorted({reading.goal for reading in self.readings}))

    @property
    def known(self) -> set[bytes]:
        """Rests with which it is a name, which may not come now, or a key that has been written."""
        found, size = set[bytes](), len(self.typed)
        for _, plan, spot, _, cells in self.readings:
            if cells:
                found.update(self._rivals(plan, spot, self.typed))
                found.update(key[size:] for key in beginning(plan.ascending, self.typed))
        return found

    def push(self, byte: int, context: Context) -> tuple[Move, ...]:
        """What one more byte does."""
        if byte == QUOTE:
            complete = tuple(self._complete())
            if complete:
                colon = context.layout.colon
                members = Members(complete, Phase.COLON, colon, self.depth, self.canonical)
                return (Move(members),)
        onward = self._onward(bytes((byte,)))
        return () if onward is None else (Move(onward),)

    def _onward(self, more: bytes) -> Key | None:
        """The key with some bytes more, as long as it does not end; None where it cannot go on."""
        typed = self.typed + more
        onward = []
        for goal, plan, spot, named, cells in self.readings:
            if named:
                named = count(plan.keys(spot), typed) > 0
            if cells:
                cells = tuple(self._within(plan, spot, cells, typed, more))
            if named or cells:
                onward.append(KeyReading(goal, plan, spot, named, cells))
        return Key(tuple(onward), typed, self.depth, self.canonical) if onward else None

    def following(self, context: Context) -> bytes:
        """The bytes that do something."""
        found, unsure, size = set[int](), set[int](), len(self.typed)
        for _, plan, spot, named, cells in self.readings:
            if named:
                for key in beginning(plan.keys(spot), self.typed):
                    found.add(key[size] if len(key) > size else QUOTE)
            rivals = self._rivals(plan, spot, self.typed) if cells else ()
            taken = {rival[0] if rival else QUOTE for rival in rivals}
            for _, table, state in cells:
                found.update(table.following(state).translate(None, bytes(taken)))
            unsure |= taken
        found.update(byte for byte in unsure - found if self.push(byte, context))
        return bytes(sorted(found))

    def runs(self, context: Context) -> tuple[bytes, ...] | None:
        """The rests of names, if it must be one."""
        if any(reading.cells for reading in self.readings):
            return None
        size, end = len(self.typed), b'"' + context.layout.colon
        rests = {
            key[size:] + end
            for _, plan, spot, _, _ in self.readings
            for key in beginning(plan.keys(spot), self.typed)
        }
        return tuple(sorted(rests))

    def run(self, data: bytes, at: int) -> tuple[Key, int]:
        """Up to a quote, which may end it."""
        end = data.find(QUOTE, at)
        end = len(data) if end < 0 else end
        onward = self._onward(data[at:end]) if end > at else None
        return (self, at) if onward is None else (onward, end)

    def same(self, layout: Layout) -> tuple[int, Hashable] | None:
        """What is the same behind all keys that are no names, unless they are `known`.

        Whether the next key may end depends on this one, if it is also none of the names; nothing
        that comes before depends on those that have been written.
        """
        if len(self.readings) > 1 or len(self.readings[0].cells) != 1:
            return None
        goal, plan, spot, _, ((number, _, _),) = self.readings[0]
        if not plan.are_alike(number, spot):
            return None
        value, quotes = 1, 2
        length = len(layout.colon + layout.between(self.depth)) + value + quotes - 1
        return length, (goal, plan, plan.widened(spot), number, self.depth, self.canonical)

    def like(self) -> Key:
        """One for many in which the same may come, as long as nothing that is known begins so."""
        for _, plan, spot, named, cells in self.readings:
            if named or not plan.forgets(spot):
                return self
            if not all(table.is_between(state) for _, table, state in cells):
                return self
        if self.known:
            return self
        like = replace(self, readings=self._widened(), typed=NO_KEY)
        return self if like == self else like

    def widened(self) -> Key:
        """Where at least as much may come (see `automaton.Swift`)."""
        return replace(self, readings=self._widened()).like()

    def _widened(self) -> tuple[KeyReading, ...]:
        readings = (r._replace(spot=r.plan.widened(r.spot)) for r in self.readings)
        return tuple(dict.fromkeys(readings))

    def begins(self, context: Context) -> Start | None:
        """No value begins inside of a key."""
        return None

    def ended(self) -> Goals:
        """A key does not end by itself."""
        return ()

    def contents(self) -> tuple[Content, ...]:
        """The tables of the keys that it may be, where some are no names."""
        found = dict[Content, None]()
        if not any(reading.cells for reading in self.readings):
            return ()
        for _, plan, spot, named, cells in self.readings:
            if plan.covers and not plan.ordered and self._all_open(plan, spot):
                # All keys but some names and some that have been written: each beginning goes on.
                table = spelled(ANY, Spelling.JSON)
                between = any(table.is_between(state) for _, table, state in cells)
                begun = b"" if between else self.typed
                found[table, table.run(table.start, begun, 0)[0]] = None
                continue
            if named:
                table = plan.names_table(plan.keys(spot))
                found[table, table.run(table.start, self.typed, 0)[0]] = None
            for _, table, state in cells:
                rivals = self._rivals(plan, spot, self.typed)
                if not all(stays_open(table, state, rival) for rival in rivals):
                    return ()
                found[table, state] = None
        return tuple(found)

    def _all_open(self, plan: ObjectPlan, spot: Spot) -> bool:
        return sum(1 for _ in plan.open_cells(spot)) == len(plan.cells)

    def finish(self, context: Context) -> tuple[bytes, Goals]:
        """The fewest bytes, or nearly, that end the object."""
        best: tuple[int, bytes, Node] | None = None
        for key, reading in self._ends():
            behind = Members((reading,), Phase.COLON, b"", self.depth, self.canonical)
            for size, text, goal in valued(behind, context):
                size += len(key)
                if best is None or size < best[0]:
                    best = (size, key + b'"' + context.layout.colon + text, goal)
        assert best is not None, "every reading has an end"
        return best[1], (best[2],)

    def _complete(self) -> Iterator[Reading]:
        """The readings for which the key is complete."""
        for goal, plan, spot, named, cells in self.readings:
            if named and self.typed in beginning(plan.keys(spot), self.typed):
                yield Reading(goal, plan, *plan.by_key(spot, self.typed))
            for number, table, state in cells:
                fresh = plan.ordered or self.typed not in spot.written
                if fresh and table.push(state, QUOTE) == LEAVE:
                    cell = plan.cells[number]
                    then = plan.behind(spot, self.typed)
                    yield Reading(goal, plan, then, cell.node, cell.meets)

    def _within(
        self,
        plan: ObjectPlan,
        spot: Spot,
        cells: tuple[tuple[int, TextTable, int], ...],
        typed: bytes,
        more: bytes,
    ) -> Iterator[tuple[int, TextTable, int]]:
        """The cells that have a key which begins so and has not been written.

        Args:
            plan: Of the object.
            spot: Where in it.
            cells: Those that have a key without the last bytes.
            typed: How it begins.
            more: The last bytes of that.
        """
        rivals = self._rivals(plan, spot, typed)
        for number, table, state in cells:
            onward, end = table.run(state, more, 0)
            if end == len(more) and can_leave(table, onward, rivals):
                yield number, table, onward

    def _rivals(self, plan: ObjectPlan, spot: Spot, typed: bytes) -> tuple[bytes, ...]:
        """The rests of the keys that have been written and begin so."""
        if plan.ordered or not spot.written:
            return ()
        size = len(typed)
        return tuple(key[size:] for key in beginning(plan.ascending_of(spot.written), typed))

    def _ends(self) -> Iterator[tuple[bytes, Reading]]:
        """The rests of keys that it may be, short ones, and what is behind them."""
        size = len(self.typed)
        for goal, plan, spot, named, cells in self.readings:
            if named:
                for key in beginning(plan.keys(spot), self.typed):
                    yield key[size:], Reading(goal, plan, *plan.by_key(spot, key))
            for number, table, state in cells:
                rest = leaves_all(table, state, self._rivals(plan, spot, self.typed))
                if rest is not None:
                    cell = plan.cells[number]
                    then = plan.behind(spot, self.typed + rest)
                    yield rest, Reading(goal, plan, then, cell.node, cell.meets)
