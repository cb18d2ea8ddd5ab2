"""The resources of a schema document: what has an identifier of its own, and its anchors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urljoin

from lmlang.errors import SchemaUnsupported, quote
from lmlang.grammar.schema.meta import meta_schema
from lmlang.grammar.schema.source import Value

RECURSIVE = "\ud800"
"""The name under which $recursiveAnchor is kept; no text of a schema says it."""

_DRAFTS = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
    "json-schema.org/schema": 2020,
}
_LATEST = "json-schema.org/schema"
"""States no draft in particular."""
_MAPS = (
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
)  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLES = (
    "additionalProperties", "additionalItems", "items", "contains", "not", "if", "then", "else",
    "propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema",
)  # fmt: skip
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")


@dataclass(frozen=True, slots=True)
class Draft:
    """A version of JSON Schema.

    Args:
        number: 4, 6, 7, 2019 or 2020.
        stated: Whether the schema says so; if not, it may use forms of older drafts too.
    """

    number: int
    stated: bool


@dataclass(slots=True, eq=False)
class Resource:
    """A schema with an identifier of its own, or the whole document.

    Attributes:
        uri: The identifier without fragment; "" where there is none.
        root: Its schema.
        pointer: Where in the document it begins.
        draft: The draft it is written in.
        anchors: Names that references may use.
        dynamic: Those of them that are looked up by the way that led there.
    """

    uri: str
    root: Value
    pointer: str
    draft: Draft
    anchors: dict[str, Place] = field(default_factory=dict)
    dynamic: dict[str, Place] = field(default_factory=dict)

    @property
    def recursive(self) -> bool:
        """Whether its whole is looked up by the way that led there, as in draft 2019-09."""
        return isinstance(self.root, dict) and self.root.get("$recursiveAnchor") is True


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A subschema and where it is."""

    value: Value
    pointer: str
    resource: Resource


class Resources:
    """The resources of one document.

    Args:
        value: Its schema.

    Attributes:
        root: The whole document.
        by_uri: All by their identifiers; the whole by "" too.
        by_root: All by the identity of their schemas.
        dynamic: Whether any has anchors that are looked up by the way taken.
    """

    def __init__(self, value: Value) -> None:
        draft = Draft(2020, False)
        if isinstance(value, dict):
            draft = draft_of(value, "", draft)
        self.root = Resource("", value, "", draft)
        self.by_uri = {"": self.root}
        self.by_root = {id(value): self.root}
        self.dynamic = False
        if isinstance(value, dict):
            self._index(self.root)

    def found(self, uri: str) -> Resource | None:
        """The resource of an identifier: one of the document, or a meta-schema."""
        known = self.by_uri.get(uri)
        if known is None and (value := meta_schema(uri)) is not None:
            assert isinstance(value, dict)
            draft = draft_of(value, "", self.root.draft)
            known = self.by_uri[uri] = self.by_root[id(value)] = Resource(uri, value, uri, draft)
            self._index(known)
        return known

    def _index(self, resource: Resource) -> None:
        """Find the identifiers and anchors of a document."""
        todo = [(resource.root, resource.pointer, resource)]
        while todo:
            value, pointer, resource = todo.pop()
            resource = self._identified(value, pointer, resource)
            place = Place(value, pointer, resource)
            if resource.draft.number == 2019 and resource.recursive and value is resource.root:
                resource.anchors[RECURSIVE] = resource.dynamic[RECURSIVE] = place
                self.dynamic = True
            if resource.draft.number >= 2019:
                for keyword in ("$anchor", "$dynamicAnchor"):
                    name = value.get(keyword)
                    if isinstance(name, str):
                        resource.anchors[name] = place
                        if keyword == "$dynamicAnchor":
                            resource.dynamic[name] = place
                            self.dynamic = True
            for keyword, inner in value.items():
                way = f"{pointer}/{escaped(keyword)}"
                if keyword in _MAPS and isinstance(inner, dict):
                    todo += [
                        (item, f"{way}/{escaped(name)}", resource)
                        for name, item in inner.items()
                        if isinstance(item, dict)
                    ]
                elif keyword in _LISTS and isinstance(inner, list):
                    todo += [
                        (item, f"{way}/{number}", resource)
                        for number, item in enumerate(inner)
                        if isinstance(item, dict)
                    ]
                elif keyword in _SINGLES and isinstance(inner, dict):
                    todo.append((inner, way, resource))

    def _identified(self, value: dict[str, Value], pointer: str, resource: Resource) -> Resource:
        """The resource that a schema is of: a new one where it has an identifier."""
        number = resource.draft.number
        name = value.get("id" if number == 4 else "$id")
        if not isinstance(name, str) or (number <= 7 and "$ref" in value):
            return resource
        base, _, fragment = name.partition("#")
        if fragment and number <= 7:
            resource.anchors[fragment] = Place(value, pointer, resource)
        if not base:
            return resource
        uri = joined(resource.uri, base)
        if value is resource.root:
            resource.uri = uri
        else:
            draft = draft_of(value, pointer, resource.draft)
            resource = Resource(uri, value, pointer, draft)
            self.by_root[id(value)] = resource
        self.by_uri.setdefault(uri, resource)
        return resource


def draft_of(value: dict[str, Value], pointer: str, otherwise: Draft) -> Draft:
    """The draft that a schema states.

    Raises:
        SchemaUnsupported: It is none that is known.
    """
    stated = value.get("$schema")
    if stated is None:
        return otherwise
    name = re.sub(r"^https?://", "", stated.rstrip("#/")) if isinstance(stated, str) else ""
    number = _DRAFTS.get(name)
    if number is None:
        raise SchemaUnsupported(
            f"$schema {quote(str(stated))} is not known: state draft 2020-12, 2019-09, 07, 06 "
            "or 04, or leave it out, which means 2020-12.",
            keyword="$schema",
            pointer=pointer,
        )
    return Draft(number, name != _LATEST)


def joined(base: str, reference: str) -> str:
    """A reference without fragment, as seen from a base; as it is where one of them is no URI."""
    if _SCHEME.match(reference):
        return reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def escaped(name: str) -> str:
    """A step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def where(pointer: str) -> str:
    """A place in the schema, for messages."""
    return quote(pointer) if pointer else "the root"
