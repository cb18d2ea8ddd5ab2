"""Says in numbers that a forward pass has run out of memory."""

from __future__ import annotations

import re

import torch

from lmlang.errors import ModelError
from lmlang.runtime.device import free_bytes

_ASKED = re.compile(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]iB)", re.IGNORECASE)
"""As torch's allocators say it, on a CPU and on a GPU."""
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def out_of_memory(error: Exception, tokens: int, device: torch.device) -> ModelError | None:
    """What to tell those whose step failed so; None where the error is of another kind.

    Args:
        error: What the step raised.
        tokens: That the step computed.
        device: Whose memory it is.
    """
    allocators = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    if not allocators and not isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return None
    found = _ASKED.search(str(error))
    asked = ""
    if found is not None:
        asked = f" when it asked for {float(found[1]) * _UNITS[found[2].lower()]:,.0f} bytes"
    free = free_bytes(device)
    failure = ModelError(
        f"the forward pass of {tokens:,} tokens ran out of memory{asked}, and {free:,} bytes are "
        "free now: lower max_batch_tokens, or kv_tokens. The runtime goes on with other "
        "requests."
    )
    # Its traceback would keep every tensor of the step alive as long as the error is kept.
    failure.__cause__ = error.with_traceback(None)
    return failure
