"""Bytes as the fewest tokens, and what is known of that before all of them are.

written  `": `     under way: `": ` is one token; or `":` is one, and ` ` begins another
"""

from __future__ import annotations

from typing import TypeAlias

from lmlang.grammar.token_trie import TokenTrie

Tokens: TypeAlias = tuple[int, ...]

NONE = 1 << 30
"""As many tokens as nothing has."""

Opens: TypeAlias = tuple[tuple[int, int], ...]
"""Tokens that are under way at a place: how many are before each, and its node; the root where one
may begin. The fewest before any are not counted, so that they are the same at many places."""
BEGIN: Opens = ((0, 0),)
"""Those before the first byte."""


class Spelled:
    """Bytes as the fewest tokens; of equally few, long ones first.

    Args:
        trie: The tokens.
        data: The bytes.
        other: What is known of other bytes; what these end with alike is taken from there.

    Attributes:
        counts: Of the tokens from each place to the end.
        after: Of some bytes before it, how many tokens they have with it.
    """

    def __init__(self, trie: TokenTrie, data: bytes, other: Spelled | None = None) -> None:
        labels, starts, id_at = trie.labels, trie.starts, trie.id_at
        shared = 0 if other is None else _shared_end(data, other.data)
        length, fresh = len(data), len(data) - shared
        self.data: bytes = data
        self.counts = [NONE] * fresh
        self.counts += [0] if other is None else other.counts[len(other.data) - shared :]
        self.after: dict[int, int] = {}
        self._trie = trie
        counts = self.counts
        for begin in range(fresh - 1, -1, -1):
            node, best = 0, NONE
            for end in range(begin, length):
                node = labels.find(data[end], starts[node], starts[node + 1])
                if node < 0:
                    break
                if id_at[node] >= 0 and counts[end + 1] < best:
                    best = counts[end + 1]
            if best < NONE:
                counts[begin] = best + 1

    def most(self, data: bytes) -> int:
        """So many tokens are surely enough for bytes of which each is a token."""
        shared = _shared_end(data, self.data)
        return len(data) - shared + self.counts[len(self.data) - shared]

    def tokens(self) -> Tokens | None:
        """The tokens; None where there are none."""
        data, counts, trie = self.data, self.counts, self._trie
        if counts[0] >= NONE:
            return None
        found, begin = list[int](), 0
        while begin < len(data):
            node, index, last = 0, -1, begin
            for end in range(begin, len(data)):
                node = trie.child(node, data[end])
                if node < 0:
                    break
                if trie.id_at[node] >= 0 and counts[end + 1] + 1 == counts[begin]:
                    index, last = trie.id_at[node], end + 1
            found.append(index)
            begin = last
        return tuple(found)


def go_on(trie: TokenTrie, opens: Opens, data: bytes) -> tuple[Opens, int]:
    """The tokens that are under way behind more bytes, and how many more are before all of them."""
    labels, starts, id_at = trie.labels, trie.starts, trie.id_at
    for byte in data:
        onward, border = list[tuple[int, int]](), NONE
        for count, node in opens:
            child = labels.find(byte, starts[node], starts[node + 1])
            if child >= 0:
                if starts[child] != starts[child + 1]:
                    onward.append((count, child))
                if id_at[child] >= 0 and count < border:
                    border = count
        if border < NONE:
            onward.append((border + 1, 0))
        opens = tuple(onward)
    more = min(opens)[0] if opens else 0
    return (tuple([(count - more, node) for count, node in opens]) if more else opens), more


def goes_on(trie: TokenTrie, opens: Opens, byte: int) -> bool:
    """Whether one of the tokens that the fewest are before goes on with a byte, and beyond it."""
    labels, starts = trie.labels, trie.starts
    for count, node in opens:
        child = -1 if count else labels.find(byte, starts[node], starts[node + 1])
        if child >= 0 and starts[child] != starts[child + 1]:
            return True
    return False


def least(trie: TokenTrie, opens: Opens, byte: int, rest: Spelled) -> int:
    """How many tokens bytes have with others behind them; `NONE` or more for none.

    Args:
        trie: The tokens.
        opens: Those under way behind the bytes.
        byte: What comes then.
        rest: What stands behind that.
    """
    labels, starts, best = trie.labels, trie.starts, NONE
    for count, node in opens:
        if node:
            node = labels.find(byte, starts[node], starts[node + 1])
            if node < 0:
                continue
            found = _with(trie, node, rest)
        elif (known := rest.after.get(byte)) is not None:
            found = known
        else:
            found = rest.after[byte] = _with(trie, trie.child(0, byte), rest)
        if count + found < best:
            best = count + found
    return best


def _with(trie: TokenTrie, node: int, rest: Spelled) -> int:
    """How many tokens there are with the one that is under way."""
    labels, starts, id_at = trie.labels, trie.starts, trie.id_at
    data, counts, best, end = rest.data, rest.counts, NONE, 0
    while node >= 0:
        if id_at[node] >= 0 and counts[end] < best:
            best = counts[end]
        if end == len(data):
            break
        node = labels.find(data[end], starts[node], starts[node + 1])
        end += 1
    return best + 1 if best < NONE else NONE


def _shared_end(one: bytes, other: bytes) -> int:
    """How many bytes both end with."""
    size = min(len(one), len(other))
    differ = int.from_bytes(one[len(one) - size :], "big") ^ int.from_bytes(
        other[len(other) - size :], "big"
    )
    return ((differ & -differ).bit_length() - 1) // 8 if differ else size


def reach(trie: TokenTrie, data: bytes) -> int:
    """The longest beginning of some bytes that tokens can spell."""
    borders, last = {0}, 0
    for begin in range(len(data)):
        if begin in borders:
            node = 0
            for end in range(begin, len(data)):
                node = trie.child(node, data[end])
                if node < 0:
                    break
                if trie.id_at[node] >= 0:
                    borders.add(end + 1)
                    last = max(last, end + 1)
    return last
