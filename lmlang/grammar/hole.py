"""A hole in JSON text: what one value may be between two texts, or all that may follow one text.

    before  {"start": "2020", "end     hole  "2021"}       follows: all of it may differ
    before  {"start": "2020", "end": ⟨ hole ⟩, "at": 1}    one value: what stands behind it stays

The rules are those of the whole text, begun behind what stands before; a scanner of brackets and
quotes tells where the one value ends.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from lmlang.errors import ConstraintError, quote
from lmlang.grammar.automaton import Content, Key, Leaving, Swift
from lmlang.grammar.spec import Hole, JsonSchema

Scan: TypeAlias = tuple[int, bool, bool]
"""Brackets that are open, whether in a string, whether behind a backslash in it."""
HoleKey: TypeAlias = tuple[Key, object]
"""The key of the whole text; how much of the lead is there (int), or where in the value it is."""

_FREE, _BEFORE, _DONE = "free", "before", "done"
_SCALAR = "scalar"
_ENDING = frozenset(b",]} \t\r\n:")


class HoleRules:
    """What may stand in a hole (see `automaton.Rules`).

    Args:
        hole: Which.
        rules: Those of its schema.

    Raises:
        ConstraintError: The texts around it are not of the schema.
    """

    def __init__(self, hole: Hole, rules: Swift) -> None:
        self._rules = rules
        self._lead = hole.lead.encode()
        self._after = None if hole.after is None else hole.after.encode()
        self._inside: object = _FREE if self._after is None else _BEFORE
        start = rules.run(rules.start(), hole.before.encode())
        if start is None or rules.run(start, self._lead) is None:
            raise ConstraintError(
                f"no output of the schema begins with {quote(hole.before + hole.lead)}."
            )
        self._start: HoleKey = (start, 0 if self._lead else self._inside)

    def start(self) -> HoleKey:
        """Behind what stands before."""
        return self._start

    def push(self, key: HoleKey, byte: int) -> HoleKey | None:
        """The key behind one more byte; None where no output goes on so."""
        inner, at = key
        if isinstance(at, int):
            if byte != self._lead[at]:
                return None
            inner = self._rules.push(inner, byte)
            onward: object = at + 1 if at + 1 < len(self._lead) else self._inside
            return None if inner is None else (inner, onward)
        onward = at if at == _FREE else _scanned(at, byte)
        inner = None if onward is None else self._rules.push(inner, byte)
        if inner is None or (onward == _DONE and not self._fits(inner)):
            return None
        return inner, onward

    def following(self, key: HoleKey) -> bytes:
        """The bytes for which `push` gives a key, in ascending order."""
        inner, at = key
        if isinstance(at, int):
            return self._lead[at : at + 1]
        following = self._rules.following(inner)
        if at == _FREE:
            return following
        ends = following
        if isinstance(at, tuple) and at[1]:  # only a quote leaves a string
            ends = b"" if at[0] or at[2] else b'"'
        dead = {byte for byte in ends if byte in following and self.push(key, byte) is None}
        return bytes([byte for byte in following if byte not in dead]) if dead else following

    def runs(self, key: HoleKey) -> tuple[bytes, ...] | None:
        """Those of the whole text that go on in the value or end it, and the rest of the lead."""
        inner, at = key
        if isinstance(at, int):
            return (self._lead[at:],)
        runs = self._rules.runs(inner)
        if runs is None or at == _FREE:
            return runs
        return tuple(run for run in runs if self.run(key, run) is not None)

    def run(self, key: HoleKey, data: bytes) -> HoleKey | None:
        """The key behind some bytes; None where no output goes on so."""
        inner, at = key
        rest = data
        if isinstance(at, int):
            lead = self._lead[at:]
            rest = data[len(lead) :]
            if data[: len(lead)] != lead[: len(data)]:
                return None
            at = at + len(data) if len(data) < len(lead) else self._inside
        for byte in rest if at != _FREE else b"":
            at = _scanned(at, byte)
            if at is None:
                return None
        inner = self._rules.run(inner, data)
        if inner is None or (rest and at == _DONE and not self._fits(inner)):
            return None
        return inner, at

    def ahead(self) -> Iterator[tuple[Content, ...]]:
        """Those of the whole text."""
        return self._rules.ahead()

    def same(self, key: HoleKey) -> tuple[int, Hashable] | None:
        """What is the same in the whole text, in the same place of the value."""
        inner, at = key
        found = None if isinstance(at, int) else self._rules.same(inner)
        return None if found is None else (found[0], (at, found[1]))

    def widened(self, key: HoleKey) -> HoleKey:
        """Where at least as much may come in the whole text, in the same place of the value."""
        inner, at = key
        wide = self._rules.widened(inner)
        return key if wide is inner else (wide, at)

    def accepting(self, key: HoleKey) -> bool:
        """Whether the output may end here."""
        inner, at = key
        if at == _FREE:
            return self._rules.accepting(inner)
        return at == _DONE or (at == _SCALAR and self._fits(inner))

    def completion(self, key: HoleKey) -> bytes:
        """The fewest bytes (or nearly) that complete the output; empty where it is accepting."""
        inner, at = key
        lead = b""
        if isinstance(at, int):
            lead = self._lead[at:]
            inner, at = self._rules.run(inner, lead), self._inside
        if self.accepting((inner, at)):
            return lead
        rest = self._rules.completion(inner)
        if at == _FREE:
            return lead + rest
        for index, byte in enumerate(rest):
            at = _scanned(at, byte)
            if at is None or at == _DONE:
                return lead + rest[: index + (at == _DONE)]
        return lead + rest

    def contents(self, key: HoleKey) -> tuple[Content, ...]:
        """Those of the whole text; the lead has none, and nothing is behind the value."""
        inner, at = key
        return () if isinstance(at, int) or at == _DONE else self._rules.contents(inner)

    def leaving(self, key: HoleKey) -> Leaving:
        """As of the whole text, but for what ends the value by what may not follow."""
        inner, at = key
        known = isinstance(at, tuple) or at == _FREE
        return self._rules.leaving(inner) if known else Leaving.UNKNOWN

    def asked(self, key: HoleKey) -> frozenset[bytes]:
        """Those of the whole text."""
        return self._rules.asked(key[0])

    def pointer(self, key: HoleKey) -> str:
        """That of the whole text."""
        return self._rules.pointer(key[0])

    def _fits(self, inner: Key) -> bool:
        """Whether what stands behind the hole makes a whole of it."""
        assert self._after is not None
        end = self._rules.run(inner, self._after)
        return end is not None and self._rules.accepting(end)


def _scanned(at: object, byte: int) -> object:
    """Where one more byte of a value leads; None where it is none of it."""
    if at == _BEFORE:
        at = (0, False, False) if byte in b'"[{' else _SCALAR
    if at == _SCALAR:
        return None if byte in _ENDING else _SCALAR
    if not isinstance(at, tuple):
        return None
    depth, inside, escaped = at
    if inside:
        if escaped or byte == 0x5C:
            return depth, True, not escaped
        inside = byte != 0x22
    elif byte in b"[{":
        depth += 1
    elif byte in b"]}":
        depth -= 1
    else:
        inside = byte == 0x22
    return (depth, inside, False) if depth or inside else _DONE


# ------------------------------------------------------------------ which values stand apart

_PLAIN = frozenset(
    ("type", "properties", "required", "additionalProperties", "items", "prefixItems", "$defs")
) | {"minItems", "maxItems", "minProperties", "maxProperties", "propertyNames"}
"""Keywords by which what a value is says nothing of the values beside it."""


def stands_apart(schema: JsonSchema, path: Sequence[str | int]) -> bool:
    """Whether a value may be any other that its own schema allows, whatever stands around it.

    Args:
        schema: Of the whole.
        path: Keys and indices that lead to the value.
    """
    whole = json.loads(schema.text)
    here = whole
    for step in path:
        here = _container(whole, here, "object" if isinstance(step, str) else "array")
        if here is None or not here.keys() <= _PLAIN:
            return False
        if isinstance(step, str):
            named = here.get("properties", {})
            here = named[step] if step in named else here.get("additionalProperties", True)
        else:
            prefix = here.get("prefixItems", [])
            here = prefix[step] if step < len(prefix) else here.get("items", True)
    return True


def _container(whole: Any, schema: Any, kind: str) -> Mapping[str, Any] | None:
    """The one schema of objects, or of arrays, that a schema is; None where there may be more."""
    for _ in range(64):
        if not isinstance(schema, dict):
            return None
        if "$ref" in schema and schema.keys() <= {"$ref", "$defs"}:
            schema = whole.get("$defs", {}).get(schema["$ref"].removeprefix("#/$defs/"))
        elif "anyOf" in schema and schema.keys() <= {"anyOf", "$defs"}:
            fitting = [each for each in schema["anyOf"] if _may_be(whole, each, kind)]
            schema = fitting[0] if len(fitting) == 1 else None
        else:
            return schema
    return None


def _may_be(whole: Any, schema: Any, kind: str) -> bool:
    found = _container(whole, schema, kind)
    return found is None or kind in found.get("type", kind)
