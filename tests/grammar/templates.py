"""Rules of documents with holes: text that is fixed, and values that are free."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from lmlang.grammar.automaton import Automaton, Content, Leaving
from lmlang.grammar.grammar import Grammar
from lmlang.grammar.spec import Choice
from lmlang.grammar.vocabulary import Vocabulary

Part: TypeAlias = "bytes | str"
"""Fixed bytes; "string" for what stands between quotes, "digits" for digits, at least one."""

WIDE = 9
"""In a string: behind the first byte of an emoji."""


class Template:
    """Fixed parts and holes, one after the other; the key is the part and the place in it.

    In a string the place counts the bytes that are missing of a character (`WIDE` stands for
    three), in digits whether there are any.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(part for part in parts if part)

    def start(self) -> tuple[int, int]:
        return 0, 0

    def push(self, key: tuple[int, int], byte: int) -> tuple[int, int] | None:
        number, at = key
        if number == len(self.parts):
            return None
        part = self.parts[number]
        if isinstance(part, bytes):
            if part[at] != byte:
                return None
            return (number + 1, 0) if at + 1 == len(part) else (number, at + 1)
        if part == "digits":
            if 48 <= byte < 58:
                return number, 1
            return self.push((number + 1, 0), byte) if at else None
        if at == WIDE:
            return (number, 2) if 0x90 <= byte < 0xC0 else None
        if at:
            return (number, at - 1) if 0x80 <= byte < 0xC0 else None
        if byte == 34:
            return self.push((number + 1, 0), byte)
        if byte == 0xF0:
            return number, WIDE
        if byte >= 0xC2 and byte not in (0xE0, 0xED) and byte < 0xF4:
            return number, 1 + (byte >= 0xE0) + (byte >= 0xF0)
        return (number, 0) if 0x20 <= byte < 0x80 and byte != 92 else None

    def following(self, key: tuple[int, int]) -> bytes:
        return bytes(byte for byte in range(256) if self.push(key, byte) is not None)

    def accepting(self, key: tuple[int, int]) -> bool:
        return key[0] == len(self.parts) or (
            key == (len(self.parts) - 1, 1) and self.parts[-1] == "digits"
        )

    def completion(self, key: tuple[int, int]) -> bytes:
        number, at = key
        found = b""
        for part in self.parts[number:]:
            if isinstance(part, bytes):
                found += part[at:]
            elif part == "digits":
                found += b"" if at else b"0"
            else:
                found += b"\x90\x80\x80" if at == WIDE else b"\x80" * at
            at = 0
        return found

    def contents(self, key: Any) -> tuple[Content, ...]:
        return ()

    def leaving(self, key: Any) -> Leaving:
        return Leaving.UNKNOWN

    def asked(self, key: Any) -> frozenset[bytes]:
        return frozenset()

    def pointer(self, key: tuple[int, int]) -> str:
        return f"/{key[0]}"


def template_of(value: object, **style: Any) -> list[Part]:
    """A JSON document's template: its keys stay, strings and whole numbers are holes."""
    text = json.dumps(value, ensure_ascii=False, **style)
    parts: list[Part] = []
    at = last = 0
    decoder = json.JSONDecoder()
    while at < len(text):
        if text[at] == '"':
            end = decoder.raw_decode(text, at)[1]
            if text[end : end + 1] != ":" and "\\" not in text[at:end]:
                parts += [text[last : at + 1].encode(), "string"]
                last = end - 1
            at = end
        elif text[at].isdigit() and text[at - 1] in " :[,":
            end = at
            while text[end : end + 1].isdigit():
                end += 1
            if text[end : end + 1] in ("", ",", "}", "]", "\n"):
                parts += [text[last:at].encode(), "digits"]
                last = end
            at = end
        else:
            at += 1
    return [*parts, text[last:].encode()]


def template_grammar(parts: Sequence[Part], vocabulary: Vocabulary) -> Grammar:
    """The grammar of a template."""
    return Grammar(Choice(("any",)), vocabulary, Automaton(Template(parts)))
