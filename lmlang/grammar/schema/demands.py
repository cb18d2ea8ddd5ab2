"""What a schema demands of an array or an object: sets of single demands that must all be met.

A schema comes to several such sets, of which one must be met. Two schemas for the same value come
to the unions of their sets, pair by pair; a set that includes another one says nothing new.

    object   ("=", key, literal)     the value under a key, if it is there; FALSE: it must not be
             ("+", key)              a key must be there
             ("*", keys, literal)    the values under all keys of some kind
             ("?", keys, literal)    the value under at least one key of some kind
    array    ("=", index, literal)   an item, if it is there
             ("*", index, literal)   all items from an index on
             ("?", literal, n, m)    how many items meet a literal
             ("u",) ("d",)           no two items are equal; some two are
    both     ("<", n) (">", n)       at least so many of them, at most so many
             ("!", keyword, pointer, why)   it cannot be met exactly: refused if it gets that far
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from lmlang.grammar.language import Language, of_texts
from lmlang.grammar.schema.document import Document, Literal, Schema

Demand: TypeAlias = tuple[Any, ...]
Demands: TypeAlias = frozenset[Demand]

NOTHING_ASKED: Demands = frozenset()

EVERYTHING_SEEN = 1 << 60
"""Index up to which items have been evaluated where all have."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Property names: some names and what some patterns match, or all others.

    Args:
        names: The names.
        patterns: The patterns.
        others: Whether it is all other names.
    """

    names: frozenset[str] = frozenset()
    patterns: frozenset[Language] = frozenset()
    others: bool = False

    def has(self, key: str) -> bool:
        """Whether a name is one of them."""
        if key in self.names:
            return not self.others
        if not self.patterns:
            return self.others
        return any(pattern.contains(key) for pattern in self.patterns) is not self.others

    def covers(self, other: Keys) -> bool:
        """Whether all of the other's are among these, if that is seen at a glance."""
        if self.others is not other.others:
            return self == ALL_KEYS
        small, large = (self, other) if self.others else (other, self)
        return small.names <= large.names and small.patterns <= large.patterns

    def language(self) -> Language:
        """All of them."""
        found = of_texts(self.names)
        for pattern in self.patterns:
            found = found | pattern
        return ~found if self.others else found

    def __or__(self, other: Keys) -> Keys:
        """Of two of which each is of names and patterns, or everything."""
        if self.others or other.others:
            return ALL_KEYS
        return Keys(self.names | other.names, self.patterns | other.patterns)

    def rest(self) -> Keys:
        """All others."""
        return Keys(self.names, self.patterns, not self.others)


ALL_KEYS = Keys(others=True)
NO_KEYS = Keys()


class Items(NamedTuple):
    """Items of an array that have been evaluated: up to an index, and those that meet a literal."""

    upto: int
    meeting: frozenset[Literal]


NO_ITEMS = Items(0, frozenset())


class Case(NamedTuple):
    """One of the sets that a schema comes to.

    Attributes:
        demands: What it demands.
        seen: What it has evaluated, in the sense of unevaluatedProperties and unevaluatedItems;
            None where nobody asks.
    """

    demands: Demands
    seen: Keys | Items | None = None


FREE = Case(NOTHING_ASKED)
"""The case of a schema that demands nothing."""


class Typed(Protocol):
    """Arrays or objects, as the expander knows them."""

    def reduced(self, demands: Demands) -> Demands | None:
        """The same demands said more simply; None where surely nothing meets them."""


class Around(Protocol):
    """What arrays and objects ask about the schemas inside of them."""

    document: Document

    def nothing_fits(self, literals: frozenset[Literal]) -> bool:
        """Whether nothing meets all of some literals; only what is seen at a glance."""

    def texts(self, literal: Literal) -> Language:
        """The strings that a literal allows."""

    def product(
        self, typed: Typed, left: list[Case], right: list[Case], keyword: str, schema: Schema
    ) -> list[Case]:
        """The cases of what is in both of two lists."""


def seen_by_both(one: Keys | Items | None, other: Keys | Items | None) -> Keys | Items | None:
    """What has been evaluated by either of two schemas for the same value."""
    if one is None or other is None:
        return one or other
    if isinstance(one, Items):
        assert isinstance(other, Items)
        return Items(max(one.upto, other.upto), one.meeting | other.meeting)
    assert isinstance(other, Keys)
    return one | other


def simplified(cases: Iterable[Case]) -> list[Case]:
    """The cases without those that another one includes."""
    found = list(dict.fromkeys(cases))
    if len(found) < 2:
        return found
    found.sort(key=lambda case: len(case.demands))
    kept: list[Case] = []
    for case in found:
        if not any(other.seen == case.seen and other.demands <= case.demands for other in kept):
            kept.append(case)
    return kept
