r"""The tree of tokens with those bytes merged that a content never tells apart: few nodes are left.

tokens   cat  dog  car.  a\n         where all letters lead alike
tree     aaa       aaa.  a\n         behind a backslash each byte stays what it is

Where a token leads is then found from a walk of the small tree, for all tokens with its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmlang.grammar.byte_tree import ByteTree, Ints
from lmlang.grammar.token_trie import TokenTrie

BACKSLASH, QUOTE = 0x5C, 0x22
SMALLER = 6
"""By so much, at least, the small tree is smaller."""
DENSE = 32
"""Of so many places one is taken where they are looked up rather than sorted."""


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """The small tree.

    Args:
        tree: It.
        node_of: int32 [V], the node in it where each id ends.
        quotes: Of each node that a quote leads to, those of the tree of tokens and their bytes.
    """

    tree: ByteTree
    node_of: Ints
    quotes: dict[int, list[tuple[int, bytes]]]


def merged(trie: TokenTrie, firsts: bytes, escapes: bool) -> Merged | None:
    """Merge the bytes of all tokens; None where many nodes would be left.

    Args:
        trie: The tree of tokens.
        firsts: For each byte the first of those that lead alike; quotes lead like no other.
        escapes: Whether a backslash begins what tells them apart.
    """
    kinds = np.frombuffer(firsts, dtype=np.uint8)
    place = np.zeros(len(trie), dtype=np.int64)  # in the small tree
    bare = np.zeros(len(trie), dtype=np.bool_)  # whether a backslash is on the way
    labels, parents, levels = [b"\0"], [np.zeros(1, dtype=np.int64)], [0, 1]
    for begin, end in zip(trie.levels[1:], trie.levels[2:], strict=False):
        above, bytes_ = trie.parents[begin:end], trie.codes[begin:end]
        bare[begin:end] = bare[above] | (bytes_ == BACKSLASH if escapes else False)
        first, last = levels[-2:]
        ways = (place[above] - first) << 8 | np.where(bare[above], bytes_, kinds[bytes_])
        if (last - first) << 8 > DENSE * len(ways):
            fresh, numbers = np.unique(ways, return_inverse=True)
        else:
            met = np.zeros((last - first) << 8, dtype=np.bool_)
            met[ways] = True
            fresh, numbers = np.flatnonzero(met), np.cumsum(met)[ways] - 1
        place[begin:end] = last + numbers
        labels.append((fresh & 255).astype(np.uint8).tobytes())
        parents.append((fresh >> 8) + first)
        levels.append(last + len(fresh))
        if levels[-1] * SMALLER > len(trie):
            return None
    quotes: dict[int, list[tuple[int, bytes]]] = {}
    for node in np.flatnonzero(trie.codes == QUOTE).tolist():
        quotes.setdefault(int(place[node]), []).append((node, trie.path(node)))
    tree = ByteTree(b"".join(labels), np.concatenate(parents), levels)
    return Merged(tree, place[trie.node_of].astype(np.int32), quotes)
