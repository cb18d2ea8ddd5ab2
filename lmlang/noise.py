"""The noise of a draw: a pure function of key, index and token, the same in every implementation.

All words are 32-bit unsigned, * and + are mod 2^32:

    mix(x):  x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16
    a = mix(low(key) ^ mix(index ^ 0x9e3779b9))          b = mix(high(key) ^ mix(a + 0x85ebca6b))
    w = mix(mix(t ^ a) + b)                               one word for each token id t
    u = min((float32(w) + 0.5) * 2^-32, 1 - 2^-24)        in (0, 1)
    G = -log(-log1p(-u))                                  standard Gumbel noise

The vectorised form for tensors is `lmlang.kernels.sampling`; this one is for a few numbers.
Sources: Gumbel (1954), the Gumbel-max trick; Wellons, "Prospecting for Hash Functions" (2018),
for the constants of mix ("lowbias32").
"""

from __future__ import annotations

import math
import struct

_WORD = 0xFFFFFFFF


def mix(x: int) -> int:
    """The integer hash of one 32-bit word."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def draw_words(key: int, index: int) -> tuple[int, int]:
    """The words a and b of one draw.

    Args:
        key: 0 .. 2^64 - 1.
        index: The token's index in its output, 0 .. 2^32 - 1.
    """
    a = mix((key & _WORD) ^ mix(index ^ 0x9E3779B9))
    return a, mix((key >> 32) ^ mix((a + 0x85EBCA6B) & _WORD))


def gumbel(key: int, index: int, token: int) -> float:
    """The noise of one token id (or of one choice, by its number)."""
    a, b = draw_words(key, index)
    w = mix((mix(token ^ a) + b) & _WORD)
    u = min(_float32(_float32(w) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)
    return -math.log(-math.log1p(-u))


def _float32(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])
