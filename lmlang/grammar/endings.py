"""The tokens at the end of a text that are the same whatever may follow, as far as that is certain.

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

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from lmlang.grammar.follow import Follow, Place

if TYPE_CHECKING:
    from lmlang.grammar.vocabulary import Vocabulary

MAX_SPANNING = 32
"""Tokens that begin at one place and end in what may follow: from more on, the place is held."""
MAX_TRIED = 192
"""Texts that end with such tokens, or a character behind them."""
FEW, MAX_MARKS = 24, 10
"""Of more characters than a few only some marks, and one of every other kind, are tried."""
MAX_TEXTS, MAX_CHARACTERS = 32, 8
"""Of what may follow so many texts are tried, unless their first characters are more."""
NEAR = 4
"""Characters before what follows that tell where text may be cut."""
NEXT = ord("s")
"""The second of two characters, where it may follow: apostrophes attract it."""


class Ending(NamedTuple):
    """The end of a text: what is before it has the same tokens, whatever follows.

    Args:
        text: It.
        known: Of its bytes so many are known already.
        skipped: They are so many tokens.
    """

    text: str
    known: int
    skipped: int


def certain(vocabulary: Vocabulary, ending: Ending, follow: Follow) -> tuple[int, ...]:
    """The tokens of an ending behind those that are known, as far as they are certain.

    Args:
        vocabulary: Whose.
        ending: Of the text.
        follow: What may follow; nothing has been asked of it.
    """
    found: tuple[int, ...] | None = vocabulary.answers.find(ending, follow)
    if found is None:
        found = tuple(_Trials(vocabulary, ending, follow).certain())
        vocabulary.answers.keep(ending, follow, found)
    return found


def shared(
    pieces: Sequence[bytes], one: Sequence[int], other: Sequence[int], data: bytes
) -> Sequence[int]:
    """The first tokens of both, as far as they are those of some bytes.

    Args:
        pieces: The bytes of every token.
        one: Tokens.
        other: Others.
        data: The bytes.
    """
    end = 0
    for at, (index, same) in enumerate(zip(one, other, strict=False)):
        piece = pieces[index]
        if index != same or not piece or not data.startswith(piece, end):
            return one[:at]
        end += len(piece)
    return one[: len(other)]


class _Trials:
    """Texts that may follow an ending, with which its tokens are tried."""

    def __init__(self, vocabulary: Vocabulary, ending: Ending, follow: Follow) -> None:
        self._vocabulary = vocabulary
        self._follow = follow
        self._cut = vocabulary.cut
        self._text, known, self._skipped = ending
        self._data = self._text.encode()[known:]
        self._own = vocabulary.encoded(self._text)[self._skipped :]
        self._found: Sequence[int] | None = self._own if follow.accepting else None
        self._further: dict[tuple[int, int], list[str]] = {}

    def certain(self) -> Sequence[int]:
        """The tokens behind those that are known, as far as they are certain."""
        pieces, held, ends = self._vocabulary.pieces, len(self._data), set[str]()
        for begin, node in self._begun():
            crossing = list[tuple[str, Place]]()
            whole = True  # whether all that cross the end are tried
            for end, place in self._spanning(node):
                text = text_of(end)
                if len(crossing) == MAX_SPANNING:
                    whole = False
                    break
                if text and not self._try(text):
                    return ()
                whole = whole and text is not None and len(text.encode()) == len(end)
                crossing.append((text or "", place))
            room = MAX_TRIED - len(ends) - len(crossing)
            further = self._followed(crossing, room) if whole else None
            if further is None:
                held = min(held, begin)
                if not held:
                    return ()
            elif not all(map(self._try, further)):
                return ()
            ends.update([text for text, _ in crossing], further or ())
        if not all(map(self._try, self._going_on())):
            return ()
        found = self._own if self._found is None else self._found
        return shared(pieces, found, found, self._data[:held])

    def _try(self, more: str) -> bool:
        """Whether some tokens are certain still where a text follows."""
        vocabulary = self._vocabulary
        other = vocabulary.encoded(self._text + more)[self._skipped :]
        found = other if self._found is None else self._found
        self._found = shared(vocabulary.pieces, found, other, self._data)
        return bool(self._found)

    def _begun(self) -> Iterator[tuple[int, int]]:
        """Where in the data tokens begin that go on behind its end, and their nodes of the trie."""
        trie, data = self._vocabulary.trie, self._data
        labels, starts = trie.labels, trie.starts
        for begin in range(max(0, len(data) - trie.longest), len(data)):
            node, at = 0, begin
            while node >= 0 and at < len(data):
                node = labels.find(data[at], starts[node], starts[node + 1])
                at += 1
            if node >= 0 and starts[node] != starts[node + 1]:
                yield begin, node

    def _followed(self, crossing: Iterable[tuple[str, Place]], most: int) -> list[str] | None:
        """The same texts with another character; None: there are more than so many."""
        found = list[str]()
        for text, place in crossing:
            found += [text + more for more in self._next(place)]
            if len(found) > most:
                return None
        return found if most >= 0 else None

    def _spanning(self, node: int) -> Iterator[tuple[bytes, Place]]:
        """What may follow of the tokens below a node of the trie, and the places behind them.

        First those for which nothing has to be asked.
        """
        trie, follow = self._vocabulary.trie, self._follow
        open_ = [(node, follow.start, b"")]
        unsure = deque[tuple[int, Place, bytes]]()
        while open_ or unsure:
            if open_:
                node, place, path = open_.pop()
            else:
                node, place, path = unsure.popleft()
                place = follow.push(place, path[-1])
                if trie.id_at[node] >= 0:
                    yield path, place
            if trie.starts[node] == trie.starts[node + 1]:
                continue
            for byte, child in trie.children(node, follow.following(place)):
                onward = follow.step(place, byte)
                longer = path + bytes((byte,))
                if onward is None:
                    unsure.append((child, place, longer))
                    continue
                if trie.id_at[child] >= 0:
                    yield longer, onward
                open_.append((child, onward, longer))

    def _going_on(self) -> Iterator[str]:
        """Texts that may follow: all of them, as far as there are few, else some of every kind."""
        follow, level = self._follow, list[tuple[bytes, Place]]()
        for data, place in follow.begun(FEW, MAX_CHARACTERS):
            if data and self._is_fixed(data):
                yield data.decode()
            else:
                level.append((data, place))
        length = len(level[0][0]) if level else MAX_CHARACTERS
        for _ in range(length, MAX_CHARACTERS):
            count = 0
            for data, place in level:
                count += len(_of_every_kind(follow.following(place)))
                if count > MAX_TEXTS and data:
                    break
            if not count or (count > MAX_TEXTS and level[0][0]):
                break
            longer: list[tuple[bytes, Place]] = []
            for data, place in level:
                following = _of_every_kind(follow.following(place))
                for byte in following:
                    more = data + bytes((byte,))
                    if byte < 0x80 and self._is_fixed(more):
                        yield more.decode()
                    else:
                        character, onward = self._character(place, byte)
                        longer.append((data + character, onward))
                if not following:
                    longer.append((data, place))
            level = longer
        for data, place in level:
            following = follow.following(place)
            if following:
                second = NEXT if NEXT in following else following[len(following) // 2]
                data += self._first(place, second)
            if text := text_of(data):
                yield text

    def _is_fixed(self, more: bytes) -> bool:
        """Whether nothing that comes behind some bytes more can change the tokens before them."""
        near = self._text[-NEAR:]
        return self._cut is not None and self._cut(near + more.decode()) >= len(near)

    def _next(self, place: Place) -> list[str]:
        """The characters that may follow, where there are many some of every kind."""
        number, _, state = place
        found = self._further.get((number, state)) if state >= 0 else None
        if found is None:
            following = _of_every_kind(self._follow.following(place))
            texts = [text_of(self._first(place, byte)) for byte in following]
            found = [text for text in texts if text]
            if state >= 0:
                self._further[number, state] = found
        return found

    def _first(self, place: Place, byte: int) -> bytes:
        """The first character that begins with a byte."""
        return bytes((byte,)) if byte < 0x80 else self._character(place, byte)[0]

    def _character(self, place: Place, byte: int) -> tuple[bytes, Place]:
        """The same, and the place behind it."""
        follow = self._follow
        place = follow.push(place, byte)
        data = bytes((byte,))
        while byte >= 0x80 and not text_of(data) and len(data) <= 4:
            following = follow.following(place)
            if not following:
                break
            byte = following[0]
            place = follow.push(place, byte)
            data += bytes((byte,))
        return data, place


def text_of(data: bytes | bytearray) -> str | None:
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
