"""`Rules` of a context-free grammar: an Earley recogniser over bytes whose sets are shared values.

    root ::= "(" root ")" root | "x"          behind "(x":     spot          call
                                              an item  =  ( ... ")" root ,  root, for whom )

A spot is a set of nodes of one rule, made as it is met; a call is a rule with those that wait for
it: (rule that they called, where they go on, their own call). Callers that wait for each other at
one place (left recursion) are not written down, as the grammar says who they are; callers that
only end when it ends (right recursion) are left out for those that wait for them. So equal futures
are equal keys, however the output came there.
Sources: Earley, "An efficient context-free parsing algorithm" (1970); Aycock and Horspool,
"Practical Earley parsing" (2002), for rules that may be empty; Leo, "A general context-free
parsing algorithm running in linear time on every LR(k) grammar" (1991), for right recursion.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from lmlang.grammar.automaton import Content, Leaving
from lmlang.grammar.ebnf_network import Prepared, prepare
from lmlang.grammar.ebnf_table import EbnfTable, Spot, Spots
from lmlang.grammar.spec import Ebnf

MAX_KEPT = 100_000
"""Calls that are kept for other outputs."""
MAX_TABLES = 1_000
"""Tables that are kept for other outputs."""
MAX_CONTENTS = 8
"""Where more than so many rules may read the next byte, no tables are offered."""


MAX_DEPTH, MAX_COMPARED = 8, 8
"""How far calls are compared, and with how many others."""


class Call:
    """A rule that has begun somewhere, and for whom; equal ones are one object.

    Attributes:
        rule: Which.
        callers: The rule that they called, where they go on, and their own call.
        behind: The bytes that may come behind it, as bits, once that has been asked.
        returns: Where it goes on behind this one, once that has been asked.
        cost: Bytes of the shortest text behind this one, once that has been asked.
        onward: How that text begins: the caller.
        covers: Other calls of the rule, and whether all that may come behind them may come here.
    """

    __slots__ = ("behind", "callers", "cost", "covers", "onward", "returns", "rule")

    def __init__(self, rule: int, callers: frozenset[Caller]) -> None:
        self.rule = rule
        self.callers = callers
        self.returns: tuple[tuple[int, Call], ...] | None = None
        self.behind: int | None = None
        self.cost: int | None = None
        self.onward: Caller | None = None
        self.covers: dict[Call, bool] = {}


Caller: TypeAlias = tuple[int, int, Call]
Item: TypeAlias = tuple[Spot, Call]
E = TypeVar("E", bound=tuple[Any, ...])


class Place:
    """A key: the items at one place of an output.

    Attributes:
        items: A spot for each call.
        sources: What may read the next byte, once that has been asked.
    """

    __slots__ = ("_hash", "items", "sources")

    def __init__(self, items: frozenset[Item]) -> None:
        self.items = items
        self.sources: tuple[Item, ...] | None = None
        self._hash = hash(items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.items == other.items


def ebnf_rules(spec: Ebnf) -> EbnfRules:
    """The rules of a grammar.

    Raises:
        GrammarSyntaxError: Its text is none; with line and column.
        GrammarTooLarge: It is too large.
        Unsatisfiable: It derives no finite text.
    """
    return EbnfRules(prepare(spec))


class EbnfRules:
    """The rules of one grammar. Thread-safe: what it keeps is a cache, no more."""

    def __init__(self, grammar: Prepared) -> None:
        self._grammar = grammar
        self._spots = Spots(grammar)
        self._calls: dict[tuple[int, frozenset[Caller]], Call] = {}
        self._tables: dict[int, EbnfTable] = {}
        self._climbs: dict[int, dict[int, Climb]] = {}
        self._output = Call(0, frozenset())
        """The call of the root: where it returns, the output ends."""

    def start(self) -> Place:
        """The key of the empty output."""
        return Place(frozenset([(self._spots.start(0), self._output)]))

    def push(self, key: Place, byte: int) -> Place | None:
        """The key behind one more byte; None where no output goes on so."""
        found: dict[Call, Spot] = {}
        for spot, call in self._sources(key):
            onward = spot.push(byte)
            if onward is not None:
                self._add(found, onward, call)
                if onward.ends:
                    for back, outer in self._returns(call):
                        self._add(found, self._spots.at(back), outer)
        items = self._widest((spot, call) for call, spot in found.items())
        return Place(frozenset(items)) if found else None

    def following(self, key: Place) -> bytes:
        """The bytes for which `push` gives a key, in ascending order."""
        bits = 0
        for spot, _ in self._sources(key):
            bits |= spot.first
        return bytes(byte for byte in range(256) if bits >> byte & 1)

    def accepting(self, key: Place) -> bool:
        """Whether the output may end here."""
        return any(spot.ends and call is self._output for spot, call in key.items)

    def completion(self, key: Place) -> bytes:
        """The fewest bytes that complete the output."""
        costs = [(spot.cost + self._cost(call), spot, call) for spot, call in key.items]
        least = min(cost for cost, _, _ in costs)
        return min(
            self._grammar.shortest(spot.nearest) + self._rest(call)
            for cost, spot, call in costs
            if cost == least
        )

    def contents(self, key: Place) -> tuple[Content, ...]:
        """Tables for the bytes that come next."""
        sources = self._sources(key)
        if len(sources) > MAX_CONTENTS:
            return ()
        tables = [(self._table(call), spot) for spot, call in sources]
        return tuple((table, table.state(spot)) for table, spot in tables)

    def leaving(self, key: Place) -> Leaving:
        """The table knows the bytes that called rules, or what comes behind it, read."""
        return Leaving.FREE

    def asked(self, key: Place) -> frozenset[bytes]:
        """None."""
        return frozenset()

    def pointer(self, key: Place) -> str:
        """Always "": a grammar is no JSON."""
        return ""

    def _add(self, found: dict[Call, Spot], spot: Spot, call: Call) -> None:
        """Add a spot to what is known of a call; its end only counts for the output."""
        open_ = spot if call is self._output else self._spots.unended(spot)
        if open_ is not None:
            known = found.get(call)
            found[call] = open_ if known is None else self._spots.of(known.nodes | open_.nodes)

    def _sources(self, key: Place) -> tuple[Item, ...]:
        """What may read the next byte: nodes of the items, and of the rules that they call."""
        if key.sources is None:
            callers: list[Caller] = []
            for spot, call in key.items:
                for rule, back in spot.calls:
                    if self._spots.at(back).only_ends and call is not self._output:
                        callers += [(rule, *each) for each in self._returns(call)]
                    else:
                        callers.append((rule, back, call))
            items = list(key.items)
            for rule in {each for called, _, _ in callers for each in self._spots.begun(called)}:
                items.append((self._spots.start(rule), self._call(rule, callers)))
            inside = [(self._spots.inside(spot), call) for spot, call in items]
            key.sources = tuple((spot, call) for spot, call in inside if spot is not None)
        return key.sources

    def _call(self, rule: int, callers: Iterable[Caller]) -> Call:
        """A rule that begins where others call; those that cannot come to it do not count."""
        here = [each for each in callers if rule in self._spots.begun(each[0])]
        those = frozenset(self._widest(here))
        found = self._calls.get((rule, those))
        if found is None:
            if len(self._calls) >= MAX_KEPT:
                self._calls.clear()
            found = self._calls.setdefault((rule, those), Call(rule, those))
        return found

    def _returns(self, call: Call) -> tuple[tuple[int, Call], ...]:
        """Where it goes on behind a call, and behind those that end with it."""
        if call.returns is None:
            found: dict[tuple[int, Call], None] = {}
            seen, todo = {call}, [call]
            while todo:
                inner = todo.pop()
                ways = [(back, outer) for rule, back, outer in inner.callers if rule == inner.rule]
                begun = {rule for each, _, _ in inner.callers for rule in self._spots.begun(each)}
                for rule, back in self._spots.callers(inner.rule):
                    if rule in begun:
                        ways.append((back, self._call(rule, inner.callers)))
                for back, outer in ways:
                    spot = self._spots.at(back)
                    if not spot.only_ends or outer is self._output:
                        found[back, outer] = None
                    if spot.ends and outer not in seen:
                        seen.add(outer)
                        todo.append(outer)
            call.returns = tuple(self._widest(found))
        return call.returns

    def _table(self, call: Call) -> EbnfTable:
        """The table of what is inside of a call: it has to know which bytes may come behind."""
        if call.behind is None:
            bits = 0
            for back, _ in self._returns(call):
                spot = self._spots.at(back)
                bits |= spot.first | self._spots.called(spot)
            call.behind = bits
        found = self._tables.get(call.behind)
        if found is None:
            if len(self._tables) >= MAX_TABLES:
                self._tables.clear()
            table = EbnfTable(self._spots, call.behind)
            found = self._tables.setdefault(call.behind, table)
        return found

    def _cost(self, call: Call) -> int:
        """Bytes of the shortest text behind a call; what it needs to know comes first."""
        todo = [call]
        while todo:
            here = todo[-1]
            if here.cost is None:
                unknown = [outer for _, _, outer in here.callers if outer.cost is None]
                todo += unknown
                if not unknown:
                    self._find_cost(here)
            else:
                todo.pop()
        assert call.cost is not None
        return call.cost

    def _find_cost(self, call: Call) -> None:
        if call is self._output:
            call.cost = 0
            return
        climb = self._climb(call.rule)
        ways = [
            (climb[rule].cost + self._grammar.cost[back] + (outer.cost or 0), rule, back, outer)
            for rule, back, outer in call.callers
        ]
        least = min(way[:3] for way in ways)
        tied = [way[3] for way in ways if way[:3] == least]  # all of one cost, so of one length
        outer = tied[0] if len(tied) == 1 else min(tied, key=self._rest)
        call.cost, call.onward = least[0], (least[1], least[2], outer)

    def _rest(self, call: Call) -> bytes:
        """The shortest text behind a call; of several the first one, whatever was met before."""
        found = bytearray()
        while self._cost(call):
            assert call.onward is not None, "behind the output nothing costs anything"
            called, back, outer = call.onward
            for node in (*self._climb(call.rule)[called].nodes, back):
                found += self._grammar.shortest(node)
            call = outer
        return bytes(found)

    def _widest(self, entries: Iterable[E]) -> list[E]:
        """Entries without those whose futures another one has too, but for its call the same.

        Where a text can be read in ever more ways, so many calls come down to a few.
        """
        kept: dict[tuple[object, ...], list[E]] = {}
        for entry in entries:
            call: Call = entry[-1]
            group = kept.setdefault((*entry[:-1], call.rule), [])
            near = group[-MAX_COMPARED:]
            if not any(self._covers(other[-1], call, MAX_DEPTH) for other in near):
                near = [other for other in near if not self._covers(call, other[-1], MAX_DEPTH)]
                group[-MAX_COMPARED:] = [*near, entry]
        return [entry for group in kept.values() for entry in group]

    def _covers(self, wide: Call, narrow: Call, depth: int) -> bool:
        """Whether whatever may come behind the narrow call may come behind the wide one.

        No where one would have to look too deep.
        """
        if wide is narrow:
            return True
        if depth == 0 or wide.rule != narrow.rule or self._output in (wide, narrow):
            return False
        found = wide.covers.get(narrow)
        if found is None:
            found = wide.covers[narrow] = all(
                any(
                    (rule, back) == other[:2] and self._covers(other[2], outer, depth - 1)
                    for other in wide.callers
                )
                for rule, back, outer in narrow.callers
            )
        return found

    def _climb(self, rule: int) -> dict[int, Climb]:
        """How the end of a rule becomes that of others that began where it did."""
        if rule not in self._climbs:
            found: dict[int, Climb] = {}
            heap: list[tuple[int, int, tuple[int, ...]]] = [(0, rule, ())]
            while heap:
                cost, here, nodes = heapq.heappop(heap)
                if here not in found:
                    found[here] = Climb(cost, nodes)
                    for caller, back in self._spots.callers(here):
                        total = cost + self._grammar.cost[back]
                        heapq.heappush(heap, (total, caller, (*nodes, back)))
            self._climbs[rule] = found
        return self._climbs[rule]


@dataclass(frozen=True, slots=True)
class Climb:
    """The shortest way from the end of a rule to that of one that began with it.

    Args:
        cost: Bytes.
        nodes: Where the rules on the way go on, the innermost first.
    """

    cost: int
    nodes: tuple[int, ...]
