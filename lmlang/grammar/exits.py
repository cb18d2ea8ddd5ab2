"""Where tokens leave a content: the bytes that do it, and the places in the tree behind them.

inside of a string     `"` -->   the nodes of `"`, `."`, `er"` …      some lead on: `",` `."}`
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from lmlang.grammar.frontier import Frontier, Frontiers


class Exit(NamedTuple):
    """Where one byte leaves a content.

    Args:
        last: The byte.
        paths: Nodes of the trie that it leads to, and the bytes up to them.
        nodes: The same the other way round.
        onward: Those that lead on.
    """

    last: bytes
    paths: dict[int, bytes]
    nodes: dict[bytes, tuple[int, ...]]
    onward: Frontier | None

    def behind(self, rests: Collection[bytes]) -> tuple[int, ...]:
        """The nodes behind some runs of content and the byte, in ascending order."""
        nodes, last = self.nodes, self.last
        found = [node for rest in rests for node in nodes.get(rest + last, ())]
        return tuple(sorted(found)) if found else ()


def exits_of(left: Iterable[tuple[int, bytes]], frontiers: Frontiers) -> tuple[Exit, ...]:
    """The exits of a content.

    Args:
        left: Nodes that a byte leads to which leaves it, and the bytes up to them.
        frontiers: Places in the tree.
    """
    by_byte: dict[bytes, dict[int, bytes]] = {}
    for node, path in sorted(left):
        by_byte.setdefault(path[-1:], {})[node] = path
    found = []
    for last, paths in by_byte.items():
        nodes: dict[bytes, tuple[int, ...]] = {}
        for node, path in paths.items():
            nodes[path] = (*nodes.get(path, ()), node)
        found.append(Exit(last, paths, nodes, frontiers.of(paths)))
    return tuple(found)
