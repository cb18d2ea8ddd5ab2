"""Python's types as constraints, and the values of what was generated under them.

    int, date, Literal, Enum, …    plain literals: 7  2024-02-29  red  True
    Union of such                  one of their literals
    str, everything structured     JSON, which pydantic reads

Two literals that would be spelled alike, as those of ``Literal[1, "1"]``, are written as JSON.
"""

from __future__ import annotations

import json
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation
from pydantic_core import SchemaError
from typing_extensions import NotRequired, Required, TypedDict, is_typeddict

from lmlang.errors import ConstraintError, SchemaUnsupported, quote
from lmlang.grammar import literals
from lmlang.grammar.refusals import has_validators
from lmlang.grammar.spec import Choice, Either, JsonSchema, Regex, Spec, Style, is_spec
from lmlang.grammar.type_core import Core, function_of
from lmlang.grammar.type_scalars import bounds_of, members, spelling
from lmlang.grammar.type_schema import Walk, schema_of

Reader: TypeAlias = Callable[[str], Any]
"""The value of a text; `ConstraintError` where it has none."""
Output: TypeAlias = tuple[Spec, Reader, bool]
"""The constraint of a type, what reads its values, whether validators may refuse them."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_NAMED = {"int": int, "float": float, "str": str, "bool": bool}
"""Types by the names that SGLang takes for them."""
_FUNCTIONS = ("function-before", "function-after", "function-wrap", "custom-error")
_OLD_TYPED_DICTS = sys.version_info < (3, 12)
"""Whether pydantic takes TypedDicts of typing_extensions only."""


def spec_of(tp: Any, *, json_style: Style = "line") -> Spec:
    """The constraint of a type: what is generated under it is read by `reader_of` the type.

    Args:
        tp: A type as annotations have it; a JSON schema as a dict; a spec.
        json_style: White space of what is written as JSON.

    Raises:
        SchemaUnsupported: A part of the type cannot be generated.
        ConstraintError: It is no type.
    """
    JsonSchema("true", json_style)  # which knows all styles, also where no JSON is written
    return _output(tp, json_style)[0]


def reader_of(tp: Any) -> Reader:
    """What makes values of a type of texts that its constraint allows.

    Raises:
        SchemaUnsupported: A part of the type cannot be generated.
        ConstraintError: It is no type.
    """
    return _output(tp, "line")[1]


def is_validated(tp: Any) -> bool:
    """Whether validators of the program's own may refuse values of a type."""
    return _output(tp, "line")[2]


def is_json(tp: Any) -> bool:
    """Whether all values of a type are written as JSON."""
    return isinstance(spec_of(tp), JsonSchema)


def _output(tp: Any, style: Style) -> Output:
    try:
        try:
            hash(tp)
        except TypeError:
            return _made(tp, style)
        if _names_a_type(tp):  # which may be another one at another place
            return _made(tp, style)
        # Unions are equal in any order, and not alike: the first member that fits is read.
        return _remembered(tp, style, repr(tp) if typing.get_args(tp) else "")
    except RecursionError:
        raise SchemaUnsupported("the type is nested too deep: make it of fewer levels.") from None


@lru_cache(maxsize=512)
def _remembered(tp: Any, style: Style, _: str) -> Output:
    return _made(tp, style)


def _made(tp: Any, style: Style) -> Output:
    if isinstance(tp, Mapping):
        return JsonSchema.of(tp, style), _json, False
    if is_spec(tp):
        return tp, _json if isinstance(tp, JsonSchema) else str, False
    tp = _NAMED.get(tp, tp) if isinstance(tp, str) else tp
    if _OLD_TYPED_DICTS:
        _teach(tp, set())
    spec, read = _plain(tp) or _structured(tp, style)
    return spec, read, has_validators(_adapter(tp).core_schema)


# ------------------------------------------------------------------------------------- JSON


def _structured(tp: Any, style: Style) -> tuple[Spec, Reader]:
    adapter = _adapter(tp)
    spec = JsonSchema.of(schema_of(adapter.core_schema), style)
    return spec, lambda text: _read(adapter, text, text, tp)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(
            f"the output {quote(text)} cannot be read as JSON: {error}."
        ) from None


def _read(adapter: TypeAdapter[Any], source: str, text: str, tp: Any) -> Any:
    """The value of JSON text; ``text`` is what was generated."""
    try:
        return adapter.validate_json(source)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        said = f"{quote(place)}: {first['msg']}" if place else first["msg"]
        raise ConstraintError(
            f"the output {quote(text)} is no {_name(tp)} ({said[:256]}): what validators of your "
            "own refuse no constraint can know; generate again, on a fork, which may fail without "
            "its state, or say it by a type."
        ) from error


# --------------------------------------------------------------------------- plain literals


@dataclass(frozen=True, slots=True)
class _Alternative:
    """One kind of literals: what they are, and the JSON of one (None for other texts)."""

    spec: Spec
    source: Callable[[str], str | None]


def _plain(tp: Any) -> tuple[Spec, Reader] | None:
    """A scalar or a union of scalars by their literals; None where JSON has to tell them apart."""
    found: list[tuple[TypeAdapter[Any], _Alternative]] = []
    options = typing.get_args(tp) if _is_union(tp) else (tp,)
    for option in options:
        adapter = _adapter(option)
        made = _alternatives(adapter.core_schema)
        if made is None:
            return None
        found += [(adapter, each) for each in made]
    choices = [each for _, each in found if isinstance(each.spec, Choice)]
    texts = [text for each in choices if isinstance(each.spec, Choice) for text in each.spec.texts]
    specs: list[Spec] = [each.spec for _, each in found if not isinstance(each.spec, Choice)]
    others = [each for _, each in found if not isinstance(each.spec, Choice)]
    if len(set(texts)) < len(texts) or any(each.source(t) for each in others for t in texts):
        return None
    if texts:
        specs.append(Choice(tuple(texts)))
    specs = list(dict.fromkeys(specs))

    def read(text: str) -> Any:
        refused: ConstraintError | None = None
        for adapter, alternative in found:
            source = alternative.source(text)
            if source is not None:
                try:
                    return _read(adapter, source, text, tp)
                except ConstraintError as error:  # another alternative may be meant
                    refused = refused or error
        raise refused or ConstraintError(
            f"the output {quote(text)} is no {_name(tp)}: this is an error of the backend, which "
            "did not keep the constraint."
        )

    return specs[0] if len(specs) == 1 else Either(tuple(specs)), read


def _alternatives(core: Core) -> list[_Alternative] | None:
    """The kinds of literals of a scalar; None for what is written as JSON, or for an empty text."""
    walk, whole = Walk(core), core
    while core["type"] in _FUNCTIONS or core["type"] == "definitions":
        if function_of(core) is not None:
            return None
        core = core["schema"]
    kind = core["type"]
    if kind == "definition-ref":
        return None
    if kind in ("nullable", "union"):
        parts = core["choices"] if kind == "union" else [core["schema"], {"type": "none"}]
        found: list[_Alternative] = []
        for part in parts:
            made = _alternatives(part[0] if isinstance(part, tuple) else part)
            if made is None:
                return None
            found += made
        return found
    if kind in ("int", "float", "decimal"):
        spec: Spec = JsonSchema.of(walk.schema(core))
        if kind != "decimal" and not bounds_of(core, walk.refusal):
            spec = Regex(literals.INTEGER if kind == "int" else literals.REAL)
        fits = _INTEGER if kind == "int" else _NUMBER
        return [_Alternative(spec, lambda text: text if fits.fullmatch(text) else None)]
    if kind == "str":
        return [_Alternative(JsonSchema.of(walk.schema(whole)), _quoted)]
    if kind in ("date", "datetime", "time", "timedelta", "uuid"):
        first, *more = spelling(core, walk.refusal)
        pattern = "".join([f"(?={each})" for each in more]) + first
        fits = re.compile(pattern)

        def source(text: str) -> str | None:
            return json.dumps(text) if fits.fullmatch(text) else None

        return [_Alternative(Regex(pattern), source)]
    if kind in ("bool", "none"):
        texts = {"bool": {"True": "true", "False": "false"}, "none": {"None": "null"}}[kind]
    elif kind in ("literal", "enum"):
        values = [value for value, _ in members(core, walk.refusal)]
        texts = {str(value): json.dumps(value) for value in values}
        if len(texts) < len(values) or "" in texts:
            return None
    else:
        return None
    return [_Alternative(Choice(tuple(texts)), texts.get)]


def _quoted(text: str) -> str | None:
    return text if text.startswith('"') else None


# -------------------------------------------------------------------------------- the types


def _adapter(tp: Any) -> TypeAdapter[Any]:
    """What pydantic knows of a type.

    Raises:
        SchemaUnsupported: It knows nothing; the message says which field is to blame.
        ConstraintError: The type names what is not defined, or is a value.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(tp, _parent_depth=_users_frame()[1])
        if not adapter.pydantic_complete:
            adapter.rebuild(force=True, raise_errors=True)
        return adapter
    except PydanticUndefinedAnnotation as error:
        raise ConstraintError(
            f"the type {_name(tp)} names {quote(str(error.name))}, which is not defined where it "
            "stands: define it at the level of the module"
            + (", or write regex=… where it is a pattern." if isinstance(tp, str) else ".")
        ) from None
    except RecursionError:
        raise
    except (
        PydanticUserError, SchemaError, TypeError, ValueError, RuntimeError, ImportError
    ) as error:  # fmt: skip
        where, blamed = _blamed(tp)
        why = "pydantic, which reads values, does not know it"
        if isinstance(error, ImportError):
            why = "pydantic reads it with a package that is not installed"
        elif not isinstance(error, PydanticSchemaGenerationError):
            lines = str(error).strip().split("\n")  # of a schema's error the last says why
            why = quote(lines[-1 if isinstance(error, SchemaError) else 0].strip())
        _check_a_type(blamed, where)
        raise SchemaUnsupported(
            f"{where} is of the type {_name(blamed)}, of which no text can be generated ({why}): "
            "take a type of those that the reference lists, or a pydantic model."
        ) from None


def _check_a_type(value: Any, where: str) -> None:
    """Refuse what is no type but shows which one is meant."""
    if isinstance(value, re.Pattern):
        mend = "write regex=… with what is in it, or lm.grammar.Regex(…)"
    elif isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        mend = f"give its class, {_name(type(value))}"
    elif isinstance(value, (list, tuple, set)):
        mend = "write list[T], or A | B for one of several; one of some texts is Literal[…]"
    elif isinstance(value, (bool, int)):
        mend = f"write {type(value).__name__}, or Literal[{value!r}] for this value alone"
    elif isinstance(value, (float, bytes)):
        mend = f"write {'float' if isinstance(value, float) else 'str'}"
    else:
        return
    raise ConstraintError(f"{where} is {_name(value)}, which is no type but a value: {mend}.")


def _users_frame() -> tuple[types.FrameType, int]:
    """The program's frame, whose own names annotations may use, and how many up it stands."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lmlang."):
        frame, depth = frame.f_back, depth + 1
    return frame, depth


def _blamed(tp: Any, where: str = "what is asked for") -> tuple[str, Any]:
    """The innermost part of a type that pydantic does not know, and where it stands."""
    args = typing.get_args(tp)
    if typing.get_origin(tp) is Annotated:
        args = args[:1]
    parts = [(where, part) for part in args if not isinstance(part, (str, int))]
    if isinstance(tp, type):
        with suppress(Exception):
            hints = typing.get_type_hints(tp, include_extras=True)
            parts += [(f"field `{name}` of `{tp.__name__}`", hint) for name, hint in hints.items()]
    for place, part in parts:
        try:
            TypeAdapter(part)
        except Exception:
            return _blamed(part, place)
    return where, tp


def _teach(tp: Any, seen: set[int]) -> None:
    """Tell pydantic how to read the TypedDicts of the standard library that a type is made of.

    Before Python 3.12 it takes those of typing_extensions only, which know more of themselves.
    """
    if id(tp) in seen:
        return
    seen.add(id(tp))
    parts = list(typing.get_args(tp))
    own = isinstance(tp, type) and type(tp).__module__ == "typing" and is_typeddict(tp)
    if own or is_dataclass(tp) or (isinstance(tp, type) and hasattr(tp, "_fields")):
        with suppress(NameError, TypeError):  # which pydantic then tells of
            local = _users_frame()[0].f_locals
            hints = typing.get_type_hints(tp, localns=local, include_extras=True)
            parts += hints.values()
            if own and "__get_pydantic_core_schema__" not in vars(tp):
                modern = _modern(tp, hints)
                tp.__get_pydantic_core_schema__ = classmethod(
                    lambda _, source, handler: handler.generate_schema(modern)
                )
    for part in parts:
        _teach(part, seen)


def _modern(tp: Any, hints: Mapping[str, Any]) -> Any:
    """A TypedDict of the standard library as one of typing_extensions."""
    fields = {}
    for name, hint in hints.items():
        kind = typing.get_origin(hint)
        inner = typing.get_args(hint)[0] if kind in (Required, NotRequired) else hint
        needed = kind is Required or (kind is not NotRequired and name in tp.__required_keys__)
        fields[name] = inner if needed else NotRequired[inner]
    return TypedDict(tp.__name__, fields)  # type: ignore[operator]


def _names_a_type(tp: Any) -> bool:
    """Whether a type is, or is made of, a name that is looked up where it stands."""
    if isinstance(tp, (str, typing.ForwardRef)):
        return tp not in _NAMED
    return typing.get_origin(tp) is not typing.Literal and any(
        map(_names_a_type, typing.get_args(tp))
    )


def _is_union(tp: Any) -> bool:
    return typing.get_origin(tp) in (typing.Union, types.UnionType)


def _name(tp: Any) -> str:
    named = tp.__name__ if isinstance(tp, type) and not typing.get_args(tp) else repr(tp)
    return quote(named.replace("typing.", ""))[1:-1]
