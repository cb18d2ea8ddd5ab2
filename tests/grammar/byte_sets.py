"""The plainest rules: a fixed set of byte strings; and a vocabulary of given pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lmlang.grammar.automaton import Automaton, Content, Leaving
from lmlang.grammar.grammar import Grammar
from lmlang.grammar.spec import Choice
from lmlang.grammar.vocabulary import Vocabulary


class ByteSets:
    """Allows some byte strings; the key is what has been written."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self.texts = frozenset(texts)
        self.pushed = 0

    def start(self) -> bytes:
        return b""

    def push(self, key: bytes, byte: int) -> bytes | None:
        self.pushed += 1
        longer = key + bytes([byte])
        return longer if any(text.startswith(longer) for text in self.texts) else None

    def following(self, key: bytes) -> bytes:
        size = len(key)
        return bytes(sorted({t[size] for t in self.texts if t.startswith(key) and t[size:]}))

    def accepting(self, key: bytes) -> bool:
        return key in self.texts

    def completion(self, key: bytes) -> bytes:
        return min((t[len(key) :] for t in self.texts if t.startswith(key)), key=len)

    def contents(self, key: bytes) -> tuple[Content, ...]:
        return ()

    def leaving(self, key: bytes) -> Leaving:
        return Leaving.UNKNOWN

    def asked(self, key: bytes) -> frozenset[bytes]:
        return frozenset()

    def pointer(self, key: bytes) -> str:
        return f"/{len(key)}"


def longest_first(pieces: Sequence[bytes], text: str) -> list[int]:
    """The tokens of a text: of those that fit the longest one, again and again."""
    data, ids = text.encode(), []
    while data:
        length = max((len(p) for p in pieces if p and data.startswith(p)), default=0)
        if not length:
            data = data[1:]
            continue
        ids.append(pieces.index(data[:length]))
        data = data[length:]
    return ids


def vocabulary_of(pieces: Sequence[bytes], special: int = 0) -> Vocabulary:
    """A vocabulary of these tokens behind some special ids, the first of which ends outputs."""
    tokens = [*[b""] * special, *pieces]
    return Vocabulary(
        tokens,
        special_ids=range(special),
        stop_ids=range(min(special, 1)),
        encode=lambda text: longest_first(tokens, text),
    )


def grammar_of(texts: Iterable[bytes], vocabulary: Vocabulary) -> Grammar:
    """The grammar of some byte strings."""
    return Grammar(Choice(("any",)), vocabulary, Automaton(ByteSets(texts)))
