"""What a schema comes to for arrays: sets of demands, and the shape that such a set has."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from lmlang.errors import SchemaUnsupported
from lmlang.grammar.schema.demands import (
    EVERYTHING_SEEN,
    FREE,
    NO_ITEMS,
    Around,
    Case,
    Demand,
    Demands,
    Items,
)
from lmlang.grammar.schema.dialect import ARRAY, Keywords
from lmlang.grammar.schema.document import FALSE, TRUE, Literal, Schema
from lmlang.grammar.schema.resources import where
from lmlang.grammar.schema.shapes import Array, Node, Tally

MAX_TOLD_APART = 4
"""First items that are told apart by whether they fail what the others must meet."""
GLANCE = 8
"""Items that are looked at to see whether nothing fits."""


class Arrays:
    """Arrays as the expander knows them."""

    kind = ARRAY

    def __init__(self, around: Around) -> None:
        self._around = around

    def cases(self, schema: Schema, keywords: Keywords, asked: bool) -> list[Case]:
        """What the keywords of a schema that look at arrays come to."""
        demands: list[Demand] = [
            ("=", index, literal) for index, literal in enumerate(keywords.prefix) if literal
        ]
        if keywords.rest:
            demands.append(("*", len(keywords.prefix), keywords.rest))
        if keywords.contains is not None:
            least, most = keywords.least_contains, keywords.most_contains
            demands += _tally(keywords.contains, least, most)
        if keywords.least_items:
            demands.append(("<", keywords.least_items))
        if keywords.most_items is not None:
            demands.append((">", keywords.most_items))
        if keywords.unique:
            demands.append(("u",))
        case = Case(frozenset(demands), self._seen(schema, keywords) if asked else None)
        if keywords.values is None:
            return [case]
        given = [value for value in keywords.values if isinstance(value, list)]
        constants = [Case(self._constant(value, schema)) for value in given]
        return self._around.product(self, [case], constants, "enum", schema)

    def failing(self, schema: Schema, keywords: Keywords) -> list[Case]:
        """What an array comes to that fails one of them."""
        found: list[Demands] = [
            frozenset({("<", index + 1), ("=", index, literal ^ 1)})
            for index, literal in enumerate(keywords.prefix)
            if literal
        ]
        if keywords.rest:
            found += self._some_from(len(keywords.prefix), keywords.rest, "items", schema)
        if keywords.contains is not None:
            literal, least = keywords.contains, keywords.least_contains
            if least:
                found.append(_tally(literal, 0, least - 1))
            if keywords.most_contains is not None:
                found.append(_tally(literal, keywords.most_contains + 1, None))
        if keywords.least_items:
            found.append(frozenset({(">", keywords.least_items - 1)}))
        if keywords.most_items is not None:
            found.append(frozenset({("<", keywords.most_items + 1)}))
        if keywords.unique:
            found.append(frozenset({("d",), refused("uniqueItems", schema)}))
        cases = [Case(demands) for demands in found]
        if keywords.values is not None:
            given = [value for value in keywords.values if isinstance(value, list)]
            others = [FREE]
            for value in given:
                unlike = [Case(demands) for demands in self._unlike(value, schema)]
                others = self._around.product(self, others, unlike, "enum", schema)
            cases += others
        return cases

    def unevaluated(self, case: Case, literal: Literal, schema: Schema) -> Case:
        """A case with a demand on the items that it has not evaluated."""
        seen = case.seen or NO_ITEMS
        assert isinstance(seen, Items)
        everything = Items(EVERYTHING_SEEN, seen.meeting)
        if seen.upto == EVERYTHING_SEEN or literal == TRUE:
            return Case(case.demands, everything)
        meets = self._met(seen, literal, schema)
        demands = case.demands | {("*", seen.upto, meets)} if meets else case.demands
        return Case(demands, everything)

    def failing_unevaluated(self, case: Case, literal: Literal, schema: Schema) -> list[Case]:
        """The cases in which an item that it has not evaluated fails."""
        seen = case.seen or NO_ITEMS
        assert isinstance(seen, Items)
        if seen.upto == EVERYTHING_SEEN or literal == TRUE:
            return []
        meets = self._met(seen, literal, schema)
        some = self._some_from(seen.upto, meets, "unevaluatedItems", schema)
        return [Case(case.demands | failing) for failing in some]

    def reduced(self, demands: Demands) -> Demands | None:
        """The same demands said more simply; None where surely no array meets them."""
        read = _Read(demands)
        least, most = read.least, read.most
        if most is not None and least > most:
            return None
        if ("d",) in demands and (("u",) in demands or (most is not None and most < 2)):
            return None
        nothing_fits = self._around.nothing_fits
        if any(nothing_fits(read.at(index)) for index in range(min(least, GLANCE))):
            return None
        for literal, (low, high) in read.tallies.items():
            if (high is not None and low > high) or (most is not None and low > most):
                return None
            if low and not read.items and nothing_fits(read.at(0) | {literal}):
                return None
        return demands

    def shape(self, demands: Demands, node: Callable[[frozenset[Literal]], Node]) -> Array | None:
        """The shape of the arrays that meet some demands."""
        read = _Read(demands)
        for literal, (low, high) in list(read.tallies.items()):
            if high is not None and low > high:
                return None
            if high == 0:  # none may meet it: then all fail it
                read.rests.append((0, literal ^ 1))
            if high == 0 or (low == 0 and high is None):
                del read.tallies[literal]
        most = read.most
        length = max([0, *(index + 1 for index in read.items), *(start for start, _ in read.rests)])
        length = length if most is None else min(length, most)
        prefix = [read.at(index) for index in range(length)]
        rest = read.at(EVERYTHING_SEEN)
        while prefix and prefix[-1] == rest and (most is None or most > len(prefix)):
            prefix.pop()
        if most is not None and read.least > most:
            return None
        ends = most is not None and most <= len(prefix)
        return Array(
            tuple(map(node, prefix)),
            None if ends else node(rest),
            read.least,
            most,
            tuple(
                Tally(
                    node(frozenset({literal})),
                    node(frozenset() if high is None else frozenset({literal ^ 1})),
                    low,
                    high,
                )
                for literal, (low, high) in sorted(read.tallies.items())
            ),
            ("u",) in demands and (most is None or most > 1),
        )

    def _seen(self, schema: Schema, keywords: Keywords) -> Items:
        upto = len(keywords.prefix) if keywords.rest is None else EVERYTHING_SEEN
        if keywords.contains is None or schema.draft.number < 2020:
            return Items(upto, frozenset())
        return Items(upto, frozenset({keywords.contains}))

    def _met(self, seen: Items, literal: Literal, schema: Schema) -> Literal:
        """What an item must meet to be evaluated, or to be allowed although it is not."""
        if not seen.meeting:
            return literal
        return self._around.document.any_of((*sorted(seen.meeting), literal), schema)

    def _some_from(
        self, start: int, literal: Literal, keyword: str, schema: Schema
    ) -> list[Demands]:
        """Some item from an index on fails a literal.

        The items before are told apart by whether they fail it: then one more than those must.
        """
        if literal == FALSE:
            return [frozenset({("<", start + 1)})]
        if literal == TRUE:
            return []
        if start > MAX_TOLD_APART:
            return [frozenset({("<", start + 1), refused(keyword, schema)})]
        failing = literal ^ 1
        return [
            frozenset(
                {
                    ("<", start + 1),
                    ("?", failing, before.count(failing) + 1, None),
                    *(("=", index, meets) for index, meets in enumerate(before)),
                }
            )
            for before in product((literal, failing), repeat=start)
        ]

    def _constant(self, value: list[object], schema: Schema) -> Demands:
        document = self._around.document
        return frozenset(
            {
                ("<", len(value)),
                (">", len(value)),
                *(("=", i, document.constant(item, schema)) for i, item in enumerate(value)),
            }
        )

    def _unlike(self, value: list[object], schema: Schema) -> list[Demands]:
        document = self._around.document
        found: list[Demands] = [frozenset({("<", len(value) + 1)})]
        if value:
            found.append(frozenset({(">", len(value) - 1)}))
        for index, item in enumerate(value):
            unlike = document.constant(item, schema) ^ 1
            found.append(frozenset({("<", index + 1), ("=", index, unlike)}))
        return found


def refused(keyword: str, schema: Schema) -> Demand:
    """A demand that cannot be met exactly."""
    return ("!", keyword, schema.pointer, _WHY[keyword])


_WHY = {
    "uniqueItems": "its opposite, two items that are equal, cannot be told while they are written",
    "items": "its opposite, behind so many first items, would make too many cases",
    "unevaluatedItems": "its opposite, behind so many first items, would make too many cases",
}


def check_refused(demands: Demands) -> None:
    """Raises SchemaUnsupported where some demands cannot be met exactly."""
    for demand in demands:
        if demand[0] == "!":
            _, keyword, pointer, why = demand
            raise SchemaUnsupported(
                f"{keyword} at {where(pointer)} is negated (by not, oneOf or if), and {why}: write "
                "what is allowed instead.",
                keyword=keyword,
                pointer=pointer,
            )


def sizes(demands: Demands) -> tuple[int, int | None]:
    """The bounds on how many items or properties there are."""
    least = max((demand[1] for demand in demands if demand[0] == "<"), default=0)
    most = min((demand[1] for demand in demands if demand[0] == ">"), default=None)
    return least, most


class _Read:
    """The demands on an array, by what they are about."""

    def __init__(self, demands: Demands) -> None:
        self.items: dict[int, set[Literal]] = {}
        self.rests: list[tuple[int, Literal]] = []
        self.tallies: dict[Literal, tuple[int, int | None]] = {}
        self.least, self.most = sizes(demands)
        for demand in demands:
            if demand[0] == "=":
                self.items.setdefault(demand[1], set()).add(demand[2])
            elif demand[0] == "*":
                self.rests.append((demand[1], demand[2]))
            elif demand[0] == "?":
                low, high = self.tallies.get(demand[1], (0, None))
                if demand[3] is not None:
                    high = demand[3] if high is None else min(high, demand[3])
                self.tallies[demand[1]] = max(low, demand[2]), high
            if demand[0] in ("=", "*") and demand[2] == FALSE:
                self.most = demand[1] if self.most is None else min(self.most, demand[1])

    def at(self, index: int) -> frozenset[Literal]:
        """What the item at an index must meet."""
        rests = (literal for start, literal in self.rests if start <= index)
        return frozenset(self.items.get(index, ())).union(rests)


def _tally(literal: Literal, least: int, most: int | None) -> Demands:
    """So many items must meet a literal."""
    if literal == FALSE:
        return IMPOSSIBLE if least else frozenset()
    if literal == TRUE:
        return frozenset({("<", least), *([] if most is None else [(">", most)])})
    return frozenset({("?", literal, least, most)})


IMPOSSIBLE: Demands = frozenset({("<", 1), (">", 0)})
"""Demands that nothing meets."""
