"""Makes KV pools: as many tokens as the memory that is free holds, or as many as are asked for."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from lmlang.errors import ModelError
from lmlang.runtime.cache.pool import KVPool, bytes_per_slot
from lmlang.runtime.device import free_bytes
from lmlang.runtime.shape import KVLayer

CPU_BYTES = 4 * 2**30
"""Of a pool in main memory at most, unless its size is asked for."""
LEAST = 256
"""Tokens below which no pool is made by itself, unless the model's context is shorter."""
MOST = (1 << 31) - 2
"""Tokens of a pool on a GPU: its kernels number them in 32 bits."""


def pool_tokens(
    kv_layers: Seq[KVLayer], dtype: torch.dtype, device: torch.device, fraction: float, context: int
) -> int:
    """Tokens whose keys and values fit a part of the memory that is free.

    Args:
        kv_layers: What the layers keep.
        dtype: Of keys and values.
        device: Whose memory.
        fraction: Of what is free.
        context: Of the model, its longest.

    Raises:
        ModelError: Too few for one context.
    """
    each, free = bytes_per_slot(kv_layers, dtype), free_bytes(device)
    room = free * fraction if device.type == "cuda" else min(free * fraction, CPU_BYTES)
    tokens = min(int(room) // each, MOST)
    least = min(LEAST, context)
    if tokens < least:
        raise ModelError(
            f"{free:,} bytes of memory are free on {device}, and memory_fraction={fraction:g} of "
            f"them holds the keys and values of {tokens:,} tokens of {each:,} bytes; one context "
            f"needs at least {least:,} ({least * each:,} bytes): free some memory, raise "
            "memory_fraction, or give a smaller dtype or model."
        )
    return tokens


def made_pool(
    parameter: str,
    kv_layers: Seq[KVLayer],
    tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    pinned: bool = False,
) -> KVPool:
    """A pool of so many tokens.

    Args:
        parameter: Whose value the number is, for the message.
        kv_layers: What the layers keep.
        tokens: How many.
        dtype: Of keys and values.
        device: Where they lie.
        pinned: Whether it is main memory that a GPU copies from and to by itself.

    Raises:
        ModelError: The memory is not there.
    """
    try:
        return KVPool(kv_layers, tokens, dtype, device, pinned=pinned)
    except RuntimeError as error:
        wanted = tokens * bytes_per_slot(kv_layers, dtype)
        raise ModelError(
            f"{parameter}: {tokens:,} tokens take {wanted:,} bytes, and {free_bytes(device):,} "
            f"bytes of memory are free on {device}: lower {parameter}."
        ) from error
