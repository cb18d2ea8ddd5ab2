"""What is known of a context-free grammar before any output: what ends, and by how few bytes.

rules that do not lead back to themselves, and are small, are written out where they are called
ways that end in no finite text are left out, so that whatever a node leads to can be completed
ways without a byte, and calls of rules that may be empty, are followed once and for all
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from lmlang.errors import GrammarTooLarge, Unsatisfiable, quote
from lmlang.grammar.ebnf import MAX_NODES, Network, Rule, parse_grammar, unknown_rule
from lmlang.grammar.spec import Ebnf

MAX_WRITTEN_OUT = 400
"""Nodes of a rule that is written out where it is called."""
MAX_SHORTEST = 100_000
"""Bytes of the shortest text of a rule."""


@dataclass(frozen=True, slots=True)
class Way:
    """The first step of a shortest way to the end of a rule.

    Args:
        to: The node that it leads to; None at the end.
        byte: What it reads; None where it reads nothing, or a rule.
        rule: What it calls.
    """

    to: int | None
    byte: int | None = None
    rule: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A grammar. Rule 0 is the root; nodes that lead to no end are reached from nowhere.

    Args:
        moves: Of each node: (first byte, last byte, target).
        calls: Of each node: a rule, and the node where it comes back.
        free: Of each node: where it leads without a byte, be it by a rule that may be empty.
        starts: Node where each rule begins.
        ends: Node where each rule ends.
        names: Of the rules.
        cost: Of each node: bytes of the shortest text to the end of its rule.
        ways: Of each node: how that text begins.
    """

    moves: tuple[tuple[tuple[int, int, int], ...], ...]
    calls: tuple[tuple[tuple[int, int], ...], ...]
    free: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    ends: frozenset[int]
    names: tuple[str, ...]
    cost: dict[int, int]
    ways: dict[int, Way]

    def reach(self, nodes: Iterable[int]) -> frozenset[int]:
        """Where nodes come to without a byte: those with moves or calls, and ends of rules."""
        seen = set(nodes)
        todo = list(seen)
        while todo:
            onward = [to for to in self.free[todo.pop()] if to not in seen]
            seen.update(onward)
            todo += onward
        return frozenset(n for n in seen if self.moves[n] or self.calls[n] or n in self.ends)

    def shortest(self, node: int) -> bytes:
        """The shortest text from a node to the end of its rule."""
        found = bytearray()
        todo: list[int | None] = [node]
        while todo:
            here = todo.pop()
            if here is None:
                continue
            way = self.ways[here]
            todo.append(way.to)
            if way.byte is not None:
                found.append(way.byte)
            if way.rule is not None:
                todo.append(self.starts[way.rule])
        return bytes(found)


def prepare(spec: Ebnf) -> Prepared:
    """Read a grammar and find out what can be known of it beforehand.

    Raises:
        GrammarSyntaxError: It is none, or has no such root.
        GrammarTooLarge: It, or the shortest text of one of its rules, is too large.
        Unsatisfiable: Its root derives no finite text.
    """
    network, rules = parse_grammar(spec.text)
    if spec.root not in rules:
        raise unknown_rule(spec.text, None, spec.root, list(rules))
    names = _used(network, rules, spec.root)
    nodes = _written_out(network, rules, names)
    kept = [spec.root]
    for name in kept:  # which grows
        calls = {rule for node in nodes[name] for rule, _ in network.calls[node]}
        kept += sorted(calls.difference(kept))
    return _finished(network, kept, [rules[name] for name in kept], [nodes[n] for n in kept])


def _used(network: Network, rules: dict[str, Rule], root: str) -> dict[str, list[str]]:
    """The rules that the root needs, and what each of them calls."""
    found: dict[str, list[str]] = {}
    todo = [root]
    while todo:
        name = todo.pop()
        if name not in found:
            calls = [rule for node in rules[name].nodes for rule, _ in network.calls[node]]
            found[name] = list(dict.fromkeys(calls))
            todo += found[name]
    return found


def _groups(called: dict[str, list[str]]) -> list[list[str]]:
    """Rules that lead back to each other, those that are called first before their callers.

    Source: Tarjan, "Depth-first search and linear graph algorithms" (1972).
    """
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []
    for root in called:
        work = [] if root in number else [(root, iter(called[root]))]
        while work:
            name, rest = work[-1]
            if name not in number:
                number[name] = low[name] = len(number)
                stack.append(name)
            for other in rest:
                if other not in number:
                    work.append((other, iter(called[other])))
                    break
                low[name] = min(low[name], low[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == number[name]:
                    group: list[str] = []
                    while name not in group[-1:]:
                        group.append(stack.pop())
                        low[group[-1]] = len(called)  # of no open group any more
                    groups.append(group)
    return groups


def _written_out(
    network: Network, rules: dict[str, Rule], called: dict[str, list[str]]
) -> dict[str, list[int]]:
    """Write small rules out where they are called; the nodes of the rules that are left."""
    nodes: dict[str, list[int]] = {}
    small: set[str] = set()
    for group in _groups(called):
        for name in group:
            own = nodes[name] = list(rules[name].nodes)
            for node in rules[name].nodes:
                kept = []
                for callee, back in network.calls[node]:
                    if callee in small and len(network.moves) + len(nodes[callee]) <= MAX_NODES:
                        twins = network.copy(nodes[callee])
                        network.free[node].append(twins[rules[callee].start])
                        network.free[twins[rules[callee].end]].append(back)
                        own += twins.values()
                    else:
                        kept.append((callee, back))
                network.calls[node] = kept
        name = group[0]
        if len(group) == 1 and name not in called[name] and len(nodes[name]) <= MAX_WRITTEN_OUT:
            small.add(name)
    return nodes


def _finished(
    network: Network, names: list[str], rules: list[Rule], nodes: list[list[int]]
) -> Prepared:
    """Leave out what leads nowhere, and find what each node that is landed on reaches."""
    number = {name: index for index, name in enumerate(names)}
    starts = tuple(rule.start for rule in rules)
    ends = tuple(rule.end for rule in rules)
    everything = [node for each in nodes for node in each]
    calls = {
        node: [(number[rule], to) for rule, to in network.calls[node]]
        for node in everything
        if network.calls[node]
    }
    cost, ways = _shortest(network, calls, everything, starts, ends)
    if starts[0] not in cost:
        raise Unsatisfiable(
            f"the grammar: the rule {quote(names[0])} derives no finite text, as every way through "
            "it comes to itself again; add one that ends."
        )
    for name, start in zip(names, starts, strict=True):
        if cost.get(start, 0) > MAX_SHORTEST:
            raise GrammarTooLarge(
                f"the grammar: the shortest text of the rule {quote(name)} has more than "
                f"{MAX_SHORTEST:,} bytes; lower its counts."
            )
    empty = {rule for rule, start in enumerate(starts) if cost.get(start) == 0}
    size = len(network.moves)
    moves: list[tuple[tuple[int, int, int], ...]] = [()] * size
    called: list[tuple[tuple[int, int], ...]] = [()] * size
    free: list[tuple[int, ...]] = [()] * size
    for node in cost:
        moves[node] = tuple(move for move in network.moves[node] if move[2] in cost)
        called[node] = tuple(
            (rule, to) for rule, to in calls.get(node, ()) if to in cost and starts[rule] in cost
        )
        onward = [to for to in network.free[node] if to in cost]
        free[node] = (*onward, *(to for rule, to in called[node] if rule in empty))
    return Prepared(
        tuple(moves), tuple(called), tuple(free), starts, frozenset(ends), tuple(names), cost, ways
    )


def _shortest(
    network: Network,
    calls: dict[int, list[tuple[int, int]]],
    nodes: list[int],
    starts: tuple[int, ...],
    ends: tuple[int, ...],
) -> tuple[dict[int, int], dict[int, Way]]:
    """Bytes from each node to the end of its rule, by the shortest way; nodes without one lack.

    Source: Knuth, "A generalization of Dijkstra's algorithm" (1977).
    """
    back: dict[int, list[tuple[int, Way]]] = {}
    returns: dict[int, list[tuple[int, int, int]]] = {}
    begins: dict[int, list[tuple[int, int, int]]] = {}
    for node in nodes:
        for to in network.free[node]:
            back.setdefault(to, []).append((node, Way(to)))
        for low, high, to in network.moves[node]:
            back.setdefault(to, []).append((node, Way(to, _nicest(low, high))))
        for rule, to in calls.get(node, ()):
            returns.setdefault(to, []).append((node, rule, to))
            begins.setdefault(starts[rule], []).append((node, rule, to))
    cost: dict[int, int] = {}
    ways: dict[int, Way] = {}
    heap = [(0, 0, index, end, Way(None)) for index, end in enumerate(ends)]
    pushed = count(len(ends))
    while heap:
        spent, _, _, node, way = heapq.heappop(heap)
        if node in cost:
            continue
        cost[node], ways[node] = spent, way
        for before, step in back.get(node, ()):
            if before not in cost:
                spends = spent + (step.byte is not None)
                heapq.heappush(heap, (spends, _dislike(step.byte), next(pushed), before, step))
        for before, rule, to in (*returns.get(node, ()), *begins.get(node, ())):
            if before not in cost and to in cost and starts[rule] in cost:
                total = cost[starts[rule]] + cost[to]
                heapq.heappush(heap, (total, 0, next(pushed), before, Way(to, rule=rule)))
    return cost, ways


_NICE = (*b"0aA _!",)


def _nicest(low: int, high: int) -> int:
    """The byte of a range that a reader would rather see."""
    return next((byte for byte in _NICE if low <= byte <= high), low)


def _dislike(byte: int | None) -> int:
    """Which of several bytes to rather not take, where all lead there equally fast."""
    return 0 if byte is None or byte in _NICE else 1 if 0x21 <= byte < 0x7F else 2
