"""A batch's journal: answers and whole rows by their keys, in an SQLite file that outlives crashes.

    answers   key of the pure request -> output or scores, as JSON
    rows      key of (version, row)   -> what the row came to, as JSON
    facts     "seed"                  -> the seed of the batch that began the journal

What is in it is JSON: reading a journal executes nothing. One process at a time has it; batches of
that process share it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from lmlang import limits
from lmlang.errors import JournalError, ProgramError, ProgramTypeError, an, fresh, quote
from lmlang.frontend import draws
from lmlang.frontend.interrupts import Held
from lmlang.frontend.journal_lock import Lock
from lmlang.frontend.journal_writer import Then, Writer, journal_error, working

VERSION = 1
"""Of the file; a reader refuses what it does not know."""
APPLICATION = 0x6C6D6A6C
"""Tells journals from other files of SQLite: "lmjl"."""
PATIENCE = 30.0
"""Seconds for which another program may lock the file."""

Table: TypeAlias = Literal["answers", "rows", "facts"]
_TABLES: tuple[Table, ...] = ("answers", "rows", "facts")
_READ = {table: f"SELECT value FROM {table} WHERE key = ?" for table in _TABLES}
_WRITE = {table: f"INSERT OR IGNORE INTO {table} VALUES (?, ?)" for table in _TABLES}
_SEED = b"seed"

_opening = threading.Lock()
_open: dict[str, Journal] = {}
"""The journals of this process that are open, by their paths."""
_of_the_parent: list[Journal] = []
"""What a fork has left here; to close it would disturb the process that has it."""


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    _of_the_parent.extend(_open.values())
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def checked_path(journal: object) -> str:
    """The path of a journal, if it is one; absolute, since the process may change its folder."""
    if not isinstance(journal, (str, os.PathLike)):
        raise ProgramTypeError(
            f"journal={quote(repr(journal))[1:-1]} is {an(type(journal).__name__)}: give the path "
            'of a file, as in journal="run.sqlite".'
        )
    path = os.fspath(journal)
    if not isinstance(path, str) or not path or "\0" in path or not _is_name(path):
        raise ProgramError(
            f'journal={quote(str(path))} is no path: give one, as in journal="run.sqlite".'
        )
    return os.path.realpath(path)


def _is_name(path: str) -> bool:
    """Whether a file can have this name, and SQLite open it."""
    try:
        return bool(path.encode())
    except UnicodeEncodeError:
        return False


class Journal:
    """An open journal. Thread-safe.

    Args:
        path: Of its file, as `checked_path` returns it; made where there is none, mode 0600.

    Raises:
        JournalError: It is none, is in use, of another version, or cannot be read or written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._users = 0
        self._reading = threading.Lock()
        with contextlib.ExitStack() as undo:
            try:
                _make(path)
                self._lock = Lock(path)
                undo.callback(self._lock.release)
                self._reader = _connected(path)
                undo.callback(self._reader.close)
                _prepare(path, self._reader)
                writing = _connected(path)
                undo.callback(writing.close)
                writing.execute("PRAGMA synchronous = NORMAL")  # outlives the process at once
                self._writer = Writer(path, writing)
            except (sqlite3.Error, UnicodeError) as error:
                raise journal_error(path, error) from error
            except OSError as error:
                raise JournalError(
                    f"the journal {quote(path)} cannot be written: {error.strerror}: make its "
                    "folder, and it, writable, or give another file."
                ) from error
            self._undo = undo.pop_all()

    def get(self, table: Table, key: bytes) -> str | None:
        """What stands under a key; None: nothing.

        Raises:
            JournalError: Nothing can be read, or written any more.
        """
        if self._writer.failure is not None:
            raise fresh(self._writer.failure)
        try:
            with self._reading:
                found = self._reader.execute(_READ[table], (key,)).fetchall()
        except (sqlite3.Error, UnicodeError) as error:
            raise journal_error(self.path, error) from error
        return str(found[0][0]) if found else None

    def put(self, table: Table, key: bytes, value: Callable[[], str], then: Then) -> None:
        """Write it and call ``then``, on a thread of the journal's own (see `Writer.put`)."""
        self._writer.put(_WRITE[table], key, value, then)

    def put_now(self, table: Table, key: bytes, value: str) -> None:
        """Write it and wait for that.

        Raises:
            JournalError: It cannot be written.
        """
        self._writer.put_now(_WRITE[table], key, value)

    def seed(self, given: int | None) -> int:
        """The seed of a batch: the given one, else that of the batch that began the journal."""
        if self.get("facts", _SEED) is None:
            self.put_now("facts", _SEED, str(draws.fresh_seed() if given is None else given))
        if given is not None:
            return given
        stored = self.get("facts", _SEED)
        assert stored is not None
        try:
            return limits.integer("seed", int(stored), 0, limits.MAX_SEED)
        except (ValueError, ProgramError):
            raise damaged(self.path, "its seed is none") from None

    def check(self) -> None:
        """Raise what has kept the journal from being written."""
        if self._writer.failure is not None:
            raise fresh(self._writer.failure)

    def _close(self) -> None:
        self._writer.close()
        self._undo.close()


def damaged(path: str, how: str) -> JournalError:
    """What to raise where something stands in a journal that nobody has written there."""
    return JournalError(f"the journal {quote(path)} is damaged ({how}): give another file.")


class opened:  # noqa: N801 - read as a verb
    """``with opened(path) as journal:`` has a journal; the last of its users closes it.

    Raises:
        JournalError: As of `Journal`.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> Journal:
        with _alone():
            journal = _open.get(self._path)
            if journal is None:
                journal = _open[self._path] = Journal(self._path)
            journal.check()
            journal._users += 1
            self._journal = journal
            return journal

    def __exit__(self, *_: object) -> None:
        if not getattr(working, "here", False):
            self._leave()
            return
        # The garbage of a lazy batch, collected on a thread that this would wait for.
        with contextlib.suppress(RuntimeError):  # at the interpreter's exit none begins
            threading.Thread(target=self._leave, name="lmlang-journal-end", daemon=True).start()

    def _leave(self) -> None:
        with Held(), _alone():
            self._journal._users -= 1
            if not self._journal._users and _open.get(self._path) is self._journal:
                del _open[self._path]
                self._journal._close()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One thread at a time opens and closes journals."""
    working.here = True
    try:
        with _opening:
            yield
    finally:
        working.here = False


def _make(path: str) -> None:
    """Make the file where there is none; raises where it cannot be written or is of another kind.

    Nothing of a file that is there is changed.
    """
    if os.path.isdir(path):
        raise JournalError(f"the journal {quote(path)} is a folder: give the path of a file.")
    if not os.path.isdir(os.path.dirname(path)):
        raise JournalError(f"the journal {quote(path)} would lie in no folder: make that first.")
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
    try:
        head = os.read(file, 16)
    finally:
        os.close(file)
    if head and head != b"SQLite format 3\0":
        raise JournalError(
            f"{quote(path)} is no journal, but a file of another kind: give another path."
        )


def _connected(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, PATIENCE, isolation_level=None, check_same_thread=False)


def _prepare(path: str, connection: sqlite3.Connection) -> None:
    """Make an empty file a journal; refuse what is none, or one of another version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION and (application or tables):
        raise JournalError(
            f"{quote(path)} is no journal, but a database of another program: give another path."
        )
    if application == APPLICATION and version != VERSION:
        raise JournalError(
            f"the journal {quote(path)} has version {version}, and this lmlang reads version "
            f"{VERSION}: run it with the lmlang that wrote it, or give another file."
        )
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise JournalError(
            f"the journal {quote(path)} lies where SQLite can keep no write-ahead log: give a file "
            "on a disk of this machine."
        )
    if application != APPLICATION:
        connection.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            connection.execute(f"CREATE TABLE {table} (key BLOB PRIMARY KEY, value TEXT NOT NULL)")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
