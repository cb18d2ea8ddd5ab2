"""Which schemas apply to the same value: how deep, that none does so to itself, which names.

{"properties": {"b": …}, "allOf": [{"$ref": …, "required": ["a"]}]}     names b, a
"""

from __future__ import annotations

from collections.abc import Iterable

from lmlang.errors import SchemaUnsupported
from lmlang.grammar.schema.dialect import Reader
from lmlang.grammar.schema.document import Literal, circle
from lmlang.grammar.schema.resources import where

MAX_NESTING = 40
"""Schemas inside of schemas for the same value."""


class Applied:
    """Knows of each schema which others it applies to the same value."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._heights: dict[int, int] = {}
        self._names: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def admit(self, number: int) -> None:
        """Check that a schema does not apply itself to the same value, nor too many others.

        Raises:
            SchemaUnsupported: It does.
        """
        if number in self._heights:
            return
        path: dict[int, list[int]] = {number: self._inner(number)}
        while path:
            here, todo = next(reversed(path.items()))
            if todo:
                inner = todo.pop()
                if inner in path:
                    raise circle(self._reader.document.schemas[inner].pointer)
                if inner not in self._heights:
                    path[inner] = self._inner(inner)
                continue
            del path[here]
            height = 1 + max((self._heights[inner] for inner in self._inner(here)), default=0)
            if height > MAX_NESTING:
                pointer = self._reader.document.schemas[here].pointer
                raise SchemaUnsupported(
                    f"the schema at {where(pointer)} applies more than {MAX_NESTING} schemas, one "
                    "inside of another, to the same value: write fewer.",
                    keyword="allOf",
                    pointer=pointer,
                )
            self._heights[here] = height

    def names(self, literals: Iterable[Literal]) -> tuple[str, ...]:
        """The property names that admitted schemas speak of, in order: declared ones first."""
        first: dict[str, None] = {}
        second: dict[str, None] = {}
        for literal in literals:
            declared, others = self._of(literal >> 1)
            first.update(dict.fromkeys(declared))
            second.update(dict.fromkeys(others))
        return tuple({**first, **second})

    def _of(self, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names that a schema declares, and others that it speaks of."""
        found = self._names.get(number)
        if found is None:
            first: dict[str, None] = {}
            second: dict[str, None] = {}
            keywords = self._reader.keywords(number)
            for index, term in enumerate(keywords.terms):
                if index == keywords.terms_before_properties:
                    first.update(dict.fromkeys(keywords.properties))
                for literal in term.parts:
                    declared, others = self._of(literal >> 1)
                    first.update(dict.fromkeys(declared))
                    second.update(dict.fromkeys(others))
                if term.kind == "key":
                    second[term.key] = None
            first.update(dict.fromkeys(keywords.properties))
            for value in keywords.values or ():
                if isinstance(value, dict):
                    first.update(dict.fromkeys(value))
            second.update(dict.fromkeys(keywords.required))
            for key, names in keywords.dependent_required.items():
                second.update(dict.fromkeys((key, *names)))
            found = self._names[number] = tuple(first), tuple(second)
        return found

    def _inner(self, number: int) -> list[int]:
        terms = self._reader.keywords(number).terms
        return [literal >> 1 for term in terms for literal in term.parts if literal > 1]
