"""Types and their values as text for prompts: how a value is written, and what is asked for.

written(Person("Ann", 41), Person)     {"name": "Ann", "age": 41}
outline(Person)                        {"name": text, "age": integer}
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from pydantic import (
    AliasChoices,
    BaseModel,
    PydanticUserError,
    RootModel,
    TypeAdapter,
    ValidationError,
)
from pydantic.errors import PydanticInvalidForJsonSchema

from lmlang.errors import ConstraintError, quote
from lmlang.grammar.spec import JsonSchema, is_spec
from lmlang.grammar.types import is_json, reader_of

MAX_OUTLINE = 2_000
"""Characters of an outline; a type that needs more has none."""
MAX_DEPTH = 8
_WORDS = {
    "string": "text", "integer": "integer", "number": "number", "boolean": "true or false",
    "null": "null",
}  # fmt: skip


def written(value: Any, tp: Any) -> str:
    """A value as it is generated: JSON, or a plain literal.

    Args:
        value: An instance of the type, or what pydantic makes one of.
        tp: A type as `gen` takes it.

    Raises:
        ConstraintError: It is none of the type.
    """
    read = reader_of(tp)  # which teaches pydantic what it has to know of the type
    if isinstance(tp, Mapping) or is_spec(tp):
        text = value if isinstance(value, str) and not is_json(tp) else _json(value)
        read(text)
        return text
    adapter: TypeAdapter[Any] = TypeAdapter(tp)
    try:
        made = adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConstraintError(
            f"{quote(repr(value))[1:-1]} is none of the type"
            f"{f' ({quote(place)})' if place else ''}: {first['msg']}."
        ) from error
    data = _parts(made)
    texts = [_json(data)] if is_json(tp) else [str(data), _json(data)]
    for text in texts:
        with suppress(ConstraintError):
            if (found := read(text)) == made and type(found) is type(made):
                return text
    read(texts[0])
    return texts[0]


def _parts(value: Any) -> Any:
    """What JSON has for a value, under the keys that it is read from."""
    if isinstance(value, RootModel):
        return _parts(value.root)
    if isinstance(value, BaseModel):
        by_alias = type(value).model_config.get("validate_by_alias") is not False
        fields = type(value).model_fields.items()
        named = {_key(n, info if by_alias else None): getattr(value, n) for n, info in fields}
        return _parts({**named, **(value.model_extra or {})})
    if is_dataclass(value):
        infos = getattr(value, "__pydantic_fields__", {})
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return _parts({_key(name, infos.get(name)): getattr(value, name) for name in names})
    if isinstance(value, Mapping):
        keys = [_parts(key) for key in value]
        texts = [key if isinstance(key, str) else json.dumps(key) for key in keys]
        return dict(zip(texts, map(_parts, value.values()), strict=True))
    if isinstance(value, (list, tuple, Set, deque)):
        return [_parts(item) for item in value]
    if isinstance(value, Enum):
        return _parts(value.value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, timedelta):
        sign, size = ("-", -value) if value.days < 0 else ("", value)
        fraction = f".{size.microseconds:06}" if size.microseconds else ""
        return f"{sign}P{size.days}DT{size.seconds}{fraction}S"
    secret = getattr(value, "get_secret_value", None)
    return _ANY.dump_python(value, mode="json") if secret is None else _parts(secret())


def _key(name: str, field: Any) -> str:
    """The key that a field is read from."""
    alias = getattr(field, "validation_alias", None)
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return next((each for each in choices if isinstance(each, str)), name)


_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConstraintError(f"{quote(repr(value))[1:-1]} is no JSON: {error}.") from None


def outline(tp: Any) -> str:
    """What a type is, for a model to read; "" where that would be long or cannot be said."""
    if isinstance(tp, JsonSchema):
        schema: Any = json.loads(tp.text)
    elif isinstance(tp, Mapping):
        schema = tp
    elif is_spec(tp):
        return ""
    else:
        try:
            schema = TypeAdapter(tp).json_schema()
        except (PydanticInvalidForJsonSchema, PydanticUserError):
            return ""
    shown = _shown(schema, schema, 0)
    return shown if len(shown) <= MAX_OUTLINE else ""


def _shown(whole: Any, schema: Any, depth: int) -> str:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return "anything"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _shown(whole, whole.get("$defs", {}).get(name), depth + 1)
    if "const" in schema:
        return _json(schema["const"])
    if "enum" in schema:
        return " or ".join(map(_json, schema["enum"]))
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return " or ".join(
                dict.fromkeys(_shown(whole, each, depth + 1) for each in schema[keyword])
            )
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        named = schema["properties"].items()
        members = [_member(whole, name, each, depth) for name, each in named]
        return f"{{{', '.join(members)}}}"
    if kind == "object":
        return f"{{text: {_shown(whole, schema.get('additionalProperties'), depth + 1)}, …}}"
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items")]
        more = "" if "prefixItems" in schema else ", …"
        return f"[{', '.join(_shown(whole, each, depth + 1) for each in items)}{more}]"
    return str(schema.get("format") or _WORDS.get(str(kind), "anything"))


def _member(whole: Any, name: str, schema: Any, depth: int) -> str:
    said = schema.get("description") if isinstance(schema, Mapping) else None
    more = f" ({' '.join(str(said).split())})" if said else ""
    return f"{_json(name)}: {_shown(whole, schema, depth + 1)}{more}"
