"""Scores of choices: their tokens as one tree, computed in one pass behind the prompt.

    stem  "…is" ──┬── " very" ──┬── " good"      nodes: what must be computed: every proper prefix
                  │             └── " bad"              of a choice; their logits score what follows
                  └── " fine"                    edges: a node and a token that follows it

The stem's last logits score each choice's first token, the nodes' logits all others. A node
attends to the stem, to the nodes above it and to itself. Large trees are cut into pieces, each a
sequence of its own that computes the nodes above its first one once more.

Source: the tree attention of Miao et al., "SpecInfer" (2024), used here to score.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lmlang.protocol import ChoiceScore, Scores, Usage
from lmlang.runtime.cache.radix import IntArray

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ChoiceTrie:
    """N nodes in depth-first order and E edges in the order of their nodes.

    Args:
        tokens: int64 [N].
        parents: int64 [N], the node above; -1 directly behind the stem.
        edge_nodes: int64 [E].
        edge_tokens: int64 [E].
        paths: For every choice the edges that score its second to last token.
    """

    tokens: IntArray
    parents: IntArray
    edge_nodes: IntArray
    edge_tokens: IntArray
    paths: tuple[IntArray, ...]

    @classmethod
    def of(cls, tails: Seq[list[int]]) -> ChoiceTrie:
        """The trie of the tokens that each choice has behind the stem."""
        tokens: list[int] = []
        parents: list[int] = []
        edges: dict[tuple[int, int], int] = {}
        paths: list[list[int]] = [[] for _ in tails]
        above: list[int] = []
        before: list[int] = []
        for choice in sorted(range(len(tails)), key=lambda index: tails[index]):
            tail = tails[choice]
            common = 0
            while common < min(len(above), len(tail) - 1) and before[common] == tail[common]:
                common += 1
            del above[common:]
            for token in tail[common : len(tail) - 1]:
                parents.append(above[-1] if above else -1)
                above.append(len(tokens))
                tokens.append(token)
            paths[choice] = [
                edges.setdefault((node, token), len(edges))
                for node, token in zip(above, tail[1:], strict=True)
            ]
            before = tail
        pairs = np.array(list(edges), dtype=np.int64).reshape(-1, 2)
        order = np.argsort(pairs[:, 0], kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return cls(
            np.array(tokens, dtype=np.int64),
            np.array(parents, dtype=np.int64),
            pairs[order, 0],
            pairs[order, 1],
            tuple(place[np.array(path, dtype=np.int64)] for path in paths),
        )

    def pieces(self, size: int) -> list[Piece]:
        """The trie in pieces of up to ``size`` nodes and those above them, one at least."""
        total = len(self.tokens)
        starts = range(0, max(1, total), size)
        return [self._piece(start, min(start + size, total)) for start in starts]

    def _piece(self, start: int, end: int) -> Piece:
        """Nodes [start, end), behind copies of those above the first."""
        above = _above(self.parents, start) if start < end else self.parents[:0]
        nodes = np.concatenate([above, np.arange(start, end)])
        local = np.full(end + 1, -1, dtype=np.int64)  # the last place is that of parent -1
        local[nodes] = np.arange(len(nodes))
        first, last = np.searchsorted(self.edge_nodes, [start, end])
        return Piece(
            self.tokens[nodes],
            local[self.parents[nodes]],
            len(above),
            local[self.edge_nodes[first:last]],
            self.edge_tokens[first:last],
            int(first),
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a trie that one sequence computes; K nodes.

    Args:
        tokens: int64 [K].
        parents: int64 [K], indices into this piece; -1 directly behind the stem.
        copied: How many nodes at the beginning are computed for those below them only.
        edge_nodes: int64, ascending indices into this piece.
        edge_tokens: int64.
        first_edge: The trie's number of the first of these edges.
    """

    tokens: IntArray
    parents: IntArray
    copied: int
    edge_nodes: IntArray
    edge_tokens: IntArray
    first_edge: int

    def depths(self) -> IntArray:
        """int64 [K]: how many nodes stand above each."""
        depths = np.zeros(len(self.tokens), dtype=np.int64)
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                depths[node] = depths[parent] + 1
        return depths

    def runs(self, start: int, end: int) -> list[tuple[int, int]]:
        """Nodes [start, end) as stretches in which each node stands directly below the last."""
        breaks = np.flatnonzero(self.parents[start + 1 : end] != np.arange(start, end - 1))
        borders = [start, *(breaks + start + 1).tolist(), end]
        return list(itertools.pairwise(borders))

    def above(self, node: int) -> IntArray:
        """The nodes above one, the topmost first."""
        return _above(self.parents, node)

    def edges(self, start: int, end: int) -> slice:
        """Which of this piece's edges leave nodes [start, end)."""
        first, last = np.searchsorted(self.edge_nodes, [start, end])
        return slice(int(first), int(last))


@dataclass(slots=True)
class ScoreJob:
    """A score request under way; ended when no piece is left.

    Args:
        future: What whoever asked waits for.
        stem: int64, all tokens common to the choices, at least one.
        tails: What each choice has behind them; one may be empty.
        alone: Whether each choice is scored without the stem too.
    """

    future: Future[Scores]
    stem: IntArray
    tails: list[list[int]]
    alone: bool = False
    trie: ChoiceTrie = field(init=False)
    behind: FloatArray = field(init=False)
    """The log-probability of every edge's token behind the stem."""
    apart: FloatArray = field(init=False)
    """And without the stem."""
    firsts: list[float] = field(default_factory=list)
    pieces_left: int = 0
    cached_tokens: int = 0
    scored_tokens: int = 0

    def __post_init__(self) -> None:
        self.trie = ChoiceTrie.of(self.tails)
        self.behind = np.zeros(len(self.trie.edge_nodes), dtype=np.float32)
        self.apart = np.zeros_like(self.behind) if self.alone else self.behind[:0]

    def scores(self) -> Scores:
        """The answer, once everything has been computed."""
        choices = []
        for tail, first, path in zip(self.tails, self.firsts, self.trie.paths, strict=True):
            behind = (first, *self.behind[path].tolist()) if tail else ()
            apart = (None, *self.apart[path].tolist()) if tail and self.alone else ()
            choices.append(ChoiceScore(tuple(tail), behind, apart))
        usage = Usage(len(self.stem), self.cached_tokens, 0, self.scored_tokens)
        return Scores(tuple(choices), usage)


def _above(parents: IntArray, node: int) -> IntArray:
    """The nodes above one, the topmost first."""
    found: list[int] = []
    walk = int(parents[node])
    while walk >= 0:
        found.append(walk)
        walk = int(parents[walk])
    return np.array(found[::-1], dtype=np.int64)
