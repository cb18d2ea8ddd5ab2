"""A level inside of an object, between its braces, and inside of one of its keys."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from lmlang.grammar.automaton import LEAVE, Content
from lmlang.grammar.language import ANY
from lmlang.grammar.schema.escape import can_leave, leaves_all, stays_open
from lmlang.grammar.schema.keys import any_begins, beginning, united
from lmlang.grammar.schema.moves import Context, Goals, Move, Phase, Start, ended
from lmlang.grammar.schema.object_plan import ObjectPlan
from lmlang.grammar.schema.readings import KeyReading, Reading
from lmlang.grammar.schema.shapes import Node
from lmlang.grammar.schema.spots import Spot
from lmlang.grammar.schema.style import Layout
from lmlang.grammar.tables import Spelling, TextTable, spelled

COMMA, CLOSE, QUOTE = ord(","), ord("}"), ord('"')

NO_KEY = b"\xff"
"""No key begins so."""


class Members(NamedTuple):
    """Inside of an object, but not of a key.

    Attributes:
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
        if self.rest:
            return self._literal(self.readings, self.phase, self.rest, byte, context)
        layout, first = context.layout, self.phase is Phase.OPEN
        closing = layout.ending((), first, self.depth, b"}")
        if byte == closing[0]:
            done = [r for r in self.readings if r.plan.may_end(r.spot)]
            return self._literal(self._only(done), Phase.CLOSING, closing, byte, context)
        before = (layout.opening(self.depth) if first else layout.between(self.depth)) + b'"'
        if byte != before[0]:
            return ()
        wanting = [r for r in self.readings if r.plan.may_go_on(r.spot)]
        return self._literal(self._only(wanting), Phase.BEFORE, before, byte, context)

    def _only(self, some: list[Reading]) -> tuple[Reading, ...]:
        return self.readings if len(some) == len(self.readings) else tuple(some)

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
        layout, first = context.layout, self.phase is Phase.OPEN
        goes_on = ends = False
        for _, plan, spot, _, _ in self.readings:
            goes_on = goes_on or plan.may_go_on(spot)
            ends = ends or plan.may_end(spot)
        opening = closing = b""
        if goes_on:
            opening = (layout.opening(self.depth) if first else layout.between(self.depth)) + b'"'
        if ends:
            closing = layout.ending((), first, self.depth, b"}")
        both = (opening, closing) if opening < closing else (closing, opening)
        return both if goes_on and ends else tuple(filter(None, both))

    def run(self, data: bytes, at: int) -> tuple[Members, int]:
        """What is still to come, but for its last byte."""
        rest, end = self.rest, at
        while end < len(data) and end - at < len(rest) - 1 and data[end] == rest[end - at]:
            end += 1
        if end == at:
            return self, at
        rest = rest[end - at :]
        return Members(self.readings, self.phase, rest, self.depth, self.canonical), end

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
        wide = dict.fromkeys([reading.widened() for reading in self.readings])
        return Members(tuple(wide), self.phase, self.rest, self.depth, self.canonical)

    def resume(self, goals: Goals, text: bytes | None) -> Members:
        """Behind a value that is of some goals."""
        onward: dict[Reading, None] = {}
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
            layout = context.layout
            ends = [
                (end, goal)
                for goal, plan, spot, node, meets in self.readings
                if (end := plan.shortest(spot, node, meets, self.depth, layout)) is not None
            ]
            text, goal = min(ends, key=_length)
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

    def _literal(
        self,
        readings: tuple[Reading, ...],
        phase: Phase,
        text: bytes,
        byte: int,
        context: Context,
    ) -> tuple[Move, ...]:
        """The first byte of what must come now, as some readings have it."""
        if byte != text[0] or not readings:
            return ()
        here = Members(readings, phase, text[1:], self.depth, self.canonical)
        if here.rest:
            return (Move(here),)
        if phase is Phase.CLOSING:
            return ended(here.goals)
        if phase is Phase.BEFORE:
            return (Move(here._key()),)
        nodes = {value.node for r in readings for value in r.plan.values(r.spot, r.node, r.meets)}
        start = Start(tuple(sorted(nodes)), context.layout.inner(self.depth), self.canonical)
        return (Move(Members(readings, Phase.WAIT, b"", self.depth, self.canonical), start),)

    def _key(self) -> Key:
        readings: list[KeyReading] = []
        states: list[int] = []
        for goal, plan, spot, *_ in self.readings:
            cells = tuple([(n, plan.cell_table(n, spot)) for n in plan.open_cells(spot)])
            states += [table.start for _, table in cells]
            readings.append(KeyReading(goal, plan, spot, bool(plan.keys(spot)), cells))
        return Key(tuple(readings), tuple(states), b"", self.depth, self.canonical)


def _length(end: tuple[bytes, Node]) -> int:
    return len(end[0])


class Key(NamedTuple):
    """Inside of a key of an object.

    Attributes:
        readings: How it may be understood; the same object along a key, while all are possible.
        states: Those in the tables of all cells of all readings, in their order.
        typed: What has been written of it.
        depth: Of the object, where it is indented; else 0.
        canonical: Whether the object has one spelling.
    """

    readings: tuple[KeyReading, ...]
    states: tuple[int, ...]
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
        found: set[bytes] = set()
        size = len(self.typed)
        for _, plan, spot, _, cells in self.readings:
            if cells:
                found.update(plan.rivals(spot, self.typed))
                found.update([key[size:] for key in beginning(plan.ascending, self.typed)])
        return found

    def _open(self) -> Iterator[tuple[KeyReading, list[tuple[int, TextTable, int]]]]:
        """The readings, each with its cells: their numbers, tables and the states in these."""
        at = 0
        for reading in self.readings:
            end = at + len(reading.cells)
            cells = zip(reading.cells, self.states[at:end], strict=True)
            yield reading, [(number, table, state) for (number, table), state in cells]
            at = end

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
        typed, same = self.typed + more, True
        readings: list[KeyReading] = []
        states: list[int] = []
        at = 0
        for reading in self.readings:
            goal, plan, spot, named, cells = reading
            named = named and any_begins(plan.keys(spot), typed)
            if cells:
                cells = self._within(reading, at, typed, more, states)
                at += len(reading.cells)
            if named != reading.named or cells is not reading.cells:
                same = False
                if not named and not cells:
                    continue
                reading = KeyReading(goal, plan, spot, named, cells)
            readings.append(reading)
        if not readings:
            return None
        kept = self.readings if same else tuple(readings)
        return Key(kept, tuple(states), typed, self.depth, self.canonical)

    def _within(
        self, reading: KeyReading, at: int, typed: bytes, more: bytes, states: list[int]
    ) -> tuple[tuple[int, TextTable], ...]:
        """The cells that have a key which begins so and has not been written.

        Args:
            reading: With the cells that have a key without the last bytes.
            at: The place of the state in the first of them.
            typed: How the key begins.
            more: The last bytes of that.
            states: Takes the states in the cells.
        """
        cells, rivals = reading.cells, reading.plan.rivals(reading.spot, typed)
        found = []
        for cell in cells:
            table = cell[1]
            state, end = table.run(self.states[at], more, 0)
            at += 1
            if end == len(more) and (not rivals or can_leave(table, state, rivals)):
                found.append(cell)
                states.append(state)
        return cells if len(found) == len(cells) else tuple(found)

    def following(self, context: Context) -> bytes:
        """The bytes that do something."""
        found: list[bytes] = []
        unsure: set[int] = set()
        size = len(self.typed)
        for (_, plan, spot, named, _), cells in self._open():
            if named:
                keys = beginning(plan.keys(spot), self.typed)
                heads = {key[size] if len(key) > size else QUOTE for key in keys}
                found.append(bytes(sorted(heads)))
            rivals = plan.rivals(spot, self.typed) if cells else ()
            taken = bytes({rival[0] if rival else QUOTE for rival in rivals})
            for _, table, state in cells:
                following = table.following(state)
                found.append(following.translate(None, taken) if taken else following)
            unsure.update(taken)
        if unsure:
            unsure.difference_update(*found)
            found.append(bytes([byte for byte in sorted(unsure) if self.push(byte, context)]))
        return united(found)

    def runs(self, context: Context) -> tuple[bytes, ...] | None:
        """The rests of names, if it must be one."""
        if self.states:
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
        if len(self.readings) > 1 or len(self.states) != 1:
            return None
        goal, plan, spot, _, ((number, _),) = self.readings[0]
        if not plan.are_alike(number, spot):
            return None
        value, quotes = 1, 2
        length = len(layout.colon + layout.between(self.depth)) + value + quotes - 1
        return length, (goal, plan, plan.widened(spot), number, self.depth, self.canonical)

    def like(self) -> Key:
        """One for many in which the same may come, as long as nothing that is known begins so."""
        at = 0
        for _, plan, spot, named, cells in self.readings:
            if named or not plan.forgets(spot):
                return self
            for _, table in cells:
                if not table.is_between(self.states[at]):
                    return self
                at += 1
            if cells and (any_begins(plan.ascending, self.typed) or plan.rivals(spot, self.typed)):
                return self
        like = self._widened(NO_KEY)
        return self if like == self else like

    def widened(self) -> Key:
        """Where at least as much may come (see `automaton.Swift`)."""
        return self._widened(self.typed).like()

    def _widened(self, typed: bytes) -> Key:
        wide, states = tuple([reading.widened() for reading in self.readings]), self.states
        if len(wide) > 1:
            cells = [tuple([state for _, _, state in cells]) for _, cells in self._open()]
            fresh = dict.fromkeys(zip(wide, cells, strict=True))
            wide = tuple([reading for reading, _ in fresh])
            states = tuple([state for _, some in fresh for state in some])
        return Key(wide, states, typed, self.depth, self.canonical)

    def begins(self, context: Context) -> Start | None:
        """No value begins inside of a key."""
        return None

    def ended(self) -> Goals:
        """A key does not end by itself."""
        return ()

    def contents(self) -> tuple[Content, ...]:
        """The tables of the keys that it may be, where some are no names."""
        found: dict[Content, None] = {}
        if not self.states:
            return ()
        for (_, plan, spot, named, _), cells in self._open():
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
            rivals = plan.rivals(spot, self.typed)
            for _, table, state in cells:
                if not all(stays_open(table, state, rival) for rival in rivals):
                    return ()
                found[table, state] = None
        return tuple(found)

    def _all_open(self, plan: ObjectPlan, spot: Spot) -> bool:
        return sum(1 for _ in plan.open_cells(spot)) == len(plan.cells)

    def finish(self, context: Context) -> tuple[bytes, Goals]:
        """The fewest bytes, or nearly, that end the object."""
        best: tuple[int, bytes, bytes, Node] | None = None
        layout = context.layout
        for key, goal, plan, then, node, meets in self._ends():
            text = plan.shortest(then, node, meets, self.depth, layout)
            if text is not None and (best is None or len(key) + len(text) < best[0]):
                best = (len(key) + len(text), key, text, goal)
        assert best is not None, "every reading has an end"
        _, key, text, goal = best
        return b"".join((key, b'"', layout.colon, text)), (goal,)

    def _complete(self) -> Iterator[Reading]:
        """The readings for which the key is complete."""
        for (goal, plan, spot, named, _), cells in self._open():
            if named and self.typed in beginning(plan.keys(spot), self.typed):
                yield Reading(goal, plan, *plan.by_key(spot, self.typed))
            fresh = plan.ordered or self.typed not in spot.written
            for number, table, state in cells:
                if fresh and table.push(state, QUOTE) == LEAVE:
                    cell = plan.cells[number]
                    then = plan.behind(spot, self.typed)
                    yield Reading(goal, plan, then, cell.node, cell.meets)

    def _ends(self) -> Iterator[tuple[bytes, Node, ObjectPlan, Spot, Node, int]]:
        """The rests of keys that it may be, short ones, and the `Reading` behind each."""
        size = len(self.typed)
        for (goal, plan, spot, named, _), cells in self._open():
            if named:
                for key in beginning(plan.keys(spot), self.typed):
                    yield key[size:], goal, plan, *plan.by_key(spot, key)
            for number, table, state in cells:
                rest = leaves_all(table, state, plan.rivals(spot, self.typed))
                if rest is not None:
                    cell = plan.cells[number]
                    then = plan.behind(spot, self.typed + rest)
                    yield rest, goal, plan, then, cell.node, cell.meets
