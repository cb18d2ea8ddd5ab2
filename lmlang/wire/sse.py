"""Server-sent events as they are read: bytes in whatever pieces to the data of whole events."""

from __future__ import annotations

from lmlang.errors import WireError

MAX_EVENT = 64 << 20
"""Bytes of one event: more than an output of a million tokens with all that can be asked of it."""


class EventReader:
    """Takes pieces of a stream and gives the data of each event that they complete.

    Comments, and fields other than ``data``, are skipped; lines end with LF or CR LF.

    Args:
        most: Bytes that an event may have.
    """

    def __init__(self, most: int = MAX_EVENT) -> None:
        self._most = most
        self._rest = bytearray()
        self._scanned = 0
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that are whole now.

        Raises:
            WireError: An event is larger than it may be.
        """
        self._rest += piece
        found: list[bytes] = []
        start = 0
        while (end := self._rest.find(b"\n", max(start, self._scanned))) >= 0:
            line = bytes(self._rest[start:end]).removesuffix(b"\r")
            start = end + 1
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data, self._size = [], 0
            self._check(self._size)
        del self._rest[:start]
        self._scanned = len(self._rest)
        self._check(self._size + self._scanned)
        return found

    def _check(self, size: int) -> None:
        if size > self._most:
            raise WireError(
                f"an event of the stream has more than {self._most:,} bytes: what lmlang sends is "
                "smaller."
            )
