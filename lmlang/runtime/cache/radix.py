"""The radix cache: trees of token runs, each token beside the slot that holds its K and V.

    root ── [The quick brown] ──┬── [fox jumps]
                                └── [dog sleeps] ── [.]        one edge: tokens + their slots

A path from a root spells a prefix that has been computed; every namespace has a root of its own.
Nodes are split where prompts part. ``locks`` counts the sequences that read a node or anything
below it; only unlocked leaves may go. ``live`` counts the marks of programs that may go on from a
node or from below it: such nodes outlive all others. No torch here: slots are numbers, their bytes
live in the KV pool.

Source: RadixAttention (Zheng et al., "SGLang: Efficient Execution of Structured Language Model
Programs", 2024), section 3.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
_EMPTY: IntArray = np.empty(0, dtype=np.int64)


class Node:
    """One run of tokens of a tree; a root's run is empty."""

    __slots__ = ("children", "last_used", "live", "locks", "marks", "parent", "slots", "tokens")

    def __init__(self, tokens: IntArray, slots: IntArray, parent: Node | None) -> None:
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.last_used = 0
        self.live = 0
        self.marks: set[Mark] = set()

    def path(self) -> Iterator[Node]:
        """This node and all above it, the root last."""
        walk: Node | None = self
        while walk is not None:
            yield walk
            walk = walk.parent

    def prefix(self) -> IntArray:
        """The tokens from the root to this node's end."""
        return np.concatenate([node.tokens for node in self.path()][::-1])


class Root(Node):
    """Where a namespace's tree begins."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        super().__init__(_EMPTY, _EMPTY, None)
        self.namespace = namespace


class Mark:
    """A program may go on from here: moves up where the tree loses its end."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node


@dataclass(frozen=True, slots=True)
class Match:
    """A prefix found in the tree: it ends at the end of ``node``'s run.

    Valid until the tree next changes, unless ``node`` is locked.
    """

    node: Node
    slots: IntArray

    @property
    def length(self) -> int:
        """Tokens matched."""
        return len(self.slots)


class RadixCache:
    """The trees. They own the slots that they hold; not thread-safe (the engine thread's own)."""

    def __init__(self) -> None:
        self.roots: dict[str, Root] = {}
        self.total_tokens = 0
        self.locked_tokens = 0
        self.nodes_count = 0
        self._clock = 0
        # Leaves that may go, cheapest first; entries may be out of date (see `_pop_leaf`).
        self._leaves: list[tuple[bool, int, int, Node]] = []
        self._pushed = 0

    @property
    def evictable_tokens(self) -> int:
        """Tokens that `evict` could free now."""
        return self.total_tokens - self.locked_tokens

    def root(self, namespace: str = "") -> Root:
        """The root of a namespace; made where there is none."""
        return self.roots.get(namespace) or self.roots.setdefault(namespace, Root(namespace))

    def probe(self, tokens: IntArray, limit: int, namespace: str = "") -> int:
        """How many of ``tokens[:limit]`` the tree holds; changes nothing."""
        node: Node | None = self.roots.get(namespace)
        position = 0
        while node is not None and position < limit:
            node = node.children.get(int(tokens[position]))
            if node is not None:
                shared = common_prefix(node.tokens, tokens[position:limit])
                position += shared
                if shared < len(node.tokens):
                    break
        return position

    def match(self, tokens: IntArray, limit: int, namespace: str = "") -> Match:
        """The longest prefix of ``tokens[:limit]`` in the tree; a node is split where it ends."""
        node: Node = self.root(namespace)
        position, slots = 0, [_EMPTY]
        now = self._tick()
        while position < limit:
            child = node.children.get(int(tokens[position]))
            if child is None:
                break
            shared = common_prefix(child.tokens, tokens[position:limit])
            if shared < len(child.tokens):
                child = self._split(child, shared)
            child.last_used = now
            node = child
            slots.append(node.slots)
            position += shared
        return Match(node, np.concatenate(slots))

    def continuation(self, tokens: IntArray, count: int, namespace: str = "") -> IntArray:
        """Up to ``count`` tokens that followed ``tokens`` most recently; none where never seen."""
        node: Node | None = self.roots.get(namespace)
        position = 0
        rest = _EMPTY
        while node is not None and position < len(tokens):
            node = node.children.get(int(tokens[position]))
            if node is None:
                return _EMPTY
            shared = common_prefix(node.tokens, tokens[position:])
            position += shared
            if shared < len(node.tokens):
                if position < len(tokens):
                    return _EMPTY
                rest = node.tokens[shared:]
        found = [rest]
        while node is not None and sum(map(len, found)) < count and node.children:
            node = max(node.children.values(), key=lambda child: child.last_used)
            found.append(node.tokens)
        return np.concatenate(found)[:count]

    def insert(self, tokens: IntArray, slots: IntArray, namespace: str = "") -> Match:
        """Make ``tokens`` a path of the tree and return it.

        Where the tree already has a token, its own slot stays; for the rest the tree takes
        ownership of the caller's. So the caller keeps (and should free) exactly the slots that
        differ from the returned ones.

        Args:
            tokens: int64 [n].
            slots: int64 [n], the slots that hold their K and V.
            namespace: Whose tree.
        """
        found = self.match(tokens, len(tokens), namespace)
        if found.length == len(tokens):
            return found
        leaf = Node(tokens[found.length :].copy(), slots[found.length :].copy(), found.node)
        leaf.last_used = self._clock
        found.node.children[int(leaf.tokens[0])] = leaf
        self.total_tokens += len(leaf.tokens)
        self.nodes_count += 1
        self._offer(leaf)
        return Match(leaf, np.concatenate([found.slots, leaf.slots]))

    def lock(self, node: Node) -> None:
        """Keep ``node`` and all above it from eviction."""
        for walk in node.path():
            if walk.locks == 0:
                self.locked_tokens += len(walk.tokens)
            walk.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of the same node."""
        for walk in node.path():
            walk.locks -= 1
            if walk.locks == 0:
                self.locked_tokens -= len(walk.tokens)
        self._offer(node)

    def mark(self, node: Node) -> Mark:
        """Have ``node`` and all above it outlive whatever is not marked, until `unmark`."""
        mark = Mark(node)
        node.marks.add(mark)
        for walk in node.path():
            walk.live += 1
        return mark

    def unmark(self, mark: Mark) -> None:
        """Undo a `mark`."""
        mark.node.marks.remove(mark)
        for walk in mark.node.path():
            walk.live -= 1
        self._offer(mark.node)

    def evict(self, count: int, leaving: Callable[[Node], None] | None = None) -> IntArray:
        """Remove unlocked leaves until ``count`` slots are free.

        Those that no program is marked to go on from first; among them the least recently used.
        A leaf is shortened from its end rather than removed whole where that is enough.

        Args:
            count: Slots wanted.
            leaving: Called with each leaf before it loses tokens.

        Returns:
            The slots that the trees gave up: ``count`` where that many were evictable.
        """
        freed: list[IntArray] = []
        wanted = count
        while wanted > 0 and (leaf := self._pop_leaf()) is not None:
            keep = max(0, len(leaf.tokens) - wanted)
            if leaving is not None:
                leaving(leaf)
            freed.append(leaf.slots[keep:])
            gone = len(leaf.tokens) - keep
            wanted -= gone
            self.total_tokens -= gone
            if keep:
                leaf.tokens, leaf.slots = leaf.tokens[:keep].copy(), leaf.slots[:keep].copy()
                self._offer(leaf)
            else:
                self._remove(leaf)
        return np.concatenate(freed) if freed else _EMPTY

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, in no particular order."""
        stack = [child for root in self.roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> IntArray:
        """Prove the trees' own invariants; returns all slots they hold. Raises AssertionError."""
        total = locked = count = 0
        held = [_EMPTY]
        offered = {id(entry[-1]) for entry in self._leaves}
        for node in self.nodes():
            parent = node.parent
            assert parent is not None
            assert parent.children[int(node.tokens[0])] is node
            assert len(node.tokens) == len(node.slots) > 0
            assert node.locks >= 0
            assert parent.locks >= node.locks
            below = sum(child.live for child in node.children.values())
            assert node.live == below + len(node.marks), "a mark is lost"
            assert all(mark.node is node for mark in node.marks)
            assert all(int(child.tokens[0]) == key for key, child in node.children.items())
            evictable = not node.children and node.locks == 0
            assert not evictable or id(node) in offered, "a leaf that eviction cannot find"
            total += len(node.tokens)
            locked += len(node.tokens) if node.locks else 0
            count += 1
            held.append(node.slots)
        assert total == self.total_tokens, (total, self.total_tokens)
        assert locked == self.locked_tokens, (locked, self.locked_tokens)
        assert count == self.nodes_count, (count, self.nodes_count)
        return np.concatenate(held)

    def _split(self, node: Node, at: int) -> Node:
        """Cut ``node`` after ``at`` tokens: returns the new upper half; ``node`` stays below it."""
        parent = node.parent
        assert parent is not None
        upper = Node(node.tokens[:at].copy(), node.slots[:at].copy(), parent)
        upper.locks, upper.last_used, upper.live = node.locks, node.last_used, node.live
        self.nodes_count += 1
        parent.children[int(upper.tokens[0])] = upper
        node.tokens, node.slots = node.tokens[at:].copy(), node.slots[at:].copy()
        node.parent = upper
        upper.children[int(node.tokens[0])] = node
        return upper

    def _offer(self, node: Node) -> None:
        """Note that a node may be a leaf that can go, or a root without a tree."""
        empty = not (node.children or node.locks or node.marks)
        if isinstance(node, Root) and empty and self.roots.get(node.namespace) is node:
            del self.roots[node.namespace]
        if not _can_go(node):
            return
        self._pushed += 1
        heapq.heappush(self._leaves, (node.live > 0, node.last_used, self._pushed, node))
        if len(self._leaves) > 4 * self.nodes_count + 64:
            first = {id(entry[-1]): entry for entry in sorted(self._leaves, reverse=True)}
            self._leaves = [entry for entry in first.values() if _can_go(entry[-1])]
            heapq.heapify(self._leaves)

    def _pop_leaf(self) -> Node | None:
        """The leaf to evict next; None where none can go."""
        while self._leaves:
            live, last_used, _, leaf = heapq.heappop(self._leaves)
            if not _can_go(leaf):
                continue  # it is offered anew once it can go
            if (live, last_used) == (leaf.live > 0, leaf.last_used):
                return leaf
            self._offer(leaf)
        return None

    def _remove(self, leaf: Node) -> None:
        """Take an empty leaf out of its tree; its marks move up."""
        parent = leaf.parent
        assert parent is not None
        del parent.children[int(leaf.tokens[0])]
        leaf.parent = None
        self.nodes_count -= 1
        for mark in leaf.marks:
            mark.node = parent
            parent.marks.add(mark)
        self._offer(parent)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def _can_go(node: Node) -> bool:
    """Whether a node is a leaf that nothing holds, and still in its tree."""
    return not node.children and not node.locks and node.parent is not None


def common_prefix(a: IntArray, b: IntArray) -> int:
    """Length of the longest common prefix of two arrays."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
