"""Forced bytes as tokens: those that the tokenizer itself would give, as far as that is certain.

    known  {"name":"Jo",      forced  "age":      what may follow  0 … 9 -
    tokens of the whole text  [","] [age] [":]    then one of them: none of these can change

Most tokens are certain at once: what follows cannot change those before the last place where the
text may be cut. Those behind it are the business of `endings.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.endings import Ending, certain, shared, text_of
from lmlang.grammar.follow import Follow
from lmlang.grammar.vocabulary import Vocabulary

KNOWN_TOKENS = 24
"""Of the tokens before forced bytes so many are looked at."""
FEW_TOKENS = 3
"""Behind these mostly is such a place."""
SHORT = 8
"""Texts of so many characters, which are hardly more than marks, are met again and again."""
MAX_BYTES = 256
"""Of forced bytes so many are looked at; behind them they go on, which is asked for anew."""
OPEN = 64
"""So many bytes may follow where what merges with forced bytes is a rare case among others."""
MAX_KEPT = 4_096


class Canonical:
    """Forced tokens of the states of one automaton. Thread-safe: what it keeps is a cache.

    Args:
        vocabulary: Whose tokens.
        automaton: Whose states.
    """

    def __init__(self, vocabulary: Vocabulary, automaton: Automaton) -> None:
        self._vocabulary = vocabulary
        self._automaton = automaton
        self._runs: dict[State, tuple[str, State] | None] = {}
        self._splits: dict[tuple[str, tuple[int, ...]], tuple[tuple[int, ...], Ending | None]] = {}
        self._held: dict[tuple[str, tuple[int, ...]], int | None] = {}
        self._parting: dict[tuple[int, str], bool] = {}
        self._ends: dict[tuple[Ending, State], tuple[int, ...]] = {}

    def forced(self, state: State, before: Sequence[int]) -> tuple[int, ...]:
        """The tokens that certainly come next.

        Args:
            state: Where the output stands.
            before: The ids that led there; -1 for bytes that did not come as a token.
        """
        run = self._run(state)
        if run is None:
            return ()
        text, behind = run
        key = (text, tuple(self._tail(before, text)))
        split = self._splits.get(key)
        if split is None:
            split = self._split(*key)
            _keep(self._splits, key, split)
        sure, ending = split
        return sure if ending is None else sure + self._certain(ending, behind)

    def held(self, state: State, before: Sequence[int]) -> int | None:
        """The token that all forced bytes are, unless what comes merges with it as few texts do.

        Behind it many bytes may follow: between the quotes of a string, say, anything but a second
        quote leaves them one token. It is a guess, where `forced` is sure.

        Args:
            state: Where the output stands.
            before: As there.
        """
        run = self._run(state)
        if run is None or len(self._automaton.following(run[1])) < OPEN:
            return None
        key = (run[0], tuple(self._tail(before, run[0])))
        if key not in self._held:
            _keep(self._held, key, self._alone(*key))
        return self._held[key]

    def _alone(self, text: str, tail: tuple[int, ...]) -> int | None:
        """The token of a text behind known ones, if it is one."""
        before = b"".join([self._vocabulary.pieces[index] for index in tail])
        own = self._vocabulary.encoded(before.decode("utf-8", "replace") + text)
        return own[-1] if tuple(own[:-1]) == tail else None

    def _run(self, state: State) -> tuple[str, State] | None:
        """What the forced bytes spell, and the state behind it, or one where more may come."""
        try:
            return self._runs[state]
        except KeyError:
            found = self._found(state)
            _keep(self._runs, state, found)
            return found

    def _found(self, state: State) -> tuple[str, State] | None:
        automaton = self._automaton
        data, behind = automaton.forced_to(state, MAX_BYTES)
        text = text_of(data[:MAX_BYTES]) if data else ""
        if not text:
            return None
        end = text.encode()
        if len(end) < len(data):
            onward = automaton.run(state, end)
            assert onward is not None, "forced bytes are possible"
            behind = onward
        return text, automaton.widened(behind)

    def _split(self, text: str, tail: tuple[int, ...]) -> tuple[tuple[int, ...], Ending | None]:
        """The tokens of a text behind known ones that are the same whatever follows; and its end.

        Args:
            text: What comes.
            tail: The last ids before it.
        """
        pieces, cut, known = self._vocabulary.pieces, self._vocabulary.cut, list(tail)
        before = b"".join([pieces[index] for index in known]).decode("utf-8", "replace")
        while True:
            whole = before + text
            at = 0 if cut is None else cut(whole)
            encode = self._vocabulary.encoded if at <= SHORT else self._vocabulary.encode
            first = list(encode(whole[:at])) if at else []
            rest = whole[at:]
            own = [*first, *self._vocabulary.encoded(rest)] if known else []
            if own[: len(known)] == known:
                break
            before, known = "", []  # what came was not the tokenizer's own
        sure = tuple(first[len(known) :])
        begin = len(whole[:at].encode()) - len(before.encode())
        matching = shared(pieces, sure, sure, text.encode())
        size = sum(len(pieces[index]) for index in sure)
        if len(matching) < len(sure) or size != max(0, begin):
            return tuple(matching), None
        return sure, Ending(rest, max(0, -begin), max(0, len(known) - len(first)))

    def _certain(self, ending: Ending, behind: State) -> tuple[int, ...]:
        """What is certain of an ending."""
        key = (ending, behind)
        found = self._ends.get(key)
        if found is None:
            found = certain(self._vocabulary, ending, Follow(self._automaton, behind))
            _keep(self._ends, key, found)
        return found

    def _tail(self, before: Sequence[int], text: str) -> Sequence[int]:
        """The last ids, from a place on that a text and the ids behind it do not look across."""
        if not before:
            return ()
        key = before[-1], text[0]
        parts = self._parting.get(key)
        if parts is None:
            parts = self._last_cut(before[-1:], text[0]) == 1
            _keep(self._parting, key, parts)
        if parts:
            return ()
        few = before[-FEW_TOKENS:]
        at = self._last_cut(few, text[0])
        if at is not None:
            return few[at:]
        pieces = self._vocabulary.pieces
        tail = before[-KNOWN_TOKENS:]
        for at in range(len(tail) - 1, -1, -1):
            if tail[at] < 0:
                tail = tail[at + 1 :]
                break
        while tail and pieces[tail[0]][:1] and 0x80 <= pieces[tail[0]][0] < 0xC0:
            tail = tail[1:]
        return tail[self._last_cut(tail, text[0]) or 0 :]

    def _last_cut(self, ids: Sequence[int], more: str) -> int | None:
        """Which of some ids begins at the last place where their text may be cut; None: none.

        Args:
            ids: The ids.
            more: A character that follows; their number if it may be cut before that.
        """
        cut, pieces = self._vocabulary.cut, self._vocabulary.pieces
        if cut is None or not ids or min(ids) < 0:
            return None
        data = b"".join([pieces[index] for index in ids])
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        end = cut(text + more)
        rest = len(data) - len(text[:end].encode())
        at = len(ids)
        while rest > 0:
            at -= 1
            rest -= len(pieces[ids[at]])
        return at if end and rest == 0 else None


def _keep(known: dict[Any, Any], key: Any, found: Any) -> None:
    """Remember something, and nothing else where there would be too much."""
    if len(known) >= MAX_KEPT:
        known.clear()
    known[key] = found
