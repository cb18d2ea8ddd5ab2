"""Healing: a prompt's last token is taken back where a longer one of the vocabulary begins so.

"Hello wor"   [Hello][ wor]     " world" begins with " wor", so that token is taken back
[Hello]                         the output must begin with " wor": [ world], [ wor][th], [ w]…
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lmlang.protocol import Prompt, SamplingParams, Text
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Healing:
    """What an output has to begin with.

    Args:
        data: The bytes of the token that was taken back: whole characters.
        allowed: For each beginning of ``data``, by its length, the ids that may come behind it.
    """

    data: bytes
    allowed: tuple[IntArray, ...]


class Healer:
    """Says what is healed where. Thread-safe.

    Args:
        tokenizer: Whose vocabulary is searched; its tokens are sorted once, at the first question.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def healing(self, prompt: Prompt, ids: Sequence[int], params: SamplingParams) -> Healing | None:
        """What the output must begin with if the last id is taken back; None where none is.

        Args:
            prompt: The prompt.
            ids: Its tokens.
            params: Those of the output.
        """
        if not params.heal or not params.max_tokens or len(ids) < 2:
            return None
        data = self._tokenizer.token_bytes[ids[-1]]
        if not data or not _text_end(prompt, len(data)).endswith(data) or not _is_text(data):
            return None
        if all(len(self._vocabulary.pieces[at]) == len(data) for at in self._vocabulary.span(data)):
            return None
        ends = self._tokenizer.stop_ids | set(params.stop_token_ids)
        allowed: list[IntArray] = []
        for start in range(len(data) - 1, -1, -1):
            rest = data[start:]
            ids_here = [self._vocabulary.beginning_with(rest)]
            for length in range(1, len(rest)):
                if len(allowed[len(rest) - length - 1]):  # what then is left can be spelled
                    ids_here.append(self._vocabulary.equal_to(rest[:length]))
            allowed.append(_without(np.concatenate(ids_here), ends))
        return Healing(data, tuple(reversed(allowed))) if len(allowed[-1]) else None

    @cached_property
    def _vocabulary(self) -> _Vocabulary:
        return _Vocabulary(self._tokenizer.token_bytes)


class _Vocabulary:
    """Tokens in the order of their bytes, so that those with one beginning lie side by side."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        order = sorted(
            filter(token_bytes.__getitem__, range(len(token_bytes))), key=token_bytes.__getitem__
        )
        self.pieces = [token_bytes[index] for index in order]
        self._ids = np.array(order, dtype=np.int64)

    def span(self, prefix: bytes) -> range:
        """Places of the tokens that begin with some bytes."""
        behind = prefix.rstrip(b"\xff")
        start = bisect_left(self.pieces, prefix)
        if not behind:
            return range(start, len(self.pieces))
        return range(start, bisect_left(self.pieces, behind[:-1] + bytes([behind[-1] + 1]), start))

    def beginning_with(self, prefix: bytes) -> IntArray:
        """Ids of the tokens that begin with some bytes."""
        span = self.span(prefix)
        return self._ids[span.start : span.stop]

    def equal_to(self, piece: bytes) -> IntArray:
        """Ids of the tokens with just these bytes; mostly one."""
        start = end = bisect_left(self.pieces, piece)
        while end < len(self.pieces) and self.pieces[end] == piece:
            end += 1
        return self._ids[start:end]


def _text_end(prompt: Prompt, count: int) -> bytes:
    """Of the text that a prompt ends with at least the last ``count`` bytes, if it has so many."""
    end, node = b"", prompt
    while isinstance(node.segment, Text) and len(end) < count:
        end = node.segment.text.encode("utf-8", "replace") + end
        assert node.parent is not None
        node = node.parent
    return end


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _without(ids: IntArray, others: Iterable[int]) -> IntArray:
    return ids[~np.isin(ids, np.fromiter(others, dtype=np.int64))]
