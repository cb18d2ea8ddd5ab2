"""What a schema comes to for objects: sets of demands, and the shape that such a set has."""

from __future__ import annotations

from collections.abc import Callable

from lmlang.errors import GrammarTooLarge
from lmlang.grammar.language import ANY, NOTHING, Language
from lmlang.grammar.schema.arrays import sizes
from lmlang.grammar.schema.cells import Cells
from lmlang.grammar.schema.demands import (
    ALL_KEYS,
    FREE,
    NO_KEYS,
    Around,
    Case,
    Demand,
    Demands,
    Keys,
)
from lmlang.grammar.schema.dialect import OBJECT, Keywords
from lmlang.grammar.schema.document import FALSE, TRUE, Literal, Schema
from lmlang.grammar.schema.scalars import pattern_language
from lmlang.grammar.schema.shapes import Name, Node, Object, Others, Some

MAX_UNNAMED = 500
"""Properties without a name that an object may have to have."""


class Objects:
    """Objects as the expander knows them."""

    kind = OBJECT

    def __init__(self, around: Around) -> None:
        self._around = around
        self._cells = Cells()
        self._known: dict[object, list[tuple[Language, frozenset[Literal]]]] = {}

    def cases(self, schema: Schema, keywords: Keywords, asked: bool) -> list[Case]:
        """What the keywords of a schema that look at objects come to."""
        patterns = self._patterns(schema, keywords)
        demands: list[Demand] = [
            ("=", key, literal) for key, literal in keywords.properties.items() if literal
        ]
        demands += [("+", key) for key in keywords.required]
        demands += [("*", keys, literal) for keys, literal in patterns if literal]
        if keywords.additional:
            demands.append(("*", self._declared(keywords, patterns).rest(), keywords.additional))
        if keywords.property_names:
            wrong = self._wrong_names(keywords)
            if wrong is not NO_KEYS:
                demands.append(("*", wrong, FALSE))
        if keywords.least_properties:
            demands.append(("<", keywords.least_properties))
        if keywords.most_properties is not None:
            demands.append((">", keywords.most_properties))
        seen = None
        if asked:
            whole = keywords.additional is not None
            seen = ALL_KEYS if whole else self._declared(keywords, patterns)
        cases = [Case(frozenset(demands), seen)]
        for key, names in keywords.dependent_required.items():
            if names:
                either = [without(key), Case(frozenset(("+", name) for name in names))]
                cases = self._around.product(self, cases, either, "dependentRequired", schema)
        if keywords.values is not None:
            given = [value for value in keywords.values if isinstance(value, dict)]
            constants = [Case(self._constant(value, schema)) for value in given]
            cases = self._around.product(self, cases, constants, "enum", schema)
        return cases

    def failing(self, schema: Schema, keywords: Keywords) -> list[Case]:
        """What an object comes to that fails one of them."""
        patterns = self._patterns(schema, keywords)
        found: list[Demands] = []
        for key, literal in keywords.properties.items():
            if literal:  # where it is required too, that it lacks or has a wrong value is one case
                failing = {("=", key, literal ^ 1)}
                needed = () if key in keywords.required else (("+", key),)
                found.append(frozenset(failing.union(needed)))
        found += [
            frozenset({("=", key, FALSE)})
            for key in keywords.required
            if not keywords.properties.get(key)
        ]
        found += [frozenset({("?", keys, literal ^ 1)}) for keys, literal in patterns if literal]
        if keywords.additional:
            others = self._declared(keywords, patterns).rest()
            found.append(frozenset({("?", others, keywords.additional ^ 1)}))
        if keywords.property_names:
            wrong = self._wrong_names(keywords)
            if wrong is not NO_KEYS:
                found.append(frozenset({("?", wrong, TRUE)}))
        if keywords.least_properties:
            found.append(frozenset({(">", keywords.least_properties - 1)}))
        if keywords.most_properties is not None:
            found.append(frozenset({("<", keywords.most_properties + 1)}))
        for key, names in keywords.dependent_required.items():
            found += [frozenset({("+", key), ("=", name, FALSE)}) for name in names]
        cases = [Case(demands) for demands in found]
        if keywords.values is not None:
            unlike = [FREE]
            for value in keywords.values:
                if isinstance(value, dict):
                    one = [Case(demands) for demands in self._unlike(value, schema)]
                    unlike = self._around.product(self, unlike, one, "enum", schema)
            cases += unlike
        return cases

    def unevaluated(self, case: Case, literal: Literal, schema: Schema) -> Case:
        """A case with a demand on the properties that it has not evaluated."""
        seen = case.seen or NO_KEYS
        assert isinstance(seen, Keys)
        if seen.others or literal == TRUE:
            return Case(case.demands, ALL_KEYS)
        return Case(case.demands | {("*", seen.rest(), literal)}, ALL_KEYS)

    def failing_unevaluated(self, case: Case, literal: Literal, schema: Schema) -> list[Case]:
        """The cases in which a property that it has not evaluated fails."""
        seen = case.seen or NO_KEYS
        assert isinstance(seen, Keys)
        if seen.others or literal == TRUE:
            return []
        return [Case(case.demands | {("?", seen.rest(), literal ^ 1)})]

    def reduced(self, demands: Demands) -> Demands | None:
        """The same demands said more simply; None where surely no object meets them."""
        read = _Read(demands)
        if read.most is not None and max(read.least, len(read.required)) > read.most:
            return None
        nothing_fits = self._around.nothing_fits
        if read.some:
            allowed = [keys for keys, literal in read.rules if literal == FALSE and keys.others]
            for keys, literal in read.some:
                covering = (other for whole, other in read.rules if whole.covers(keys))
                if nothing_fits(frozenset({literal, *covering})):
                    return None
                if any(self._apart(keys, other) for other in allowed):
                    return None
                closed = (other.names for other in allowed if not other.patterns)
                names = [name for some in closed for name in some if keys.has(name)]
                if len(names) == 1:  # it alone can be meant
                    demands = demands - {("?", keys, literal)} | read.require(names[0], literal)
        for key in read.required:
            literals = read.of(key)
            if (len(literals) > 1 or FALSE in literals) and nothing_fits(frozenset(literals)):
                return None
        idle = [
            ("=", key, literal)
            for key, literals in read.values.items()
            if len(literals) > 1
            for literal in literals
            if literal & 1 and self._is_implied(literal, literals)
        ]
        return demands.difference(idle) if idle else demands

    def shape(
        self,
        demands: Demands,
        order: tuple[str, ...],
        node: Callable[[frozenset[Literal]], Node],
    ) -> Object | None:
        """The shape of the objects that meet some demands; ``order`` has all names of theirs."""
        read = _Read(demands)
        names = []
        for key in order:
            literals = read.of(key)
            if FALSE not in literals:
                names.append(Name(key, node(frozenset(literals)), key in read.required))
            elif key in read.required:
                return None
        if read.least > len(order) + MAX_UNNAMED:
            raise GrammarTooLarge(
                f"at least {read.least:,} properties would need more than {MAX_UNNAMED:,} that the "
                "JSON schema does not name: lower minProperties, or name them."
            )
        others = [
            Others(language, node(literals))
            for language, literals in self._others(read.rules, order)
        ]
        return Object(
            tuple(names),
            tuple(others),
            read.least,
            read.most,
            tuple(
                Some(keys.language(), node(frozenset({literal} - {TRUE})))
                for keys, literal in sorted(read.some, key=lambda item: item[1])
            ),
        )

    def _is_implied(self, negated: Literal, literals: set[Literal]) -> bool:
        """Whether what meets one of some literals surely meets a negated one."""
        return any(
            not literal & 1 and self._around.nothing_fits(frozenset({literal, negated ^ 1}))
            for literal in literals
        )

    def _others(
        self, rules: list[tuple[Keys, Literal]], order: tuple[str, ...]
    ) -> list[tuple[Language, frozenset[Literal]]]:
        """The keys that are no names, by what their values must meet."""
        if any(literal == FALSE and keys.others and not keys.patterns for keys, literal in rules):
            return []
        rules = sorted(rules, key=_declared_at)  # they come from a set
        patterns = dict.fromkeys(
            pattern for keys, _ in rules for pattern in sorted(keys.patterns, key=_name)
        )
        known = (frozenset(rules), order)
        found = self._known.get(known)
        if found is None:
            merged: dict[frozenset[Literal], Language] = {}
            for matched, language in self._cells.parted(patterns, order):
                literals = frozenset(
                    literal
                    for keys, literal in rules
                    if keys.patterns.isdisjoint(matched) is keys.others
                )
                if FALSE not in literals:
                    merged[literals] = merged.get(literals, NOTHING) | language
            found = self._known[known] = [(keys, literals) for literals, keys in merged.items()]
        return found

    def _apart(self, keys: Keys, allowed: Keys) -> bool:
        """Whether no key of some is a name, or matches a pattern, of those that are allowed."""
        if any(keys.has(name) for name in allowed.names):
            return False
        if keys.others:
            return allowed.patterns <= keys.patterns
        return all(
            self._cells.are_disjoint(pattern, other)
            for pattern in keys.patterns
            for other in allowed.patterns
        )

    def _patterns(self, schema: Schema, keywords: Keywords) -> list[tuple[Keys, Literal]]:
        return [
            (self._pattern(pattern, schema), literal)
            for pattern, literal in keywords.pattern_properties.items()
        ]

    def _pattern(self, pattern: str, schema: Schema) -> Keys:
        language = pattern_language(pattern, "patternProperties", schema.pointer)
        return Keys(patterns=frozenset({language}))

    def _declared(self, keywords: Keywords, patterns: list[tuple[Keys, Literal]]) -> Keys:
        found = Keys(frozenset(keywords.properties))
        for keys, _ in patterns:
            found = found | keys
        return found

    def _wrong_names(self, keywords: Keywords) -> Keys:
        """The keys that propertyNames does not allow."""
        allowed = self._around.texts(keywords.property_names)
        return NO_KEYS if allowed is ANY else Keys(patterns=frozenset({allowed}), others=True)

    def _constant(self, value: dict[str, object], schema: Schema) -> Demands:
        constant = self._around.document.constant
        return frozenset(
            {
                *(("+", key) for key in value),
                *(("=", key, constant(item, schema)) for key, item in value.items()),
                ("*", Keys(frozenset(value), others=True), FALSE),
            }
        )

    def _unlike(self, value: dict[str, object], schema: Schema) -> list[Demands]:
        constant = self._around.document.constant
        found: list[Demands] = [frozenset({("?", Keys(frozenset(value), others=True), TRUE)})]
        for key, item in value.items():
            found.append(frozenset({("=", key, FALSE)}))
            found.append(frozenset({("+", key), ("=", key, constant(item, schema) ^ 1)}))
        return found


class _Read:
    """The demands on an object, by what they are about."""

    def __init__(self, demands: Demands) -> None:
        self.required: set[str] = set()
        self.values: dict[str, set[Literal]] = {}
        self.rules: list[tuple[Keys, Literal]] = []
        self.some: list[tuple[Keys, Literal]] = []
        self.least, self.most = sizes(demands)
        for demand in demands:
            kind = demand[0]
            if kind == "=":
                self.values.setdefault(demand[1], set()).add(demand[2])
            elif kind == "+":
                self.required.add(demand[1])
            elif kind == "*":
                self.rules.append((demand[1], demand[2]))
            elif kind == "?":
                self.some.append((demand[1], demand[2]))

    def of(self, key: str) -> set[Literal]:
        """What the value under a key must meet."""
        found = self.values.get(key, set())
        if self.rules:
            found = found.union([literal for keys, literal in self.rules if keys.has(key)])
        return found

    def require(self, key: str, literal: Literal) -> Demands:
        """Note that a property must be there; the demands that say so."""
        self.required.add(key)
        if literal == TRUE:
            return frozenset({("+", key)})
        self.values.setdefault(key, set()).add(literal)
        return frozenset({("+", key), ("=", key, literal)})


def _declared_at(rule: tuple[Keys, Literal]) -> tuple[Literal, list[str], list[str]]:
    keys, literal = rule
    return literal, sorted(keys.names), sorted(map(_name, keys.patterns))


def _name(pattern: Language) -> str:
    return pattern.name


def without(key: str) -> Case:
    """The objects that do not have a key."""
    return Case(frozenset({("=", key, FALSE)}))


def having(key: str) -> Case:
    """The objects that have a key."""
    return Case(frozenset({("+", key)}))
