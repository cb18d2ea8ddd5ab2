"""The rules of text of a language: a regular expression, a choice.

A key is a state of the language's table; the table answers for whole runs of bytes too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from lmlang.grammar.automaton import Content, Leaving
from lmlang.grammar.language import Language
from lmlang.grammar.tables import Spelling, spelled


class TextRules:
    """All texts of a language, as UTF-8 (see `automaton.Rules`).

    Args:
        language: Which.

    Raises:
        Unsatisfiable: No text belongs to it.
        GrammarTooLarge: It cannot be told whether one does.
    """

    def __init__(self, language: Language) -> None:
        self._language = language
        self._table = spelled(language, Spelling.PLAIN)

    def start(self) -> int:
        """The state of the empty text."""
        return self._table.start

    def push(self, key: int, byte: int) -> int | None:
        """The state behind one more byte; None where no text goes on so."""
        found = self._table.push(key, byte)
        return found if found >= 0 else None

    def run(self, key: int, data: bytes) -> int | None:
        """The state behind some bytes; None where no text goes on so."""
        found, end = self._table.run(key, data, 0)
        return found if end == len(data) else None

    def runs(self, key: int) -> tuple[bytes, ...] | None:
        """Not known."""
        return None

    def ahead(self) -> Iterator[tuple[Content, ...]]:
        """The whole text."""
        yield self.contents(self._table.start)

    def same(self, key: int) -> tuple[int, Hashable] | None:
        """Nothing is behind a text."""
        return None

    def widened(self, key: int) -> int:
        """No other."""
        return key

    def following(self, key: int) -> bytes:
        """The bytes that may come next, in ascending order."""
        return self._table.following(key)

    def accepting(self, key: int) -> bool:
        """Whether the text may end here."""
        return self._table.accepting(key)

    def completion(self, key: int) -> bytes:
        """The fewest bytes (or nearly) that complete the text."""
        return self._table.completion(key)

    def contents(self, key: int) -> tuple[Content, ...]:
        """The table, as the text is nothing else."""
        return ((self._table, key),)

    def leaving(self, key: int) -> Leaving:
        """All there is to know: a text is never left."""
        return Leaving.SAME

    def asked(self, key: int) -> frozenset[bytes]:
        """None."""
        return frozenset()

    def pointer(self, key: int) -> str:
        """Always "": a text has no parts."""
        return ""
