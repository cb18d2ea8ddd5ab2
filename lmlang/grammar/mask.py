"""The legal tokens of a state, as bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmlang.grammar.token_trie import Bits

MANY = 256
"""Tokens from which on they are marked all at once."""


def _counted_by_bits(words: Any) -> Any:
    return np.unpackbits(words.view(np.uint8))


_count = getattr(np, "bitwise_count", _counted_by_bits)  # of NumPy 2


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The legal tokens of a state.

    Args:
        bits: int32 [ceil(V / 32)], read-only: bit ``id % 32`` of the word ``id // 32``.
        count: How many are legal.
        owner: What made it.
    """

    bits: Bits
    count: int
    owner: object

    def __repr__(self) -> str:
        return f"<Mask of {self.count:,} tokens>"

    def allows(self, index: int) -> bool:
        """Whether a token is legal."""
        return 0 <= index < 32 * len(self.bits) and bool(self.bits[index >> 5] >> (index & 31) & 1)

    def ids(self) -> Any:
        """The legal ids in ascending order, int64."""
        flags = np.unpackbits(self.bits.view(np.uint8), bitorder="little")
        return np.flatnonzero(flags)


def counted(bits: Any) -> int:
    """How many are set."""
    return int(_count(bits.view(np.uint32)).sum())


def marked(
    bits: bytes, count: int, found: Sequence[int], taken: Iterable[int] = ()
) -> tuple[Bits, int]:
    """Bits with some more, read-only, and how many are set.

    Args:
        bits: Those that are set.
        count: How many these are.
        found: Tokens that are legal.
        taken: Tokens that are not, where they are not found.
    """
    data = bytearray(bits)
    for index in taken:
        data[index >> 3] &= ~(1 << (index & 7)) & 0xFF
        count -= 1
    if len(found) > MANY:
        many = np.frombuffer(data, dtype=np.uint8)
        places = np.array(found)
        np.bitwise_or.at(many, places >> 3, (1 << (places & 7)).astype(np.uint8))
        count, found = counted(many), ()
    for index in found:
        bit = 1 << (index & 7)
        if not data[index >> 3] & bit:
            data[index >> 3] |= bit
            count += 1
    made = np.frombuffer(data, dtype=np.int32).copy()  # an array of its own is one object
    made.flags.writeable = False
    return made, count
