"""Journals that cannot be had, read or written: each says what is wrong, and loses nothing."""

import contextlib
import dataclasses
import gc
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

import lmlang as lm
from lmlang.frontend import journal as journals
from lmlang.testing import ScriptedBackend


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


def execute(path, *statement):
    """The rows that a statement gives, of a database that is then closed."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        return database.execute(*statement).fetchall()


@lm.function
def ask(s, question):
    s += f"Q: {question} A: " + lm.gen("answer", max_tokens=8)
    return s["answer"]


def run(path, count=2, backend=None, **keywords):
    rows = [(f"q{i}",) for i in range(count)]
    backend = ScriptedBackend() if backend is None else backend
    return list(ask.run_batch(rows, backend=backend, journal=path, **keywords))


@pytest.mark.parametrize("lazy", [False, True])
def test_a_path_that_is_no_journal_is_refused_and_left_as_it_is(tmp_path, lazy):
    text = tmp_path / "notes.txt"
    text.write_text("Dear diary, today " * 100)
    short = tmp_path / "short"
    short.write_bytes(b"SQLite")
    other = tmp_path / "other.sqlite"
    execute(other, "CREATE TABLE mine (x)")
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"SQLite format 3\0" + b"x" * 5_000)
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    for given, message in (
        (text, "is no journal, but a file of another kind"),
        (short, "is no journal, but a file of another kind"),
        (other, "is no journal, but a database of another program"),
        (broken, "it is no journal: give another file|the file is damaged"),
        (tmp_path, "is a folder: give the path of a file"),
        (tmp_path / "none" / "run.sqlite", "would lie in no folder: make that first"),
    ):
        backend = ScriptedBackend()
        with pytest.raises(lm.JournalError, match=message):
            run(given, backend=backend, generator_style=lazy)
        assert backend.requests == []
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_an_empty_file_becomes_a_journal(path):
    path.touch()
    run(path)
    backend = ScriptedBackend()
    run(path, backend=backend)
    assert backend.requests == []


def test_a_journal_of_another_version_is_refused(path):
    run(path)
    execute(path, "PRAGMA user_version = 9")
    with pytest.raises(lm.JournalError, match="has version 9, and this lmlang reads version 1"):
        run(path)


def test_what_nobody_wrote_into_a_journal_is_named(path):
    run(path, version="1")
    for table, value, message in (
        ("rows", "{}", r"is damaged \(a row is none: 'prompt'"),
        ("answers", '{"text": 1}', r"is damaged \(an answer is none: \$"),
        ("facts", "many", r"is damaged \(its seed is none\)"),
    ):
        execute(path, f"UPDATE {table} SET value = ?", (value,))
        with pytest.raises(lm.JournalError, match=message):
            run(path, version="1" if table == "rows" else None)
        execute(path, f"DELETE FROM {table}")
    assert len(run(path)) == 2


HOLDER = """
import sys, lmlang as lm
from lmlang.testing import ScriptedBackend

@lm.function
def hold(s, i):
    s += lm.gen("a", max_tokens=2)
    s.sync()
    print("held", flush=True)
    sys.stdin.read()

hold.run_batch([(1,)], backend=ScriptedBackend(), journal=sys.argv[1])
"""


def test_one_process_at_a_time_writes_a_journal_and_the_other_hears_which(path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        link = path.with_name("link.sqlite")
        link.symlink_to(path)
        for given in (path, link):
            with pytest.raises(
                lm.JournalError, match=f"is being written by process {holder.pid} on .* since 20"
            ):
                run(given)
        holder.kill()
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    assert len(run(path)) == 2  # what it left behind locks nothing


FORK = """
import os, sys
import lmlang as lm
from lmlang.frontend import journal

with journal.opened(sys.argv[1]):
    child = os.fork()
    if not child:
        code = 1
        try:
            with journal.opened(sys.argv[1]):
                code = 2
        except lm.JournalError as error:
            code = 0 if f"process {os.getppid()} on" in str(error) else 3
        finally:
            os._exit(code)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_child_of_a_fork_does_not_write_what_its_parent_has_open(path):
    command = [sys.executable, "-W", "ignore", "-c", FORK, path]
    assert subprocess.run(command, timeout=150).returncode == 0
    assert len(run(path)) == 2


@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_a_journal_that_is_deleted_meanwhile_ends_the_batch(path, on_error):
    backend = ScriptedBackend()

    @lm.function
    def program(s, i):
        if i == 2:
            path.unlink()
        s += f"{i}: " + lm.gen("a", max_tokens=2)
        return s["a"]

    with pytest.raises(lm.JournalError, match="was deleted or replaced while") as caught:
        program.run_batch(
            [(i,) for i in range(9)],
            backend=backend,
            journal=path,
            num_threads=1,
            on_error=on_error,
        )
    assert caught.value.partial.indices == (0, 1)
    assert len(backend.requests) == 3
    assert len(run(path)) == 2


def test_a_body_that_keeps_the_error_to_itself_ends_the_batch_too(path):
    @lm.function
    def program(s, i):
        path.unlink(missing_ok=True)
        s += f"{i}: " + lm.gen("a", max_tokens=2)
        try:
            s.sync()
        except lm.JournalError:
            return "kept to itself"

    with pytest.raises(lm.JournalError, match="was deleted"):
        program.run_batch([(1,)], backend=ScriptedBackend(), journal=path, on_error="return")


@pytest.fixture
def small_disk(monkeypatch):
    """Files that cannot grow beyond so many pages of 4 KiB."""
    connected = journals._connected

    def limited(path):
        connection = connected(path)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    pages = 12
    monkeypatch.setattr(journals, "_connected", limited)
    return monkeypatch


@pytest.mark.parametrize("on_error", ["raise", "return"])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_full_disk_ends_the_batch_and_keeps_what_was_written(path, small_disk, on_error, lazy):
    backend = ScriptedBackend(lambda prompt: prompt * 40)
    keywords = {"on_error": on_error, "num_threads": 1, "max_new_tokens": 400}

    @lm.function
    def long(s, i):
        s += f"{i}: " + lm.gen("a")

    rows = [(i,) for i in range(60)]
    with pytest.raises(lm.JournalError, match="disk is full: make room and run the batch") as error:
        list(long.run_batch(rows, backend=backend, journal=path, generator_style=lazy, **keywords))
    asked = len(backend.requests)
    assert 1 < asked < 60  # it ends with the first that cannot be kept
    assert isinstance(error.value.partial, lm.BatchResult)
    small_disk.undo()
    again = ScriptedBackend(lambda prompt: prompt * 40)
    result = long.run_batch(rows, backend=again, journal=path, **keywords)
    assert result.errors == {}
    assert len(again.requests) == 60 - (asked - 1)


@pytest.fixture
def folder():
    """A folder of somebody who may not do everything."""
    made = Path(tempfile.mkdtemp())
    try:
        if os.geteuid() == 0:
            os.chown(made, 65534, 65534)
            os.seteuid(65534)
        yield made
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        made.chmod(0o700)
        shutil.rmtree(made)


def test_files_and_folders_that_cannot_be_written_are_named(folder):
    path = folder / "run.sqlite"
    run(path)
    path.chmod(0o400)
    with pytest.raises(lm.JournalError, match="cannot be written: Permission denied: make its"):
        run(path)
    path.chmod(0o600)
    folder.chmod(0o500)
    for given in (path, folder / "new.sqlite"):
        with pytest.raises(lm.JournalError, match="cannot be written: Permission denied: make its"):
            run(given)
    folder.chmod(0o700)
    backend = ScriptedBackend()
    run(path, backend=backend)
    assert backend.requests == []
    assert [each.name for each in folder.iterdir()] == ["run.sqlite"]


def test_many_threads_wait_for_one_writer(path):
    found = run(path, count=300, num_threads=32)
    assert len({state["answer"] for state in found}) == 300
    assert execute(path, "SELECT count(*) FROM answers") == [(300,)]
    assert all(thread.name != "lmlang-journal" for thread in threading.enumerate())


class Collecting(str):
    """A path whose look-up collects garbage."""

    def __hash__(self):
        gc.collect()
        return super().__hash__()


@pytest.fixture
def garbage(path):
    """Makes garbage that has the journal open, which nobody but a test collects."""

    def make():
        held = []
        held += [held, run_lazily(path)]
        next(held[1])

    gc.disable()
    yield make
    gc.enable()


def run_lazily(path):
    rows = [(f"q{i}",) for i in range(9)]
    return ask.run_batch(rows, backend=ScriptedBackend(), journal=path, generator_style=True)


def test_a_batch_that_is_garbage_leaves_its_journal_on_whatever_thread(path, garbage):
    real = journals.checked_path(path)

    def left():
        for thread in threading.enumerate():
            if thread.name == "lmlang-journal-end":
                thread.join(60)
        return journals._open == {} and not os.path.exists(f"{path}-lock")

    garbage()
    written = Future()
    journals._open[real].put("facts", b"x", lambda: str(gc.collect()), written.set_result)
    written.result(60)  # on the journal's own thread
    assert left()
    garbage()
    with journals.opened(Collecting(real)):  # while another is opened
        pass
    assert left()
    assert len(run(path)) == 2


def test_an_answer_that_has_no_json_fails_alone(path):
    class Odd(ScriptedBackend):
        def _output(self, request):
            output = super()._output(request)
            odd = request.prompt.segments()[0].text.startswith("Q: q1")
            return dataclasses.replace(output, logprobs=(float("nan"),)) if odd else output

    found = ask.run_batch(
        [(f"q{i}",) for i in range(3)], backend=Odd(), journal=path, on_error="return"
    )
    assert list(found.errors) == [1]
    with pytest.raises(lm.BackendError, match=r"cannot be kept in a journal \(Out of range"):
        raise found.errors[1]


def test_pictures_are_parts_of_requests_and_not_of_rows(path):
    @lm.function
    def look(s, data):
        s += lm.user(lm.image(data) + "What is it?")
        s += lm.assistant(lm.gen("what", max_tokens=4))

    picture = b"\x89PNG\r\n\x1a\n" + b"0" * 40
    for data, asked in ((picture, 1), (picture, 0), (picture + b"1", 1)):
        backend = ScriptedBackend(vision=True)
        look.run_batch([(data,)], backend=backend, journal=path)
        assert len(backend.requests) == asked
    with pytest.raises(TypeError, match="version: the text of the program holds a picture"):
        look.run_batch(
            [(picture,)], backend=ScriptedBackend(vision=True), journal=path, version="1"
        )


def test_a_damaged_journal_is_told_or_does_no_harm(path):
    said = [state.ret_value for state in run(path, 9, seed=1, version="1")]
    good, luck = path.read_bytes(), random.Random(5)
    place = good.index(b"INTO") if b"INTO" in good else good.index(b"CREATE TABLE")
    damages = [good[:place] + b"\xff\x91\xe2" + good[place + 3 :]]  # which is text, and no UTF-8
    for _ in range(40):
        data = bytearray(good)
        for _ in range(luck.choice([1, 9, 200])):
            data[luck.randrange(len(data))] = luck.randrange(256)
        damages += [bytes(data), good[: luck.randrange(len(good))]]
    told = 0
    for number, data in enumerate(damages):
        damaged = path.with_name(f"{number}.sqlite")
        damaged.write_bytes(data)
        try:
            assert len(run(damaged, 9, seed=1, version="1")) == len(said)
        except lm.JournalError:
            told += 1
    assert told > len(damages) / 2


def test_rows_nested_too_deep_and_names_of_no_file_are_told(path):
    run(path, 1, seed=1, version="1")
    execute(path, "UPDATE rows SET value = ?", ("[" * 100_000,))
    with pytest.raises(lm.JournalError, match="is damaged"):
        run(path, 1, seed=1, version="1")
    with pytest.raises(lm.ProgramError, match="is no path: give one"):
        run(path.with_name("\udcff.sqlite"), 1)
