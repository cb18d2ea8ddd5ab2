"""From literals to shapes: what several schemas for the same value come to, type by type.

Words, strings and numbers are sets that know their complement (`scalars.py`). Arrays and objects
come to cases (`demands.py`): "and" joins each with each, "or" puts them side by side, and "not" is
pushed down until it meets a single keyword. Where somebody asks what has been evaluated, the cases
of anyOf are told apart by which branches hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from lmlang.errors import ConstraintError, SchemaUnsupported
from lmlang.grammar.budget import OutOfTime, spend
from lmlang.grammar.language import NOTHING, Language
from lmlang.grammar.schema.applied import Applied
from lmlang.grammar.schema.arrays import Arrays, check_refused
from lmlang.grammar.schema.demands import FREE, Case, Demands, Typed, seen_by_both, simplified
from lmlang.grammar.schema.dialect import ALL_TYPES, ARRAY, OBJECT, Keywords, Reader, Term
from lmlang.grammar.schema.document import FALSE, TRUE, Document, Literal, Schema
from lmlang.grammar.schema.objects import Objects, having, without
from lmlang.grammar.schema.resources import where
from lmlang.grammar.schema.scalars import (
    FALSE_WORD,
    NO_STRINGS,
    NULL_WORD,
    TRUE_WORD,
    Algebra,
    Decimals,
    Strings,
    decimals,
    strings,
    words,
)
from lmlang.grammar.schema.shapes import Node, Number, Shape, String, Word

MAX_CASES = 256
"""Cases of one node for one type."""
MAX_GLANCES = 3
"""Values inside of values that are looked at to see whether nothing fits."""

SHALLOW, ASKED, EXACT = 0, 1, 2
"""Whether what has been evaluated is asked for, and whether each case must be told apart."""

Kind: TypeAlias = Arrays | Objects


class Expander:
    """What literals come to. One for each document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.reader = Reader(document)
        self._applied = Applied(self.reader)
        self._words: Algebra[int] = words(self.reader)
        self._strings: Algebra[Strings] = strings(self.reader)
        self._decimals: Algebra[Decimals] = decimals(self.reader)
        self._arrays = Arrays(self)
        self._objects = Objects(self)
        self._cases: dict[tuple[int, Literal, int], list[Case]] = {}
        self._nothing: dict[frozenset[Literal], bool] = {}
        self._glances = 0
        self._under_way: set[tuple[int, Literal, int]] = set()

    def shapes(
        self, ordered: tuple[Literal, ...], node: Callable[[frozenset[Literal]], Node]
    ) -> list[Shape]:
        """What a value comes to that all of some literals allow; names stand in their order.

        Raises:
            SchemaUnsupported: It cannot be told exactly.
            GrammarTooLarge: It comes to too many cases.
        """
        spend(20)
        literals = frozenset(ordered)
        for literal in literals:
            self._applied.admit(literal >> 1)
        types = self._types(literals)
        found: list[Shape] = []
        some = self._words.of(literals) if types & 3 else 0
        for bit, word in ((NULL_WORD, b"null"), (TRUE_WORD, b"true"), (FALSE_WORD, b"false")):
            if some & bit:
                found.append(Word(word))
        text = self._strings.of(literals) if types & 8 else NO_STRINGS
        if text.language is not NOTHING:
            found.append(String(text.language, text.free))
        if types & 4:
            found += [Number(numbers) for numbers in self._decimals.of(literals)]
        if types & ARRAY:
            for demands in self._demands(self._arrays, literals):
                array = self._arrays.shape(demands, node)
                if array is not None and array not in found:
                    found.append(array)
        if types & OBJECT:
            cases = self._demands(self._objects, literals)
            order = self._applied.names(ordered) if cases else ()
            for demands in cases:
                shape = self._objects.shape(demands, order, node)
                if shape is not None and shape not in found:
                    found.append(shape)
        return found

    def texts(self, literal: Literal) -> Language:
        """The strings that a literal allows."""
        self._applied.admit(literal >> 1)
        return self._strings.one(literal).language

    def nothing_fits(self, literals: frozenset[Literal]) -> bool:
        """Whether nothing meets all of some literals; only what is seen at a glance."""
        if FALSE in literals:
            return True
        if TRUE in literals:
            literals -= {TRUE}
        if len(literals) < 2:
            return False
        found = self._nothing.get(literals)
        if found is None:
            if self._glances >= MAX_GLANCES:
                return False
            self._glances += 1
            try:
                found = self._none_listed(literals)
                if found is None:
                    found = any(lit ^ 1 in literals for lit in literals) or not self._some(literals)
            except OutOfTime:
                raise
            except _UnderWay:
                return False
            except ConstraintError:  # too hard to see at a glance
                found = False
            finally:
                self._glances -= 1
            self._nothing[literals] = found
        return found

    def product(
        self, typed: Typed, left: list[Case], right: list[Case], keyword: str, schema: Schema
    ) -> list[Case]:
        """The cases of what is in both of two lists."""
        if not left or not right:
            return []
        if left[0] is FREE and len(left) == 1:
            return right
        if right[0] is FREE and len(right) == 1:
            return left
        found: dict[Case, None] = {}
        for one in left:
            spend(5 * len(right))
            for other in right:
                demands = typed.reduced(one.demands | other.demands)
                if demands is not None:
                    found[Case(demands, seen_by_both(one.seen, other.seen))] = None
        return self._limited(found, keyword, schema)

    def _none_listed(self, literals: frozenset[Literal]) -> bool | None:
        """Whether the values that literals list have none in common; None where others matter."""
        kept: frozenset[str] | None = None
        others: list[frozenset[str]] = []
        only_lists = True
        for literal in literals:
            listed = self.reader.listed(literal >> 1)
            if listed is None:
                only_lists = False
            elif literal & 1:
                others.append(listed)
            else:
                kept = listed if kept is None else kept & listed
        if kept is None:
            return None
        if not kept.difference(*others):
            return True
        return False if only_lists else None

    def _some(self, literals: frozenset[Literal]) -> bool:
        """Whether there is something that all of some literals may allow."""
        for literal in literals:
            self._applied.admit(literal >> 1)
        types = self._types(literals)
        if types & 3 and self._words.of(literals):
            return True
        if types & 4 and self._decimals.of(literals):
            return True
        if types & 8:
            language = self._strings.of(literals).language
            if language is not NOTHING and not language.is_empty():
                return True
        if types & ARRAY and self._all_of(self._arrays, literals):
            return True
        return bool(types & OBJECT and self._all_of(self._objects, literals))

    def _types(self, literals: frozenset[Literal]) -> int:
        found = ALL_TYPES
        for literal in literals:
            if literal == FALSE:
                return 0
            if literal and not literal & 1:
                found &= self.reader.keywords(literal >> 1).types
        return found

    def _demands(self, typed: Kind, literals: frozenset[Literal]) -> list[Demands]:
        cases = self._all_of(typed, literals)
        for case in cases:
            check_refused(case.demands)
        return [case.demands for case in cases]

    def _all_of(self, typed: Kind, literals: frozenset[Literal]) -> list[Case]:
        schema = self.document.schemas[min(literals, default=0) >> 1]
        found = [FREE]
        for cases in sorted((self._of(typed, literal, 0) for literal in literals), key=len):
            found = self.product(typed, found, cases, "allOf", schema)
        return found

    def _of(self, typed: Kind, literal: Literal, mode: int) -> list[Case]:
        """The cases of a literal."""
        if literal < 2:
            return [] if literal == FALSE else [FREE]
        key = (typed.kind, literal, 0 if literal & 1 else mode)
        found = self._cases.get(key)
        if found is None:
            if key in self._under_way:
                raise _UnderWay
            self._under_way.add(key)
            try:
                if literal & 1:
                    found = self._failing(typed, literal >> 1)
                else:
                    found = self._meeting(typed, literal >> 1, mode)
                self._cases[key] = found
            finally:
                self._under_way.discard(key)
        return found

    def _meeting(self, typed: Kind, number: int, mode: int) -> list[Case]:
        """The cases of the values that meet a schema."""
        schema, keywords = self.document.schemas[number], self.reader.keywords(number)
        if not keywords.types & typed.kind:
            return []
        rest = _unevaluated(typed, keywords)
        inner = mode if rest is None else max(mode, ASKED)
        found = typed.cases(schema, keywords, inner > 0)
        for term in keywords.terms:
            if not found:
                break
            cases = self._term(typed, term, schema, inner)
            found = self.product(typed, found, cases, term.keyword, schema)
        if rest is not None:
            found = _reduced(typed, (typed.unevaluated(case, rest, schema) for case in found))
        if mode == 0 and inner:
            found = simplified(Case(case.demands) for case in found)
        return found

    def _failing(self, typed: Kind, number: int) -> list[Case]:
        """The cases of the values that do not meet a schema."""
        schema, keywords = self.document.schemas[number], self.reader.keywords(number)
        if not keywords.types & typed.kind:
            return [FREE]
        found = typed.failing(schema, keywords)
        for term in keywords.terms:
            found = found + self._term_failing(typed, term, schema)
        rest = _unevaluated(typed, keywords)
        if rest is not None:
            met = typed.cases(schema, keywords, True)
            for term in keywords.terms:
                cases = self._term(typed, term, schema, EXACT)
                met = self.product(typed, met, cases, term.keyword, schema)
            for case in met:
                found = found + typed.failing_unevaluated(case, rest, schema)
        return self._limited(_reduced(typed, found), "not", schema)

    def _term(self, typed: Kind, term: Term, schema: Schema, mode: int) -> list[Case]:
        """The cases of the values that meet a keyword that applies schemas to them."""

        def join(left: list[Case], right: list[Case]) -> list[Case]:
            return self.product(typed, left, right, term.keyword, schema)

        parts = term.parts
        if term.kind == "all":
            found = [FREE]
            for literal in parts:
                found = join(found, self._of(typed, literal, mode))
            return found
        if term.kind == "not":
            return self._of(typed, parts[0] ^ 1, 0)
        if term.kind == "key":
            if typed.kind == ARRAY:
                return [FREE]
            met = self._of(typed, parts[0], mode)
            return [without(term.key), *(join([having(term.key)], met) if mode else met)]
        if term.kind == "if":
            condition, yes, no = parts
            if mode == SHALLOW and yes == TRUE and no == TRUE:
                return [FREE]
            met = join(self._of(typed, condition, mode), self._of(typed, yes, mode))
            other = join(self._of(typed, condition ^ 1, 0), self._of(typed, no, mode))
            return self._limited([*met, *other], term.keyword, schema)
        if term.kind == "one":
            return self._exactly_one(typed, term, schema, mode)
        return self._any(typed, term, schema, mode)

    def _any(self, typed: Kind, term: Term, schema: Schema, mode: int) -> list[Case]:
        found: list[Case] = []
        none = [FREE]
        for literal in term.parts:
            met = self._of(typed, literal, mode)
            if mode == SHALLOW:
                found = found + met
                continue
            with_it = self.product(typed, [*found, *none], met, term.keyword, schema)
            without_it = found
            if mode == EXACT:
                failed = self._of(typed, literal ^ 1, 0)
                without_it = self.product(typed, found, failed, term.keyword, schema)
                none = self.product(typed, none, failed, term.keyword, schema)
            found = self._limited([*without_it, *with_it], term.keyword, schema)
        return self._limited(found, term.keyword, schema)

    def _exactly_one(self, typed: Kind, term: Term, schema: Schema, mode: int) -> list[Case]:
        """The cases of oneOf: each branch without all others that it may overlap with."""
        parts = [literal for literal in term.parts if self._of(typed, literal, 0)]
        found: list[Case] = []
        for index, literal in enumerate(parts):
            cases = self._of(typed, literal, mode)
            plain = self._of(typed, literal, 0)
            for other_index, other in enumerate(parts):
                if other_index == index:
                    continue
                if self.product(typed, plain, self._of(typed, other, 0), term.keyword, schema):
                    failed = self._of(typed, other ^ 1, 0)
                    cases = self.product(typed, cases, failed, term.keyword, schema)
            found = found + cases
        return self._limited(found, term.keyword, schema)

    def _term_failing(self, typed: Kind, term: Term, schema: Schema) -> list[Case]:
        """The cases of the values that do not meet a keyword that applies schemas to them."""

        def join(left: list[Case], right: list[Case]) -> list[Case]:
            return self.product(typed, left, right, term.keyword, schema)

        parts = term.parts
        if term.kind == "all":
            return [case for literal in parts for case in self._of(typed, literal ^ 1, 0)]
        if term.kind == "not":
            return self._of(typed, parts[0], 0)
        if term.kind == "key":
            if typed.kind == ARRAY:
                return []
            return join([having(term.key)], self._of(typed, parts[0] ^ 1, 0))
        if term.kind == "if":
            condition, yes, no = parts
            met = join(self._of(typed, condition, 0), self._of(typed, yes ^ 1, 0))
            return [*met, *join(self._of(typed, condition ^ 1, 0), self._of(typed, no ^ 1, 0))]
        none = [FREE]
        for literal in parts:
            none = join(none, self._of(typed, literal ^ 1, 0))
        if term.kind == "any":
            return none
        found = list(none)
        for index, literal in enumerate(parts):
            for other in parts[:index]:
                found += join(self._of(typed, literal, 0), self._of(typed, other, 0))
        return found

    def _limited(self, cases: Iterable[Case], keyword: str, schema: Schema) -> list[Case]:
        found = list(dict.fromkeys(cases))
        if len(found) <= 4 * MAX_CASES:
            spend(len(found) ** 2 // 4)
            found = simplified(found)
        if len(found) > MAX_CASES:
            raise _too_many(keyword, schema)
        return found


def _unevaluated(typed: Kind, keywords: Keywords) -> Literal | None:
    return keywords.unevaluated_items if typed.kind == ARRAY else keywords.unevaluated_properties


def _reduced(typed: Typed, cases: Iterable[Case]) -> list[Case]:
    found = ((typed.reduced(case.demands), case.seen) for case in cases)
    return [Case(demands, seen) for demands, seen in found if demands is not None]


class _UnderWay(Exception):
    """What is asked for is being worked out: it cannot be seen at a glance."""


def _too_many(keyword: str, schema: Schema) -> SchemaUnsupported:
    return SchemaUnsupported(
        f"{keyword} at {where(schema.pointer)} comes to more than {MAX_CASES} cases that an object "
        "or array may be: tell the branches apart by the type or by a const property that each of "
        "them requires.",
        keyword=keyword,
        pointer=schema.pointer,
    )
