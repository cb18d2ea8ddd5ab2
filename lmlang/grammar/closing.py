"""Ways to complete an output as tokens: as few of them as can be found, and always some.

    {"name": "Jo     the automaton's completion: `"}`     tokens: [`"}`]
    {"kind":         "a", not "intern" …: fewest bytes is not fewest tokens, so others are tried

Where the vocabulary cannot spell a completion, another one is looked for in the same way.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TypeAlias

from lmlang.errors import GrammarDeadEnd
from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.token_trie import TokenTrie
from lmlang.grammar.vocabulary import Vocabulary

Tokens: TypeAlias = tuple[int, ...]

MAX_TRIED = 2_048
"""What may be spent on looking for fewer tokens: some milliseconds."""
MAX_TRIED_TO_SPELL = 1 << 16
"""The same where the vocabulary lacks bytes."""
AT_A_PLACE, AT_A_TRY = 2, 8
"""What is spent on looking at a place of a completion, and on trying another one."""
WIDE = 80
"""Where more bytes than this may follow, one is as good as the other."""
NONE = 1 << 30


@dataclass(frozen=True, slots=True)
class _Closing:
    """What is known at a state.

    Args:
        tokens: That complete it; None where no way to spell any completion was found.
        searched: Whether others have been looked for.
        stuck: The bytes that could not be spelled.
    """

    tokens: Tokens | None
    searched: bool
    stuck: bytes = b""


class Closings:
    """Completions of the states of one automaton. Thread-safe: what it keeps is a cache.

    Args:
        vocabulary: Whose tokens.
        automaton: Whose states.
    """

    def __init__(self, vocabulary: Vocabulary, automaton: Automaton) -> None:
        self._vocabulary = vocabulary
        self._automaton = automaton
        self._last: Spelled | None = None
        self._single = bytes(b for b in range(256) if vocabulary.byte_ids[b] >= 0)

    def tokens(self, state: State) -> Tokens:
        """Tokens that complete an output from a state.

        Raises:
            GrammarDeadEnd: The vocabulary cannot spell any completion that was found.
        """
        closing = self._search(state)
        if closing.tokens is None:
            raise self._dead_end(closing.stuck)
        return closing.tokens

    def fits(self, state: State, budget: int) -> bool:
        """Whether `tokens` of a state are at most so many; mostly told without looking for them."""
        if state.enough <= budget:
            return True
        closing: _Closing | None = state.closing
        if closing is None:
            data = self._automaton.completion(state)
            if not data.translate(None, self._single):
                state.enough = len(data)
                if len(data) <= budget:
                    return True
            closing = self._closing(state)
        if closing.tokens is not None and len(closing.tokens) > budget:
            closing = self._search(state)
        return closing.tokens is not None and len(closing.tokens) <= budget

    def _closing(self, state: State) -> _Closing:
        known: _Closing | None = state.closing
        if known is not None:
            return known
        data = self._automaton.completion(state)
        tokens, reached = self._fewest(data)
        state.closing = found = _Closing(tokens, False, data[reached : reached + 4])
        return found if tokens is not None else self._search(state)

    def _search(self, state: State) -> _Closing:
        """Look for the best completion; always the same, whoever asked for what before."""
        closing = self._closing(state) if state.closing is None else state.closing
        assert isinstance(closing, _Closing)
        if closing.searched or (closing.tokens is not None and len(closing.tokens) <= 1):
            return closing
        best = closing.tokens
        left = MAX_TRIED if best is not None else MAX_TRIED_TO_SPELL
        data = self._automaton.completion(state)
        reached = self._fewest(data)[1]
        open_ = [(len(best) if best is not None else NONE, len(data), data, 0, reached)]
        rests: Spelled | None = None
        while open_ and left > 0 and (best is None or len(best) > 1):
            _, _, data, first, reached = heapq.heappop(open_)
            here = self._automaton.run(state, data[:first])
            begun = Begun(self._vocabulary.trie, data)
            for at in range(first, min(len(data), reached + 1)):
                left -= AT_A_PLACE
                if left <= 0:
                    break
                assert here is not None, "completions are possible"
                following = self._automaton.following(here)
                for byte in following if len(following) <= WIDE or best is None else b"":
                    if byte == data[at] or byte in self._vocabulary.missing_bytes:
                        continue
                    other = self._automaton.push(here, byte)
                    assert other is not None, "what follows leads somewhere"
                    rest = self._automaton.completion(other)
                    whole = data[:at] + bytes([byte]) + rest
                    rests = Spelled(self._vocabulary.trie, rest, rests)
                    count, reach = begun.fewest(at, byte, rests), len(whole)
                    if count >= NONE or best is None or count < len(best):
                        tokens, reach = self._fewest(whole)
                        best = best if tokens is None else tokens
                    heapq.heappush(open_, (count, len(whole), whole, at + 1, reach))
                    left -= AT_A_TRY + len(whole) // 16
                here = self._automaton.push(here, data[at])
        state.closing = found = _Closing(self._own(best), True, closing.stuck)
        return found

    def _fewest(self, data: bytes) -> tuple[Tokens | None, int]:
        """Bytes as the fewest tokens, from what is known of others that end alike.

        Returns:
            The tokens, None where they cannot be spelled; and how many of the bytes can.
        """
        spelled = Spelled(self._vocabulary.trie, data, self._last)
        self._last = spelled
        tokens = spelled.tokens()
        return tokens, len(data) if tokens is not None else _reach(self._vocabulary.trie, data)

    def _own(self, tokens: Tokens | None) -> Tokens | None:
        """The tokenizer's own tokens for the same bytes, if they are no more."""
        pieces = self._vocabulary.pieces
        if tokens is None or len(tokens) < 2:
            return tokens
        data = b"".join([pieces[index] for index in tokens])
        try:
            own = tuple(self._vocabulary.encode(data.decode()))
        except UnicodeDecodeError:
            return tokens
        if len(own) <= len(tokens) and b"".join([pieces[index] for index in own]) == data:
            return own
        return tokens

    def _dead_end(self, stuck: bytes) -> GrammarDeadEnd:
        missing = bytes(b for b in stuck[:1] if b in self._vocabulary.missing_bytes)
        which = f"the byte 0x{missing[0]:02x}" if missing else f"the bytes {stuck!r}"
        return GrammarDeadEnd(
            f"the vocabulary has no token for {which}, which every output found would need: allow "
            "other text there, or use a model whose tokens hold all bytes."
        )


class Spelled:
    """Bytes as the fewest tokens; of equally few, long ones first.

    Args:
        trie: The tokens.
        data: The bytes.
        other: What is known of other bytes; what these end with alike is taken from there.

    Attributes:
        counts: Of the tokens from each place to the end.
    """

    def __init__(self, trie: TokenTrie, data: bytes, other: Spelled | None = None) -> None:
        labels, starts, id_at = trie.labels, trie.starts, trie.id_at
        shared = 0 if other is None else _shared_end(data, other.data)
        length, fresh = len(data), len(data) - shared
        self.data: bytes = data
        self.counts = [NONE] * fresh
        self._ways = [(-1, 0)] * fresh  # the token that comes first, and its length
        if other is None:
            self.counts.append(0)
        else:
            self.counts += other.counts[len(other.data) - shared :]
            self._ways += other._ways[len(other.data) - shared :]
        counts = self.counts
        for begin in range(fresh - 1, -1, -1):
            node, best = 0, NONE
            for end in range(begin, length):
                node = labels.find(data[end], starts[node], starts[node + 1])
                if node < 0:
                    break
                if id_at[node] >= 0 and counts[end + 1] + 1 <= best:
                    best = counts[end + 1] + 1
                    self._ways[begin] = (id_at[node], end + 1 - begin)
            counts[begin] = best

    def tokens(self) -> Tokens | None:
        """The tokens; None where there are none."""
        if self.counts[0] >= NONE:
            return None
        found, at = [], 0
        while at < len(self.data):
            index, size = self._ways[at]
            found.append(index)
            at += size
        return tuple(found)


class Begun:
    """Bytes whose end may become another one: as the fewest tokens up to each place.

    Args:
        trie: The tokens.
        data: The bytes.
    """

    def __init__(self, trie: TokenTrie, data: bytes) -> None:
        self._trie = trie
        self._data = data
        self._open = [[(0, 0)]]  # at each place: tokens up to where one has begun, and its node

    def fewest(self, at: int, byte: int, rest: Spelled) -> int:
        """How many tokens the bytes up to a place have with others behind them; `NONE` for none.

        One of the tokens has the other byte in it: it is looked for from where it may begin.

        Args:
            at: The place.
            byte: What stands there instead.
            rest: What stands behind that.
        """
        while len(self._open) <= at:
            self._go_on(self._data[len(self._open) - 1])
        labels, starts, id_at = self._trie.labels, self._trie.starts, self._trie.id_at
        data, counts, best = rest.data, rest.counts, NONE
        for count, node in self._open[at]:
            node = labels.find(byte, starts[node], starts[node + 1])
            end = 0
            while node >= 0:
                if id_at[node] >= 0:
                    best = min(best, count + 1 + counts[end])
                if end == len(data):
                    break
                node = labels.find(data[end], starts[node], starts[node + 1])
                end += 1
        return best

    def _go_on(self, byte: int) -> None:
        labels, starts, id_at = self._trie.labels, self._trie.starts, self._trie.id_at
        here, least = list[tuple[int, int]](), NONE
        for count, node in self._open[-1]:
            child = labels.find(byte, starts[node], starts[node + 1])
            if child >= 0:
                here.append((count, child))
                if id_at[child] >= 0:
                    least = min(least, count + 1)
        if least < NONE:
            here.append((least, 0))
        self._open.append(here)


def _shared_end(one: bytes, other: bytes) -> int:
    """How many bytes both end with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle :] == other[len(other) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low


def _reach(trie: TokenTrie, data: bytes) -> int:
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
