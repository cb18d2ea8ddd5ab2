"""JSON text that a schema allows, byte by byte: a stack of levels, one for each open value.

    {"a": [1, 2          place   level 2   a number
                          outer  level 1   an array that waits for its second item
                          outer  level 0   an object that waits for the value of "a"

All levels but the last one wait for the value inside, so a byte moves the last one alone, until
its value ends. The stack is as deep as the output; there is no limit but that of its tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from lmlang.grammar.automaton import Content, Leaving
from lmlang.grammar.budget import spend
from lmlang.grammar.schema.completions import Completions, plain
from lmlang.grammar.schema.escape import stays_open
from lmlang.grammar.schema.frames import QUOTE, Plans, Strings
from lmlang.grammar.schema.items import Items
from lmlang.grammar.schema.keys import united
from lmlang.grammar.schema.levels import Level, Levels, Way
from lmlang.grammar.schema.members import Key
from lmlang.grammar.schema.moves import Context, Goals, Start
from lmlang.grammar.schema.places import Begun, End, Fork, Place, Where, places_of
from lmlang.grammar.schema.shapes import Array, Graph, inner_nodes
from lmlang.grammar.schema.style import Layout
from lmlang.grammar.schema.unique import Distinct, check_shape, needs_care
from lmlang.grammar.spec import Style

MAX_KEPT = 200_000
"""Places of one schema that are kept."""


class SchemaRules:
    """The rules of one schema (see `automaton.Rules`). Thread-safe.

    Args:
        graph: The schema.
        style: White space.
    """

    def __init__(self, graph: Graph, style: Style) -> None:
        self._graph = graph
        self._layout = Layout.of(style)
        context = Context(self._layout, graph.shortest)
        self._levels = Levels(Plans(graph, context), context, Start((graph.root,), 0, False))
        self._outermost: dict[Level, Place] = {}
        self._under_way: dict[tuple[Place | None, Level, tuple[Begun, ...]], Place] = {}
        self._kept = 0
        self._end = self._place(None, self._levels.of(End()), ())
        self._careful: bool | None = None
        self._completions = Completions(self)
        self._distinct = Distinct(self.texts)

    def start(self) -> Where:
        """The key of the empty output."""
        return self._place(None, self._levels.start, ())

    def push(self, key: Where, byte: int) -> Where | None:
        """The key behind one more byte; None where no output goes on so."""
        if isinstance(key, Place):
            if not key.begun:  # mostly, the last level alone goes on
                onward = key.level.push(byte)
                if isinstance(onward, Level) and not onward.needs_item:
                    return self._place(key.outer, onward, ())
            found = self._step(key, byte)
            if len(found) == 1 and not found[0].begun and not found[0].level.needs_item:
                return found[0]
        else:
            found = tuple(dict.fromkeys(p for place in key.places for p in self._step(place, byte)))
        found = tuple(place for place in found if self._lives(place))
        if len(found) == 1:
            return found[0]
        return Fork(found) if found else None

    def runs(self, key: Where) -> tuple[bytes, ...] | None:
        """All that may come next (see `automaton.Swift`)."""
        if not isinstance(key, Place) or key.begun or key.level.unique:
            return None
        return key.level.runs() if not key.level.ended else None

    def run(self, key: Where, data: bytes) -> Where | None:
        """The key behind some bytes; None where no output goes on so."""
        at = 0
        onward: Where | None = key
        while onward is not None and at < len(data):
            if isinstance(onward, Place) and not onward.begun:
                found, end = self._walk(onward, data, at)
                if found is None or end > at:
                    onward, at = found, end
                    continue
            onward, at = self.push(onward, data[at]), at + 1
        return onward

    def _walk(self, place: Place, data: bytes, at: int) -> tuple[Place | None, int]:
        """The place behind some of the bytes from one on, and the one behind these.

        It goes from level to level as far as no items must differ and the output can be read in
        one way; None: no output goes on so.
        """
        outer, level = place.outer, place.level
        while at < len(data) and not level.unique:
            ways, end = level.stride(data, at)
            if isinstance(ways, Level):
                level, at = ways, end
                continue
            goals = level.ended
            if isinstance(ways, Way):
                onward, inner, again, goals = ways
                if onward is not None and inner is not None:
                    if onward.unique:
                        break
                    outer, level, at = self._place(outer, onward, ()), inner, at if again else end
                    continue
                if outer is None:
                    return self._end, end
                at = end
            elif ways:
                break
            elif outer is None or not goals:
                return None, at
            level, outer = outer.level.resume(goals, None), outer.outer
        return self._place(outer, level, ()), at

    def ahead(self) -> Iterator[tuple[Content, ...]]:
        """The contents that strings and keys begin with, those of the outer values first."""
        nodes = [self._graph.root]
        known = set(nodes)
        for node in nodes:
            for shape in self._graph.shapes(node):
                fresh = [inner for inner in inner_nodes(shape) if inner not in known]
                nodes += fresh
                known.update(fresh)
            value = self._levels.of(Start((node,), 0, False))
            begun, inside = [value.push(QUOTE)], value.push(ord("{"))
            if isinstance(inside, Level):
                for run in inside.runs() or ():
                    if run.endswith(b'"'):
                        begun.append(inside.along(run))
            yield tuple(
                content
                for level in begun
                if isinstance(level, Level) and level.runs() is None
                for content in level.contents()
            )

    def same(self, key: Where) -> tuple[int, Hashable] | None:
        """Up to where the next key could end, which must be another one."""
        if not isinstance(key, Place) or key.begun or not isinstance(key.level.frame, Key):
            return None
        found = key.level.frame.same(self._layout)
        if found is None:
            return None
        return found[0], (None if key.outer is None else self._widened(key.outer), found[1])

    def widened(self, key: Where) -> Where:
        """A key where at least as much may come (see `automaton.Swift`)."""
        if isinstance(key, Place):
            return self._widened(key)
        places = tuple(dict.fromkeys(map(self._widened, key.places)))
        return places[0] if len(places) == 1 else Fork(places)

    def following(self, key: Where) -> bytes:
        """The bytes for which `push` gives a key, in ascending order."""
        if isinstance(key, Place):
            level = key.level
            if not key.begun and not level.unique:
                return self._structural(key) if level.ended else level.following()
            found = self._structural(key)
            unsure = found
            if isinstance(key.level.frame, Strings):  # others part from all that was written
                heads = {head for item in key.begun for head in item.heads()}
                unsure = bytes(byte for byte in found if byte in heads or byte == QUOTE)
        else:
            found = bytes(sorted({b for place in key.places for b in self._structural(place)}))
            unsure = found
        dead = {byte for byte in unsure if self.push(key, byte) is None}
        return bytes(byte for byte in found if byte not in dead) if dead else found

    def accepting(self, key: Where) -> bool:
        """Whether the output may end here."""
        if isinstance(key, Fork):
            return any(map(self.accepting, key.places))
        return key.accepting

    def completion(self, key: Where) -> bytes:
        """The fewest bytes, or nearly, that complete the output; empty where it is accepting."""
        if self.accepting(key):
            return b""
        if self._careful is None:
            self._careful = needs_care(self._graph)
        return self._completions.of(key) if self._careful else plain(key)

    def contents(self, key: Where) -> tuple[Content, ...]:
        """Tables for the bytes that come next (see `automaton.Rules`)."""
        if isinstance(key, Place) and not key.begun:
            return key.level.contents()
        found = dict[Content, None]()
        for place in places_of(key):
            tables = place.level.contents()
            if not tables:
                return ()
            rivals = [rival for begun in place.begun for rival in begun.left()]
            if rivals:
                if not isinstance(place.level.frame, Strings):
                    return ()
                if not all(stays_open(*content, rival) for content in tables for rival in rivals):
                    return ()
            found.update(dict.fromkeys(tables))
        return tuple(found)

    def leaving(self, key: Where) -> Leaving:
        """What is known of the end of a string or key, but for those that are `asked`."""
        if isinstance(key, Place):
            frame = key.level.frame
            if key.begun or not isinstance(frame, (Strings, Key)):
                return Leaving.UNKNOWN
            if isinstance(frame, Key):
                return Leaving.ALIKE
            return Leaving.SAME if len(key.level.contents()) == 1 else Leaving.FREE
        places = key.places
        if any(p.begun or not isinstance(p.level.frame, (Strings, Key)) for p in places):
            return Leaving.UNKNOWN
        return Leaving.FREE

    def asked(self, key: Where) -> frozenset[bytes]:
        """The rests of keys that are names, or have been written."""
        if isinstance(key, Place):
            level, frame = key.level, key.level.frame
            if not isinstance(frame, Key) or level.like is not level:
                return frozenset()
            return frozenset(frame.known)
        frames = [place.level.like.frame for place in key.places]
        return frozenset().union(*(frame.known for frame in frames if isinstance(frame, Key)))

    def pointer(self, key: Where) -> str:
        """Which part of the schema the next byte belongs to, as a JSON pointer."""
        goals = next(places_of(key)).level.goals
        return self._graph.pointer(goals[0]) if goals else ""

    def texts(self, start: Start, limit: int) -> list[bytes] | None:
        """All texts of a value; None where there are more than a limit.

        What is under way can always be completed, and differently where it differs, so each key
        that is reached stands for a text at least.
        """
        done: list[bytes] = []
        ways: list[tuple[bytes, Where]] = [(b"", self._place(None, self._levels.of(start), ()))]
        while ways:
            further = []
            for text, key in ways:
                if self.accepting(key):
                    done.append(text)
                following = self.following(key)
                spend(1 + 10 * len(following))
                for byte in following:
                    onward = self.push(key, byte)
                    assert onward is not None, "it follows"
                    further.append((text + bytes((byte,)), onward))
                if len(done) + len(further) > limit:
                    return None
            ways = further
        return done

    def behind(self, outer: Place, goals: Goals) -> Place:
        """The place behind a value of some goals inside of one where no items must differ."""
        return self._place(outer.outer, outer.level.resume(goals, None), ())

    # Moves ---------------------------------------------------------------------------------------

    def _place(self, outer: Place | None, level: Level, begun: tuple[Begun, ...]) -> Place:
        if begun:
            known, key = self._under_way, (outer, level, begun)
            found = known.get(key)
            if found is None:
                self._make_room()
                found = known.setdefault(key, Place(outer, level, begun))
            return found
        inside = self._outermost if outer is None else outer.inside
        if inside is None:
            assert outer is not None
            inside = outer.inside = {}
        place = inside.get(level)
        if place is None:
            self._make_room()
            place = inside.setdefault(level, Place(outer, level, ()))
        return place

    def _widened(self, place: Place) -> Place:
        """The one of all places that differ in the keys that have been written."""
        if place.begun or place.level.unique:
            return place
        unknown: list[Place] = []
        inner: Place | None = place
        while inner is not None and inner.wide is None:
            unknown.append(inner)
            inner = inner.outer
        wide = None if inner is None else inner.wide
        for inner in reversed(unknown):
            wide = inner.wide = self._place(wide, self._levels.widened(inner.level), ())
        assert wide is not None, "there is at least the place itself"
        return wide

    def _make_room(self) -> None:
        """Count one place more; where there are too many, let them go."""
        self._kept += 1
        if self._kept > MAX_KEPT:
            self._kept = 1
            self._under_way.clear()
            self._outermost.clear()

    def _step(self, place: Place, byte: int) -> tuple[Place, ...]:
        """The places behind a byte, whether items can still differ there or not."""
        outer, level, begun = place.outer, place.level, place.begun
        while True:
            ways = level.push(byte)
            if isinstance(ways, Level):
                begun = tuple([item.on(byte) for item in begun])
                return (self._place(outer, ways, begun),)
            if not ways:
                risen = self._risen(outer, level.ended, begun) if level.ended else None
                if risen is None:
                    return ()
                outer, level, begun = risen
                continue
            if not isinstance(ways, Way):
                begun = tuple([item.on(byte) for item in begun])
                return tuple([self._place(outer, w.level, begun) for w in ways if w.level])
            onward, inner, again, goals = ways
            if again:
                assert onward is not None
                assert inner is not None
                outer, begun = self._place(outer, onward, ()), self._item(onward, inner, begun)
                level = inner
                continue
            begun = tuple([item.on(byte) for item in begun])
            if onward is None:
                if outer is None:
                    return (self._end,)
                risen = self._risen(outer, goals, begun)
                return () if risen is None else (self._place(*risen),)
            assert inner is not None, "else the level is all"
            waiting = self._place(outer, onward, ())
            return (self._place(waiting, inner, self._item(onward, inner, begun)),)

    def _risen(
        self, outer: Place | None, goals: Goals, begun: tuple[Begun, ...]
    ) -> tuple[Place | None, Level, tuple[Begun, ...]] | None:
        """The level around a value that has ended, as it goes on; None where the value may not."""
        if outer is None:
            return None
        text = None
        if outer.level.unique:
            if begun[-1].is_rival():
                return None
            text, begun = begun[-1].typed, begun[:-1]
        return outer.outer, outer.level.resume(goals, text), begun

    def _item(self, level: Level, inner: Level, begun: tuple[Begun, ...]) -> tuple[Begun, ...]:
        """What must differ when a value begins inside of a level."""
        if not level.unique:
            return begun
        if level.rivals is None:
            assert isinstance(level.frame, Items)
            assert isinstance(inner.frame, Start)
            level.rivals = self._distinct.rivals(level.frame, inner.frame.depth)
        return (*begun, Begun(b"", level.rivals, 0, len(level.rivals)))

    # Differing items -----------------------------------------------------------------------------

    def _lives(self, place: Place) -> bool:
        """Whether the items under way can still become different from others.

        A text that is none of some parts from all of them somewhere, so only their own ways are
        looked at.
        """
        if place.lives is None:
            place.lives = self._can_differ(place)
        return place.lives

    def _can_differ(self, place: Place) -> bool:
        if place.is_safe:
            return True
        seen, ways = {place}, [self._ways_on(place)]
        while ways:
            onward = next(ways[-1], None)
            if onward is None:
                ways.pop()
            elif onward.is_safe:
                return True
            elif onward not in seen:
                seen.add(onward)
                ways.append(self._ways_on(onward))
        return False

    def _ways_on(self, place: Place) -> Iterator[Place]:
        """The places behind one byte, first those that part from all that was written."""
        heads = {head for item in place.begun for head in item.heads()}
        for byte in sorted(self._structural(place), key=heads.__contains__):
            yield from self._step(place, byte)

    def _structural(self, place: Place) -> bytes:
        """The bytes that may follow, whether items can then differ or not."""
        found = place.level.following()
        if not place.level.ended:
            return found
        risen = self._risen(place.outer, place.level.ended, place.begun)
        return found if risen is None else united([found, risen[1].following()])


def check_unique(shape: Array, graph: Graph, style: Style) -> bool:
    """Whether an array whose items must differ can be filled.

    Args:
        shape: An array of which that is demanded, and which could be filled otherwise.
        graph: With the shortest texts of all nodes, and no empty shape.
        style: White space.

    Raises:
        SchemaUnsupported: It cannot be told.
    """
    return check_shape(shape, graph, SchemaRules(graph, style).texts)
