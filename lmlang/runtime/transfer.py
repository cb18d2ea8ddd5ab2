"""Numbers on their way to a device: gathered in one buffer, sent in one copy.

    host     [ ids | positions | starts | ... | table ........ ]     pinned, where there is a GPU
                   │ send(): one copy, nobody waits for it
    device   [ ids | positions | starts | ... | table ........ ]

What `put` returns are views of the buffer on the device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lmlang.runtime.cache.radix import IntArray


class Transfer:
    """One batch's whole numbers. What `put` returns may be read once `send` has been called.

    Args:
        words: int32 that it holds; a wide number takes two.
        device: Where they go.
        into: int32 [at least words] there, to be written; None for a new buffer.
    """

    def __init__(self, words: int, device: torch.device, into: Tensor | None = None) -> None:
        # Pinned memory comes from torch's cache of it, which waits for the copy before it is
        # given out again.
        self._host = torch.empty(words, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._array = self._host.numpy()
        if into is not None:
            self._there = into
        elif device.type == "cpu":
            self._there = self._host
        else:
            self._there = torch.empty(words, dtype=torch.int32, device=device)
        self.used = 0
        """Words that are taken."""

    def put(self, *parts: IntArray) -> Tensor:
        """int32 [n] of some arrays one behind the other."""
        start, end = self._take(sum(map(len, parts)))
        np.concatenate([self._array[:0], *parts], out=self._array[start:end], casting="same_kind")
        return self._there[start:end]

    def put_wide(self, *parts: IntArray) -> Tensor:
        """The same as int64."""
        self.used += self.used % 2
        start, end = self._take(2 * sum(map(len, parts)))
        wide = self._array[start:end].view(np.int64)
        np.concatenate([wide[:0], *parts], out=wide)
        return self._there[start:end].view(torch.int64)

    def put_last(self, *parts: IntArray) -> Tensor:
        """As `put`, and the view reaches to the buffer's end, over what nobody has written."""
        start = self.put(*parts).storage_offset()
        return self._there[start:]

    def send(self) -> None:
        """Copy it all, on the current stream; returns before it has arrived."""
        if self._there is not self._host:
            self._there[: self.used].copy_(self._host[: self.used], non_blocking=True)

    def _take(self, words: int) -> tuple[int, int]:
        start = self.used
        self.used += words
        assert self.used <= len(self._array), "more numbers than the transfer was made for"
        return start, self.used


def sent(numbers: IntArray, device: torch.device) -> Tensor:
    """An array as int64 on a device, by a transfer of its own."""
    transfer = Transfer(2 * len(numbers), device)
    there = transfer.put_wide(numbers)
    transfer.send()
    return there
