"""Exact masks: which tokens may come next in a state, all of their bytes allowed.

inside of contents   all tokens at once, by the rows of tables       the same for all grammars
left by a byte       token by token behind it, by the automaton      `",` `"}` …
no contents          token by token from the first byte on
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmlang.grammar.automaton import Automaton, Leaving, State
from lmlang.grammar.contents import Contents
from lmlang.grammar.token_trie import Bits, TokenTrie

MAX_BYTES = 128 << 20
"""Of the masks that one vocabulary keeps for states."""


def _counted_by_bits(words: Any) -> Any:
    return np.unpackbits(words.view(np.uint8))


_count = getattr(np, "bitwise_count", _counted_by_bits)  # of NumPy 2


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The legal tokens of a state.

    Args:
        bits: int32 [ceil(V / 32)], read-only: bit ``id % 32`` of the word ``id // 32``.
        count: How many are legal.
        owner: What made it.
    """

    bits: Bits
    count: int
    owner: Masks

    def __repr__(self) -> str:
        return f"<Mask of {self.count:,} tokens>"

    def allows(self, index: int) -> bool:
        """Whether a token is legal."""
        return 0 <= index < 32 * len(self.bits) and bool(self.bits[index >> 5] >> (index & 31) & 1)

    def ids(self) -> Any:
        """The legal ids in ascending order, int64."""
        flags = np.unpackbits(self.bits.view(np.uint8), bitorder="little")
        return np.flatnonzero(flags)


class _Exit(NamedTuple):
    """Where one byte leaves a content.

    Args:
        last: The byte.
        paths: Nodes of the trie that it leads to, and the bytes up to them.
        nodes: The same the other way round.
        ways: For each byte that leads on from such nodes, those nodes.
    """

    last: bytes
    paths: dict[int, bytes]
    nodes: dict[bytes, int]
    ways: dict[int, list[int]]


def _exits(trie: TokenTrie, left: Iterable[tuple[int, bytes]]) -> tuple[_Exit, ...]:
    """Where a content is left, by the byte that does."""
    found: dict[bytes, _Exit] = {}
    for node, path in left:
        _, paths, nodes, ways = found.setdefault(path[-1:], _Exit(path[-1:], {}, {}, {}))
        paths[node], nodes[path] = path, node
        for byte in trie.labels[trie.starts[node] : trie.starts[node + 1]]:
            ways.setdefault(byte, []).append(node)
    return tuple(found.values())


class Masks:
    """The masks of all grammars of a vocabulary. Thread-safe: what it keeps is a cache, no more.

    Args:
        trie: Its tokens.
        most: Masks of states that are kept; None: as many as `MAX_BYTES` hold.
    """

    def __init__(self, trie: TokenTrie, most: int | None = None) -> None:
        self._trie = trie
        self._contents = Contents(trie)
        self._kept: deque[weakref.ref[State]] = deque()
        self._most = most or MAX_BYTES // (4 * -(-trie.size // 32))
        self._lock = threading.Lock()

    def mask(self, automaton: Automaton, state: State) -> Mask:
        """The tokens that may come next in a state of an automaton."""
        mask = state.masks
        if mask is not None and mask.owner is self:
            return mask  # type: ignore[no-any-return]
        bits = self._bits(automaton, state)
        bits.flags.writeable = False
        count = int(_count(bits.view(np.uint32)).sum())
        state.masks = mask = Mask(bits, count, self)
        with self._lock:
            self._kept.append(weakref.ref(state))
            if len(self._kept) > self._most:
                oldest = self._kept.popleft()()
                if oldest is not None:
                    oldest.masks = None
        return mask

    def _bits(self, automaton: Automaton, state: State) -> Bits:
        contents = automaton.rules.contents(state.key)
        found: list[int] = []
        if not contents:
            self._walk(automaton, state, 0, found)
            return self._trie.bits(found)
        parts = [self._contents.inside(content) for content in contents]
        for part in parts:
            if part.exits is None:
                part.exits = _exits(self._trie, part.left)
            self._walk_behind(automaton, state, part.exits, found)
        bits = self._trie.bits(found)
        for part in parts:
            bits |= part.bits
        return bits

    def _walk_behind(
        self, automaton: Automaton, state: State, exits: tuple[_Exit, ...], found: list[int]
    ) -> None:
        """Find the nodes that bytes lead to which leave a content, and what is possible below.

        Args:
            automaton: The automaton.
            state: The state inside of the content.
            exits: Where it is left.
            found: Takes the nodes.
        """
        leaving = automaton.rules.leaving(state.key)
        asked = automaton.rules.asked(state.key) if leaving else ()
        for last, paths, nodes, ways in exits:
            unsure = {nodes[rest + last] for rest in asked if rest + last in nodes}
            for node in unsure if leaving else paths:
                behind = automaton.run(state, paths[node])
                if behind is not None:
                    found.append(node)
                    self._walk(automaton, behind, node, found)
            sure = [node for node in paths if node not in unsure] if leaving else ()
            if not sure:
                continue
            found += sure
            onward, behind = list(ways), None
            if leaving >= Leaving.ALIKE:
                behind = automaton.run(state, paths[sure[0]])
                assert behind is not None, "what is sure to leave a content leads somewhere"
                onward = [byte for byte in automaton.following(behind) if byte in ways]
            for node in {node for byte in onward for node in ways[byte]} - unsure:
                here = behind if leaving is Leaving.SAME else automaton.run(state, paths[node])
                assert here is not None
                self._walk(automaton, here, node, found)

    def _walk(self, automaton: Automaton, state: State, node: int, found: list[int]) -> None:
        """Find the nodes below one whose bytes may all come behind a state."""
        children, starts, push = self._trie.children, self._trie.starts, automaton.push
        open_ = [(state, node)]
        while open_:
            state, node = open_.pop()
            if starts[node] == starts[node + 1]:
                continue
            for byte, child in children(node, automaton.following(state)):
                found.append(child)
                if starts[child] != starts[child + 1]:
                    onward = push(state, byte)
                    assert onward is not None, "a byte that follows leads somewhere"
                    open_.append((onward, child))
