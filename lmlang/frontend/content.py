"""The digest of a value's content: tuples, strings, numbers, None and dataclasses of these.

Equal values have equal digests (1, 1.0 and True are equal). Fields at their defaults are left out,
so that a new field with a default changes no digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import MISSING, fields


def content_digest(value: object) -> str:
    """SHA-256 of a value's content, as hexadecimal digits."""
    digest = hashlib.sha256()
    for part in _encoded(value):
        digest.update(part)
    return digest.hexdigest()


def _encoded(value: object) -> Iterator[bytes]:
    """The content as bytes that no other content has; a loop, so that depth costs no stack."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple):
            yield b"(%d:" % len(item)
            stack.extend(reversed(item))
        elif item is None:
            yield b"-"
        elif isinstance(item, str):
            body = item.encode("utf-8", "surrogatepass")
            yield b"s%d:%b" % (len(body), body)
        elif isinstance(item, int) or (isinstance(item, float) and item.is_integer()):
            yield b"i%x;" % int(item)
        elif isinstance(item, float):
            yield b"f" + struct.pack("<d", item)
        else:
            stack.append(_shown(item))


def _shown(item: object) -> tuple[object, ...]:
    given: list[object] = [type(item).__name__]
    for f in fields(item):  # type: ignore[arg-type]
        found = getattr(item, f.name)
        if f.compare and (f.default is MISSING or found != f.default):
            given += [f.name, found]
    return tuple(given)
