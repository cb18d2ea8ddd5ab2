r"""Constraints without some values: what validators have refused is not written a second time.

    Regex       [0-9]+               without 21   (?!(?:21)\Z)(?:[0-9]+)
    Choice      "a", "b"             without "a"  "b"
    JsonSchema  {"type": "integer"}  without 21   {"type": "integer", "not": {"enum": [21]}}

A value inside of JSON is told apart there alone, and all else stays as it was, order included. It
is the value that is meant, however it is spelt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lmlang.errors import ConstraintError, GrammarTooLarge, SchemaUnsupported
from lmlang.frontend.json_text import Node, Path, place_of
from lmlang.grammar.spec import Choice, Either, Hole, JsonSchema, Regex, Spec

LONGEST = 2_000
"""Characters of a value that is told apart from others."""
_BIG = ("object", "array")
_HERE = "\0refused\0"


class Refused:
    """What validators have refused at one place of an output, behind one text. For one thread."""

    def __init__(self) -> None:
        self._place: tuple[Path, str] = (), ""
        self._values: list[str] = []

    def instead(
        self, spec: Spec, value: str, before: str, path: Path, root: Node | None
    ) -> tuple[Spec | None, bool]:
        """What may be written instead of one more value, and whether that may be the same again.

        Strings, numbers and words are told apart. An object or array is another one wherever
        anything in it is, which no constraint says within bounds.

        Args:
            spec: What may be written there; a hole in JSON, or all of it.
            value: What was refused, as it was written.
            before: What stands before it. Behind another text the same value might be right.
            path: Where it stands in JSON.
            root: That JSON; None: it is none.
        """
        from lmlang.grammar.compiler import rules_of

        if self._place != (path, before):
            self._place, self._values = (path, before), []
        self._values.append(value)
        node = None if root is None else place_of(root, path)[1]
        if len(value) > LONGEST or (node is not None and node.kind in _BIG):
            return spec, True
        try:
            other = without(spec, self._values, path, root)
            if other is not None:
                rules_of(other)
        except (SchemaUnsupported, GrammarTooLarge):
            return spec, True
        except ConstraintError:
            return None, False
        return other, False


def without(
    spec: Spec, values: Sequence[str], path: Path = (), root: Node | None = None
) -> Spec | None:
    """A constraint that allows all but some values; None where it then allows nothing.

    Args:
        spec: Of the whole output.
        values: As they were written: texts, and of JSON strings, numbers and words.
        path: Keys and indices that lead to the value in JSON; () for all of it.
        root: The JSON that has it.
    """
    if isinstance(spec, Hole):
        return replace(spec, schema=_schema_without(spec.schema, values, path, root))
    if isinstance(spec, Regex):
        refused = "|".join(map(re.escape, values))
        return replace(spec, pattern=rf"(?!(?:{refused})\Z)(?:{spec.pattern})")
    if isinstance(spec, Choice):
        texts = tuple(text for text in spec.texts if text not in values)
        return replace(spec, texts=texts) if texts else None
    if isinstance(spec, Either):
        parts = [without(part, values) for part in spec.specs]
        left = tuple(part for part in parts if part is not None)
        return replace(spec, specs=left) if left else None
    return _schema_without(spec, values, path, root) if isinstance(spec, JsonSchema) else spec


def _schema_without(
    spec: JsonSchema, values: Sequence[str], path: Path, root: Node | None
) -> JsonSchema:
    constants = [value for value in values if _is_json(value)]
    if not constants:  # texts of another alternative
        return spec
    whole = json.loads(spec.text)
    found = _at(whole, whole, path, root)
    if isinstance(whole, dict) and "$defs" in whole:
        found = {**found, "$defs": whole["$defs"]}
    # Numbers stay as they are spelt, whatever Python would make of them.
    told = json.dumps(found).replace(json.dumps(_HERE), ", ".join(constants))
    return replace(spec, text=told)


def _at(whole: Any, schema: Any, path: Path, node: Node | None) -> Any:
    """A schema of which the value at the end of a path is not what stands `_HERE`."""
    if not path:
        refused: dict[str, Any] = {"enum": [_HERE]}
        if schema is True or schema is False:
            return {"not": refused} if schema else schema
        if "not" in schema:
            refused = {"anyOf": [schema["not"], refused]}
        return {**schema, "not": refused}
    if schema is False:
        return schema
    schema = {} if schema is True else schema
    if set(schema) - {"$defs"} == {"$ref"}:
        named = schema["$ref"].removeprefix("#/$defs/")
        return _at(whole, whole["$defs"][named], path, node)
    if "anyOf" in schema:
        return {**schema, "anyOf": [_at(whole, each, path, node) for each in schema["anyOf"]]}
    assert node is not None
    step, *rest = path
    inner = node.child(step)
    if isinstance(step, str):
        # Keys that no schema names come in the order in which they were written.
        others = schema.get("additionalProperties", True)
        named = schema.get("properties", {})
        named = {**named, **{key: others for key in node.members if key not in named}}
        return {**schema, "properties": {**named, step: _at(whole, named[step], (*rest,), inner)}}
    items = list(schema.get("prefixItems", []))
    items += [schema.get("items", True)] * (step + 1 - len(items))
    items[step] = _at(whole, items[step], (*rest,), inner)
    return {**schema, "prefixItems": items}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
