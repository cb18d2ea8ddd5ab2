"""Functions as tools: what a model is told of their parameters, and the calls that fit them.

    def add(a: int, b: int = 1) -> int: "Adds."     {"name": "add", "description": "Adds.", …}
    {"name": "add", "arguments": {"a": 2}}          add, {"a": 2}

Arguments are typed as fields of a TypedDict are: what cannot be generated is refused by the name of
the parameter and the function.
"""

from __future__ import annotations

import builtins
import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import core_schema, to_jsonable_python
from typing_extensions import NotRequired, TypedDict

from lmlang.errors import ConstraintError, ProgramTypeError, SchemaUnsupported, an, quote
from lmlang.grammar.type_schema import schema_of
from lmlang.grammar.types import _users_frame, spec_of

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of functions that models and their servers take."""
_KINDS = inspect.Parameter
_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*", re.IGNORECASE)
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_FIELD = re.compile(r":param\s+(?:[\w\[\], .|]+\s)?(\w+):\s*(.*)")


@dataclass(frozen=True, slots=True)
class Signature:
    """A function as a model is told of it.

    Args:
        name: Its name.
        description: What its docstring says before the parameters.
        arguments: A TypedDict of its parameters.
        schema: JSON Schema of them, for the model to read.
        positional: Names of the parameters that have to be given by their place.
    """

    name: str
    description: str
    arguments: Any
    schema: dict[str, Any]
    positional: tuple[str, ...]

    def definition(self) -> dict[str, Any]:
        """The tool as OpenAI's clients send it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.schema,
        }
        return {"type": "function", "function": function}


def signature_of(function: Callable[..., Any]) -> Signature:
    """What a model is told of a function.

    Raises:
        ProgramTypeError: It is none.
        SchemaUnsupported: A parameter has no type, or one that cannot be generated.
        ConstraintError: Its name is none for a tool, or a type names what is not defined.
    """
    if not callable(function) or isinstance(function, type):
        raise ProgramTypeError(
            f"a tool is a function, and this is {an(type(function).__name__)}: give a function "
            "whose parameters have types."
        )
    name = getattr(function, "__name__", "")
    if not NAME.fullmatch(name):
        raise ConstraintError(
            f"a tool needs a name of at most 64 letters, digits, '_' and '-', and this one has "
            f"{quote(str(name))}: write it with def."
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        raise ConstraintError(
            f"the tool {quote(name)} does not say which parameters it has, as some functions of "
            "other languages: write a function around it."
        ) from None
    hints = _hints(function, name)
    summary, told = _documented(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for parameter in parameters:
        hint = _checked(parameter, hints, name)
        fields[parameter.name] = hint if parameter.default is _KINDS.empty else NotRequired[hint]
    made: Any = TypedDict  # its name and fields are known only here
    arguments = made(name, fields)
    schema = _told_schema(arguments, parameters, {**told, **_annotated(hints)})
    positional = [p.name for p in parameters if p.kind is _KINDS.POSITIONAL_ONLY]
    return Signature(name, summary, arguments, schema, tuple(positional))


def calls_schema(
    signatures: Sequence[Signature],
    key: str,
    make: Callable[[Mapping[str, Any]], Any],
    generate: Callable[[Any], core_schema.CoreSchema],
) -> core_schema.CoreSchema:
    """Pydantic's schema of a call of one of some functions.

    Args:
        signatures: Theirs.
        key: Of the arguments in a call.
        make: The value of what was read.
        generate: Pydantic's, for a type.
    """
    calls: list[core_schema.CoreSchema] = [
        core_schema.typed_dict_schema(
            {
                "name": core_schema.typed_dict_field(core_schema.literal_schema([each.name])),
                key: core_schema.typed_dict_field(generate(each.arguments)),
            }
        )
        for each in signatures
    ]
    known = calls[0] if len(calls) == 1 else core_schema.union_schema(list(calls))
    return core_schema.no_info_after_validator_function(make, known)


def as_text(value: object) -> str:
    """What a function returned, for a model to read: a text as it is, all else as JSON.

    What has no JSON is told as Python prints it, and what cannot even be printed by its type.
    """
    try:
        text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    except Exception:  # of circles, of bytes, and whatever classes of the user's raise
        text = _printed(value, repr)
    return _readable(text)


def told_error(error: BaseException) -> str:
    """What a function raised, for a model to read: its type and its message."""
    return _readable(f"{type(error).__name__}: {_printed(error, str)}".rstrip(": "))


def _printed(value: object, how: Callable[[Any], str]) -> str:
    try:
        return how(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _readable(text: str) -> str:
    """A text of which a tokenizer can make something: no lone surrogates, as in names of files."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(value: object, whole: bool = False) -> Any:
    """A value as JSON has it: dataclasses, models, dates and the like by what they are made of.

    Args:
        value: The value.
        whole: Whether to raise ValueError for what has no JSON, and not to print it.
    """
    return to_jsonable_python(value, fallback=None if whole else str)


# ------------------------------------------------------------------------------- types


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """The types of its parameters, as they are meant where it was written."""
    inner = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    if not inspect.isfunction(inner):
        inner = getattr(inner, "func", None) or type(inner).__call__
    try:
        around = {**_around(inner), **_enclosed(inner)}
        return typing.get_type_hints(inner, localns=around, include_extras=True)
    except NameError as error:
        raise ConstraintError(
            f"the types of the tool {quote(name)} name {quote(str(error.name))}, which is not "
            "defined where it stands: define it at the level of the module."
        ) from None
    except (SyntaxError, TypeError, AttributeError) as error:  # of a type that is given as a text
        raise ConstraintError(
            f"the types of the tool {quote(name)} cannot be read ({quote(str(error))[1:-1]}): "
            "write each as a type."
        ) from None


def _around(function: Any) -> Mapping[str, Any]:
    """The names where the program names a tool, but for those that mean another thing in it.

    A function of a function may mean what stands around it there; others mean what their module
    does, whatever the program calls so.
    """
    frame = _users_frame()[0]
    known = getattr(function, "__globals__", {})
    if known is frame.f_globals and "<locals>" in function.__qualname__:
        return frame.f_locals
    own = known.keys() | vars(builtins).keys()
    return {name: value for name, value in frame.f_locals.items() if name not in own}


def _enclosed(function: Any) -> dict[str, Any]:
    """The names of the functions around one that it uses, as far as they are defined by now."""
    if not inspect.isfunction(function):
        return {}
    found = {}
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty one
            found[name] = cell.cell_contents
    return found


def _checked(parameter: inspect.Parameter, hints: Mapping[str, Any], name: str) -> Any:
    """The type of a parameter, of which values can be generated."""
    where = f"the parameter {quote(parameter.name)} of the tool {quote(name)}"
    if parameter.kind in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD):
        raise SchemaUnsupported(
            f"{where} takes any number of arguments, which a model cannot know of: name them one "
            "by one, or take a list or a dict."
        )
    if parameter.name not in hints:
        raise SchemaUnsupported(f"{where} has no type: annotate it, as in {parameter.name}: int.")
    hint = hints[parameter.name]
    try:
        spec_of(hint)
    except SchemaUnsupported as error:
        raise SchemaUnsupported(
            f"{where}: {error}", keyword=error.keyword, pointer=error.pointer
        ) from None
    except ConstraintError as error:
        raise type(error)(f"{where}: {error}") from None
    return hint


# ------------------------------------------------------------------------------- texts


def _told_schema(
    arguments: Any, parameters: Sequence[inspect.Parameter], told: Mapping[str, str]
) -> dict[str, Any]:
    """The JSON Schema of the parameters, with what is said of them and their defaults."""
    adapter: TypeAdapter[Any] = TypeAdapter(arguments)
    try:
        schema = _untitled(adapter.json_schema())
    except PydanticInvalidForJsonSchema:
        schema = schema_of(adapter.core_schema)
    properties = schema.setdefault("properties", {})
    for parameter in parameters:
        field = properties[parameter.name]
        if told.get(parameter.name):
            field.setdefault("description", told[parameter.name])
        if parameter.default is not _KINDS.empty:
            with suppress(Exception):  # one that has no JSON is the function's own affair
                told_as = plain(parameter.default)
                json.dumps(told_as)
                field.setdefault("default", told_as)
    return {"type": "object", **schema}


def _untitled(schema: Any, named: bool = False) -> Any:
    """A schema without the titles that pydantic makes of names; ``named``: its keys are names."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _untitled(value, not named and name in ("properties", "$defs"))
        for name, value in schema.items()
        if named or name not in ("title", "additionalProperties") or isinstance(value, dict)
    }


def _annotated(hints: Mapping[str, Any]) -> dict[str, str]:
    """What annotations say of parameters: ``Annotated[int, "…"]``, or pydantic's Field."""
    found = {}
    for name, hint in hints.items():
        for extra in getattr(hint, "__metadata__", ()):
            said = extra.description if isinstance(extra, FieldInfo) else extra
            if isinstance(said, str):
                found[name] = said
    return found


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says before its sections, and of each parameter."""
    lines = text.splitlines()
    summary: list[str] = []
    told: dict[str, str] = {}
    inside = ended = False
    at = ""
    indent = 0
    for line in lines:
        stripped = line.strip()
        field = _FIELD.match(stripped)
        if field is not None:
            told[field[1]], at, ended, inside = field[2], field[1], True, False
            continue
        if not line[:1].isspace() and stripped:
            inside = _SECTION.fullmatch(stripped) is not None
            ended = ended or inside or (stripped.endswith(":") and " " not in stripped)
            at, indent = "", 0
        elif inside and stripped:
            depth = len(line) - len(line.lstrip())
            indent = indent or depth
            entry = _ENTRY.match(stripped) if depth == indent else None
            if entry is not None:
                at = entry[1]
                told[at] = entry[2]
            elif at:
                told[at] += f" {stripped}"
        if not ended:
            summary.append(stripped)
    return "\n".join(summary).strip(), told
