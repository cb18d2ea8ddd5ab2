"""A value that begins, words, strings and numbers; and what shapes ask of a graph beforehand."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from lmlang.grammar.automaton import LEAVE, Content
from lmlang.grammar.language import Language
from lmlang.grammar.schema import items, members
from lmlang.grammar.schema.array_plan import MAX_TEXT, ArrayPlan, Of, check_demands, too_long
from lmlang.grammar.schema.keys import united
from lmlang.grammar.schema.moves import Context, Frame, Goals, Move, Phase, Start, ended
from lmlang.grammar.schema.numerals import BYTES, Entry, Numeral, numeral
from lmlang.grammar.schema.object_plan import ObjectPlan
from lmlang.grammar.schema.readings import Reading
from lmlang.grammar.schema.shapes import Array, Graph, Node, Number, Object, Shape, String, Word
from lmlang.grammar.schema.style import Layout, spell_text
from lmlang.grammar.spec import Style
from lmlang.grammar.tables import Spelling, TextTable, spelled

QUOTE, BRACKET, BRACE = b'"[{'


class Words(NamedTuple):
    """Inside of null, true or false.

    Attributes:
        goals: What the value is of then.
        rest: The letters that are still to come.
    """

    goals: Goals
    rest: bytes

    def push(self, byte: int, context: Context) -> tuple[Move, ...]:
        """What one more byte does."""
        if byte != self.rest[0]:
            return ()
        return (Move(Words(self.goals, self.rest[1:])),) if self.rest[1:] else ended(self.goals)

    def following(self, context: Context) -> bytes:
        """The bytes that do something."""
        return self.rest[:1]

    def runs(self, context: Context) -> tuple[bytes, ...] | None:
        """The rest of it."""
        return (self.rest,)

    def run(self, data: bytes, at: int) -> tuple[Words, int]:
        """Up to its last letter."""
        rest, end = self.rest, at
        while end < len(data) and end - at < len(rest) - 1 and data[end] == rest[end - at]:
            end += 1
        return (self if end == at else Words(self.goals, rest[end - at :])), end

    def begins(self, context: Context) -> Start | None:
        """Nothing begins inside of a word."""
        return None

    def ended(self) -> Goals:
        """A word does not end before its last letter."""
        return ()

    def finish(self, context: Context) -> tuple[bytes, Goals]:
        """The rest of it."""
        return self.rest, self.goals

    def contents(self) -> tuple[Content, ...]:
        """Words have no tables."""
        return ()


class Strings(NamedTuple):
    """Inside of a string.

    Attributes:
        readings: The goal, the table of its strings and the state in it.
    """

    readings: tuple[tuple[Node, TextTable, int], ...]

    @property
    def goals(self) -> Goals:
        """What the value may still turn out to be."""
        return tuple(sorted({goal for goal, _, _ in self.readings}))

    def push(self, byte: int, context: Context) -> tuple[Move, ...]:
        """What one more byte does."""
        onward, done = [], []
        for goal, table, state in self.readings:
            state = table.push(state, byte)
            if state >= 0:
                onward.append((goal, table, state))
            elif state == LEAVE:
                done.append(goal)
        if done:
            return ended(tuple(sorted(set(done))))
        return (Move(Strings(tuple(onward))),) if onward else ()

    def following(self, context: Context) -> bytes:
        """The bytes that do something."""
        if len(self.readings) == 1:
            _, table, state = self.readings[0]
            return table.following(state)
        return united([table.following(state) for _, table, state in self.readings])

    def runs(self, context: Context) -> tuple[bytes, ...] | None:
        """The rests of what it may be, where these are few."""
        found: set[bytes] = set()
        for _, table, state in self.readings:
            rests = table.rests(state)
            if rests is None:
                return None
            found.update(rest + b'"' for rest in rests)
        return tuple(sorted(found))

    def run(self, data: bytes, at: int) -> tuple[Strings, int]:
        """Up to what ends it, where there is one table."""
        if len(self.readings) > 1 or data[at] == QUOTE:
            return self, at
        goal, table, state = self.readings[0]
        onward, end = table.run(state, data, at)
        return (self if onward == state else Strings(((goal, table, onward),))), end

    def begins(self, context: Context) -> Start | None:
        """Nothing begins inside of a string."""
        return None

    def ended(self) -> Goals:
        """A string does not end without its quote."""
        return ()

    def finish(self, context: Context) -> tuple[bytes, Goals]:
        """The fewest bytes, or nearly, that end it."""
        ends = [(table.completion(state), goal) for goal, table, state in self.readings]
        text, goal = min(ends, key=lambda end: len(end[0]))
        return text + b'"', (goal,)

    def contents(self) -> tuple[Content, ...]:
        """The tables."""
        return tuple(dict.fromkeys((table, state) for _, table, state in self.readings))


class Numerals(NamedTuple):
    """Inside of a number.

    Attributes:
        readings: The goal, and how a number of its set begins.
    """

    readings: tuple[tuple[Node, Numeral | Entry], ...]

    @property
    def goals(self) -> Goals:
        """What the value may still turn out to be."""
        return tuple(sorted({goal for goal, _ in self.readings}))

    def push(self, byte: int, context: Context) -> tuple[Move, ...]:
        """What one more byte does."""
        pushed = [(goal, begun.push(byte)) for goal, begun in self.readings]
        onward = tuple([(goal, begun) for goal, begun in pushed if begun is not None])
        return (Move(Numerals(onward)),) if onward else ()

    def following(self, context: Context) -> bytes:
        """The bytes that go on with the number."""
        return bytes(sorted({b for _, begun in self.readings for b in begun.following()}))

    def runs(self, context: Context) -> tuple[bytes, ...] | None:
        """Numbers end in many ways."""
        return None

    def run(self, data: bytes, at: int) -> tuple[Numerals, int]:
        """Byte by byte."""
        return self, at

    def begins(self, context: Context) -> Start | None:
        """Nothing begins inside of a number."""
        return None

    def ended(self) -> Goals:
        """What it is of as it stands."""
        return tuple(sorted({goal for goal, begun in self.readings if begun.accepting()}))

    def finish(self, context: Context) -> tuple[bytes, Goals]:
        """The fewest bytes that make it complete."""
        done = self.ended()
        if done:
            return b"", done
        ends = [(begun.completion(), goal) for goal, begun in self.readings]
        text, goal = min(ends, key=lambda end: len(end[0]))
        return text, (goal,)

    def contents(self) -> tuple[Content, ...]:
        """Numbers have no tables."""
        return ()


class Kinds(NamedTuple):
    """The shapes of one node by what they begin with."""

    words: tuple[bytes, ...]
    strings: tuple[tuple[Language, Spelling], ...]
    numbers: tuple[Numeral | Entry, ...]
    arrays: tuple[ArrayPlan, ...]
    objects: tuple[ObjectPlan, ...]


class Plans:
    """The shapes of a graph as they are run. Thread-safe: what it keeps is a cache.

    Args:
        graph: The graph.
        context: What its frames need to know.
    """

    def __init__(self, graph: Graph, context: Context) -> None:
        self._graph = graph
        self._context = context
        self._kinds: dict[tuple[Node, bool], Kinds] = {}
        self._arrays: dict[Array, ArrayPlan] = {}
        self._objects: dict[tuple[Object, bool], ObjectPlan] = {}

    def kinds(self, node: Node, canonical: bool) -> Kinds:
        """The shapes of a node."""
        found = self._kinds.get((node, canonical))
        if found is None:
            found = self._kinds[node, canonical] = self._sorted(node, canonical)
        return found

    def push(self, start: Start, byte: int) -> tuple[Move, ...]:
        """What the first byte of a value does."""
        goals, canonical = start.goals, start.canonical
        kinds = [(goal, self.kinds(goal, canonical)) for goal in goals]
        frame: Frame | None = None
        if byte == QUOTE:
            strings = [(goal, spelled(*s)) for goal, kind in kinds for s in kind.strings]
            frame = Strings(tuple((goal, table, table.start) for goal, table in strings))
        elif byte == BRACE:
            objects = tuple(
                Reading(goal, plan, plan.start) for goal, kind in kinds for plan in kind.objects
            )
            frame = members.Members(objects, Phase.OPEN, b"", start.depth, canonical)
        elif byte == BRACKET:
            return self._arrays_of(start)
        elif byte in BYTES:
            pushed = [(goal, n.push(byte)) for goal, kind in kinds for n in kind.numbers]
            frame = Numerals(tuple((goal, n) for goal, n in pushed if n is not None))
        else:
            for word in (b"null", b"true", b"false"):
                if byte == word[0]:
                    frame = Words(tuple(g for g, kind in kinds if word in kind.words), word[1:])
        return (Move(frame),) if frame is not None and frame.goals else ()

    def following(self, start: Start) -> bytes:
        """The first bytes that a value may have."""
        found = set[int]()
        for goal in start.goals:
            words, strings, numbers, arrays, objects = self.kinds(goal, start.canonical)
            found.update(word[0] for word in words)
            found.update([QUOTE] if strings else [])
            found.update([BRACKET] if arrays else [])
            found.update([BRACE] if objects else [])
            found.update(*(number.following() for number in numbers))
        return bytes(sorted(found))

    def runs(self, start: Start) -> tuple[bytes, ...]:
        """All that a value may begin with, words as a whole."""
        found = set[bytes]()
        for goal in start.goals:
            words, strings, numbers, arrays, objects = self.kinds(goal, start.canonical)
            found.update(words)
            found.update([b'"'] if strings else [])
            found.update([b"["] if arrays else [])
            found.update([b"{"] if objects else [])
            found.update(bytes((byte,)) for number in numbers for byte in number.following())
        return tuple(sorted(found))

    def finish(self, start: Start) -> tuple[bytes, Goals]:
        """The shortest text of a value, and what it is of."""
        texts = [(self._context.text(goal, start.depth), goal) for goal in start.goals]
        text, goal = min(texts, key=lambda found: len(found[0]))
        return text, (goal,)

    def _arrays_of(self, start: Start) -> tuple[Move, ...]:
        """Arrays begin; those whose items must differ are read by themselves."""
        free = list[items.Reading]()
        unique = dict[ArrayPlan, list[items.Reading]]()
        for goal in start.goals:
            for plan in self.kinds(goal, start.canonical).arrays:
                where = unique.setdefault(plan, []) if plan.shape.unique else free
                where.append(items.Reading(goal, plan, plan.start))
        moves = []
        for readings in (free, *unique.values()):
            if readings:
                written = frozenset[bytes]() if readings is not free else None
                canonical = start.canonical or written is not None
                frame = items.Items(
                    tuple(readings), Phase.OPEN, b"", start.depth, canonical, written
                )
                moves.append(Move(frame))
        return tuple(moves)

    def _sorted(self, node: Node, canonical: bool) -> Kinds:
        words = dict[bytes, None]()
        strings = dict[tuple[Language, Spelling], None]()
        numbers = dict[Numeral | Entry, None]()
        arrays = dict[ArrayPlan, None]()
        objects = dict[ObjectPlan, None]()
        for shape in self._graph.shapes(node):
            if isinstance(shape, Word):
                words[shape.text] = None
            elif isinstance(shape, String):
                free = shape.free and not canonical
                strings[shape.language, Spelling.JSON_FREE if free else Spelling.JSON] = None
            elif isinstance(shape, Number):
                numbers[numeral(shape.numbers, canonical)] = None
            elif isinstance(shape, Array):
                arrays[self.array(shape)] = None
            else:
                objects[self.object(shape, canonical)] = None
        return Kinds(tuple(words), tuple(strings), tuple(numbers), tuple(arrays), tuple(objects))

    def array(self, shape: Array) -> ArrayPlan:
        """The plan of arrays of a shape."""
        found = self._arrays.get(shape)
        if found is None:
            found = ArrayPlan(shape, self._context.shortest, self._graph.both)
            found = self._arrays.setdefault(shape, found)
        return found

    def object(self, shape: Object, ordered: bool) -> ObjectPlan:
        """The plan of objects of a shape."""
        found = self._objects.get((shape, ordered))
        if found is None:
            found = ObjectPlan(shape, self._context.shortest, self._graph.both, ordered)
            found = self._objects.setdefault((shape, ordered), found)
        return found


def shortest_of(shape: Shape, of: Of, style: Style, graph: Graph) -> bytes | None:
    """The shortest JSON text of a shape; None where it is empty.

    Items of arrays that must differ may be equal in it.

    Args:
        shape: The shape.
        of: The shortest text of a node; None where it is empty, or where none is known yet.
        style: White space.
        graph: For nodes of what is of two.

    Raises:
        GrammarTooLarge: It takes too long to find, or is too long.
    """
    if isinstance(shape, Word):
        return shape.text
    if isinstance(shape, String):
        return _shortest_string(shape.language)
    if isinstance(shape, Number):
        return shape.numbers.shortest()
    layout = Layout.of(style)
    if isinstance(shape, Array):
        if not shape.least and not shape.tallies:
            return b"[]"
        array = ArrayPlan(shape, of, graph.both)
        if array.cost(array.start) is None:
            return None
        found = b"[" + array.ending(array.start, True, 0, layout)
    else:
        required = [name for name in shape.names if name.required]
        enough = shape.least <= len(required)
        if enough and not shape.some and (shape.most is None or shape.most >= len(required)):
            parts = []
            for name in required:
                value = of(name.node)
                if value is None:
                    return None
                value = layout.at(layout.inner(0), value)
                parts.append(b'"%b"%b%b' % (spell_text(name.key), layout.colon, value))
            found = b"{" + layout.ending(parts, True, 0, b"}")
        else:
            plan = ObjectPlan(shape, of, graph.both)
            if plan.cost(plan.start) is None:
                return None
            found = b"{" + plan.ending(plan.start, True, 0, layout)
    if len(found) > MAX_TEXT:
        raise too_long()
    return found


_shortest: WeakKeyDictionary[Language, bytes | None] = WeakKeyDictionary()


def _shortest_string(language: Language) -> bytes | None:
    if language not in _shortest:
        text = language.shortest()
        _shortest[language] = None if text is None else b'"%b"' % spell_text(text)
    return _shortest.get(language)


def goals(shape: Shape, graph: Graph) -> tuple[Node, ...]:
    """All nodes that values inside of a shape may be asked for; `graph.both` is asked for them.

    Raises:
        SchemaUnsupported: There are too many demands on items or properties.
    """
    if isinstance(shape, Array):
        check_demands(len(shape.tallies), "contains")
        if not shape.tallies:
            return shape.prefix if shape.rest is None else (*shape.prefix, shape.rest)
        return tuple(ArrayPlan(shape, _nothing, graph.both).nodes())
    if isinstance(shape, Object):
        check_demands(len(shape.some), "not")
        if not shape.some:
            return (*(n.node for n in shape.names), *(others.node for others in shape.others))
        return tuple(ObjectPlan(shape, _everything, graph.both).nodes())
    return ()


def _nothing(node: Node) -> bytes | None:
    return None


def _everything(node: Node) -> bytes | None:
    return b""
