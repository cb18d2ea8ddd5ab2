"""Keys of objects as they are spelled: those that begin so, and those that come behind one."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator

from lmlang.grammar.language import Language, matching


def beginning(keys: tuple[bytes, ...], typed: bytes) -> Iterator[bytes]:
    """Those of some keys in ascending order that begin so."""
    at = bisect_left(keys, typed)
    while at < len(keys) and keys[at].startswith(typed):
        yield keys[at]
        at += 1


def any_begins(keys: tuple[bytes, ...], typed: bytes) -> bool:
    """Whether one of some keys in ascending order begins so."""
    at = bisect_left(keys, typed)
    return at < len(keys) and keys[at].startswith(typed)


def united(sets: list[bytes]) -> bytes:
    """The bytes of some sets, each in ascending order; the largest of them where it has all."""
    most = max(sets, key=len)
    if not any(some.translate(None, most) for some in sets if some is not most):
        return most
    return bytes(sorted(set().union(*sets)))


def above(last: bytes) -> Language:
    """All texts that come behind a spelled one, by code points."""
    text: str = json.loads(b'"%b"' % last)
    parts = [f"{_literal(text)}(?s:.+)"]
    for index, character in enumerate(text):
        code = ord(character)
        if code < 0x10FFFF:
            head = _literal(text[:index])
            parts.append(rf"{head}[\U{code + 1:08x}-\U0010ffff](?s:.*)")
    return matching("|".join(parts))


def _literal(text: str) -> str:
    return "".join(rf"\U{ord(character):08x}" for character in text)
