"""The keys that a schema does not name, parted by which of its patterns they match.

    patterns ^x-, ^y-        cells   ^x-     ^y-     neither

Two patterns that share no key make three cells; two that do make four.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lmlang.errors import GrammarTooLarge
from lmlang.grammar.budget import spend
from lmlang.grammar.language import ANY, Language, of_texts, searching_in_any_dialect

MAX_CELLS = 64
"""Cells of one object."""
MAX_TEXTS = 64
"""Texts of a pattern up to which it is handled as their list."""
_PROBES = ("", "a", "A", "0", "_", "-", "a0", "é", "\x7f", "~", " ", "zz", "~~~~~~~~", "Zz9-_.")


@dataclass(frozen=True, slots=True)
class Cell:
    """Keys that match some patterns and not some others.

    Args:
        matched: The patterns that they match.
        unmatched: Those that they do not in any dialect, as far as they have to be told apart.
    """

    matched: tuple[Language, ...] = ()
    unmatched: tuple[Language, ...] = ()


class Cells:
    """Parts keys by patterns, and remembers what it has found out about pairs of them."""

    def __init__(self) -> None:
        self._disjoint: dict[frozenset[Language], bool] = {}
        self._plain: dict[Language, Language] = {}
        self._shortest: dict[Language, str | None] = {}

    def parted(
        self, patterns: Iterable[Language], names: tuple[str, ...]
    ) -> list[tuple[frozenset[Language], Language]]:
        """The cells of all keys but some names: the patterns that each matches, and its keys.

        Raises:
            GrammarTooLarge: There are too many.
        """
        named = frozenset(names)
        cells = [Cell()]
        patterns = list(patterns)
        for pattern in patterns:
            cells = [part for cell in cells for part in self._split(cell, pattern, named)]
            spend(20 * len(cells))
            if len(cells) > MAX_CELLS:
                raise GrammarTooLarge(
                    f"the patterns of a JSON schema's properties make more than {MAX_CELLS} "
                    "kinds of keys: use fewer patterns that overlap."
                )
        found = []
        for cell in cells:
            language = self._language(cell, named)
            if patterns and len(cells) == 1 and language.is_empty():
                continue
            found.append((frozenset(cell.matched), language))
        return found

    def are_disjoint(self, one: Language, other: Language) -> bool:
        """Whether no key matches two patterns."""
        key = frozenset({one, other})
        found = self._disjoint.get(key)
        if found is None:
            probes = (self._probe(one), self._probe(other))
            if any(
                probe is not None and one.contains(probe) and other.contains(probe)
                for probe in probes
            ):
                found = False
            else:
                found = (self._as_texts(one) & self._as_texts(other)).is_empty()
            self._disjoint[key] = found
        return found

    def _split(self, cell: Cell, pattern: Language, named: frozenset[str]) -> list[Cell]:
        if any(self.are_disjoint(pattern, other) for other in cell.matched):
            return [cell]
        unmatched = tuple(
            other for other in cell.unmatched if not self.are_disjoint(pattern, other)
        )
        inside = Cell((*cell.matched, pattern), unmatched)
        outside = Cell(cell.matched, (*cell.unmatched, pattern))
        return [part for part in (inside, outside) if not self._is_empty(part, named)]

    def _is_empty(self, cell: Cell, named: frozenset[str]) -> bool:
        shortest = [self._probe(pattern) for pattern in cell.matched]
        if None in shortest:
            return True
        some = [text for text in shortest if text is not None]
        for probe in (*some, "".join(some), "".join(reversed(some))) if some else _PROBES:
            if (
                probe not in named
                and all(pattern.contains(probe) for pattern in cell.matched)
                and not any(self._anyhow(pattern).contains(probe) for pattern in cell.unmatched)
            ):
                return False
        return self._language(cell, named).is_empty()

    def _language(self, cell: Cell, named: frozenset[str]) -> Language:
        found = ANY
        for pattern in cell.matched:
            found = found & self._as_texts(pattern)
        for pattern in cell.unmatched:
            found = found & ~self._anyhow(pattern)
        inside = [name for name in named if all(pattern.contains(name) for pattern in cell.matched)]
        return found & ~of_texts(inside) if inside else found

    def _anyhow(self, pattern: Language) -> Language:
        """What a pattern matches in any dialect; who does not match it, does not in any."""
        return self._as_texts(searching_in_any_dialect(pattern))

    def _probe(self, pattern: Language) -> str | None:
        if pattern not in self._shortest:
            self._shortest[pattern] = pattern.shortest()
        return self._shortest[pattern]

    def _as_texts(self, pattern: Language) -> Language:
        """A pattern of few texts as their list, which is quick to combine."""
        found = self._plain.get(pattern)
        if found is None:
            few = pattern.size(MAX_TEXTS + 1) <= MAX_TEXTS
            found = of_texts(pattern.first(MAX_TEXTS)) if few else pattern
            self._plain[pattern] = found
        return found
