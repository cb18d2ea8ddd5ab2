"""The tokens of a Hugging Face tokenizer, fast or slow, read from what it says of itself.

    byte-level     "ĠHello" is b" Hello": each character stands for a byte
    sentencepiece  "▁Hello" is b" Hello", "<0x0A>" is the byte 10

Which of the two it is, is tried with texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from lmlang.errors import ProgramError

Encode: TypeAlias = Callable[[str], Sequence[int]]

SPACE = "\u2581"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PROBES = ("a", " a", "{", "\n", '"b": 12', "the end.")
MARKS = ("\n", "\x02", ".", "|")
"""Texts that may stand before another one and be taken off its ids again."""


class Tokens(NamedTuple):
    """What `Vocabulary` is made of."""

    token_bytes: list[bytes]
    special_ids: set[int]
    stop_ids: set[int]
    encode: Encode


def tokens_of(tokenizer: Any) -> Tokens:
    """The tokens of a Hugging Face tokenizer.

    Raises:
        ProgramError: Its tokens do not spell the texts that it encodes.
    """
    added: dict[int, Any] = dict(getattr(tokenizer, "added_tokens_decoder", {}))
    size = max(len(tokenizer), 1 + max(added, default=-1))
    tokens: list[str | None] = list(tokenizer.convert_ids_to_tokens(list(range(size))))
    special = {index for index in tokenizer.all_special_ids if index is not None and index < size}
    special |= {index for index, token in added.items() if token.special and index < size}
    stops = {index for index in (getattr(tokenizer, "eos_token_id", None),) if index is not None}
    raw = _encoding(tokenizer)
    for spell in (_by_alphabet, _by_characters):
        pieces = [
            b""
            if token is None or index in special
            else str(token).encode()
            if index in added
            else spell(token)
            for index, token in enumerate(tokens)
        ]
        encode = _plain(raw, pieces)
        if all(_spells(encode, pieces, probe) for probe in PROBES):
            return Tokens(pieces, special, stops, encode)
    raise ProgramError(
        f"the tokens of this {type(tokenizer).__name__} do not spell the texts that it encodes, "
        "as those of byte-level and sentencepiece tokenizers do: outputs cannot be constrained "
        "with it; make a Vocabulary by hand if you know its bytes."
    )


def _spells(encode: Encode, pieces: Sequence[bytes], text: str) -> bool:
    return b"".join([pieces[index] for index in encode(text)]) == text.encode()


def _encoding(tokenizer: Any) -> Encode:
    """The tokenizer's encoding, without special tokens around it.

    That of a fast one is a copy: the settings of the original may change under our hands.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda text: list(tokenizer.encode(text, add_special_tokens=False))
    copy = type(backend).from_str(backend.to_str())
    copy.no_padding()
    copy.no_truncation()
    copy.encode_special_tokens = True  # what spells one is plain text
    return lambda text: list(copy.encode(text, add_special_tokens=False).ids)


def _plain(encode: Encode, pieces: Sequence[bytes]) -> Encode:
    """An encoding that writes no space before a text."""
    if all(_spells(encode, pieces, probe) for probe in PROBES):
        return encode
    for mark in MARKS:
        before = list(encode(mark))

        def behind(text: str, mark: str = mark, before: list[int] = before) -> list[int]:
            return list(encode(mark + text))[len(before) :]

        begins = all(list(encode(mark + probe))[: len(before)] == before for probe in PROBES)
        if begins and all(_spells(behind, pieces, probe) for probe in PROBES):
            return behind
    return encode


def _by_alphabet(token: str) -> bytes:
    alphabet = _byte_alphabet()
    if any(character not in alphabet for character in token):
        return token.encode()
    return bytes([alphabet[character] for character in token])


def _by_characters(token: str) -> bytes:
    match = BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(SPACE, " ").encode()


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins of the 256 bytes: character to byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}
