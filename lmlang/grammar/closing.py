"""Ways to complete an output as tokens: as few of them as can be found, and always some.

    {"name": "Jo     the automaton's completion: `"}`     tokens: [`"}`]
    {"kind":         "a", not "intern" …: fewest bytes is not fewest tokens, so others are tried

Where the vocabulary cannot spell a completion, another one is looked for in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlang.errors import GrammarDeadEnd
from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.detours import Detours
from lmlang.grammar.fewest import Spelled, Tokens, reach
from lmlang.grammar.vocabulary import Vocabulary


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
        self._paused: dict[State, Detours] = {}  # one at most, which may be gone on with
        self._missing = vocabulary.missing_bytes  # found by a look at all tokens: not later
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
                if len(data) > budget and self._last is not None:
                    state.enough = self._last.most(data)
                if state.enough <= budget:
                    return True
            closing = self._closing(state)
        if closing.tokens is not None and len(closing.tokens) > budget:
            closing = self._search(state, budget)
        return closing.tokens is not None and len(closing.tokens) <= budget

    def _closing(self, state: State) -> _Closing:
        known: _Closing | None = state.closing
        if known is not None:
            return known
        data = self._automaton.completion(state)
        tokens, reached = self._fewest(data)
        state.closing = found = _Closing(tokens, False, data[reached : reached + 4])
        return found if tokens is not None else self._search(state)

    def _search(self, state: State, enough: int = 1) -> _Closing:
        """Look for the best completion; always the same, whoever asked for what before."""
        closing = self._closing(state) if state.closing is None else state.closing
        assert isinstance(closing, _Closing)
        if closing.searched or (closing.tokens is not None and len(closing.tokens) <= 1):
            return closing
        search = self._paused.pop(state, None)
        if search is None:
            spelled = self._spelled(self._automaton.completion(state))
            search = Detours(self._vocabulary, self._automaton, state, spelled, closing.tokens)
        if not search.look(enough):
            assert search.best is not None
            state.enough = len(search.best)
            self._paused.clear()
            self._paused[state] = search
            return _Closing(search.best, False)
        state.closing = found = _Closing(self._own(search.best), True, closing.stuck)
        return found

    def _fewest(self, data: bytes) -> tuple[Tokens | None, int]:
        """Bytes as the fewest tokens, from what is known of others that end alike.

        Returns:
            The tokens, None where they cannot be spelled; and how many of the bytes can.
        """
        tokens = self._spelled(data).tokens()
        return tokens, len(data) if tokens is not None else reach(self._vocabulary.trie, data)

    def _spelled(self, data: bytes) -> Spelled:
        self._last = spelled = Spelled(self._vocabulary.trie, data, self._last)
        return spelled

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
        missing = bytes(b for b in stuck[:1] if b in self._missing)
        which = f"the byte 0x{missing[0]:02x}" if missing else f"the bytes {stuck!r}"
        return GrammarDeadEnd(
            f"the vocabulary has no token for {which}, which every output found would need: allow "
            "other text there, or use a model whose tokens hold all bytes."
        )
