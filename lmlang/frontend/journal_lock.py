"""One holder of a journal at a time, by a lock that ends with its process however that ends.

    run.sqlite       the journal
    run.sqlite-lock  locked by who writes it, and says who that is

The lock is the operating system's, on the file; a file that is left over locks nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from datetime import datetime

from lmlang.errors import JournalError, quote

SUFFIX = "-lock"
LONGEST = 200
"""Bytes of the file that are read."""
FAR = 1 << 20
"""The byte that is locked on Windows, where what is locked cannot be read."""


class Lock:
    """The lock of one journal; taken when made.

    Args:
        journal: The journal's path.

    Raises:
        JournalError: Another process has it.
        OSError: The file cannot be made.
    """

    def __init__(self, journal: str) -> None:
        self._path = journal + SUFFIX
        while True:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _lock(self._file)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                    os.close(self._file)
                    raise
                holder = os.read(self._file, LONGEST).decode("utf-8", "replace")
                os.close(self._file)
                raise _in_use(journal, holder) from None
            if self._is_there():
                break
            os.close(self._file)  # who had it took the file away as we opened it
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        holder = f"process {os.getpid()} on {socket.gethostname()} since {since}"
        try:
            os.ftruncate(self._file, 0)
            os.write(self._file, holder.encode())
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Let others have the journal. A second call does nothing."""
        if self._file < 0:
            return
        file, self._file = self._file, -1
        with contextlib.suppress(OSError):  # on Windows it can only be taken away once closed
            os.unlink(self._path)
        os.close(file)
        if sys.platform == "win32":
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _is_there(self) -> bool:
        """Whether what is locked is the file that others find under its name."""
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except FileNotFoundError:
            return False


def _in_use(journal: str, holder: str) -> JournalError:
    who = quote(holder)[1:-1] if holder.startswith("process ") else "another process"
    return JournalError(
        f"the journal {quote(journal)} is being written by {who}: wait for its end, or give "
        "another file."
    )


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        os.lseek(file, FAR, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        os.lseek(file, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
