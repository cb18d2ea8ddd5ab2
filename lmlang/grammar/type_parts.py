"""The types of the parts of a typed value, and what reads one part by itself."""

from __future__ import annotations

import collections.abc
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from operator import getitem
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import NotRequired, ReadOnly, Required, is_typeddict

from lmlang.grammar.spec import is_spec

_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_MANY = (
    list, set, frozenset, collections.abc.Sequence, collections.abc.MutableSequence,
    collections.abc.Set, collections.deque, collections.abc.Iterable, collections.abc.Collection,
)  # fmt: skip


class Unread(Exception):
    """A part that is no value of its type by itself."""


def part_of(tp: Any, step: str | int) -> Any:
    """The type of the value that a key or an index leads to; Any where that is not sure."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin in (Annotated, NotRequired, Required, ReadOnly):
        return part_of(args[0], step)
    if origin in (typing.Union, types.UnionType):
        found = [part for part in (part_of(arg, step) for arg in args) if part is not None]
        return found[0] if len(found) == 1 else Any
    if isinstance(step, int):
        return _item(tp, origin or tp, args, step)
    return _member(tp, origin or tp, args, step)


def _item(tp: Any, origin: Any, args: tuple[Any, ...], step: int) -> Any:
    """The type of an item; None where it is no array."""
    if origin is tuple and args:
        if len(args) == 2 and args[1] is Ellipsis:
            return args[0]
        return args[step] if step < len(args) else None
    if isinstance(tp, type) and issubclass(tp, tuple) and hasattr(tp, "_fields"):
        return _hints(tp).get(tp._fields[step], Any) if step < len(tp._fields) else None
    if origin in _MANY:
        return args[0] if args else Any
    return None


def _member(tp: Any, origin: Any, args: tuple[Any, ...], step: str) -> Any:
    """The type of a member; None where it is no object, or has none of this name."""
    if origin in _MAPPINGS:
        return args[1] if len(args) == 2 else Any
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        for name, field in origin.model_fields.items():
            if step in (field.validation_alias or field.alias or name, name):
                metadata = tuple(field.metadata)
                return (
                    getitem(Annotated, (field.annotation, *metadata))
                    if metadata
                    else field.annotation
                )
        return None
    if is_dataclass(origin) or is_typeddict(origin):
        return _hints(origin).get(step)
    return None


@lru_cache(maxsize=256)
def _hints(tp: Any) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(tp, include_extras=True)
    except Exception:  # names that only the class's own module can look up
        return {}


def read_part(tp: Any, source: str) -> Any:
    """The value of a part's JSON text.

    Raises:
        Unread: It is none of its type.
    """
    try:
        adapter = _adapter(tp)
    except TypeError:  # metadata that cannot be hashed
        adapter = _adapter.__wrapped__(tp)
    if adapter is None:
        return json.loads(source)
    try:
        return adapter.validate_json(source)
    except ValidationError as error:
        raise Unread(str(error)) from None


@lru_cache(maxsize=512)
def _adapter(tp: Any) -> TypeAdapter[Any] | None:
    if tp is Any or tp is None or isinstance(tp, Mapping) or is_spec(tp):
        return None
    inner = typing.get_args(tp)[0] if typing.get_origin(tp) in (NotRequired, Required) else tp
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(inner)
    except Exception:  # a type that only the whole can be read with
        return None
    return adapter if adapter.pydantic_complete is True else None
