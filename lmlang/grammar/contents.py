"""The tokens of a vocabulary inside of contents: worked out once, and alike ones from each other.

    free text          all tokens walked at once; the same for all tables that have such a state
    {"na               a key that must not be "name": free text, but for tokens beginning "me"
    1 to 200 letters   as long as no token reaches an end, as if there were none; nearer to an end
                       so too, but for the few tokens that are longer than most

A content whose bytes mostly lead to a state of free text differs from it in few tokens only, and
only these are walked.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmlang.grammar.alike import Alike
from lmlang.grammar.automaton import DEAD, LEAVE, Content, Table
from lmlang.grammar.counted import Counted
from lmlang.grammar.exits import Exit, exits_of
from lmlang.grammar.free_text import Base, Closed, Free, commonest, differences
from lmlang.grammar.frontier import Frontier, Frontiers
from lmlang.grammar.language import ANY
from lmlang.grammar.merged import Merged, merged
from lmlang.grammar.tables import Spelling, TextTable, spelled
from lmlang.grammar.token_trie import Bits, TokenTrie

MAX_CONTENTS = 4_096
"""Contents whose tokens one vocabulary keeps."""
LENGTHS = (64, 32, 16)
"""Bytes up to which tokens are those of another state; most have no more than the last."""
MAX_CLOSED = 120
"""States of free text at most."""
MAX_FREE = 256
"""Kinds of free text that one vocabulary keeps: some bytes for each of its tokens."""
FEW = 64
"""Nodes up to which they are looked at one by one."""
MANY = 4_000
"""Nodes from which on they are marked all at once."""
MAX_MERGED = 64
"""Trees of merged bytes that one vocabulary keeps: some bytes for each of its tokens."""
WALKS = 2
"""Walks of a table without one."""
MAX_DIFFERING = 2_000
"""Nodes in which a content may differ from free text, before it is walked as a whole."""


@dataclass(slots=True, eq=False)
class Inside:
    """What tokens do in a content.

    Args:
        table: Kept alive, since its identity is the key.
        bits: The tokens that stay inside.
        left: Nodes of the trie to which a byte leads that leaves it, and the bytes up to them.
        reach: No more bytes of any token stay inside.
        left_by: The same, sorted; owned by `masks.py`.
    """

    table: Table
    bits: Bits
    left: tuple[tuple[int, bytes], ...]
    reach: int
    left_by: Any = None


class Below(NamedTuple):
    """What tokens do that come to a content in their midst.

    Args:
        table: Kept alive, since its identity is the key.
        ids: Those that stay inside or end with a byte that leaves it.
        exits: Where others lead.
    """

    table: Table
    ids: tuple[int, ...]
    exits: tuple[Exit, ...]


class _Longer(NamedTuple):
    """Tokens of more than so many bytes.

    Args:
        than: How many.
        children: Those of each node that are so long, or below which something is.
        others: The tokens that are not longer.
    """

    than: int
    children: dict[int, list[int]]
    others: Bits


class Contents:
    """The contents that have been met with one vocabulary. Thread-safe: a cache, no more.

    Args:
        trie: Its tokens.
        frontiers: Places in their tree.
    """

    def __init__(self, trie: TokenTrie, frontiers: Frontiers) -> None:
        self._trie = trie
        self._frontiers = frontiers
        self._known: OrderedDict[tuple[int, int], Inside] = OrderedDict()
        self._bases: OrderedDict[tuple[int, int], Base | None] = OrderedDict()
        self._alike: OrderedDict[int, Alike] = OrderedDict()
        self._free: dict[bytes, Free] = {}
        self._counts: dict[Spelling, Counted] = {}
        self._merged: dict[tuple[bytes, bool], Merged | None] = {}
        self._lengths = [_Longer(n, *trie.beyond(n)) for n in LENGTHS if n < trie.longest]
        self._lock = threading.Lock()

    def inside(self, content: Content) -> Inside:
        """What tokens do in a content."""
        table, start = content
        known = self._known.get((id(table), start))
        if known is not None:
            return known
        alike = self._of(table)
        one = alike.one(start)
        found = self._known.get((id(table), one))
        if found is None:
            counted = table.counted(one) if isinstance(table, TextTable) else None
            if counted and isinstance(table, TextTable):
                found = self._counted(table, counted)
            else:
                found = self._like_others(alike, one, self._lengths)
        self._keep(table, (one, start), found)
        return found

    def expect(self, content: Content) -> None:
        """Work out what tokens do in a content, and what helps to do so in others of its table."""
        table, start = content
        alike = self._of(table)
        if isinstance(table, TextTable) and not (table.counted(start) or table.rests(start)):
            alike.walks = WALKS
            self._merged_for(alike, start)
        self.inside(content)

    def below(self, content: Content, frontier: Frontier) -> Below:
        """What tokens do that come to a content in their midst.

        Args:
            content: The content.
            frontier: Where it begins.
        """
        table, start = content
        alike = self._of(table)
        one = alike.one(start)
        found: Below | None = frontier.below.get((id(table), one))
        if found is None:
            self._frontiers.count()
            found = frontier.below[id(table), one] = self._made_below(alike, one, frontier)
        return found

    def _made_below(self, table: Alike, start: int, frontier: Frontier) -> Below:
        trie = self._trie
        inside, left = trie.descend_from(frontier.nodes, table, start, LEAVE)
        paths = [(node, trie.path(node, frontier.nodes)) for node in left]
        ids = tuple(index for node in (*inside, *left) for index in trie.ids(node))
        return Below(table.table, ids, exits_of(paths, self._frontiers))

    def _keep(self, table: Table, states: tuple[int, ...], found: Inside) -> None:
        with self._lock:
            for state in states:
                self._known[id(table), state] = found
            while len(self._known) > MAX_CONTENTS:
                self._known.popitem(last=False)

    def _like_others(self, table: Alike, start: int, lengths: Sequence[_Longer]) -> Inside:
        """What tokens do in a state, from one that differs from it for long tokens alone."""
        of = table.table
        for place, longer in enumerate(lengths, 1):
            other = of.alike(start, longer.than)
            if other != start:
                like = self._known.get((id(of), other))
                if like is None:
                    like = self._like_others(table, other, lengths[place:])
                    self._keep(of, (other,), like)
                if like.reach < longer.than:  # all tokens have left it by then
                    return like
                return self._as_far_as(table, start, like, longer)
        return self._made(table, start)

    def _as_far_as(self, table: Alike, start: int, like: Inside, longer: _Longer) -> Inside:
        """The same where only the longer tokens differ."""
        trie, labels = self._trie, self._trie.labels
        deep = trie.levels[longer.than + 1]
        inside: list[int] = []
        left: list[int] = []
        rows: dict[int, memoryview] = {}
        open_ = [(0, start)]
        while open_:
            node, state = open_.pop()
            row = rows.get(state)
            if row is None:
                row = rows[state] = table.row(state)
            for child in longer.children.get(node, ()):
                onward = row[labels[child]]
                if onward >= 0:
                    open_.append((child, onward))
                    if child >= deep:
                        inside.append(child)
                elif onward == LEAVE and child >= deep:
                    left.append(child)
        short = tuple(item for item in like.left if item[0] < deep)
        bits = (like.bits & longer.others) | trie.bits(inside)
        reach = trie.depth(max(inside)) if inside else longer.than
        return Inside(table.table, bits, short + self._paths(left), reach)

    def _made(self, table: Alike, start: int) -> Inside:
        if not self._trie.has_few(table.following(start)):
            merged = self._merged_for(table, start)
            if merged is not None:
                return self._made_merged(table, start, merged)
            base = self._base(table, start)
            found = None if base is None else self._differing(base, start)
            if found is not None:
                return found
        states, left = self._trie.descend(table, start, DEAD, LEAVE)
        (inside,) = np.nonzero(states >= 0)
        reach = self._trie.depth(int(inside[-1])) if len(inside) else 0
        return Inside(table.table, self._bits(states), self._paths(left), reach)

    def _made_merged(self, table: Alike, start: int, merged: Merged) -> Inside:
        """The same from a walk of a smaller tree."""
        states, left = merged.tree.descend(table, start, DEAD, LEAVE)
        alive = states >= 0
        bits = self._trie.bits_of_all(alive, merged.node_of)
        paths = tuple(path for place in left for path in merged.quotes[place])
        (inside,) = np.nonzero(alive)
        reach = merged.tree.depth(int(inside[-1])) if len(inside) else 0
        return Inside(table.table, bits, paths, reach)

    def _merged_for(self, table: Alike, start: int) -> Merged | None:
        """The tree of tokens as small as a table makes it, if it is walked often enough."""
        of = table.table
        firsts = of.firsts(start) if isinstance(of, TextTable) else None
        if firsts is None:
            return None
        assert isinstance(of, TextTable)
        key = firsts, of.spelling is not Spelling.PLAIN
        table.walks += 1
        if table.walks > WALKS and key not in self._merged:
            made = merged(self._trie, *key)
            with self._lock:
                if len(self._merged) >= MAX_MERGED:
                    self._merged.clear()
                self._merged[key] = made
        return self._merged.get(key)

    def _counted(self, table: TextTable, left: tuple[int, int | None]) -> Inside:
        """What tokens do where only the number of their characters matters.

        Args:
            table: Where.
            left: How many must come at least, and may at most.
        """
        counted = self._counts.get(table.spelling)
        if counted is None:
            free = spelled(ANY, table.spelling)
            states, left_by = self._trie.descend(self._of(free), free.start, DEAD, LEAVE)
            counted = Counted(self._trie, states, left_by, free.start)
            self._counts[table.spelling] = counted
        return Inside(table, *counted.within(*left), self._trie.longest)

    def _of(self, table: Table) -> Alike:
        found = self._alike.get(id(table))
        if found is None:
            with self._lock:
                made = Alike(table, self._trie.longest)
                found = self._alike.setdefault(id(table), made)
                if len(self._alike) > MAX_CONTENTS:
                    self._alike.popitem(last=False)
        return found

    def _bits(self, states: Any) -> Bits:
        inside = np.flatnonzero(states >= 0)
        if len(inside) > MANY:
            return self._trie.bits_of_all(states >= 0)
        return self._trie.bits(inside.tolist() if len(inside) < FEW else inside)

    def _paths(self, nodes: list[int]) -> tuple[tuple[int, bytes], ...]:
        return tuple((node, self._trie.path(node)) for node in nodes)

    def _base(self, table: Alike, start: int) -> Base | None:
        """The free text that most bytes lead to from a state, if there is such."""
        (row,) = table.rows([start])
        state = commonest(row)
        if state < 0:
            return None
        key = (id(table.table), state)
        with self._lock:
            if key in self._bases:
                return self._bases[key]
        made = self._made_base(table, state)
        with self._lock:
            self._bases[key] = made
            if len(self._bases) > MAX_CONTENTS:
                self._bases.popitem(last=False)
        return made

    def _made_base(self, table: Alike, state: int) -> Base | None:
        if commonest(table.rows([state])[0]) != state:
            return None
        numbers, done = [state], 0
        rows: list[Any] = []
        while done < len(numbers):
            fresh = table.rows(numbers[done:])
            rows += list(fresh)
            done = len(numbers)
            for other in np.unique(fresh).tolist():
                if other >= 0 and other not in numbers:
                    numbers.append(other)
            if len(numbers) > MAX_CLOSED:
                return None
        own = np.stack(rows)
        renumbered = np.full(max(numbers) + 3, -1, dtype=np.int8)  # DEAD and LEAVE: the last two
        renumbered[numbers] = np.arange(len(numbers))
        renumbered[[DEAD, LEAVE]] = DEAD, LEAVE
        canonical = renumbered[own]
        name = canonical.tobytes()
        free = self._free.get(name)
        if free is None:
            states, left = self._trie.descend(Closed(canonical), 0, DEAD, LEAVE)
            free = Free(states.astype(np.int8), self._bits(states), self._paths(left))
            free.states[0] = 0
            with self._lock:
                if len(self._free) >= MAX_FREE:
                    self._free.clear()
                    self._bases.clear()  # which hold them
                free = self._free.setdefault(name, free)
        return Base(table, free, own)

    def _differing(self, base: Base, start: int) -> Inside | None:
        """What tokens do in a state, from what they do in free text; None where too much differs.

        Only bytes are looked at that lead elsewhere than in free text, node by node.
        """
        trie, free = self._trie, base.free
        starts, labels = trie.starts, trie.labels
        added: list[int] = []
        removed: list[Any] = []
        entered: list[int] = []
        spared: set[int] = set()
        ways: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        open_, looked = [(0, start)], 0
        while open_:
            node, state = open_.pop()
            looked += 1
            if looked > MAX_DIFFERING:
                return None
            known = int(free.states[node])
            differing = ways.get((state, known))
            if differing is None:
                differing = ways[state, known] = differences(base, state, known)
            begin, end = starts[node], starts[node + 1]
            for byte, there, here in differing if begin < end else ():
                child = labels.find(byte, begin, end)
                if child < 0:
                    continue
                if there >= 0 and here < 0:
                    removed += trie.below(child)
                elif there < 0 and here >= 0:
                    added.append(child)
                if there == LEAVE:
                    spared.add(child)
                elif here == LEAVE:
                    entered.append(child)
                if here >= 0:
                    open_.append((child, here))
        bits = free.bits
        if removed:
            gone = np.concatenate([np.arange(*span) for span in removed])
            spared.update(gone.tolist())
            bits = bits & ~trie.bits(gone)
        if added:
            bits = bits | trie.bits(added)
        left = free.left
        if spared:
            left = tuple(item for item in left if item[0] not in spared)
        return Inside(base.table.table, bits, left + self._paths(entered), trie.longest)
