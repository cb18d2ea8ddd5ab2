"""What pydantic knows of a type, as the JSON Schema of what is generated for it.

    TypeAdapter(type).core_schema ──walk──> JSON Schema, each node of a known kind

Everything that the schema lets through is parsed by pydantic, validators of the program's own
aside: so it is narrower than pydantic's own schema, and a kind that cannot be kept is refused by
the name of the type and the field that it stands in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from lmlang.grammar import literals, type_scalars, type_sets
from lmlang.grammar.quotes import SAID
from lmlang.grammar.type_core import Core, function_of, name_of, peeled
from lmlang.grammar.type_place import Place
from lmlang.grammar.type_scalars import Schema, bounds_of, exactly, members, spelling

_ADDRESSES = {IPv4Address: "ipv4", IPv6Address: "ipv6"}
_WITH_SETTINGS = ("model-fields", "dataclass-args", "dataclass", "typed-dict")
"""Kinds of classes that have settings of their own."""
_UNREADABLE = "no text of it can be generated"


def schema_of(core: Core) -> Schema:
    """The JSON Schema of a core schema.

    Raises:
        SchemaUnsupported: It holds what cannot be generated.
    """
    walk = Walk(core)
    found = walk.schema(core)
    return {**found, "$defs": walk.defs} if walk.defs else found


class Walk:
    """One core schema on its way to a JSON Schema.

    Attributes:
        defs: Schemas of definitions that have been met, by their names.
        refusal: Makes the error that says which part of which type is refused, and why.

    Inside of a set everything can be hashed; where so many of its items have to differ, each value
    has one spelling too.
    """

    def __init__(self, core: Core) -> None:
        self.defs: dict[str, Schema] = {}
        self._cores: dict[str, Core] = {}
        self._names: dict[tuple[str, tuple[Any, ...]], str] = {}
        self._place = Place()
        self.refusal = self._place.refusal
        if core["type"] == "definitions":
            self._cores = {each["ref"]: each for each in core["definitions"]}

    def schema(self, core: Core) -> Schema:
        """The schema of a node."""
        make = _KINDS.get(core["type"])
        if make is None:
            raise self.refusal(name_of(core), _UNREADABLE)
        return make(self, core)

    # --------------------------------------------------------------------------- layers

    def layer(self, core: Core) -> Schema:
        """A function, a default or an error around a schema; functions may refuse what it lets."""
        found = self.schema(core.get("json_schema_input_schema") or core["schema"])
        said = (core.get("metadata") or {}).get(SAID)
        if said is not None:
            return dict(said) if found == {"type": "string"} else {"allOf": [found, said]}
        function = function_of(core)
        if function is None:
            return found
        if isinstance(function, partial):
            more = type_scalars.bounds_around(function.keywords, self.refusal)
            return {"allOf": [found, more]} if more else found
        if not isinstance(function, type):
            owner = getattr(function, "__self__", None)
            cls = owner if isinstance(owner, type) else type(owner)
            if cls.__module__ == "pydantic.networks" and cls.__name__ == "EmailStr":
                return {"allOf": [found, type_scalars.email(core, self.refusal)]}
            if cls.__module__.startswith(("pydantic.types", "pydantic.networks", "pydantic_extra")):
                raise self.refusal(cls.__name__, _UNREADABLE)
        return found

    def plain_function(self, core: Core) -> Schema:
        """A function instead of a schema."""
        given = core.get("json_schema_input_schema")
        if given is None or given["type"] == "any":  # which is what none is taken for
            theirs = function_of(core) is not None
            why = _UNREADABLE if theirs else "a function of the program's own reads it"
            raise self.refusal(name_of(core), why)
        return self.schema(given)

    def lax(self, core: Core) -> Schema:
        """A type of the standard library that pydantic reads strings as."""
        strict = core["strict_schema"]
        cls = strict.get("python_schema", {}).get("cls")
        if cls is IPv6Address and self._place.once:
            return {"type": "string", "pattern": exactly(literals.IPV6_ONCE)}
        if cls in _ADDRESSES:
            return {"type": "string", "format": _ADDRESSES[cls]}
        if core["lax_schema"]["type"] == "function-plain":
            raise self.refusal(name_of({"type": "function", "cls": cls}), _UNREADABLE)
        return self.schema(core["lax_schema"])

    def definitions(self, core: Core) -> Schema:
        """A schema with named ones beside it."""
        self._cores.update((each["ref"], each) for each in core["definitions"])
        return self.schema(core["schema"])

    def reference(self, core: Core) -> Schema:
        """A named schema; it may be the one that this stands in."""
        target = self._cores[core["schema_ref"]]
        of_its_own = peeled(target)["type"] in _WITH_SETTINGS
        strings = () if of_its_own else tuple(self._place.strings.items())
        ref = (core["schema_ref"], (*strings, self._place.hashed, self._place.once))
        if ref not in self._names:
            base = re.sub(r"\W", "_", getattr(target.get("cls"), "__name__", "type"))
            name = base
            while name in self._names.values():
                name = f"{base}_{len(self._names)}"
            self._names[ref] = name
            self.defs[name] = {}
            self.defs[name].update(self.schema(target))
        return {"$ref": f"#/$defs/{self._names[ref]}"}

    # ------------------------------------------------------------------------ containers

    def scalar(self, core: Core) -> Schema:
        """A number, a string or what is written as one."""
        if core["type"] == "str":
            return self._string(core)
        if self._place.once and core["type"] in ("datetime", "time", "timedelta"):
            return type_scalars.text(core, self.refusal, True)
        if self._place.once:
            if core["type"] == "url":
                raise self.refusal("set of URL", "one of them may be written in several ways")
            type_sets.check_apart([core], self.refusal)
        return type_scalars.KINDS[core["type"]](core, self.refusal)

    def _string(self, core: Core) -> Schema:
        """A string, by what it says of itself and, where it is silent, by its class's settings."""
        own = {name: core[name] for name in core if core[name] is not None}
        return type_scalars.string({**self._place.strings, **own}, self.refusal)

    def anything(self, core: Core) -> Schema:
        """Any JSON; of what can be hashed."""
        if not self._place.hashed:
            return {}
        return {"type": ["string", "number", *(() if self._place.once else ("boolean",)), "null"]}

    def array(self, core: Core) -> Schema:
        """A list, or another kind of sequence."""
        self._place.check_hashed(core)
        return self._items(core)

    def _items(self, core: Core) -> Schema:
        most = [n for n in (core.get("max_length"), core.get("maxlen")) if n is not None]
        found: Schema = {"type": "array"}
        if "items_schema" in core:
            found["items"] = self.schema(core["items_schema"])
        found |= {"minItems": core["min_length"]} if core.get("min_length") else {}
        return found | ({"maxItems": min(most)} if most else {})

    def collection(self, core: Core) -> Schema:
        """A set; its items differ, and can be hashed."""
        items = core.get("items_schema", {"type": "any"})
        if core["type"] == "set":
            self._place.check_hashed(core)
        if self._place.once:
            why = "it may be written in any order, so that it cannot be told how many differ"
            raise self.refusal(f"{core['type']} in a set", why)
        with self._place.counted(core, str(core["type"])):
            return {**self._items({**core, "items_schema": items}), "uniqueItems": True}

    def tuple(self, core: Core) -> Schema:
        """A tuple, whose last item may be repeated."""
        items = [self.schema(item) for item in core["items_schema"]]
        at = core.get("variadic_item_index")
        found: Schema = {"type": "array"}
        if at is None:
            found |= {"prefixItems": items} if items else {}
            return found | {"items": False, "minItems": len(items), "maxItems": len(items)}
        if at != len(items) - 1:
            raise self.refusal("tuple", "only its last items may be any number")
        found |= {"prefixItems": items[:at]} if at else {}
        found |= {"items": items[at], "minItems": max(at, core.get("min_length") or 0)}
        most = core.get("max_length")
        return found | ({} if most is None else {"maxItems": most})

    def named_tuple(self, core: Core) -> Schema:
        """A tuple of which each item has a name and perhaps a default."""
        # Before 2.14 pydantic has the arguments of its class instead.
        cls = core["cls"] if "cls" in core else core["function"]
        if not (isinstance(cls, type) and issubclass(cls, tuple)):
            raise self.refusal(getattr(cls, "__name__", "call"), "it is called to be read")
        items, least = [], 0
        with self._place.inside(cls, None):
            for field in core["fields"] if "fields" in core else _arguments(core):
                with self._place.at(field["name"]):
                    items.append(self.schema(field["schema"]))
                least += self._place.once or field["schema"]["type"] != "default"
        prefix = {"prefixItems": items} if items else {}
        return {"type": "array", **prefix, "items": False, "minItems": least}

    def mapping(self, core: Core) -> Schema:
        """A dict, whose keys are strings in JSON."""
        self._place.check_hashed(core)
        found: Schema = {"type": "object"}
        if core["type"] == "counter":
            found["additionalProperties"] = {"type": "integer"}
        elif "values_schema" in core:
            found["additionalProperties"] = self.schema(core["values_schema"])
        with self._place.counted(core, self._place.hashed):
            names = self._keys(core["keys_schema"]) if "keys_schema" in core else {}
        found |= {"propertyNames": names} if names else {}
        found |= {"minProperties": core["min_length"]} if core.get("min_length") else {}
        most = core.get("max_length")
        return found | ({} if most is None else {"maxProperties": most})

    def _keys(self, core: Core) -> Schema:
        """The schema of keys that are read as a type."""
        if core["type"] == "model" and core["cls"].__hash__ is None:
            raise self.refusal(f"dict with keys of {name_of(core)}", "those cannot be hashed")
        core = peeled(core)
        if core["type"] == "definition-ref":
            core = peeled(self._cores[core["schema_ref"]])
        kind = core["type"]
        if kind == "any":
            return {}
        if kind == "str":
            return {name: each for name, each in self._string(core).items() if name != "type"}
        if kind == "bool":
            return {"enum": ["true", "false"]}
        if kind == "int" and not bounds_of(core, self.refusal):
            return {"pattern": exactly(literals.INTEGER)}
        if kind in ("date", "datetime", "time", "timedelta", "uuid"):
            patterns = spelling(core, self.refusal, self._place.once)
            return {"allOf": [{"pattern": exactly(each)} for each in patterns]}
        if kind in ("literal", "enum"):
            values = [value for value, _ in members(core, self.refusal)]
            numbers = kind == "enum" and core.get("sub_type") == "int"
            if all(isinstance(value, str) or numbers for value in values):
                return {"enum": [str(value) for value in values]}
        why = "bounds of them cannot be kept" if kind == "int" else "keys of JSON are strings"
        raise self.refusal(f"dict with keys of {name_of(core)}", why)

    def union(self, core: Core) -> Schema:
        """One of some types."""
        choices = [each[0] if isinstance(each, tuple) else each for each in core["choices"]]
        if self._place.hashed and any(peeled(choice)["type"] == "any" for choice in choices):
            return self.anything(core)  # which reads the others' texts too
        if self._place.once:
            type_sets.check_apart(choices, self.refusal)
        return _any_of([self.schema(choice) for choice in choices])

    def nullable(self, core: Core) -> Schema:
        """A type, or None."""
        return _any_of([self.schema(core["schema"]), {"type": "null"}])

    def tagged_union(self, core: Core) -> Schema:
        """One of some types, which a field of theirs tells apart and so is never left out."""
        told = core["discriminator"]
        if callable(told):
            raise self.refusal("a union", "a function of the program's own tells its members apart")
        paths = [told] if isinstance(told, str) else told
        names = [path[0] if isinstance(path, list) else path for path in paths]
        found = []
        for choice in core["choices"].values():
            keys = self._keys_of(choice)
            name = next((each for each in names if each in keys), names[0])
            made = self.schema(choice)
            required = [*made.get("required", ()), name]
            found.append({**made, "required": list(dict.fromkeys(required))})
        return _any_of(found)

    def _keys_of(self, core: Core) -> list[str]:
        """The keys of the objects that a member of a union is written as."""
        core = peeled(core)
        if core["type"] == "definition-ref":
            return self._keys_of(self._cores[core["schema_ref"]])
        if core["type"] == "tagged-union":
            return [k for choice in core["choices"].values() for k in self._keys_of(choice)]
        if core["type"] == "dataclass":
            core = peeled(core["schema"])
        fields = core.get("fields", {})
        pairs = fields.items() if isinstance(fields, dict) else ((f["name"], f) for f in fields)
        return [self._key(name, field, {}) for name, field in pairs]

    # --------------------------------------------------------------------------- objects

    def model(self, core: Core) -> Schema:
        """A pydantic model; one with a root is written as that."""
        with self._place.inside(core["cls"], core.get("config") or {}):
            inner = peeled(core["schema"])
            if inner["type"] != "model-fields":
                return self.schema(core["schema"])
            return self._object(inner["fields"].items(), inner, core.get("config") or {}, True)

    def dataclass(self, core: Core) -> Schema:
        """A dataclass, without the fields that it sets itself."""
        inner = peeled(core["schema"])
        pairs = [(f["name"], f) for f in inner["fields"] if f.get("init", True)]
        with self._place.inside(core["cls"], core.get("config") or {}):
            return self._object(pairs, core, core.get("config") or {}, True)

    def typed_dict(self, core: Core) -> Schema:
        """A TypedDict, whose keys may be missing as it says."""
        self._place.check_hashed(core)
        config = core.get("config") or {}
        with self._place.inside(core.get("cls") or dict, config):
            return self._object(core["fields"].items(), core, config, core.get("total", True))

    def _object(self, fields: Any, core: Core, config: Mapping[str, Any], total: bool) -> Schema:
        properties: Schema = {}
        required, names = [], []
        for name, field in fields:
            key = self._key(name, field, config)
            with self._place.at(name):
                properties[key] = self.schema(field["schema"])
            optional = field["schema"]["type"] == "default" and not self._place.once
            if not optional and field.get("required", total):
                required.append(key)
            names.append(name)
        extra = core.get("extra_behavior") or config.get("extra_fields_behavior")
        rest: Schema | bool = False
        if extra == "allow":
            more = core.get("extras_schema")
            rest = self.schema(more) if more else True
            # another name of a field is no extra key
            properties |= {name: False for name in names if name not in properties}
        found: Schema = {"type": "object", "properties": properties}
        found |= {"required": required} if required else {}
        return {**found, "additionalProperties": rest}

    def _key(self, name: str, field: Core, config: Mapping[str, Any]) -> str:
        """The key that a field is read from."""
        alias = field.get("validation_alias")
        if alias is None or config.get("validate_by_alias") is False:
            return name
        if isinstance(alias, str):
            return alias
        paths = alias if all(isinstance(path, list) for path in alias) else [alias]
        for path in paths:
            if len(path) == 1 and isinstance(path[0], str):
                return str(path[0])
        if config.get("validate_by_name") or config.get("populate_by_name"):
            return name
        with self._place.at(name):
            raise self.refusal("a path", "its alias is no key of this object alone")


def _arguments(core: Core) -> list[Core]:
    found: list[Core] = core["arguments_schema"]["arguments_schema"]
    return found


def _any_of(schemas: list[Schema]) -> Schema:
    found: list[Schema] = []
    for schema in schemas:
        if schema not in found or any(isinstance(v, bool) for v in schema.get("enum", ())):
            found.append(schema)
    return found[0] if len(found) == 1 else {"anyOf": found}


_KINDS: Mapping[str, Callable[[Walk, Core], Schema]] = {
    "function-before": Walk.layer,
    "function-after": Walk.layer,
    "function-wrap": Walk.layer,
    "function-plain": Walk.plain_function,
    "custom-error": Walk.layer,
    "default": Walk.layer,
    "json-or-python": lambda walk, core: walk.schema(core["json_schema"]),
    "lax-or-strict": Walk.lax,
    "definitions": Walk.definitions,
    "definition-ref": Walk.reference,
    "any": Walk.anything,
    **dict.fromkeys(type_scalars.KINDS, Walk.scalar),
    "list": Walk.array,
    "deque": Walk.array,
    "set": Walk.collection,
    "frozenset": Walk.collection,
    "tuple": Walk.tuple,
    "named-tuple": Walk.named_tuple,
    "call": Walk.named_tuple,
    "dict": Walk.mapping,
    "ordered-dict": Walk.mapping,
    "frozendict": Walk.mapping,
    "counter": Walk.mapping,
    "union": Walk.union,
    "nullable": Walk.nullable,
    "tagged-union": Walk.tagged_union,
    "model": Walk.model,
    "dataclass": Walk.dataclass,
    "typed-dict": Walk.typed_dict,
}
