"""Tokens to text as they come: whole characters only, stop strings found across token borders.

ids -> Detokenizer -> text that is final -> StopMatcher -> text that may be shown
                                                        -> the stop string, once
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from lmlang.runtime.tokenizer import Tokenizer


class Detokenizer:
    """One output's bytes as text; joined pieces equal ``tokenizer.decode`` of all its ids.

    A character whose bytes come in several tokens is held back until its last one. Not
    thread-safe; a new one for every output.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The new text that this token completes; "" for a control token."""
        return self._decoder.decode(self._bytes[token])

    def finish(self) -> str:
        """What is left at the end: "" or U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", True)


class StopMatcher:
    """Finds the first stop string in a stream of text and never lets a part of it through.

    The stop that is found is the one that ends first, the longest of those that end there; so it
    does not matter how the stream was cut. Not thread-safe; a new one for every output.

    Args:
        stops: Strings to look for, none of them empty; may be none at all.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._found: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more of the stream.

        Returns:
            The text that may be shown now, and the stop string if it is now complete; after
            that, what comes is ignored.
        """
        if self._found is not None:
            return "", self._found
        text = self._held + text
        ends = [
            (start + len(stop), -len(stop), stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if ends:
            end, _, self._found = min(ends)
            self._held = ""
            return text[: end - len(self._found)], self._found
        shown = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[shown:]
        return text[:shown], None

    def finish(self) -> str:
        """The text that was held back, at the end of a stream without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    start = max(0, len(text) - len(stop) + 1)
    while (start := text.find(stop[0], start)) >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0


def history(ids: Sequence[int], kept: str, tokenizer: Tokenizer) -> tuple[tuple[int, ...], str]:
    """Split an output that a stop string cut into whole tokens and text.

    Args:
        ids: Tokens of the output.
        kept: A beginning of ``tokenizer.decode(ids)``.
        tokenizer: The tokenizer of the ids.

    Returns:
        The tokens that lie fully in ``kept`` and end with a whole character, and the rest of
        ``kept``: the part of the token that was cut.
    """
    pieces = [tokenizer.token_bytes[index] for index in ids]
    raw = b"".join(pieces)
    cut = _byte_length(raw, len(kept))
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
