"""The meta-schemas of JSON Schema: what a schema itself must be, draft by draft.

A schema may refer to them as to any other resource; those of 2019-09 and 2020-12, which are
published in parts, stand in one here.
Source: json-schema.org, drafts 04, 06, 07, 2019-09 and 2020-12.
"""

from __future__ import annotations

from lmlang.grammar.schema.source import Value

_TYPES: list[Value] = ["array", "boolean", "integer", "null", "number", "object", "string"]
_TEXT: Value = {"type": "string"}
_FLAG: Value = {"type": "boolean"}
_NUMBER: Value = {"type": "number"}


def meta_schema(uri: str) -> Value | None:
    """The meta-schema of an identifier; None for others."""
    number = {
        "json-schema.org/draft-04/schema": 4,
        "json-schema.org/draft-06/schema": 6,
        "json-schema.org/draft-07/schema": 7,
        "json-schema.org/draft/2019-09/schema": 2019,
        "json-schema.org/draft/2020-12/schema": 2020,
    }.get(uri.removeprefix("http://").removeprefix("https://"))
    return None if number is None else _made(number, uri)


def _made(number: int, uri: str) -> Value:
    whole = {2019: {"$recursiveRef": "#"}, 2020: {"$dynamicRef": "#meta"}}
    schema: Value = whole.get(number, {"$ref": "#"})
    place = "#/definitions/" if number < 2019 else "#/$defs/"
    count = "positiveInteger" if number == 4 else "nonNegativeInteger"
    schemas: Value = {"type": "object", "additionalProperties": schema}
    some: Value = {"$ref": f"{place}schemaArray"}
    most: Value = {"$ref": f"{place}{count}"}
    least: Value = {"$ref": f"{place}{count}Default0"}
    names: Value = {"$ref": f"{place}stringArray"}
    kind: Value = {"$ref": f"{place}simpleTypes"}
    closed: Value = {"anyOf": [_FLAG, schema]} if number == 4 else schema
    reference = _of_format("uri-reference")
    by_pattern: Value = schemas
    if number > 6:
        by_pattern = {**schemas, "propertyNames": {"format": "regex"}}
    properties: dict[str, Value] = {
        "id" if number == 4 else "$id": _TEXT if number == 4 else reference,
        "$schema": _TEXT if number == 4 else _of_format("uri"),
        "title": _TEXT,
        "description": _TEXT,
        "default": {},
        "multipleOf": {"type": "number", **_above_0(number)},
        "maximum": _NUMBER,
        "exclusiveMaximum": _FLAG if number == 4 else _NUMBER,
        "minimum": _NUMBER,
        "exclusiveMinimum": _FLAG if number == 4 else _NUMBER,
        "maxLength": most,
        "minLength": least,
        "pattern": _of_format("regex"),
        "items": schema if number == 2020 else {"anyOf": [schema, some]},
        "maxItems": most,
        "minItems": least,
        "uniqueItems": _FLAG,
        "maxProperties": most,
        "minProperties": least,
        "required": names,
        "additionalProperties": closed,
        "definitions": schemas,
        "properties": schemas,
        "patternProperties": by_pattern,
        "dependencies": {"type": "object", "additionalProperties": {"anyOf": [schema, names]}},
        "enum": {"type": "array", "minItems": 1, "uniqueItems": True} if number < 7 else _list(),
        "type": {
            "anyOf": [kind, {"type": "array", "items": kind, "minItems": 1, "uniqueItems": True}]
        },
        "format": _TEXT,
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), some),
        "not": schema,
    }
    if number < 2020:
        properties["additionalItems"] = closed
    if number > 4:
        properties |= {"$ref": reference, "examples": _list(), "const": {} if number == 6 else True}
        properties |= dict.fromkeys(("contains", "propertyNames"), schema)
    if number > 6:
        properties |= dict.fromkeys(("if", "then", "else"), schema)
        properties |= dict.fromkeys(("readOnly", "writeOnly"), _FLAG)
        properties |= dict.fromkeys(("$comment", "contentMediaType", "contentEncoding"), _TEXT)
        properties["default"] = True
    found: dict[str, Value] = {"type": "object" if number == 4 else ["object", "boolean"]}
    if number == 4:
        found["dependencies"] = {f"exclusive{m}": [m.lower()] for m in ("Maximum", "Minimum")}
    if number > 7:
        properties |= _newer(number, schema, most, names)
        found |= {"$recursiveAnchor": True} if number == 2019 else {"$dynamicAnchor": "meta"}
    simple: dict[str, Value] = {"minItems": 1} if number == 4 else {}
    return {
        **found,
        "$schema": uri,
        "id" if number == 4 else "$id": uri,
        "definitions" if number < 2019 else "$defs": {
            "schemaArray": {"type": "array", "minItems": 1, "items": schema},
            count: {"type": "integer", "minimum": 0},
            f"{count}Default0": {"allOf": [most, {"default": 0}]},
            "simpleTypes": {"enum": _TYPES},
            "stringArray": {"type": "array", "items": _TEXT, "uniqueItems": True, **simple},
        },
        "properties": properties,
    }


def _newer(number: int, schema: Value, most: Value, names: Value) -> dict[str, Value]:
    """The keywords that came with 2019-09, and what has changed in others."""
    start = "[A-Za-z]" if number == 2019 else "[A-Za-z_]"
    anchor: Value = {
        "type": "string",
        "pattern": f"^{start}[-A-Za-z0-9.{':' if number == 2019 else ''}_]*$",
    }
    dynamic: dict[str, Value] = {"$recursiveRef": _of_format("uri-reference")}
    if number == 2019:
        dynamic["$recursiveAnchor"] = _FLAG
    else:
        dynamic |= {"$dynamicRef": _of_format("uri-reference"), "$recursiveAnchor": anchor}
        dynamic["$dynamicAnchor"] = anchor
        dynamic["prefixItems"] = {"$ref": "#/$defs/schemaArray"}
    return {
        **dynamic,
        "$id": {**_of_format("uri-reference"), "pattern": "^[^#]*#?$"},
        "$anchor": anchor,
        "$vocabulary": {
            "type": "object",
            "propertyNames": _of_format("uri"),
            "additionalProperties": _FLAG,
        },
        "deprecated": _FLAG,
        "maxContains": most,
        "minContains": most,
        "dependentRequired": {"type": "object", "additionalProperties": names},
        "$defs": {"type": "object", "additionalProperties": schema},
        "dependentSchemas": {"type": "object", "additionalProperties": schema},
        **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "contentSchema"), schema),
    }


def _above_0(number: int) -> dict[str, Value]:
    return {"minimum": 0, "exclusiveMinimum": True} if number == 4 else {"exclusiveMinimum": 0}


def _of_format(name: str) -> Value:
    return {"type": "string", "format": name}


def _list() -> Value:
    return {"type": "array", "items": True}
