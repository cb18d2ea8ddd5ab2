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
from collections.abc import Hashable
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from lmlang.grammar.automaton import Automaton, Content, Leaving, State
from lmlang.grammar.contents import Contents, Inside
from lmlang.grammar.exits import Exit, exits_of
from lmlang.grammar.frontier import ONE, Frontier, Frontiers
from lmlang.grammar.mask import Mask, counted, marked
from lmlang.grammar.token_trie import TokenTrie

__all__ = ["Mask", "Masks"]

MAX_BYTES = 128 << 20
"""Of the masks that one vocabulary keeps for states."""
MAX_SHARED = 4_096
"""Masks that are kept for states that will have the same."""
MAX_ALIKE = 16_384
"""What is kept of one grammar that states have in common."""
MAX_EXITS = 512
"""Ways to leave contents that are kept for others that are left so."""


T = TypeVar("T")


class _Inner(NamedTuple):
    """A state inside of a content that may be left.

    Args:
        automaton: The automaton.
        state: The state.
        leaving: What is known of the keys behind the content.
        same: How far they go on alike, and the name of what does so (see `Swift.same`).
    """

    automaton: Automaton
    state: State
    leaving: Leaving
    same: tuple[int, Hashable] | None


Alike: TypeAlias = tuple[tuple[int, ...], tuple[Frontier, ...]]
"""Tokens, and places where others may still go on."""


class _Left(NamedTuple):
    """How a content is left.

    Args:
        exits: By each byte.
        bits: The tokens that stay inside or end with a byte that leaves, as bytes.
        size: How many these are.
    """

    exits: tuple[Exit, ...]
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
        self._exits: dict[tuple[tuple[int, bytes], ...], tuple[Exit, ...]] = {}
        self._kept: deque[weakref.ref[Automaton]] = deque()  # one for each mask of a state
        self._most = most or MAX_BYTES // len(self._none)
        self._lock = threading.Lock()

    def made(self, state: State) -> Mask | None:
        """The mask of a state that has been asked for before, as far as it is kept."""
        mask = state.masks
        return mask if mask is not None and mask.owner is self else None

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
        self._contents.expect(content)

    def _made(self, automaton: Automaton, state: State) -> Mask:
        contents = () if automaton.runs(state) else automaton.rules.contents(state.key)
        if len(contents) == 1:
            return self._part(automaton, state, self._contents.inside(contents[0]))
        if not contents:
            found: list[int] = []
            self._walk(automaton, state, self._frontiers.root, found)
            return self._mask_of(None, found, [])
        parts = [self._contents.inside(content) for content in contents]
        bits = np.bitwise_or.reduce([self._part(automaton, state, part).bits for part in parts])
        bits.flags.writeable = False
        return Mask(bits, counted(bits), self)

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
            mask = Mask(*marked(bits, size, found, taken), self)
            if len(self._masks) >= MAX_SHARED:
                self._masks.clear()
            self._masks[key] = mask
        return mask

    def _part(self, automaton: Automaton, state: State, part: Inside) -> Mask:
        """The mask of a state as far as it comes from one of its contents."""
        if part.left_by is None:
            part.left_by = self._left(part)
        exits: tuple[Exit, ...] = part.left_by[0]
        inner = _inner(automaton, state)
        asked = automaton.rules.asked(state.key) if inner.leaving and exits else ()
        name: Hashable = None if inner.same is None else (part, inner.same[1])
        known: Mask | None = None if asked else automaton.alike.get(name)
        if known is not None:
            return known
        found: list[int] = []
        unsure = [exit.behind(asked) if inner.leaving else tuple(exit.paths) for exit in exits]
        for exit, nodes in zip(exits, unsure, strict=True):
            for node in nodes:
                behind = automaton.run(state, exit.paths[node])
                if behind is not None:
                    found += self._trie.ids(node)
                    self._walk(automaton, behind, self._frontiers.of((node,)), found)
        if name is not None and asked:
            name = (name, *unsure, tuple(found)) if any(unsure) else name
            other: Mask | None = automaton.alike.get(name)
            if other is not None:
                return other
        taken = [index for nodes in unsure for node in nodes for index in self._trie.ids(node)]
        is_known = name is not None
        for exit, nodes in zip(exits, unsure, strict=True):
            onward = exit.onward if inner.leaving else None
            if onward is not None and nodes:
                onward = self._frontiers.of(node for node in onward.nodes if node not in nodes)
            if onward is not None:
                is_known &= self._walk_behind(inner, exit, onward, found)
        mask = self._mask_of(part, found, taken)
        if is_known:
            _remember(automaton, name, mask)
        return mask

    def _walk_behind(self, inner: _Inner, exit: Exit, onward: Frontier, found: list[int]) -> bool:
        """Find the tokens that go on where a content has been left.

        Args:
            inner: Where.
            exit: By which byte.
            onward: Nodes where it is sure to have been left by it.
            found: Takes the tokens.

        Returns:
            Whether they are the same for all that have the name of ``inner.same``.
        """
        automaton, state, leaving, same = inner
        if leaving is Leaving.SAME:
            behind = automaton.run(state, exit.paths[onward.nodes[0]])
            assert behind is not None, "what is sure to leave a content leads somewhere"
            walked = automaton.alike.get((behind, onward))
            if walked is None:
                below: list[int] = []
                self._walk(automaton, behind, onward, below)
                walked = _remember(automaton, (behind, onward), tuple(below))
            found += walked
            return False
        if leaving is Leaving.ALIKE:
            known: Alike | None = None
            if same is not None:
                known = automaton.alike.get((same[1], onward))
            if known is None:
                known = self._behind_alike(inner, exit, onward)
                if same is not None:
                    _remember(automaton, (same[1], onward), known)
            ids, unlike = known
            found += ids
        else:
            unlike = (onward,)
        level: dict[State, list[Frontier]] = {}
        for node in (node for frontier in unlike for node in frontier.nodes):
            here = automaton.run(state, self._trie.path_beyond(node, exit.paths))
            if here is not None:
                frontier = self._frontiers.of((node,))
                assert frontier is not None, "it leads on"
                level.setdefault(here, []).append(frontier)
        self._walk_level(automaton, level, found)
        return same is not None and not unlike

    def _behind_alike(self, inner: _Inner, exit: Exit, onward: Frontier) -> Alike:
        """The same where all nodes go on alike at first.

        Returns:
            The tokens that end before they may go on differently, and places where others may.
        """
        automaton, state, _, same = inner
        length, path = 0, exit.paths[onward.nodes[0]]
        behind = None
        if same is not None:
            length = same[0]
            behind = automaton.alike.get((same[1], exit.last))
        if behind is None:
            behind = automaton.run(state, path)
            assert behind is not None, "what is sure to leave a content leads somewhere"
            if same is not None:
                _remember(automaton, (same[1], exit.last), behind)
        found: list[int] = []
        unlike: list[Frontier] = []
        open_ = [(behind, onward, length)]
        while open_:
            here, frontier, left = open_.pop()
            runs = automaton.runs(here)
            for run in _heads(automaton, here, frontier) if runs is None else runs:
                first = run[: left or None]  # as a whole where only what comes next is the same
                ids, further = self._frontiers.step(frontier, first)
                found += ids
                if further is None:
                    continue
                if len(run) < left:
                    there = automaton.run(here, run)
                    assert there is not None, "a run that may come leads somewhere"
                    open_.append((there, further, left - len(run)))
                else:
                    unlike.append(further)
        return tuple(found), tuple(unlike)

    def _walk(
        self, automaton: Automaton, state: State, frontier: Frontier | None, found: list[int]
    ) -> None:
        """Find the tokens below some nodes whose bytes may all come behind a state.

        Nodes that lead to one state are looked at together: those of digits mostly do.
        """
        if frontier is not None:
            self._walk_level(automaton, {state: [frontier]}, found)

    def _walk_level(
        self, automaton: Automaton, level: dict[State, list[Frontier]], found: list[int]
    ) -> None:
        """The same behind several states."""
        while level:
            open_, level = level, {}
            for state, some in open_.items():
                frontier = some[0] if len(some) == 1 else self._frontiers.joined(tuple(some))
                runs = automaton.runs(state)
                if runs is None:
                    if self._within(automaton, state, frontier, found, level):
                        continue
                    runs = _heads(automaton, state, frontier)
                steps = frontier.steps
                for run in runs:
                    ids, onward = steps.get(run) or self._frontiers.step(frontier, run)
                    found += ids
                    if onward is not None:
                        behind = automaton.run(state, run)
                        assert behind is not None, "a run that may come leads somewhere"
                        level.setdefault(behind, []).append(onward)

    def _within(
        self,
        automaton: Automaton,
        state: State,
        frontier: Frontier,
        found: list[int],
        level: dict[State, list[Frontier]],
    ) -> bool:
        """Find the tokens up to the end of a content, and the states behind it.

        Returns:
            Whether it is known how it is left; else nothing has been done.
        """
        contents = automaton.rules.contents(state.key)
        if len(contents) != 1:
            return False
        inner = _inner(automaton, state)
        if inner.leaving < Leaving.ALIKE:
            return False
        _, ids, exits = self._contents.below(contents[0], frontier)
        if exits and inner.leaving is Leaving.ALIKE:
            asked = automaton.rules.asked(state.key)
            if any(exit.behind(asked) for exit in exits):
                return False
        found += ids
        for exit in exits:
            if exit.onward is None:
                continue
            if inner.leaving is Leaving.ALIKE:
                self._walk_behind(inner, exit, exit.onward, found)
                continue
            behind = automaton.run(state, exit.paths[exit.onward.nodes[0]])
            assert behind is not None, "what is sure to leave a content leads somewhere"
            level.setdefault(behind, []).append(exit.onward)
        return True

    def _left(self, part: Inside) -> _Left:
        """How a content is left."""
        exits = self._exits.get(part.left)
        if exits is None:
            if len(self._exits) >= MAX_EXITS:
                self._exits.clear()
            exits = self._exits[part.left] = exits_of(part.left, self._frontiers)
        ids = [index for exit in exits for node in exit.paths for index in self._trie.ids(node)]
        count = counted(part.bits)
        bits, count = marked(part.bits.tobytes(), count, ids)
        return _Left(exits, bits.tobytes(), count)


def _inner(automaton: Automaton, state: State) -> _Inner:
    leaving = automaton.rules.leaving(state.key)
    same = automaton.same(state) if leaving is Leaving.ALIKE else None
    return _Inner(automaton, state, leaving, same)


def _remember(automaton: Automaton, name: Hashable, found: T) -> T:
    """Keep what has been found out of states that do the same."""
    if len(automaton.alike) >= MAX_ALIKE:
        automaton.alike.clear()
    automaton.alike[name] = found
    return found


def _heads(automaton: Automaton, state: State, frontier: Frontier) -> tuple[bytes, ...]:
    """The bytes that may come next in a state, as far as tokens go on so from some place."""
    following = automaton.following(state)
    return tuple([ONE[head] for head in following.translate(None, frontier.others)])
