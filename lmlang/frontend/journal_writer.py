"""The one thread that writes a journal: what waits is written together, then told to who waits.

put ──> queue ──> BEGIN, INSERT …, COMMIT ──> then(None)      on disk before anybody hears of it
                                       └────> then(error)     and nothing is written after that
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sqlite3
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from lmlang.errors import JournalError, fresh, quote

TOGETHER = 512
"""Pieces that one transaction has at most."""

_log = logging.getLogger("lmlang")


Then = Callable[[BaseException | None], None]
"""Is told that something has been written, or why not."""

working = threading.local()
"""``here``: whether this thread writes, opens or closes a journal, and so can wait for no other."""


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    statement: str
    key: bytes
    value: Callable[[], str]
    then: Then


class Writer:
    """Writes one journal. Thread-safe.

    Args:
        path: Of its file.
        connection: Of its own: nobody else uses it.

    Attributes:
        failure: Why nothing can be written any more.
    """

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self._path = path
        self._file = os.stat(path)
        self._connection = connection
        self._queue: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.failure: BaseException | None = None

    def put(self, statement: str, key: bytes, value: Callable[[], str], then: Then) -> None:
        """Have it written; ``then`` is called on the writer's thread, with what went wrong.

        So is ``value``, which spells what is to be written: whoever puts has no time for it. After
        `close` nothing is written, and ``then(None)`` is called at once: whoever asked has left.
        """
        with self._lock:
            closed = self._closed
            if not closed:
                self._queue.put(_Piece(statement, key, value, then))
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._loop, name="lmlang-journal", daemon=True
                    )
                    self._thread.start()
        if closed:
            then(None)

    def put_now(self, statement: str, key: bytes, value: str) -> None:
        """Have a text written and wait for that; raises what went wrong."""
        written: Future[None] = Future()

        def then(error: BaseException | None) -> None:
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error)

        self.put(statement, key, lambda: value, then)
        try:
            written.result()
        except JournalError as error:
            raise fresh(error) from None

    def close(self) -> None:
        """Write what waits and end. At the interpreter's exit there is no thread to wait for."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            if thread is not None:
                self._queue.put(None)
        if thread is not None and not sys.is_finalizing():
            thread.join()

    def _loop(self) -> None:
        working.here = True
        while True:
            pieces = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(pieces) < TOGETHER:
                    pieces.append(self._queue.get_nowait())
            spelt = []
            for piece in pieces:
                if piece is not None:
                    try:
                        spelt.append((piece, piece.value()))
                    except BaseException as error:  # its own; the others are written
                        _tell(piece, error)
            if spelt and self.failure is None:
                self.failure = self._written(spelt)
            for piece, _ in spelt:
                _tell(piece, self.failure)
            if None in pieces:
                return

    def _written(self, pieces: list[tuple[_Piece, str]]) -> BaseException | None:
        """Write pieces; what went wrong."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for piece, value in pieces:
                self._connection.execute(piece.statement, (piece.key, value))
            self._connection.execute("COMMIT")
            if not os.path.samestat(self._file, os.stat(self._path)):
                raise FileNotFoundError
        except FileNotFoundError:
            return JournalError(
                f"the journal {quote(self._path)} was deleted or replaced while it was being "
                "written: what came last is lost; run the batch again with a journal that stays."
            )
        except (sqlite3.Error, UnicodeError) as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            return journal_error(self._path, error)
        except BaseException as error:  # whatever it is, whoever waits must hear of it
            return error
        return None


def _tell(piece: _Piece, error: BaseException | None) -> None:
    try:
        piece.then(error)
    except Exception:
        _log.exception("a callback of a journal raised")


def journal_error(path: str, error: sqlite3.Error | UnicodeError) -> JournalError:
    """What SQLite says of a journal, with its mend."""
    said = "malformed text" if isinstance(error, UnicodeError) else str(error)
    told = next((mend for words, mend in _MENDS if words in said), "look at its disk")
    return JournalError(f"the journal {quote(path)}: {said}: {told}.")


_MENDS = (
    ("disk is full", "make room and run the batch again; what had been written stays"),
    ("readonly", "make the file and its folder writable, or give another file"),
    ("unable to open", "make the file and its folder writable, or give another file"),
    ("locked", "another program is writing it: close that, or give another file"),
    ("malformed", "the file is damaged: give another one"),
    ("no such table", "the file is damaged: give another one"),
    ("columns", "the file is damaged: give another one"),
    ("not a database", "it is no journal: give another file"),
)
"""What SQLite says, and what helps."""
