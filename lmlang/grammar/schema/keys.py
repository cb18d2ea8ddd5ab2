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


def count(keys: tuple[bytes, ...], typed: bytes) -> int:
    """How many of some keys in ascending order begin so."""
    return bisect_left(keys, typed + b"\xff") - bisect_left(keys, typed)


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
