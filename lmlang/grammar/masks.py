"""Exact masks: which tokens may come next in a state, all of their bytes allowed.

    inside of contents   all tokens at once, by the rows of tables       the same for all grammars
    left by a byte       what may come behind it, by the automaton       `",` `"}` …
    no contents          what may come, by the automaton

The automaton is asked for whole runs of bytes where it knows them, and the tree of tokens remembers
what a run does in it (see `frontier.py`).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmlang.grammar.automaton import Automaton, Content, Leaving, State
from lmlang.grammar.contents import Contents, Inside
from lmlang.grammar.frontier import ONE, Frontier, Frontiers
from lmlang.grammar.token_trie import Bits, TokenTrie

MAX_BYTES = 128 << 20
"""Of the masks that one vocabulary keeps for states."""
MANY = 256
"""Tokens from which on they are marked all at once."""
MAX_SHARED = 4_096
"""Masks that are kept for states that will have the same."""


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
        onward: Those that lead on.
    """

    last: bytes
    paths: dict[int, bytes]
    nodes: dict[bytes, int]
    onward: Frontier | None


class _Left(NamedTuple):
    """How a content is left.

    Args:
        exits: By each byte.
        bits: The tokens that stay inside or end with a byte that leaves, as bytes.
        size: How many these are.
    """

    exits: tuple[_Exit, ...]
    bits: bytes
    size: int


class Masks:
    """The masks of all grammars of a vocabulary. Thread-safe: what it keeps is a cache, no more.

    Args:
        trie: Its tokens.
        most: Masks of states that are kept; None: as many as `MAX_BYTES` hold.
    """

    def __init__(self, trie: TokenTrie, most: int | None = None) -> None:
        self._trie = trie
        self._frontiers = Frontiers(trie)
        self._contents = Contents(trie, self._frontiers)
        self._none = bytes(4 * -(-trie.size // 32))
        self._masks: dict[tuple[Inside | None, tuple[int, ...], tuple[int, ...]], Mask] = {}
        self._kept: deque[weakref.ref[Automaton]] = deque()  # one for each mask of a state
        self._most = most or MAX_BYTES // len(self._none)
        self._lock = threading.Lock()

    def mask(self, automaton: Automaton, state: State) -> Mask:
        """The tokens that may come next in a state of an automaton."""
        mask = state.masks
        if mask is not None and mask.owner is self:
            return mask  # type: ignore[no-any-return]
        state.masks = mask = self._made(automaton, state)
        with self._lock:
            automaton.masked.append(state)
            self._kept.append(weakref.ref(automaton))
            if len(self._kept) > self._most:
                oldest = self._kept.popleft()()
                masked = None if oldest is None else oldest.masked
                if masked:  # else it has forgotten its states in the meantime
                    masked.popleft().masks = None
        return mask

    def expect(self, content: Content) -> None:
        """Work out what tokens do in a content that outputs may come to."""
        self._contents.inside(content)

    def _made(self, automaton: Automaton, state: State) -> Mask:
        contents = () if automaton.runs(state) else automaton.rules.contents(state.key)
        if not contents:
            found: list[int] = []
            self._walk(automaton, state, self._frontiers.root, found)
            return self._mask_of(None, found, [])
        parts = [self._contents.inside(content) for content in contents]
        masks = [self._part(automaton, state, part) for part in parts]
        if len(masks) == 1:
            return masks[0]
        bits = np.bitwise_or.reduce([mask.bits for mask in masks])
        bits.flags.writeable = False
        return Mask(bits, int(_count(bits.view(np.uint32)).sum()), self)

    def _mask_of(self, part: Inside | None, found: list[int], taken: list[int]) -> Mask:
        """A mask, one object for all states that have it.

        Args:
            part: A content that all tokens are legal in that stay inside of it or leave it.
            found: Tokens that are legal besides.
            taken: Tokens that are not legal, unless they are found.
        """
        key = (part, tuple(found), tuple(taken))
        mask = self._masks.get(key)
        if mask is None:
            bits, size = (self._none, 0) if part is None else part.left_by[1:]
            mask = Mask(*_marked(bits, size, found, taken), self)
            if len(self._masks) >= MAX_SHARED:
                self._masks.clear()
            self._masks[key] = mask
        return mask

    def _part(self, automaton: Automaton, state: State, part: Inside) -> Mask:
        """The mask of a state as far as it comes from one of its contents."""
        if part.left_by is None:
            part.left_by = self._left(part)
        exits = part.left_by[0]
        found: list[int] = []
        taken: list[int] = []
        leaving = automaton.rules.leaving(state.key)
        asked = automaton.rules.asked(state.key) if leaving else ()
        same = automaton.same(state) if leaving is Leaving.ALIKE and not asked else None
        if same is not None and (part, same[1]) in automaton.alike:
            mask: Mask = automaton.alike[part, same[1]]
            return mask
        for last, paths, nodes, onward in exits:
            unsure = {nodes[rest + last] for rest in asked if rest + last in nodes}
            for node in unsure if leaving else paths:
                taken += self._trie.ids(node)
                behind = automaton.run(state, paths[node])
                if behind is not None:
                    found += self._trie.ids(node)
                    self._walk(automaton, behind, self._frontiers.of((node,)), found)
            if onward is None or not leaving:
                continue
            if not unsure.isdisjoint(onward.nodes):
                onward = self._frontiers.of(node for node in onward.nodes if node not in unsure)
            if onward is not None:
                self._walk_behind(automaton, state, paths, onward, found)
        mask = self._mask_of(part, found, taken)
        if same is not None and all(
            exit.onward is None or (same[1], exit.onward) in automaton.alike for exit in exits
        ):
            automaton.alike[part, same[1]] = mask
        return mask

    def _walk_behind(
        self,
        automaton: Automaton,
        state: State,
        paths: dict[int, bytes],
        onward: Frontier,
        found: list[int],
    ) -> None:
        """Find the tokens that go on where a content has been left.

        Args:
            automaton: The automaton.
            state: The state inside of the content.
            paths: The bytes up to the nodes of the trie, the shortest first.
            onward: Nodes where it is sure to have been left by one byte.
            found: Takes the tokens.
        """
        leaving = automaton.rules.leaving(state.key)
        nodes: Iterable[int] = onward.nodes
        if leaving is Leaving.ALIKE:
            same = automaton.same(state)
            if same is not None:
                found += self._behind_alike(automaton, state, paths[onward.nodes[0]], onward, same)
                return
        if leaving >= Leaving.ALIKE:
            behind = automaton.run(state, paths[onward.nodes[0]])
            assert behind is not None, "what is sure to leave a content leads somewhere"
            if leaving is Leaving.SAME:
                self._walk(automaton, behind, onward, found)
                return
            following = automaton.following(behind)
            nodes = [node for node in nodes if self._trie.children(node, following)]
        for node in nodes:
            behind = automaton.run(state, paths[node])
            assert behind is not None, "what is sure to leave a content leads somewhere"
            self._walk(automaton, behind, self._frontiers.of((node,)), found)

    def _behind_alike(
        self,
        automaton: Automaton,
        before: State,
        path: bytes,
        onward: Frontier,
        same: tuple[int, Hashable],
    ) -> Sequence[int]:
        """The same where all nodes go on alike at first.

        Args:
            automaton: The automaton.
            before: The state inside of the content.
            path: The bytes up to one of the nodes.
            onward: The nodes.
            same: How far they go on alike, and the name of what does so (see `Swift.same`).
        """
        length, name = same
        known: tuple[int, ...] | None = automaton.alike.get((name, onward))
        if known is not None:
            return known
        behind = automaton.alike.get((name, path[-1]))
        if behind is None:
            behind = automaton.alike[name, path[-1]] = automaton.run(before, path)
            assert behind is not None, "what is sure to leave a content leads somewhere"
        found: list[int] = []
        unlike: list[Frontier] = []
        open_ = [(behind, onward, length)]
        while open_:
            state, frontier, left = open_.pop()
            runs = automaton.runs(state)
            if runs is None:
                following = automaton.following(state)
                runs = tuple(ONE[head] for head in frontier.heads if head in following)
            for run in runs:
                ids, further = self._frontiers.step(frontier, run[:left])
                found += ids
                if further is not None and len(run) < left:
                    here = automaton.run(state, run)
                    assert here is not None, "a run that may come leads somewhere"
                    open_.append((here, further, left - len(run)))
                elif further is not None:
                    unlike.append(further)
        if not unlike:
            automaton.alike[name, onward] = tuple(found)
        for node in (node for frontier in unlike for node in frontier.nodes):
            here = automaton.run(before, self._trie.path(node))
            if here is not None:
                self._walk(automaton, here, self._frontiers.of((node,)), found)
        return found

    def _walk(
        self, automaton: Automaton, state: State, frontier: Frontier | None, found: list[int]
    ) -> None:
        """Find the tokens below some nodes whose bytes may all come behind a state.

        Nodes that lead to one state are looked at together: those of digits mostly do.
        """
        level = {} if frontier is None else {state: [frontier]}
        while level:
            open_, level = level, {}
            for state, some in open_.items():
                frontier = some[0] if len(some) == 1 else self._frontiers.joined(tuple(some))
                self._step(automaton, state, frontier, found, level)

    def _step(
        self,
        automaton: Automaton,
        state: State,
        frontier: Frontier,
        found: list[int],
        level: dict[State, list[Frontier]],
    ) -> None:
        """Find the tokens up to what comes next behind a state, and the states behind that."""
        step = self._frontiers.step
        runs: Sequence[bytes] | None = automaton.runs(state)
        if runs is None:
            contents = automaton.rules.contents(state.key)
            if len(contents) == 1 and automaton.rules.leaving(state.key) is Leaving.SAME:
                _, ids, exits = self._contents.below(contents[0], frontier)
                found += ids
                for path, further in exits:
                    behind = automaton.run(state, path)
                    assert behind is not None, "what is sure to leave a content leads somewhere"
                    level.setdefault(behind, []).append(further)
                return
            following = automaton.following(state)
            runs = [ONE[head] for head in frontier.heads if head in following]
        steps = frontier.steps
        for run in runs:
            ids, onward = steps.get(run) or step(frontier, run)
            found += ids
            if onward is not None:
                behind = automaton.run(state, run)
                assert behind is not None, "a run that may come leads somewhere"
                level.setdefault(behind, []).append(onward)

    def _left(self, part: Inside) -> _Left:
        """How a content is left."""
        by_byte: dict[bytes, dict[int, bytes]] = {}
        ids: list[int] = []
        for node, path in sorted(part.left):
            by_byte.setdefault(path[-1:], {})[node] = path
            ids += self._trie.ids(node)
        exits = tuple(
            _Exit(last, paths, {path: n for n, path in paths.items()}, self._frontiers.of(paths))
            for last, paths in by_byte.items()
        )
        count = int(_count(part.bits.view(np.uint32)).sum())
        bits, count = _marked(part.bits.tobytes(), count, ids)
        return _Left(exits, bits.tobytes(), count)


def _marked(
    bits: bytes, count: int, found: Sequence[int], taken: Iterable[int] = ()
) -> tuple[Bits, int]:
    """Bits with some more, read-only, and how many are set.

    Args:
        bits: Those that are set.
        count: How many these are.
        found: Tokens that are legal.
        taken: Tokens that are not, where they are not found.
    """
    marked = bytearray(bits)
    for index in taken:
        marked[index >> 3] &= ~(1 << (index & 7)) & 0xFF
        count -= 1
    if len(found) > MANY:
        many = np.frombuffer(marked, dtype=np.uint8)
        places = np.array(found)
        np.bitwise_or.at(many, places >> 3, (1 << (places & 7)).astype(np.uint8))
        count, found = int(_count(many.view(np.uint32)).sum()), ()
    for index in found:
        bit = 1 << (index & 7)
        if not marked[index >> 3] & bit:
            marked[index >> 3] |= bit
            count += 1
    made = np.frombuffer(marked, dtype=np.int32).copy()  # an array of its own is one object
    made.flags.writeable = False
    return made, count
