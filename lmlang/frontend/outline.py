r"""Constraints as people read them, in one short line; `spec_text` has all of them, and back.

{"type": "object", "properties": …}     {name: string, born?: date, jobs: [{at: string}]}
deeper than there is room for           {name: string, born?: date, jobs: […]}
"""

from __future__ import annotations

import json
from typing import Any

from lmlang import markup
from lmlang.frontend.spec_text import write_spec
from lmlang.grammar import literals, quotes
from lmlang.grammar.spec import Either, JsonSchema, Regex, Spec

LONGEST = 160
"""Characters of an outline, without those that say how many were left out."""
VALUES = 6
"""Values of an enumeration that are told."""
_DEEPEST = 8
_MEANT = {
    literals.INTEGER: "integer",
    literals.REAL: "number",
    literals.DATE: "date",
    literals.time(None): "time",
    **{literals.moment(aware): "datetime" for aware in (None, True, False)},
    literals.uuid(None): "uuid",
}
"""Patterns that have a name."""


def outline(spec: Spec) -> str:
    """A constraint in about `LONGEST` characters at most."""
    if isinstance(spec, Either):
        return markup.middle(" | ".join(map(outline, spec.specs)), LONGEST)
    if isinstance(spec, Regex) and spec.pattern in _MEANT:
        return _MEANT[spec.pattern]
    if not isinstance(spec, JsonSchema):
        return markup.middle(write_spec(spec), LONGEST)
    try:
        schema = json.loads(spec.text)
        if isinstance(schema, dict) and "$ref" in schema:
            schema = schema.get("$defs", {}).get(_named(schema), True)
        shapes = [_shape(schema, depth) for depth in range(_DEEPEST, 0, -1)]
    except (ValueError, RecursionError):  # it is no JSON, of which a backend will tell
        return markup.middle(write_spec(spec), LONGEST)
    fitting = next((shape for shape in shapes if len(shape) <= LONGEST), shapes[-1])
    return f"json {markup.middle(fitting, LONGEST)}"


def _named(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _shape(schema: Any, depth: int) -> str:
    """What a schema describes, down to some depth."""
    if not isinstance(schema, dict):
        return "any" if schema else "never"
    if "$ref" in schema:
        return _named(schema)
    if "const" in schema:
        return _value(schema["const"])
    if isinstance(schema.get("enum"), list):
        return _values(schema["enum"])
    if quotes.KEYWORD in schema:
        return "quote"
    for word, mark in (("anyOf", " | "), ("oneOf", " | "), ("allOf", " & ")):
        if isinstance(schema.get(word), list):
            return mark.join(dict.fromkeys(_shape(each, depth) for each in schema[word]))
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return " | ".join(_of_kind(str(kind), schema, depth) for kind in kinds) or "any"


def _of_kind(kind: str, schema: dict[str, Any], depth: int) -> str:
    if kind == "object":
        return f"{{{_members(schema, depth)}}}"
    if kind == "array":
        return f"[{_items(schema, depth)}]"
    if kind != "string":
        return kind
    pattern = str(schema.get("pattern", ""))
    named = next((name for text, name in _MEANT.items() if pattern == f"^(?:{text})$"), None)
    return named or str(schema.get("format", kind))


def _members(schema: dict[str, Any], depth: int) -> str:
    named, needed = schema.get("properties", {}), schema.get("required", [])
    others = schema.get("additionalProperties", False)
    if depth == 0:
        return "…" if named or others else ""
    parts = [
        f"{name}{'' if name in needed else '?'}: {_shape(each, depth - 1)}"
        for name, each in named.items()
    ]
    if others:
        parts.append(f"…: {_shape(others, depth - 1)}")
    return ", ".join(parts)


def _items(schema: dict[str, Any], depth: int) -> str:
    if depth == 0:
        return "…"
    parts = [_shape(each, depth - 1) for each in schema.get("prefixItems", [])]
    others = schema.get("items", True)
    if others is not False:
        parts.append(f"…{_shape(others, depth - 1)}" if parts else _shape(others, depth - 1))
    return ", ".join(parts)


def _values(values: list[Any]) -> str:
    told = " | ".join(map(_value, values[:VALUES]))
    return f"{told} | {len(values) - VALUES:,} more" if len(values) > VALUES else told


def _value(value: Any) -> str:
    return markup.middle(json.dumps(value, ensure_ascii=False), 40)
