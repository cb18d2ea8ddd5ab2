"""Inside of objects of one shape: which keys may come next, and what their values may be.

    spot   next name that may come, properties so far, demands that are open, other keys written

Other keys are told apart by the demands that they could meet: their languages are cut into cells,
and all keys of one cell are alike but for their text.
"""

from __future__ import annotations

from collections.abc import Iterator

from lmlang.grammar.language import Language, of_texts
from lmlang.grammar.schema.array_plan import MAX_TEXT, Both, Of, subsets, too_long
from lmlang.grammar.schema.keys import above, beginning
from lmlang.grammar.schema.shapes import Node, Object
from lmlang.grammar.schema.spots import MANY, NONE, Cell, Spot, Step, Value
from lmlang.grammar.schema.style import Layout, spell_text
from lmlang.grammar.schema.ways import MAX_KEPT, Ways
from lmlang.grammar.tables import Spelling, TextTable, spelled

MAX_ABOVE = 256
"""Languages of keys behind a written one that are kept: each with its table takes some 100 kB."""
MAX_ENDINGS, MAX_ENDING = 1_024, 4_096
"""Endings that are kept, and bytes of one."""


class ObjectPlan:
    """What objects of one shape may go on with. Thread-safe: what it keeps is a cache.

    Args:
        shape: The shape.
        of: Shortest texts; those of one plan must not change.
        both: What is of two nodes.
        ordered: Whether keys that are no names must ascend, so that each value has one text.
    """

    def __init__(self, shape: Object, of: Of, both: Both, ordered: bool = False) -> None:
        self.shape = shape
        self.ordered = ordered
        self._of = of
        self._both = both
        self.names = [spell_text(name.key) for name in shape.names]
        self.ascending = tuple(sorted(self.names))
        self._meets = [self._bits(name.key) for name in shape.names]
        needed = sum(name.required for name in shape.names)
        self._needed = [needed]
        for name in shape.names:
            self._needed.append(self._needed[-1] - name.required)  # a bool, as a number
        self._cells: tuple[Cell, ...] | None = None
        self._covers: bool | None = None
        self._endless: bool | None = None
        few = shape.most is not None and not (shape.most >= len(shape.names) and not shape.others)
        self._counts = shape.least > needed or few
        self.simple = not self._counts and not shape.some
        """Whether every property may come or not, but for those that are required."""
        self.start = Spot(0, 0, (1 << len(shape.some)) - 1, NONE)
        self._limit = [len(self.names)] * (len(self.names) + 1)
        for index in range(len(self.names) - 1, -1, -1):
            last = shape.names[index].required
            self._limit[index] = index + 1 if last else self._limit[index + 1]
        self._values: dict[tuple[Spot, Node, int], tuple[Value, ...]] = {}
        self._keys: dict[Spot | int, tuple[bytes, ...]] = {}
        self._tables: dict[tuple[bytes, ...], TextTable] = {}
        self._ascending: dict[frozenset[bytes], tuple[bytes, ...]] = {}
        self._ways = Ways(self.may_end, self._steps, "an object")
        self._endings: dict[tuple[Spot, bool, int, Layout], bytes] = {}
        self._shortests: dict[tuple[int, Node, int, Layout], bytes | None] = {}
        self._firsts: dict[int, list[bytes]] = {}
        self._above: dict[tuple[int, bytes], Language] = {}
        self._index = {key: number for number, key in enumerate(self.names)}

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The other keys, by the demands that they may meet."""
        if self._cells is None:
            self._cells = tuple(self._cut())
        return self._cells

    @property
    def covers(self) -> bool:
        """Whether every key is a name or of a cell."""
        if self._covers is None:
            known = of_texts(name.key for name in self.shape.names)
            for cell in self.cells:
                known = known | cell.keys
            self._covers = bool(self.cells) and (~known).is_empty()
        return self._covers

    # What may come -------------------------------------------------------------------------------

    def may_end(self, spot: Spot) -> bool:
        """Whether the object may end here."""
        if self._needed[spot.next] or spot.open:
            return False
        return not self._counts or spot.total >= self.shape.least

    def may_go_on(self, spot: Spot) -> bool:
        """Whether another property may come."""
        return bool(self.keys(spot)) or next(self.open_cells(spot), None) is not None

    def keys(self, spot: Spot) -> tuple[bytes, ...]:
        """The names that may come next, spelled, in ascending order."""
        known = spot.next if self.simple else spot
        found = self._keys.get(known)
        if found is None:
            names = self.names[spot.next : self._limit[spot.next]]
            found = tuple(sorted(key for key in names if self.values(*self.by_key(spot, key))))
            if len(self._keys) >= MAX_KEPT:
                self._keys.clear()
            self._keys[known] = found
        return found

    def names_table(self, keys: tuple[bytes, ...]) -> TextTable:
        """The table of some names."""
        found = self._tables.get(keys)
        if found is None:
            texts = of_texts(self.shape.names[self._index[key]].key for key in keys)
            found = self._tables[keys] = spelled(texts, Spelling.JSON)
        return found

    def by_key(self, spot: Spot, key: bytes) -> tuple[Spot, Node, int]:
        """Behind a name: the spot, the node of the value and the demands that it may meet."""
        number = self._index[key]
        then = Spot(number + 1, self._counted(spot.total), spot.open, spot.written)
        return then, self.shape.names[number].node, self._meets[number]

    def open_cells(self, spot: Spot) -> Iterator[int]:
        """The cells of which a key may come next."""
        if self._needed[spot.next] or self._full(spot.total + 1):
            return
        for number, cell in enumerate(self.cells):
            if self.simple and (cell.size == MANY > len(spot.written)) and not self.ordered:
                yield number
                continue
            key = self._key(number, spot.written)
            if key is not None and self.values(self.behind(spot, key), cell.node, cell.meets):
                yield number

    def are_alike(self, number: int, spot: Spot) -> bool:
        """Whether behind any key of a cell the same may come, but for that key."""
        enough = self.cells[number].size == MANY > len(spot.written) + 1
        return self.simple and not self.ordered and enough

    def behind(self, spot: Spot, key: bytes) -> Spot:
        """Behind a key that is no name."""
        written = frozenset((key,)) if self.ordered else spot.written | {key}
        return Spot(len(self.names), self._counted(spot.total), spot.open, written)

    def forgets(self, spot: Spot) -> bool:
        """Whether of keys that are written nothing matters but that they must not come again."""
        if not self.simple or self.ordered or len(spot.written) + 1 >= MANY:
            return False
        if self._endless is None:
            self._endless = all(cell.size == MANY for cell in self.cells)
        return self._endless

    def widened(self, spot: Spot) -> Spot:
        """A spot where as much may come, and the keys that have been written besides."""
        forgotten = spot.written and self.forgets(spot)
        return Spot(spot.next, spot.total, spot.open, NONE) if forgotten else spot

    def rivals(self, spot: Spot, typed: bytes) -> tuple[bytes, ...]:
        """The rests of the keys that have been written and begin so."""
        written = spot.written
        if self.ordered or not written:
            return ()
        ascending = self._ascending.get(written)
        if ascending is None:
            if len(self._ascending) >= MAX_ABOVE:
                self._ascending.clear()
            ascending = self._ascending[written] = tuple(sorted(written))
        size = len(typed)
        return tuple([key[size:] for key in beginning(ascending, typed)])

    def cell_table(self, number: int, spot: Spot) -> TextTable:
        """The table of the keys of a cell; where keys must ascend, of those that may come."""
        return spelled(self._remaining(number, spot.written), Spelling.JSON)

    def values(self, then: Spot, node: Node, meets: int) -> tuple[Value, ...]:
        """What a value may be so that the object can still end; of several the first one counts.

        Args:
            then: The spot behind the property, whose demands are not met yet.
            node: What the value must be anyway.
            meets: The demands that it may meet.
        """
        if self.simple:
            return (Value(node, then),) if self._of(node) is not None else ()
        asked = (then, node, meets)
        found = self._values.get(asked)
        if found is None:
            options = self._made(then, node, meets)
            found = tuple(value for value in options if self.can_end(value.then))
            if len(self._values) >= MAX_KEPT:
                self._values.clear()
            self._values[asked] = found
        return found

    def can_end(self, spot: Spot) -> bool:
        """Whether there is a way to the end of the object."""
        if self.simple:
            return True
        if spot.open:
            return self._way(spot) is not None
        if not self._counts:
            return True
        if self._full(spot.total + self._needed[spot.next]):
            return False
        missing = self.shape.least - spot.total - (len(self.names) - spot.next)
        for number in range(len(self.cells)):
            if missing <= 0:
                break
            missing -= self._available(number, spot.written, missing)
        return missing <= 0

    # The shortest way to the end -----------------------------------------------------------------

    def cost(self, spot: Spot) -> int | None:
        """The bytes, or nearly, of the shortest rest of the object; None where it has no end."""
        way = self._way(spot)
        return None if way is None else way[0]

    def shortest(
        self, then: Spot, node: Node, meets: int, depth: int, layout: Layout
    ) -> bytes | None:
        """The shortest text of a value and of all that is behind it; None where there is no end.

        Args:
            then: The spot behind the property, whose demands are not met yet.
            node: What the value must be anyway.
            meets: The demands that it may meet.
            depth: Of the object.
            layout: White space.
        """
        if not self.simple:
            return self._shortest(then, node, meets, depth, layout)
        known = (then.next, node, depth, layout)  # nothing else matters
        found = self._shortests.get(known, b"")
        if found == b"":
            found = self._shortest(then, node, meets, depth, layout)
            if found is None or len(found) <= MAX_ENDING:
                if len(self._shortests) >= MAX_ENDINGS:
                    self._shortests.clear()
                self._shortests[known] = found
        return found

    def _shortest(
        self, then: Spot, node: Node, meets: int, depth: int, layout: Layout
    ) -> bytes | None:
        best: bytes | None = None
        for value, behind in self.values(then, node, meets):
            if self.cost(behind) is None:
                continue
            text = self._of(value)
            assert text is not None, "values have texts"
            ending = self.ending(behind, False, depth, layout)
            text = layout.at(layout.inner(depth), text)
            if best is None or len(text) + len(ending) < len(best):
                best = text + ending
        return best

    def ending(self, spot: Spot, first: bool, depth: int, layout: Layout) -> bytes:
        """The shortest rest of the text of an object that is at a depth, with its bracket.

        Args:
            spot: Where; it can end.
            first: Whether no property has been written.
            depth: Of the object.
            layout: White space.
        """
        if self.simple:
            spot = Spot(spot.next, spot.total, spot.open, NONE)
        known = (spot, first, depth, layout)
        found = self._endings.get(known)
        if found is None:
            found = self._ending(*known)
            if len(found) <= MAX_ENDING:
                if len(self._endings) >= MAX_ENDINGS:
                    self._endings.clear()
                self._endings[known] = found
        return found

    def _ending(self, spot: Spot, first: bool, depth: int, layout: Layout) -> bytes:
        parts = []
        way = self._way(spot)
        size = 0
        while way is not None and way[1] is not None:
            key, node, then = way[1]
            if key is not None:
                text = self._of(node)
                assert text is not None, "steps have texts"
                size += len(text)
                if size > MAX_TEXT:
                    raise too_long()
                text = layout.at(layout.inner(depth), text)
                parts.append(b'"%b"%b%b' % (key, layout.colon, text))
            way = self._way(then)
        return layout.ending(parts, first, depth, b"}")

    def nodes(self) -> Iterator[Node]:
        """All nodes that values may be asked for, whether they are empty or not."""
        wanted = {
            (name.node, meets) for name, meets in zip(self.shape.names, self._meets, strict=True)
        }
        wanted |= {(cell.node, cell.meets) for cell in self.cells}
        for node, meets in sorted(wanted):
            for chosen in subsets(len(self.shape.some)):
                if all(meets >> number & 1 for number in chosen):
                    yield self._combined(node, chosen)

    # Inside --------------------------------------------------------------------------------------

    def _bits(self, key: str) -> int:
        return sum(1 << n for n, some in enumerate(self.shape.some) if some.keys.contains(key))

    def _cut(self) -> Iterator[Cell]:
        """The other keys, by the demands that they may meet."""
        for others in self.shape.others:
            if self._of(others.node) is None:
                continue
            parts = [(others.keys, 0)]
            for number, some in enumerate(self.shape.some):
                parts = [
                    (keys & cut, meets | bit)
                    for keys, meets in parts
                    for cut, bit in ((some.keys, 1 << number), (~some.keys, 0))
                ]
            for keys, meets in parts:
                size = keys.size(MANY)
                if size:
                    yield Cell(keys, others.node, meets, size)

    def _counted(self, count: int) -> int:
        if not self._counts:
            return 0
        return min(count + 1, self.shape.least) if self.shape.most is None else count + 1

    def _full(self, count: int) -> bool:
        return self._counts and self.shape.most is not None and count > self.shape.most

    def _combined(self, node: Node, chosen: tuple[int, ...]) -> Node:
        for number in chosen:
            node = self._both(node, self.shape.some[number].node)
        return node

    def _made(self, then: Spot, node: Node, meets: int) -> Iterator[Value]:
        """What a value may be, whether the object can then end or not."""
        if self._full(then.total):
            return
        useful = [n for n in range(len(self.shape.some)) if then.open & meets & 1 << n]
        for chosen in subsets(len(useful)):
            numbers = tuple(useful[n] for n in chosen)
            combined = self._combined(node, numbers)
            if self._of(combined) is not None:
                met = sum(1 << number for number in numbers)
                yield Value(combined, then._replace(open=then.open & ~met))

    def _remaining(self, number: int, written: frozenset[bytes]) -> Language:
        """The keys of a cell; where keys must ascend, those above the last one."""
        keys = self.cells[number].keys
        if not self.ordered or not written:
            return keys
        (last,) = written
        found = self._above.get((number, last))
        if found is None:
            if len(self._above) >= MAX_ABOVE:
                self._above.clear()
            found = self._above[number, last] = keys & above(last)
        return found

    def _available(self, number: int, written: frozenset[bytes], wanted: int) -> int:
        """How many keys of a cell may still come, up to a number."""
        cell = self.cells[number]
        if self.ordered and written:
            return self._remaining(number, written).size(wanted)
        if len(written) + wanted <= cell.size:
            return wanted
        size = cell.size if cell.size < MANY else cell.keys.size(len(written) + wanted)
        if size == len(written) + wanted:
            return wanted
        return sum(spell_text(key) not in written for key in cell.keys.first(size))

    def _key(self, number: int, written: frozenset[bytes]) -> bytes | None:
        """A shortest key of a cell that may still come; None where there is none."""
        if self.ordered:
            first = self._remaining(number, written).first(1)
            return spell_text(first[0]) if first else None
        known = self._firsts.get(number, [])
        found = next((key for key in known if key not in written), None)
        if found is None:
            limit = 2 * len(written) + 1
            known = self._firsts[number] = [
                spell_text(key) for key in self.cells[number].keys.first(limit)
            ]
            found = next((key for key in known if key not in written), None)
        return found

    def _way(self, spot: Spot) -> tuple[int, Step | None] | None:
        """The cost of the shortest way to an end, and its first step; None where there is none."""
        if self.simple and spot.written:  # no other key is needed any more
            spot = Spot(spot.next, spot.total, spot.open, NONE)
        return self._ways.of(spot)

    def _steps(self, spot: Spot) -> Iterator[tuple[int, Step, Spot]]:
        """What may come next, with its bytes; a name that is not required may be passed over."""
        if spot.next < len(self.names):
            number = spot.next
            then, node, meets = self.by_key(spot, self.names[number])
            choices = [(self.names[number], then, node, meets)]
            if not self.shape.names[number].required:
                then = spot._replace(next=number + 1)
                yield 0, Step(None, 0, then), then
        else:
            choices = []
            for number, cell in enumerate(self.cells):
                key = self._key(number, spot.written)
                if key is not None:
                    choices.append((key, self.behind(spot, key), cell.node, cell.meets))
        steps = []
        for key, then, node, meets in choices:
            for value in self._made(then, node, meets):
                text = self._of(value.node)
                assert text is not None, "values have texts"
                steps.append((len(key) + len(text) + 6, Step(key, *value)))
        if spot.next == len(self.names):  # of keys that meet no demand, the cheapest if any
            plain = [step for step in steps if step[1].then.open == spot.open]
            steps = [step for step in steps if step[1].then.open != spot.open]
            if plain and self._counts and spot.total < self.shape.least:
                steps.append(min(plain, key=lambda step: step[0]))
        yield from ((size, step, step.then) for size, step in steps)
