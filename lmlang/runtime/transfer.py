"""Numbers on their way to a device: gathered in one buffer, sent in one copy.

    host     [ ids | positions | starts | ... | table ........ ]     pinned, where there is a GPU
                   │ send(): one copy, nobody waits for it
    device   [ ids | positions | starts | ... | table ........ ]

What `put` returns are views of the buffer on the device. On a CPU that is the host's.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lmlang.runtime.cache.radix import IntArray


class Buffer:
    """Words of a host, as narrow and as wide numbers; it holds none at first.

    Args:
        pinned: Whether a GPU may read them by itself.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self.words = 0
        self.hold(0)

    def hold(self, words: int) -> None:
        """Have at least so many int32; what is in there is lost where it had less."""
        if self.words and words <= self.words:
            return
        self.words = words + words % 2
        self.narrow = torch.empty(self.words, dtype=torch.int32, pin_memory=self._pinned)
        self.wide = self.narrow.view(torch.int64)
        self.narrow_array: IntArray = self.narrow.numpy()
        self.wide_array: IntArray = self.wide.numpy()


class Transfer:
    """One batch's whole numbers. What `put` returns may be read once `send` has been called.

    Args:
        words: int32 that it holds; a wide number takes two.
        device: Where they go.
        into: int32 [at least words] there, to be written; None for a new buffer.
        buffer: For a CPU: what earlier transfers in it have returned is overwritten. None for a new
            one.
    """

    def __init__(
        self,
        words: int,
        device: torch.device,
        into: Tensor | None = None,
        buffer: Buffer | None = None,
    ) -> None:
        # Pinned memory comes from torch's cache of it, which waits for the copy before it is
        # given out again.
        self._host = buffer or Buffer(pinned=device.type == "cuda")
        self._host.hold(words)
        self._there = into
        if into is None and device.type != "cpu":
            self._there = torch.empty(words, dtype=torch.int32, device=device)
        self.used = 0
        """Words that are taken."""

    def put(self, *parts: IntArray) -> Tensor:
        """int32 [n] of some arrays one behind the other."""
        start = self.used
        self.used = end = start + sum(map(len, parts))
        assert end <= self._host.words, "more numbers than the transfer was made for"
        if parts:
            np.concatenate(parts, out=self._host.narrow_array[start:end], casting="same_kind")
        there = self._host.narrow if self._there is None else self._there
        return there[start:end]

    def put_wide(self, *parts: IntArray) -> Tensor:
        """The same as int64."""
        start = -(-self.used // 2)
        end = start + sum(map(len, parts))
        self.used = 2 * end
        assert self.used <= self._host.words, "more numbers than the transfer was made for"
        if parts:
            np.concatenate(parts, out=self._host.wide_array[start:end])
        if self._there is None:
            return self._host.wide[start:end]
        return self._there[2 * start : 2 * end].view(torch.int64)

    def put_last(self, *parts: IntArray) -> Tensor:
        """As `put`, and the view reaches to the buffer's end, over what nobody has written."""
        start = self.used
        self.put(*parts)
        return (self._host.narrow if self._there is None else self._there)[start:]

    def send(self) -> None:
        """Copy it all, on the current stream; returns before it has arrived."""
        if self._there is not None:
            self._there[: self.used].copy_(self._host.narrow[: self.used], non_blocking=True)


def sent(numbers: IntArray, device: torch.device) -> Tensor:
    """An array as int64 on a device, by a transfer of its own."""
    transfer = Transfer(2 * len(numbers), device)
    there = transfer.put_wide(numbers)
    transfer.send()
    return there
