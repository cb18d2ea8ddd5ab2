"""What a schema allows of words, strings and numbers: sets that know "and", "or" and "not".

words     null, true, false   three bits
texts     strings             a language, and whether they may be spelled freely
decimals  numbers             a union of sets of numbers
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Generic, TypeAlias, TypeVar

from lmlang.errors import GrammarSyntaxError, GrammarTooLarge, SchemaUnsupported
from lmlang.grammar.budget import OutOfTime
from lmlang.grammar.formats import format_language
from lmlang.grammar.language import (
    ANY,
    NOTHING,
    Language,
    of_length,
    of_texts,
    searching,
    standing_in,
)
from lmlang.grammar.schema.dialect import (
    BOOLEAN,
    NULL,
    NUMBER,
    STRING,
    Keywords,
    Reader,
    Term,
)
from lmlang.grammar.schema.document import FALSE, TRUE, Literal, Schema
from lmlang.grammar.schema.numbers import ALL, INTEGERS, Numbers
from lmlang.grammar.schema.resources import where

T = TypeVar("T")

NULL_WORD, TRUE_WORD, FALSE_WORD = 1, 2, 4
ALL_WORDS = 7

MAX_PIECES = 64
"""Sets of numbers in one union."""


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings of a language.

    Args:
        language: Which.
        free: Whether any spelling will do: only their length matters.
    """

    language: Language
    free: bool


NO_STRINGS = Strings(NOTHING, True)
ALL_STRINGS = Strings(ANY, True)

Decimals: TypeAlias = tuple[Numbers, ...]
NO_NUMBERS: Decimals = ()
ALL_NUMBERS: Decimals = (ALL,)


class Algebra(Generic[T]):
    """Sets of one kind of value, made of what schemas say about it."""

    def __init__(
        self,
        reader: Reader,
        everything: T,
        nothing: T,
        leaf: Callable[[Keywords, Schema], T],
        both: Callable[[T, T], T],
        either: Callable[[T, T], T],
        others: Callable[[T], T],
    ) -> None:
        self.everything = everything
        self.nothing = nothing
        self._reader = reader
        self._leaf = leaf
        self._both = both
        self._either = either
        self._others = others
        self._known: dict[Literal, T] = {TRUE: everything, FALSE: nothing}

    def of(self, literals: frozenset[Literal]) -> T:
        """What all of some literals allow."""
        result = self.everything
        for literal in sorted(literals):
            result = self.both(result, self.one(literal))
        return result

    def one(self, literal: Literal) -> T:
        """What a literal allows."""
        found = self._known.get(literal)
        if found is None:
            negated = literal & 1
            found = self._others(self.one(literal ^ 1)) if negated else self._made(literal >> 1)
            self._known[literal] = found
        return found

    def both(self, one: T, other: T) -> T:
        """What two sets share."""
        if one == self.everything or other == self.nothing:
            return other
        if other == self.everything or one == self.nothing:
            return one
        return self._both(one, other)

    def either(self, one: T, other: T) -> T:
        """What is in one of two sets."""
        if one == self.nothing or other == self.everything:
            return other
        if other == self.nothing or one == self.everything:
            return one
        return self._either(one, other)

    def _made(self, number: int) -> T:
        keywords = self._reader.keywords(number)
        result = self._leaf(keywords, self._reader.document.schemas[number])
        for term in keywords.terms:
            if result == self.nothing:
                break
            result = self.both(result, self._term(term))
        return result

    def _term(self, term: Term) -> T:
        parts = [self.one(literal) for literal in term.parts]
        if term.kind == "not":
            return self._others(parts[0])
        if term.kind == "key":
            return self.everything
        if term.kind == "if":
            yes = self.both(parts[0], parts[1])
            return self.either(yes, self.both(self._others(parts[0]), parts[2]))
        if term.kind == "all":
            result = self.everything
            for part in parts:
                result = self.both(result, part)
            return result
        result, none = self.nothing, self.everything
        for part in parts:
            if part == self.nothing:
                continue
            if term.kind == "any":
                result = self.either(result, part)
            else:
                others = self._others(part)
                result = self.either(self.both(result, others), self.both(none, part))
                none = self.both(none, others)
        return result


def words(reader: Reader) -> Algebra[int]:
    """The algebra of null, true and false."""
    return Algebra(
        reader, ALL_WORDS, 0, _words, lambda a, b: a & b, lambda a, b: a | b, lambda a: a ^ 7
    )


def strings(reader: Reader) -> Algebra[Strings]:
    """The algebra of strings."""
    return Algebra(
        reader,
        ALL_STRINGS,
        NO_STRINGS,
        _strings,
        lambda a, b: _kept(a.language & b.language, a.free and b.free),
        lambda a, b: _kept(a.language | b.language, a.free or b.free),
        lambda a: _kept(~a.language, a.free),
    )


def decimals(reader: Reader) -> Algebra[Decimals]:
    """The algebra of numbers."""
    return Algebra(
        reader, ALL_NUMBERS, NO_NUMBERS, _numbers, _shared, lambda a, b: _united(a + b), _remaining
    )


def _kept(language: Language, free: bool) -> Strings:
    if language is NOTHING:
        return NO_STRINGS
    return ALL_STRINGS if language is ANY and free else Strings(language, free)


def _words(keywords: Keywords, schema: Schema) -> int:
    found = 0
    if keywords.types & NULL:
        found |= NULL_WORD
    if keywords.types & BOOLEAN:
        found |= TRUE_WORD | FALSE_WORD
    if keywords.values is not None:
        given = 0
        for value in keywords.values:
            if value is None:
                given |= NULL_WORD
            elif isinstance(value, bool):
                given |= TRUE_WORD if value else FALSE_WORD
        found &= given
    return found


def _strings(keywords: Keywords, schema: Schema) -> Strings:
    if not keywords.types & STRING:
        return NO_STRINGS
    found, free = ANY, True
    if keywords.values is not None:
        found = of_texts(value for value in keywords.values if isinstance(value, str))
        free = False
        if found is NOTHING:
            return NO_STRINGS
    least, most = keywords.least_length, keywords.most_length
    if keywords.source is not None:
        found, free = found & standing_in(keywords.source, least, most), False
    elif least or most is not None:
        found = found & of_length(least, most)
    for pattern in keywords.patterns:
        found, free = found & pattern_language(pattern, "pattern", schema.pointer), False
    if keywords.format is not None:
        language = format_language(keywords.format)
        if language is not None:
            found, free = found & language, False
    return _kept(found, free)


@lru_cache(maxsize=512)
def pattern_language(pattern: str, keyword: str, pointer: str) -> Language:
    """What a pattern of a schema finds something in.

    Raises:
        SchemaUnsupported: It is no regular expression of ECMA-262, or cannot be compiled.
    """
    try:
        return searching(pattern)
    except OutOfTime:
        raise
    except (GrammarSyntaxError, GrammarTooLarge) as error:
        raise SchemaUnsupported(
            f"{keyword} at {where(pointer)}: {error}", keyword=keyword, pointer=pointer
        ) from None


def _numbers(keywords: Keywords, schema: Schema) -> Decimals:
    if not keywords.types & NUMBER:
        return NO_NUMBERS
    found = ALL
    if keywords.values is not None:
        given = [
            value
            for value in keywords.values
            if isinstance(value, (int, Decimal)) and not isinstance(value, bool)
        ]
        if not given:
            return NO_NUMBERS
        found = Numbers.of_values(given)
    if keywords.integer:
        found = found & INTEGERS
    for keyword, limit in keywords.bounds:
        if keyword.endswith("inimum"):
            found = found & Numbers.at_least(limit, exclusive=keyword.startswith("e"))
        else:
            found = found & Numbers.at_most(limit, exclusive=keyword.startswith("e"))
    for step in keywords.steps:
        found = found & Numbers.multiples_of(step)
    return _united((found,))


def _shared(one: Decimals, other: Decimals) -> Decimals:
    return _united(tuple(a & b for a in one for b in other))


def _united(some: Decimals) -> Decimals:
    found = tuple(dict.fromkeys(numbers for numbers in some if not numbers.is_empty()))
    if len(found) > MAX_PIECES:
        raise GrammarTooLarge(
            f"the numbers that a schema allows come to more than {MAX_PIECES} ranges: simplify "
            "its bounds and multiples."
        )
    return found


def _remaining(some: Decimals) -> Decimals:
    found = ALL_NUMBERS
    for numbers in some:
        found = _shared(found, tuple(numbers.complement()))
    return found
