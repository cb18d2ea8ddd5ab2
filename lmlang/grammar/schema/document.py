"""One schema document: its drafts, its resources, and where references lead.

    resource ""      /properties/a   {"$ref": "item.json#part"} ──┐
      "item.json"    /$defs/item     {"$id": "item.json",         │
                                      "$defs": {"p": {"$anchor": "part"}}}

A subschema is met as a literal: a whole number, 2n for schema n and 2n + 1 for its negation;
0 is the schema that allows everything, 1 the one that allows nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote

from lmlang.errors import GrammarSyntaxError, SchemaUnsupported, quote
from lmlang.grammar.schema.resources import (
    RECURSIVE,
    Draft,
    Place,
    Resource,
    Resources,
    joined,
    where,
)
from lmlang.grammar.schema.source import Value, canonical

Literal: TypeAlias = int
TRUE: Literal = 0
FALSE: Literal = 1

ANNOTATIONS = frozenset({
    "$schema", "$id", "id", "$comment", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs",
    "$vocabulary", "definitions", "title", "description", "default", "examples", "deprecated",
    "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema",
})  # fmt: skip
"""Keywords that say nothing about values."""

_INDEX = re.compile("0|[1-9][0-9]{0,8}")
"""A step of a JSON pointer that leads into an array."""

Scope: TypeAlias = "tuple[tuple[str, Place], ...]"
"""Where dynamic anchors lead on the way taken."""


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A subschema, met on one way.

    Attributes:
        number: Half its literal.
        place: Where it is.
        scope: Where dynamic anchors lead.
        parts: Literals that the keywords of one that stands in no text have for their values.
    """

    number: int
    place: Place
    scope: Scope
    parts: dict[str, tuple[Literal, ...]] | None = None

    @property
    def pointer(self) -> str:
        """Where in the document it is."""
        return self.place.pointer

    @property
    def draft(self) -> Draft:
        """The draft that it is written in."""
        return self.place.resource.draft


class Document:
    """All subschemas of a schema that have been met, and where references lead."""

    def __init__(self, value: Value) -> None:
        if not isinstance(value, (dict, bool)):
            raise GrammarSyntaxError("a JSON schema is an object, true or false, nothing else.")
        self._resources = Resources(value)
        root = self._resources.root
        self.schemas: list[Schema] = [Schema(0, Place(True, "", root), ())]
        self._known: dict[tuple[object, ...], Literal] = {}
        self.root = self.literal(value, "", root, self._entered((), root))

    def literal(self, value: Value, pointer: str, resource: Resource, scope: Scope) -> Literal:
        """The literal of a subschema; references that stand alone are followed.

        Raises:
            GrammarSyntaxError: It is no schema.
            SchemaUnsupported: A reference leads nowhere, or in a circle.
        """
        seen: set[tuple[int, ...]] = set()
        while True:
            if value is True or value is False:
                return FALSE if value is False else TRUE
            if not isinstance(value, dict):
                raise GrammarSyntaxError(
                    f"the JSON schema at {where(pointer)} is {_kind(value)}: a schema is an "
                    "object, true or false."
                )
            inner = self._resources.by_root.get(id(value))
            if inner is not None and inner is not resource:
                resource, scope = inner, self._entered(scope, inner)
            if not _reference_alone(value, resource.draft):
                break
            key = (id(value), *(id(place) for _, place in scope))
            if key in seen:
                raise circle(pointer)
            seen.add(key)
            keyword = "$ref" if "$ref" in value else "$dynamicRef"
            place = Place(value, pointer, resource)
            target, scope = self.referred(keyword, value[keyword], place, scope)
            value, pointer, resource = target.value, target.pointer, target.resource
        if value.keys() <= ANNOTATIONS:
            return TRUE
        known = (id(value), *(id(place) for _, place in scope))
        found = self._known.get(known)
        if found is None:
            found = self._known[known] = self._added(Place(value, pointer, resource), scope)
        return found

    def child(self, schema: Schema, value: Value, way: str) -> Literal:
        """The literal of a subschema inside of another one."""
        place = schema.place
        return self.literal(value, f"{place.pointer}/{way}", place.resource, schema.scope)

    def constant(self, value: Value, schema: Schema) -> Literal:
        """The literal of ``{"enum": [value]}``."""
        known = ("enum", canonical(value))
        found = self._known.get(known)
        if found is None:
            place = Place({"enum": [value]}, schema.pointer, self._resources.root)
            found = self._known[known] = self._added(place, ())
        return found

    def any_of(self, literals: tuple[Literal, ...], schema: Schema) -> Literal:
        """The literal of what any of some literals allows."""
        if TRUE in literals:
            return TRUE
        literals = tuple(dict.fromkeys(literal for literal in literals if literal != FALSE))
        if len(literals) <= 1:
            return literals[0] if literals else FALSE
        known = ("anyOf", literals)
        found = self._known.get(known)
        if found is None:
            place = Place({}, schema.pointer, schema.place.resource)
            found = self._known[known] = self._added(place, (), {"anyOf": literals})
        return found

    def referred(
        self, keyword: str, reference: Value, place: Place, scope: Scope
    ) -> tuple[Place, Scope]:
        """Where a reference leads, and the scope there.

        Raises:
            GrammarSyntaxError: It is no text.
            SchemaUnsupported: It leads out of the document or nowhere.
        """
        if not isinstance(reference, str):
            raise GrammarSyntaxError(
                f"{keyword} at {where(place.pointer)} is {_kind(reference)}: it must be a text."
            )
        base, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        if keyword == "$recursiveRef" and place.resource.recursive:
            fragment = RECURSIVE
        resource = place.resource if not base else self._resource(keyword, base, place)
        if fragment.startswith("/") or not fragment:
            found = self._pointed(resource, fragment)
        else:
            found = resource.anchors.get(fragment)
        if found is None:
            raise SchemaUnsupported(
                f"{keyword} {quote(reference)} at {where(place.pointer)} leads to nothing in this "
                "schema: correct it, or put what it names into $defs.",
                keyword=keyword,
                pointer=place.pointer,
            )
        if keyword != "$ref" and found is found.resource.dynamic.get(fragment):
            scope = self._entered(scope, found.resource)
            found = dict(scope).get(fragment, found)
        return found, self._entered(scope, found.resource)

    def _added(
        self, place: Place, scope: Scope, parts: dict[str, tuple[Literal, ...]] | None = None
    ) -> Literal:
        self.schemas.append(Schema(len(self.schemas), place, scope, parts))
        return 2 * (len(self.schemas) - 1)

    def _entered(self, scope: Scope, resource: Resource) -> Scope:
        if not self._resources.dynamic or not resource.dynamic:
            return scope
        known = {name for name, _ in scope}
        new = [item for item in resource.dynamic.items() if item[0] not in known]
        return (*scope, *new) if new else scope

    def _resource(self, keyword: str, base: str, place: Place) -> Resource:
        uri = joined(place.resource.uri, base)
        found = self._resources.found(uri)
        if found is None:
            raise SchemaUnsupported(
                f"{keyword} {quote(base)} at {where(place.pointer)} refers to another document, "
                "and nothing is fetched: put what it names into $defs, with its $id.",
                keyword=keyword,
                pointer=place.pointer,
            )
        return found

    def _pointed(self, resource: Resource, fragment: str) -> Place | None:
        """What a JSON pointer leads to; schemas with an identifier on the way change the base."""
        value, pointer = resource.root, resource.pointer
        for step in fragment.split("/")[1:]:
            pointer = f"{pointer}/{step}"
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
            resource = self._resources.by_root.get(id(value), resource)
        return Place(value, pointer, resource)


def circle(pointer: str) -> SchemaUnsupported:
    """The error for a schema that applies itself to the same value."""
    return SchemaUnsupported(
        f"the schema at {where(pointer)} refers to itself for the same value, so it says nothing: "
        "put a property or an item between.",
        keyword="$ref",
        pointer=pointer,
    )


def _reference_alone(value: dict[str, Value], draft: Draft) -> bool:
    """Whether a schema comes to its reference."""
    if "$ref" in value and (draft.number <= 7 or value.keys() - ANNOTATIONS == {"$ref"}):
        return True
    return draft.number == 2020 and value.keys() - ANNOTATIONS == {"$dynamicRef"}


def _kind(value: Value) -> str:
    return "null" if value is None else "an array" if isinstance(value, list) else quote(str(value))
