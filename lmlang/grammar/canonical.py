"""Forced bytes as tokens: those that the tokenizer itself would give, as far as that is certain.

    known  {"name":"Jo",      forced  "age":      what may follow  0 … 9 -
    tokens of the whole text  [","] [age] [":]    then one of them: none of these can change

A token is certain if the whole text, however it goes on, has it there. Two things are asked: does
the tokenizer ever take a token that begins in the forced bytes and ends in what may follow, and do
the ids of the whole text agree for continuations of every kind?

The first is tried. Of a whole text, the tokens up to a place where one ends are those of the text
up to there: so it is with merges, unigrams and longest matches. What crosses the end of the forced
bytes would therefore be seen in a text that ends with it. Where too many might, none is ruled out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from lmlang.grammar.automaton import Automaton, Content, State, Table
from lmlang.grammar.vocabulary import Vocabulary

KNOWN_TOKENS = 24
"""Of the tokens before forced bytes so many are looked at."""
MAX_BYTES = 256
"""Of forced bytes so many are looked at; behind them they go on, which is asked for anew."""
MAX_SPANNING = 32
"""Tokens that begin at one place and end in what may follow: from more on, the place is held."""
MAX_TRIED = 192
"""Texts that end with such tokens, or a character behind them."""
FEW, MAX_MARKS = 24, 10
"""Of more characters than a few only some marks, and one of every other kind, are tried."""
MAX_TEXTS, MAX_CHARACTERS = 32, 8
"""Of what may follow so many texts are tried, unless their first characters are more."""
OPEN = 64
"""So many bytes may follow where what merges with forced bytes is a rare case among others."""
MAX_KEPT = 4_096
NEXT = ord("s")
"""The second of two characters, where it may follow: apostrophes attract it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Forced bytes as far as they are text; one object for each text and state behind it.

    Args:
        text: What they spell.
        behind: The state behind it, or one where more may come (see `Automaton.widened`).
        held: How many of its bytes may be in tokens that are certain.
        spanning: What may follow it, where tokens end that begin in it.
    """

    text: str
    behind: State
    held: int
    spanning: list[str]


class Canonical:
    """Forced tokens of the states of one automaton. Thread-safe: what it keeps is a cache.

    Args:
        vocabulary: Whose tokens.
        automaton: Whose states.
    """

    def __init__(self, vocabulary: Vocabulary, automaton: Automaton) -> None:
        self._vocabulary = vocabulary
        self._automaton = automaton
        self._none = _Run("", automaton.start, 0, [])
        self._runs: dict[State, _Run] = {}
        self._alike: dict[tuple[str, State], _Run] = {}
        self._onward: dict[State, list[str]] = {}
        self._begun: dict[tuple[Content, int], bytes] = {}
        self._held_open: dict[tuple[_Run, tuple[int, ...]], int | None] = {}
        self._known: dict[tuple[_Run, tuple[int, ...]], tuple[int, ...]] = {}

    def forced(self, state: State, before: Sequence[int]) -> tuple[int, ...]:
        """The tokens that certainly come next.

        Args:
            state: Where the output stands.
            before: The ids that led there; -1 for bytes that did not come as a token.
        """
        run = self._runs.get(state)
        if run is None:
            run = self._run(state)
            _keep(self._runs, state, run)
        if not run.held:
            return ()
        known = self._tail(before)
        key = (run, tuple(known))
        found = self._known.get(key)
        if found is None:
            found = self._certain(run, known)
            _keep(self._known, key, found)
        return found

    def held(self, state: State, before: Sequence[int]) -> int | None:
        """The token that all forced bytes are, unless what comes merges with it as few texts do.

        Behind it many bytes may follow: between the quotes of a string, say, anything but a second
        quote leaves them one token. It is a guess, where `forced` is sure.

        Args:
            state: Where the output stands; nothing is certain to come next.
            before: As there.
        """
        run = self._runs.get(state)
        if run is None or not run.text or len(self._automaton.following(run.behind)) < OPEN:
            return None
        known = self._tail(before)
        key = (run, tuple(known))
        if key not in self._held_open:
            _keep(self._held_open, key, self._alone(run, known))
        return self._held_open[key]

    def _alone(self, run: _Run, known: list[int]) -> int | None:
        """The token of a run, if it is one."""
        before = b"".join([self._vocabulary.pieces[index] for index in known])
        own = list(self._vocabulary.encode(before.decode("utf-8", "replace") + run.text))
        return own[-1] if own[:-1] == known else None

    def _run(self, state: State) -> _Run:
        data = self._automaton.forced(state, MAX_BYTES)
        text = _text(data) if data else ""
        if not text:
            return self._none
        behind = self._automaton.run(state, text.encode())
        assert behind is not None, "forced bytes are possible"
        behind = self._automaton.widened(behind)
        found = self._alike.get((text, behind))
        if found is None:
            found = _Run(text, behind, *self._held(text.encode(), behind))
            _keep(self._alike, (text, behind), found)
        return found

    def _certain(self, run: _Run, known: list[int]) -> tuple[int, ...]:
        pieces, encode = self._vocabulary.pieces, self._vocabulary.encode
        text, behind = run.text, run.behind
        before = b"".join([pieces[index] for index in known]).decode("utf-8", "replace")
        own = list(encode(before + text))
        if own[: len(known)] != known:  # what came was not the tokenizer's own
            before, known = "", []
            own = list(encode(text))
        # Ids in front of where the text can be cut are the same, whatever follows.
        whole, first = before + text, list[int]()
        cut = 0 if self._vocabulary.cut is None else self._vocabulary.cut(whole)
        if cut:
            first = list(encode(whole[:cut]))
            if own != [*first, *self._vocabulary.encoded(whole[cut:])]:
                cut, first = 0, []
        rest, skipped = whole[cut:], len(known)
        own, data = own[skipped:], text.encode()[: run.held]
        certain: Sequence[int] | None = own if behind.accepting else None
        for more in self._others(run):
            other = [*first, *self._vocabulary.encoded(rest + more)][skipped:]
            certain = self._shared(other if certain is None else certain, other, data)
            if not certain:
                return ()
        return tuple(self._shared(own, own, data) if certain is None else certain)

    def _shared(self, one: Sequence[int], other: Sequence[int], data: bytes) -> Sequence[int]:
        """The first tokens of both, as far as they are those of some bytes."""
        pieces, end = self._vocabulary.pieces, 0
        for at, (index, same) in enumerate(zip(one, other, strict=False)):
            piece = pieces[index]
            if index != same or not piece or not data.startswith(piece, end):
                return one[:at]
            end += len(piece)
        return one[: len(other)]

    def _others(self, run: _Run) -> Iterator[str]:
        """What may follow, first what is known already."""
        yield from run.spanning
        yield from self._going_on(run.behind)

    def _tail(self, before: Sequence[int]) -> list[int]:
        """The last ids, from a place on that the ids behind it do not look across."""
        pieces = self._vocabulary.pieces
        tail: list[int] = []
        for index in reversed(before[-KNOWN_TOKENS:]):
            if index < 0:
                break
            tail.append(index)
        tail.reverse()
        while tail and pieces[tail[0]][:1] and 0x80 <= pieces[tail[0]][0] < 0xC0:
            del tail[0]
        if self._vocabulary.cut is None or not tail:
            return tail
        data = b"".join([pieces[index] for index in tail])
        text = _text(data)
        if text is None:
            return tail
        rest = len(data) - len(text[: self._vocabulary.cut(text)].encode())
        for at in range(len(tail) - 1, -1, -1):
            rest -= len(pieces[tail[at]])
            if rest <= 0:
                return tail[at:] if rest == 0 else tail
        return tail

    def _held(self, data: bytes, behind: State) -> tuple[int, list[str]]:
        """Where the first token begins that ends in what may follow and is not ruled out.

        Returns:
            The place in the data; and texts that may follow, whose tokens decide of all others.
        """
        trie = self._vocabulary.trie
        labels, starts = trie.labels, trie.starts
        length = held = len(data)
        ends = dict[str, None]()
        for begin in range(max(0, length - trie.longest), length):
            node, at = 0, begin
            while node >= 0 and at < length:
                node = labels.find(data[at], starts[node], starts[node + 1])
                at += 1
            if node < 0 or starts[node] == starts[node + 1]:
                continue
            found = list(islice(self._spanning(node, behind), MAX_SPANNING + 1))
            texts = self._ending(found) if len(found) <= MAX_SPANNING else None
            if texts is None or len(ends) + len(texts) > MAX_TRIED:
                held = min(held, begin)
                texts = [text for end, _ in found[:MAX_SPANNING] if (text := _text(end))]
            ends.update(dict.fromkeys(texts))
        return held, list(ends)

    def _ending(self, found: Iterable[tuple[bytes, State]]) -> list[str] | None:
        """Ends of tokens, alone and with another character; None if one ends inside of one."""
        texts = []
        for end, state in found:
            text = _text(end)
            if text is None or len(text.encode()) < len(end):
                return None
            texts += [text, *(text + more for more in self._next(state))]
        return texts

    def _next(self, state: State) -> Iterator[str]:
        """The characters that may follow, where there are many some of every kind."""
        contents: Sequence[Content] = ()
        for byte in _of_every_kind(self._automaton.following(state)):
            if byte < 0x80:
                yield chr(byte)
                continue
            contents = contents or self._automaton.rules.contents(state.key)
            if len(contents) != 1:
                data = self._character(state, byte)[0]
            else:
                found = self._begun.get((contents[0], byte))
                if found is None:
                    found = _character_in(*contents[0], byte)
                    _keep(self._begun, (contents[0], byte), found)
                data = found
            if text := _text(data):
                yield text

    def _spanning(self, node: int, behind: State) -> Iterator[tuple[bytes, State]]:
        """What may follow of the tokens below a node of the trie, and the states behind it."""
        trie = self._vocabulary.trie
        open_ = [(node, behind, b"")]
        while open_:
            node, state, path = open_.pop()
            if trie.starts[node] == trie.starts[node + 1]:
                continue
            for byte, child in trie.children(node, self._automaton.following(state)):
                longer = path + bytes([byte])
                onward = self._automaton.push(state, byte)
                assert onward is not None, "what follows leads somewhere"
                if trie.id_at[child] >= 0:
                    yield longer, onward
                open_.append((child, onward, longer))

    def _going_on(self, behind: State) -> list[str]:
        """Texts that may follow: all of them, as far as there are few, else some of every kind."""
        known = self._onward.get(behind)
        if known is not None:
            return known
        level: list[tuple[bytes, State]] = [(b"", behind)]
        for _ in range(MAX_CHARACTERS):
            longer: list[tuple[bytes, State]] = []
            for data, before in level:
                longer += [(data + more, state) for more, state in self._characters(before)]
                if len(longer) > MAX_TEXTS and data:
                    break
            if not longer or (len(longer) > MAX_TEXTS and level[0][0]):
                break
            level = longer + [way for way in level if not self._automaton.following(way[1])]
        found: dict[str, None] = {}
        for data, state in level:
            following = self._automaton.following(state)
            if following:
                second = NEXT if NEXT in following else following[len(following) // 2]
                data += self._character(state, second)[0]
            if text := _text(data):
                found[text] = None
        known = list(found)
        _keep(self._onward, behind, known)
        return known

    def _characters(self, state: State) -> list[tuple[bytes, State]]:
        """The characters that may follow, where there are many some of every kind."""
        following = _of_every_kind(self._automaton.following(state))
        return [self._character(state, byte) for byte in following]

    def _character(self, state: State, byte: int) -> tuple[bytes, State]:
        """The first character that begins with a byte, and the state behind it."""
        data = bytearray()
        while True:
            data.append(byte)
            onward = self._automaton.push(state, byte)
            assert onward is not None, "what follows leads somewhere"
            state = onward
            following = self._automaton.following(state)
            if _text(data) or not following or len(data) > 4:
                return bytes(data), state
            byte = following[0]


def _keep(known: dict[Any, Any], key: Any, found: Any) -> None:
    """Remember something, and nothing else where there would be too much."""
    if len(known) >= MAX_KEPT:
        known.clear()
    known[key] = found


def _character_in(table: Table, state: int, byte: int) -> bytes:
    """The first character of a content that begins with a byte."""
    data = bytearray()
    while True:
        data.append(byte)
        state = table.push(state, byte)
        if state < 0 or _text(data) or len(data) > 4:
            return bytes(data)
        byte = table.following(state)[0]


def _text(data: bytes | bytearray) -> str | None:
    """Bytes as text, without a character at the end that is not complete; None where it is none."""
    for cut in range(4):
        try:
            return data[: len(data) - cut].decode()
        except UnicodeDecodeError as error:
            if error.start < len(data) - 3:
                return None
    return None


@lru_cache(maxsize=1_024)
def _of_every_kind(following: bytes) -> bytes:
    """A few of many bytes: some marks, and one of every other kind."""
    if len(following) <= FEW:
        return following
    marks = [byte for byte in following if _kind(byte) == "mark"][:MAX_MARKS]
    kinds = {_kind(byte): byte for byte in reversed(following)}
    return bytes({*marks, *kinds.values()})


def _kind(byte: int) -> str:
    if byte >= 0x80:
        return "two" if byte < 0xE0 else "three" if byte < 0xF0 else "four"
    character = chr(byte)
    if character.isalpha():
        return "small" if character.islower() else "capital"
    return "digit" if character.isdigit() else character if character.isspace() else "mark"
