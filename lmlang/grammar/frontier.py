"""Places in the tree of tokens that walks come to, and where runs of bytes lead from them.

    root      -- "name":  -->   the nodes of `":` and of what else ends so, as far as they lead on
    `"` `."`  -- ,"       -->   `","` `.","` and the tokens on the way: `",` `.",` …

What a run does depends on the tokens alone, so it is worked out once for all grammars.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from lmlang.grammar.token_trie import TokenTrie

MAX_STEPS = 50_000
"""What is kept of one vocabulary: runs from places, some hundred bytes each."""


_BYTES = bytes(range(256))


class Step(NamedTuple):
    """What a run of bytes does.

    Attributes:
        ids: The tokens that end in it or with it.
        onward: Where it leads; None: no token goes on behind it.
    """

    ids: tuple[int, ...]
    onward: Frontier | None


class Frontier:
    """Nodes of the trie below which there are others; one object for each set. See `Frontiers`.

    Attributes:
        nodes: In ascending order.
        heads: The bytes that lead on from them, in ascending order.
        others: Those that do not.
        steps: What runs do that were asked.
        below: What tables do below the nodes; owned by `contents.py`.
    """

    __slots__ = ("__weakref__", "below", "heads", "nodes", "others", "steps")

    def __init__(self, nodes: tuple[int, ...], heads: Iterable[int]) -> None:
        self.nodes = nodes
        self.heads = bytes(heads)
        self.others = _BYTES.translate(None, self.heads)
        self.steps: dict[bytes, Step] = {}
        self.below: dict[tuple[int, int], Any] = {}


NOWHERE = Step((), None)
ONE = tuple(bytes((byte,)) for byte in range(256))
"""Runs of one byte."""


class Frontiers:
    """All of one vocabulary. Thread-safe: what it keeps is a cache.

    Args:
        trie: Its tokens.

    Attributes:
        root: Where tokens begin.
    """

    def __init__(self, trie: TokenTrie) -> None:
        self._trie = trie
        self._known: WeakValueDictionary[tuple[int, ...], Frontier] = WeakValueDictionary()
        self._lock = Lock()
        self._kept = 0
        self._joined: dict[tuple[Frontier, ...], Frontier] = {}
        self.root = self._made((0,))

    def of(self, nodes: Iterable[int]) -> Frontier | None:
        """Some nodes, as far as they lead on; None: none of them does."""
        starts = self._trie.starts
        some = tuple(sorted(node for node in nodes if starts[node] != starts[node + 1]))
        return self._made(some) if some else None

    def joined(self, some: tuple[Frontier, ...]) -> Frontier:
        """The nodes of all of some."""
        found = self._joined.get(some)
        if found is None:
            found = self._made(tuple(sorted({node for each in some for node in each.nodes})))
            self.count()
            self._joined[some] = found
        return found

    def step(self, frontier: Frontier, run: bytes) -> Step:
        """What a run of at least one byte does."""
        found = frontier.steps.get(run)
        if found is None:
            found = self._stepped(frontier, run)
            self.count()
            frontier.steps[run] = found
        return found

    def count(self) -> None:
        """Make room for one more that is kept."""
        self._kept += 1
        if self._kept > MAX_STEPS:
            self._kept = 0
            with self._lock:
                known = list(self._known.values())
            self._joined.clear()
            for frontier in known:
                frontier.steps.clear()
                frontier.below.clear()

    def _stepped(self, frontier: Frontier, run: bytes) -> Step:
        labels, starts, trie = self._trie.labels, self._trie.starts, self._trie
        nodes: Iterable[int] = frontier.nodes
        ids: list[int] = []
        for byte in run:
            found = []
            for node in nodes:
                child = labels.find(byte, starts[node], starts[node + 1])
                if child >= 0:
                    found.append(child)
                    ids += trie.ids(child)
            if not found:
                return Step(tuple(ids), None) if ids else NOWHERE
            nodes = found
        return Step(tuple(ids), self.of(nodes))

    def _made(self, nodes: tuple[int, ...]) -> Frontier:
        with self._lock:
            found = self._known.get(nodes)
            if found is None:
                labels, starts = self._trie.labels, self._trie.starts
                heads = {b for node in nodes for b in labels[starts[node] : starts[node + 1]]}
                found = self._known[nodes] = Frontier(nodes, sorted(heads))
            return found
