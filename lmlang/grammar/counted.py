"""Tokens in texts of which only the number of characters matters: all lengths from one walk."""

from __future__ import annotations

from typing import Any

import numpy as np

from lmlang.grammar.token_trie import Bits, TokenTrie

NONE = (1 << 15) - 1
"""More characters than any token has that is looked at here."""


class Counted:
    """The characters of all tokens in free text of a spelling. Immutable, thread-safe.

    Args:
        trie: The tokens.
        states: For each node of the tree the state of free text behind its bytes, -1 for none.
        left: Nodes to which a byte leads that leaves it.
        start: The state between characters.
    """

    def __init__(self, trie: TokenTrie, states: Any, left: list[int], start: int) -> None:
        between = states == start
        between[0] = True
        begun = np.minimum(trie.summed(between.astype(np.int32)), NONE)
        counts = np.where(states >= 0, begun, NONE).astype(np.int16)
        self._trie = trie
        self._counts = counts[trie.node_of]  # 0 for ids without bytes
        self._counts[trie.node_of == 0] = NONE
        self._exits = [(node, trie.path(node), int(begun[node]) - 1) for node in left]

    def within(self, least: int, most: int | None) -> tuple[Bits, tuple[tuple[int, bytes], ...]]:
        """What tokens do where so many characters must come at least, and may at most.

        Returns:
            Those that stay inside; nodes to which a byte leads that leaves it, and their bytes.
        """
        top = NONE - 1 if most is None else min(most, NONE - 1)
        exits = tuple((node, path) for node, path, n in self._exits if least <= n <= top)
        return self._trie.bits_of_ids(self._counts <= top), exits
