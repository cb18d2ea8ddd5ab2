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

MAX_TRIED = 4_096
"""Bytes of the completions that are looked at for one with fewer tokens: some milliseconds."""
MAX_TRIED_TO_SPELL = 1 << 18
"""The same where the vocabulary lacks bytes."""
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
        closing: _Closing | None = state.closing
        if closing is None:
            data = self._automaton.completion(state)
            if len(data) <= budget and not data.translate(None, self._single):
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
        tokens, reached = self._spelled(data)
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
        reached = self._spelled(data)[1]
        open_ = [(len(best) if best is not None else NONE, len(data), data, 0, reached)]
        while open_ and left > 0 and (best is None or len(best) > 1):
            _, _, data, first, reached = heapq.heappop(open_)
            here = self._automaton.run(state, data[:first])
            for at in range(first, min(len(data), reached + 1)):
                if left <= 0:
                    break
                assert here is not None, "completions are possible"
                following = self._automaton.following(here)
                for byte in following if len(following) <= WIDE or best is None else b"":
                    if byte == data[at] or byte in self._vocabulary.missing_bytes:
                        continue
                    other = self._automaton.push(here, byte)
                    assert other is not None, "what follows leads somewhere"
                    whole = data[:at] + bytes([byte]) + self._automaton.completion(other)
                    tokens, reach = self._spelled(whole)
                    count = NONE if tokens is None else len(tokens)
                    heapq.heappush(open_, (count, len(whole), whole, at + 1, reach))
                    if tokens is not None and (best is None or count < len(best)):
                        best = tokens
                    left -= len(whole)
                here = self._automaton.push(here, data[at])
        state.closing = found = _Closing(best, True, closing.stuck)
        return found

    def _spelled(self, data: bytes) -> tuple[Tokens | None, int]:
        """Bytes as tokens, the tokenizer's own if they are no more than need be.

        Returns:
            The tokens, None where they cannot be spelled; and how many of the bytes can.
        """
        tokens, reached = fewest_tokens(self._vocabulary.trie, data)
        if tokens is None or len(tokens) < 2:
            return tokens, reached
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return tokens, reached
        own = tuple(self._vocabulary.encode(text))
        pieces = self._vocabulary.pieces
        if len(own) <= len(tokens) and b"".join([pieces[index] for index in own]) == data:
            return own, reached
        return tokens, reached

    def _dead_end(self, stuck: bytes) -> GrammarDeadEnd:
        missing = bytes(b for b in stuck[:1] if b in self._vocabulary.missing_bytes)
        which = f"the byte 0x{missing[0]:02x}" if missing else f"the bytes {stuck!r}"
        return GrammarDeadEnd(
            f"the vocabulary has no token for {which}, which every output found would need: allow "
            "other text there, or use a model whose tokens hold all bytes."
        )


def fewest_tokens(trie: TokenTrie, data: bytes) -> tuple[Tokens | None, int]:
    """The fewest tokens whose bytes are these; of equally few, long ones first.

    Returns:
        The tokens, None where there are none; and the longest beginning that tokens can spell.
    """
    labels, starts, id_at = trie.labels, trie.starts, trie.id_at
    length = len(data)
    counts = [NONE] * length + [0]
    ways = [(-1, 0)] * length  # the token that comes first, and where it ends
    for begin in range(length - 1, -1, -1):
        node, best = 0, NONE
        for end in range(begin, length):
            node = labels.find(data[end], starts[node], starts[node + 1])
            if node < 0:
                break
            if id_at[node] >= 0 and counts[end + 1] + 1 <= best:
                best = counts[end + 1] + 1
                ways[begin] = (id_at[node], end + 1)
        counts[begin] = best
    if counts[0] >= NONE:
        return None, _reach(trie, data)
    found, at = [], 0
    while at < length:
        index, at = ways[at]
        found.append(index)
    return tuple(found), length


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
