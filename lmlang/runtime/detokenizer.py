"""Tokens to text as they come, whole characters only; and back, where a stop cut a token."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from lmlang.runtime.tokenizer import Tokenizer


class Detokenizer:
    """One output's bytes as text; joined pieces equal ``tokenizer.decode`` of all its ids.

    A character whose bytes come in several tokens is held back until its last one. Not
    thread-safe; a new one for every output.

    Args:
        tokenizer: The tokenizer of the ids.
        skip: Bytes at the beginning that are no part of the text: whole characters.
    """

    def __init__(self, tokenizer: Tokenizer, skip: int = 0) -> None:
        self._bytes = tokenizer.token_bytes
        self._held = b""
        self.skips = skip
        """Bytes that are still to be left out."""

    def push(self, token: int) -> str:
        """The new text that this token completes; "" for a control token."""
        data = self._bytes[token]
        if self.skips:
            left_out = min(self.skips, len(data))
            self.skips -= left_out
            data = data[left_out:]
        data = self._held + data
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def finish(self) -> str:
        """What is left at the end: "" or U+FFFD for a character that never became whole."""
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")


def history(
    ids: Sequence[int], kept: str, tokenizer: Tokenizer, skip: int = 0
) -> tuple[tuple[int, ...], str]:
    """Split an output that a stop cut into whole tokens and text.

    Args:
        ids: Tokens of the output.
        kept: A beginning of its text.
        tokenizer: The tokenizer of the ids.
        skip: Bytes of the tokens before that text: whole characters.

    Returns:
        The tokens that lie fully in ``kept`` and end with a whole character, and the rest of
        ``kept``: the part of the token that was cut. Tokens that do not reach ``kept`` are none.
    """
    pieces = [tokenizer.token_bytes[index] for index in ids]
    raw = b"".join(pieces)
    cut = skip + _byte_length(raw[skip:], len(kept))
    whole = end = 0
    while whole < len(pieces) and end + len(pieces[whole]) <= cut:
        end += len(pieces[whole])
        whole += 1
    front, start = whole, end
    # a character is at most 4 bytes: its beginning lies at most 3 before a border inside of it
    while front and end - start < 3 and start < cut and raw[start] & 0xC0 == 0x80:
        front -= 1
        start -= len(pieces[front])
    if not _begins_inside(raw[start:cut]):
        whole, end = front, start
    if end < skip:
        whole, end = 0, skip
    return tuple(ids[:whole]), raw[end:cut].decode("utf-8", "replace")


def _begins_inside(data: bytes) -> bool:
    return bool(data) and data[0] & 0xC0 == 0x80


def _byte_length(raw: bytes, characters: int) -> int:
    """Bytes of ``raw`` that its first characters take, broken UTF-8 read as U+FFFD."""
    at = 0
    while True:
        try:
            good, broken = raw[at:].decode(), 0
        except UnicodeDecodeError as error:
            good, broken = raw[at : at + error.start].decode(), error.end - error.start
        if characters <= len(good) or not broken:
            return at + len(good[:characters].encode())
        characters -= len(good) + 1
        at += len(good.encode()) + broken
