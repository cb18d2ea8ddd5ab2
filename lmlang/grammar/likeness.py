"""Which nodes of an automaton do the same for a while, so that what is known of one holds for many.

    .{1,1000}     . -> . -> ... -> . -> . -> end      for 3 characters all but the last 3 are alike

Two nodes are alike for no character if they read the same, and for one more than before if they
lead to nodes that are alike. In each round only nodes are looked at whose successors were told
apart in the last one, so that a long chain costs one node a round.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping


def alike_for(
    length: int, kinds: Mapping[int, Hashable], onward: Mapping[int, frozenset[int]]
) -> dict[int, int]:
    """Classes of nodes that do the same for so many characters.

    Args:
        length: How many.
        kinds: What each node is, for no character.
        onward: Where each leads by a character that it reads.
    """
    numbers: dict[Hashable, int] = {}
    found = {node: numbers.setdefault(kind, len(numbers)) for node, kind in kinds.items()}
    members: dict[int, set[int]] = {}
    before: dict[int, list[int]] = {}
    for node, number in found.items():
        members.setdefault(number, set()).add(node)
        for other in onward[node]:
            before.setdefault(other, []).append(node)
    looked_at, fresh = set(found), len(numbers)
    for _ in range(length):
        parts: dict[int, dict[frozenset[int], set[int]]] = {}
        for node in looked_at:
            leads = frozenset([found[other] for other in onward[node]])
            parts.setdefault(found[node], {}).setdefault(leads, set()).add(node)
        told_apart: list[int] = []
        for number, groups in parts.items():
            rest = len(members[number]) - sum(map(len, groups.values()))
            some = sorted(groups.values(), key=len)
            for group in some if rest else some[:-1]:
                members[number] -= group
                members[fresh] = group
                for node in group:
                    found[node] = fresh
                told_apart += group
                fresh += 1
        looked_at = {other for node in told_apart for other in before.get(node, ())}
        if not looked_at:
            break
    return found
