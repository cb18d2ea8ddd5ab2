"""What the keywords of a schema say, checked and in one form for all drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from lmlang.errors import GrammarSyntaxError, quote
from lmlang.grammar import quotes
from lmlang.grammar.schema.document import ANNOTATIONS, TRUE, Document, Literal, Schema, circle
from lmlang.grammar.schema.resources import Draft, escaped, where
from lmlang.grammar.schema.source import Value, canonical

NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT = (1 << bit for bit in range(6))
ALL_TYPES = 63
_TYPES = {
    "null": NULL, "boolean": BOOLEAN, "number": NUMBER, "integer": NUMBER, "string": STRING,
    "array": ARRAY, "object": OBJECT,
}  # fmt: skip

Exact: TypeAlias = int | Decimal

_LISTING = ANNOTATIONS | {"type", "enum", "const"}


@dataclass(frozen=True, slots=True)
class Term:
    """A keyword that applies schemas to the same value.

    Args:
        kind: "all", "any", "one", "not", "if" or "key": where the object has a key.
        keyword: Which.
        parts: The schemas; of "if" three.
        key: Of "key".
    """

    kind: str
    keyword: str
    parts: tuple[Literal, ...]
    key: str = ""


@dataclass(slots=True)
class Keywords:
    """The keywords of one schema; those that it lacks say nothing."""

    types: int = ALL_TYPES
    integer: bool = False
    values: list[Value] | None = None
    # numbers
    bounds: list[tuple[str, Exact]] = field(default_factory=list)
    steps: list[Exact] = field(default_factory=list)
    # strings
    least_length: int = 0
    most_length: int | None = None
    patterns: list[str] = field(default_factory=list)
    source: str | None = None
    format: str | None = None
    # arrays
    prefix: tuple[Literal, ...] = ()
    rest: Literal | None = None
    contains: Literal | None = None
    least_contains: int = 1
    most_contains: int | None = None
    least_items: int = 0
    most_items: int | None = None
    unique: bool = False
    unevaluated_items: Literal | None = None
    # objects
    properties: dict[str, Literal] = field(default_factory=dict)
    pattern_properties: dict[str, Literal] = field(default_factory=dict)
    additional: Literal | None = None
    property_names: Literal = TRUE
    required: list[str] = field(default_factory=list)
    least_properties: int = 0
    most_properties: int | None = None
    dependent_required: dict[str, list[str]] = field(default_factory=dict)
    unevaluated_properties: Literal | None = None
    # on the same value
    terms: list[Term] = field(default_factory=list)
    terms_before_properties: int = 0
    ignored: list[str] = field(default_factory=list)
    """Keywords of other drafts, which say nothing in this one."""


class Reader:
    """Reads the keywords of schemas, each once."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._read: dict[int, Keywords] = {}
        self._listed: dict[int, frozenset[str] | None] = {}

    def keywords(self, number: int) -> Keywords:
        """The keywords of a schema by its number.

        Raises:
            GrammarSyntaxError: A keyword has a value that it cannot have.
        """
        found = self._read.get(number)
        if found is None:
            found = self._read[number] = self._made(self.document.schemas[number])
        return found

    def listed(self, number: int) -> frozenset[str] | None:
        """The canonical texts of all values that a schema allows, where it just lists them."""
        if number not in self._listed:
            self._listed[number] = self._list(number)
        return self._listed[number]

    def has_read(self, number: int) -> bool:
        """Whether the keywords of a schema have been asked for."""
        return number in self._read

    def _list(self, number: int) -> frozenset[str] | None:
        keywords, value = self.keywords(number), self.document.schemas[number].place.value
        if keywords.values is None or not value.keys() <= _LISTING:
            return None
        return frozenset(
            canonical(inner)
            for inner in keywords.values
            if type_of(inner) & keywords.types
            and not (keywords.integer and isinstance(inner, Decimal))
        )

    def _made(self, schema: Schema) -> Keywords:
        kept = Keywords()
        if not schema.number:
            return kept
        if schema.parts is not None:
            kept.terms = [Term("any", "anyOf", schema.parts["anyOf"])]
            return kept
        value = schema.place.value
        at = _At(self.document, schema, kept, value)
        draft = schema.draft
        if draft.number <= 7 and "$ref" in value:
            at.reference("$ref", value["$ref"])
            return kept
        for keyword, inner in value.items():
            known = _KEYWORDS.get(keyword)
            if known is not None:
                since, until, read = known
                if since <= draft.number <= until or not draft.stated:
                    read(at, keyword, inner)
                else:
                    kept.ignored.append(keyword)
        if kept.values is not None:
            found = 0
            for inner in kept.values:
                found |= type_of(inner)
            kept.types &= found
        return kept


def type_of(value: Value) -> int:
    """The type of a value."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, (int, Decimal)):
        return NUMBER
    return STRING if isinstance(value, str) else ARRAY if isinstance(value, list) else OBJECT


@dataclass(slots=True)
class _At:
    """One schema while it is read."""

    document: Document
    schema: Schema
    kept: Keywords
    value: dict[str, Value]

    @property
    def draft(self) -> Draft:
        return self.schema.draft

    def wrong(self, keyword: str, inner: Value, must: str) -> GrammarSyntaxError:
        return GrammarSyntaxError(
            f"{keyword} at {where(self.schema.pointer)} is {quote(str(inner)[:300])}: it must be "
            f"{must}."
        )

    def child(self, inner: Value, *way: str) -> Literal:
        return self.document.child(self.schema, inner, "/".join(map(escaped, way)))

    def children(self, keyword: str, inner: Value) -> tuple[Literal, ...]:
        harmless = keyword in ("prefixItems", "allOf")
        if not isinstance(inner, list) or not (inner or harmless):
            raise self.wrong(keyword, inner, "an array of at least one schema")
        return tuple(self.child(item, keyword, str(number)) for number, item in enumerate(inner))

    def map(self, keyword: str, inner: Value) -> dict[str, Literal]:
        if not isinstance(inner, dict):
            raise self.wrong(keyword, inner, "an object of schemas")
        return {name: self.child(item, keyword, name) for name, item in inner.items()}

    def count(self, keyword: str, inner: Value) -> int:
        if not isinstance(inner, int) or isinstance(inner, bool) or inner < 0:
            raise self.wrong(keyword, inner, "a whole number of at least 0")
        return inner

    def number(self, keyword: str, inner: Value) -> Exact:
        if not isinstance(inner, (int, Decimal)) or isinstance(inner, bool):
            raise self.wrong(keyword, inner, "a number")
        return inner

    def names(self, keyword: str, inner: Value) -> list[str]:
        if not isinstance(inner, list) or not all(isinstance(item, str) for item in inner):
            raise self.wrong(keyword, inner, "an array of property names")
        return list(dict.fromkeys(inner))

    def depend(self, key: str, names: list[str]) -> None:
        self.kept.dependent_required.setdefault(key, []).extend(names)

    def reference(self, keyword: str, inner: Value) -> None:
        place, scope = self.document.referred(keyword, inner, self.schema.place, self.schema.scope)
        if place.value is self.value and scope == self.schema.scope:
            raise circle(self.schema.pointer)
        found = self.document.literal(place.value, place.pointer, place.resource, scope)
        self.kept.terms.append(Term("all", keyword, (found,)))


def _type(at: _At, keyword: str, inner: Value) -> None:
    names = inner if isinstance(inner, list) else [inner]
    at.kept.types = 0
    for name in names:
        if not isinstance(name, str) or name not in _TYPES:
            raise at.wrong(keyword, inner, f"of {', '.join(_TYPES)}, one or an array of them")
        at.kept.types |= _TYPES[name]
    at.kept.integer = "integer" in names and "number" not in names


def _enum(at: _At, keyword: str, inner: Value) -> None:
    if not isinstance(inner, list):
        raise at.wrong(keyword, inner, "an array of values")
    _values(at, inner)


def _const(at: _At, keyword: str, inner: Value) -> None:
    _values(at, [inner])


def _values(at: _At, values: list[Value]) -> None:
    distinct = {canonical(value): value for value in values}
    if at.kept.values is not None:
        known = {canonical(value) for value in at.kept.values}
        distinct = {text: value for text, value in distinct.items() if text in known}
    at.kept.values = list(distinct.values())


def _bound(at: _At, keyword: str, inner: Value) -> None:
    plain = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}.get(keyword)
    by_flag = at.draft.number == 4 or not at.draft.stated
    if plain is not None and isinstance(inner, bool) and by_flag:
        return  # said with the bound itself
    limit = at.number(keyword, inner)
    if plain is None and by_flag and at.value.get(f"exclusive{keyword.capitalize()}") is True:
        keyword = f"exclusive{keyword.capitalize()}"
    at.kept.bounds.append((keyword, limit))


def _multiple(at: _At, keyword: str, inner: Value) -> None:
    step = at.number(keyword, inner)
    if step <= 0:
        raise at.wrong(keyword, inner, "greater than 0")
    at.kept.steps.append(step)


def _pattern(at: _At, keyword: str, inner: Value) -> None:
    if not isinstance(inner, str):
        raise at.wrong(keyword, inner, "a regular expression")
    at.kept.patterns.append(inner)


def _source(at: _At, keyword: str, inner: Value) -> None:
    if not isinstance(inner, str) or len(inner) > quotes.MAX_SOURCE:
        most = f"of at most {quotes.MAX_SOURCE:,} characters"
        raise at.wrong(keyword, inner, f"a text {most}, which the string stands in")
    at.kept.source = inner


def _format(at: _At, keyword: str, inner: Value) -> None:
    if not isinstance(inner, str):
        raise at.wrong(keyword, inner, "a name")
    at.kept.format = inner


def _items(at: _At, keyword: str, inner: Value) -> None:
    if isinstance(inner, list):
        if at.draft.number == 2020 and (at.draft.stated or "prefixItems" in at.value):
            raise at.wrong(keyword, inner, "one schema; those of the first items are prefixItems")
        prefix = tuple(at.child(item, keyword, str(i)) for i, item in enumerate(inner))
        at.kept.prefix = prefix
        if "additionalItems" in at.value:
            at.kept.rest = at.child(at.value["additionalItems"], "additionalItems")
    else:
        at.kept.rest = at.child(inner, keyword)


def _prefix(at: _At, keyword: str, inner: Value) -> None:
    at.kept.prefix = at.children(keyword, inner)


def _unique(at: _At, keyword: str, inner: Value) -> None:
    if not isinstance(inner, bool):
        raise at.wrong(keyword, inner, "true or false")
    at.kept.unique = inner


def _count(name: str) -> _Read:
    def read(at: _At, keyword: str, inner: Value) -> None:
        setattr(at.kept, name, at.count(keyword, inner))

    return read


def _one(name: str) -> _Read:
    def read(at: _At, keyword: str, inner: Value) -> None:
        setattr(at.kept, name, at.child(inner, keyword))

    return read


def _properties(at: _At, keyword: str, inner: Value) -> None:
    at.kept.properties = at.map(keyword, inner)
    at.kept.terms_before_properties = len(at.kept.terms)


def _pattern_properties(at: _At, keyword: str, inner: Value) -> None:
    at.kept.pattern_properties = at.map(keyword, inner)


def _required(at: _At, keyword: str, inner: Value) -> None:
    at.kept.required = at.names(keyword, inner)


def _dependent_required(at: _At, keyword: str, inner: Value) -> None:
    if not isinstance(inner, dict):
        raise at.wrong(keyword, inner, "an object of arrays of property names")
    for key, names in inner.items():
        at.depend(key, at.names(keyword, names))


def _dependent_schemas(at: _At, keyword: str, inner: Value) -> None:
    for key, literal in at.map(keyword, inner).items():
        at.kept.terms.append(Term("key", keyword, (literal,), key))


def _dependencies(at: _At, keyword: str, inner: Value) -> None:
    if not isinstance(inner, dict):
        raise at.wrong(keyword, inner, "an object of schemas or arrays of property names")
    for key, item in inner.items():
        if isinstance(item, list):
            at.depend(key, at.names(keyword, item))
        else:
            literal = at.child(item, keyword, key)
            at.kept.terms.append(Term("key", keyword, (literal,), key))


def _many(kind: str) -> _Read:
    def read(at: _At, keyword: str, inner: Value) -> None:
        at.kept.terms.append(Term(kind, keyword, at.children(keyword, inner)))

    return read


def _not(at: _At, keyword: str, inner: Value) -> None:
    at.kept.terms.append(Term("not", keyword, (at.child(inner, keyword),)))


def _if(at: _At, keyword: str, inner: Value) -> None:
    branches = (
        at.child(at.value[name], name) if name in at.value else TRUE for name in ("then", "else")
    )
    at.kept.terms.append(Term("if", keyword, (at.child(inner, keyword), *branches)))


def _reference(at: _At, keyword: str, inner: Value) -> None:
    at.reference(keyword, inner)


_Read: TypeAlias = Callable[[_At, str, Value], None]
_KEYWORDS: dict[str, tuple[int, int, _Read]] = {
    "type": (4, 2020, _type),
    "enum": (4, 2020, _enum),
    "const": (6, 2020, _const),
    "minimum": (4, 2020, _bound),
    "maximum": (4, 2020, _bound),
    "exclusiveMinimum": (4, 2020, _bound),
    "exclusiveMaximum": (4, 2020, _bound),
    "multipleOf": (4, 2020, _multiple),
    "minLength": (4, 2020, _count("least_length")),
    "maxLength": (4, 2020, _count("most_length")),
    "pattern": (4, 2020, _pattern),
    "format": (4, 2020, _format),
    quotes.KEYWORD: (4, 2020, _source),
    "prefixItems": (2020, 2020, _prefix),
    "items": (4, 2020, _items),
    "contains": (6, 2020, _one("contains")),
    "minContains": (2019, 2020, _count("least_contains")),
    "maxContains": (2019, 2020, _count("most_contains")),
    "minItems": (4, 2020, _count("least_items")),
    "maxItems": (4, 2020, _count("most_items")),
    "uniqueItems": (4, 2020, _unique),
    "unevaluatedItems": (2019, 2020, _one("unevaluated_items")),
    "properties": (4, 2020, _properties),
    "patternProperties": (4, 2020, _pattern_properties),
    "additionalProperties": (4, 2020, _one("additional")),
    "propertyNames": (6, 2020, _one("property_names")),
    "required": (4, 2020, _required),
    "minProperties": (4, 2020, _count("least_properties")),
    "maxProperties": (4, 2020, _count("most_properties")),
    "dependentRequired": (2019, 2020, _dependent_required),
    "dependentSchemas": (2019, 2020, _dependent_schemas),
    "dependencies": (4, 7, _dependencies),
    "unevaluatedProperties": (2019, 2020, _one("unevaluated_properties")),
    "allOf": (4, 2020, _many("all")),
    "anyOf": (4, 2020, _many("any")),
    "oneOf": (4, 2020, _many("one")),
    "not": (4, 2020, _not),
    "if": (7, 2020, _if),
    "$ref": (4, 2020, _reference),
    "$dynamicRef": (2020, 2020, _reference),
    "$recursiveRef": (2019, 2019, _reference),
}
"""Keyword to the first and last draft that has it, and what reads it."""
