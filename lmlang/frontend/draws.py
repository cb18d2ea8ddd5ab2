"""Keys of draws: what a random choice depends on, and nothing else.

    draw key (64 bits) = blake2b(seed, row key, op path, sample)
    row key            = blake2b(canonical form of the arguments) + occurrence among equal rows

Every part is length-prefixed, so that no two different lists of parts read alike.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import struct
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from uuid import UUID

from lmlang import limits

MAX_DEPTH = 100
"""Containers nested deeper than this (or in themselves) have no canonical form."""


class NoCanonicalForm(Exception):
    """A value that has no canonical form, such as an open file."""


def draw_key(seed: int, row_key: bytes, op_path: str, sample: int = 0) -> int:
    """The 64-bit key that a generation's noise is drawn with."""
    parts = (_integer(seed), row_key, op_path.encode(), _integer(sample))
    return int.from_bytes(hashlib.blake2b(_joined(parts), digest_size=8).digest(), "little")


def fresh_seed() -> int:
    """A seed that nobody chose, from the operating system's randomness."""
    return secrets.randbelow(limits.MAX_SEED + 1)


def digest(value: object) -> bytes:
    """16 bytes that stand for a value.

    Raises:
        NoCanonicalForm: It has none.
    """
    return hashlib.blake2b(canonical(value), digest_size=16).digest()


def numbered(kind: str, body: bytes, number: int) -> bytes:
    """A row key: ``kind`` keeps the ways in which rows get their keys apart."""
    return _joined((kind.encode(), body, _integer(number)))


def canonical(value: object, depth: int = 0) -> bytes:
    """The canonical form of None, bool, int, float, str, bytes, Enum, containers, dataclasses.

    So have pydantic models, dates and times, Decimal, UUID and paths. Equal values of equal types
    have equal forms whatever the order of a dict or set; values of different types have different
    forms.

    Raises:
        NoCanonicalForm: A value of another type, or nested deeper than 100.
    """
    if depth > MAX_DEPTH:
        raise NoCanonicalForm("nested too deep")
    kind, parts = _parts(value, depth + 1)
    return _joined((kind.encode(), *parts))


def _parts(value: object, depth: int) -> tuple[str, list[bytes]]:
    if value is None:
        return "none", []
    if isinstance(value, Enum):
        if value.name is None:  # as flags may have that are none or several members
            return f"enum {_type_name(value)}", [b"", canonical(value.value, depth)]
        return f"enum {_type_name(value)}", [value.name.encode()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return f"dataclass {_type_name(value)}", _pairs(fields, depth)
    fields_of_model = getattr(type(value), "__pydantic_fields__", None)
    if isinstance(fields_of_model, dict):
        held = {name: getattr(value, name, None) for name in fields_of_model}
        held |= getattr(value, "__pydantic_extra__", None) or {}
        return f"model {_type_name(value)}", _pairs(held, depth)
    if isinstance(value, bool):
        return "bool", [b"1" if value else b"0"]
    if isinstance(value, int):
        return _type_name(value), [_integer(value)]
    if isinstance(value, float):
        return _type_name(value), [struct.pack("<d", value)]
    if isinstance(value, str):
        return _type_name(value), [value.encode("utf-8", "surrogatepass")]
    if isinstance(value, bytes):
        return _type_name(value), [bytes(value)]
    if isinstance(value, (list, tuple)):
        return _type_name(value), [canonical(item, depth) for item in value]
    if isinstance(value, Mapping):
        return _type_name(value), _pairs(value, depth)
    if isinstance(value, (set, frozenset)):
        return _type_name(value), sorted(canonical(item, depth) for item in value)
    if isinstance(value, (datetime, time)):
        # Two zones may agree about a moment, and a clock that is put back shows an hour twice.
        told = f"{value.isoformat()} {value.tzinfo} {value.fold}"
        return _type_name(value), [told.encode("utf-8", "surrogatepass")]
    if isinstance(value, (date, timedelta, Decimal, UUID, PurePath)):
        return _type_name(value), [str(value).encode("utf-8", "surrogatepass")]
    raise NoCanonicalForm(f"{type(value).__name__} has no canonical form")


def _pairs(mapping: Mapping[object, object] | dict[str, object], depth: int) -> list[bytes]:
    return sorted(
        _joined((canonical(key, depth), canonical(item, depth))) for key, item in mapping.items()
    )


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _joined(parts: tuple[bytes, ...]) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
