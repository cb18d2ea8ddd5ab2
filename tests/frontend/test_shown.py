"""What shows itself in notebooks and terminals: batches, programs, numbers, runs as they go on."""

import io
import json
import re
import struct
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang import markup
from lmlang.errors import BackendError
from lmlang.frontend import live, status_line
from lmlang.frontend import progress as progresses
from lmlang.frontend.progress import Progress
from lmlang.frontend.reuse import Reused
from lmlang.frontend.status_line import StatusLine
from lmlang.frontend.view_batch import page
from lmlang.protocol import CacheTree, TreeNode, Usage
from lmlang.runtime.metrics import Stats
from lmlang.testing import ScriptedBackend
from tests.frontend.html_pages import HIDDEN, checked_page
from tests.frontend.random_ir import programs

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J\u202e"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@lm.function
def ask(s, city):
    s += f"{city}: " + lm.gen("x", max_tokens=9)
    if city == "bad":
        raise ValueError(HOSTILE)


# ------------------------------------------------------------------------- pages


@settings(max_examples=40)
@given(programs())
def test_any_program_is_shown_as_it_prints(program):
    bundle = program._repr_mimebundle_()
    assert bundle["text/plain"] == lm.print_program(program).rstrip("\n")
    checked_page(bundle["text/html"])


values = st.none() | st.integers() | st.booleans() | st.text(max_size=30) | st.lists(st.text())


@given(st.dictionaries(st.text(max_size=5), st.lists(values, min_size=3, max_size=3), min_size=1))
def test_any_batch_is_a_page(columns):
    checked_page(page("head", (0, 1, 2), columns))


def test_a_batch_shows_its_rows_and_what_went_wrong():
    rows = [{"city": "<Oz>"}] * 40 + [{"city": "bad"}]
    result = ask.run_batch(rows, backend=ScriptedBackend(["a"] * 41), on_error="return", seed=1)
    bundle = result._repr_mimebundle_()
    shown = checked_page(bundle["text/html"])
    assert bundle["text/plain"] == str(result)
    assert shown.startswith("41 rows, 1 failed, ")
    assert "… 16 more rows" in shown
    assert shown.count("<Oz>") == 24
    assert "✗ ValueError: <img src=x onerror=alert(1)>\\x1b[2J\\u202e" in shown
    assert checked_page(page("none", (), {"error": ()})) == "nonerowerror"

    class Unshowable:
        def __str__(self):
            raise RuntimeError

    wide = {f"c{i}": [Unshowable()] for i in range(20)}
    shown = checked_page(page("wide", (7,), wide))
    assert "… 8 more columns: to_pandas() has all" in shown
    assert "<Unshowable>" in shown


def test_metadata_previews_and_stopped_traces_are_pages():
    backend = ScriptedBackend([HOSTILE])
    state = ask("Rome", backend=backend)
    meta = state.meta("x")._repr_mimebundle_()
    assert meta["text/plain"] == repr(state.meta("x"))
    assert "prompt_tokens6" in checked_page(meta["text/html"])
    preview = ask.preview(backend=ScriptedBackend(), city=HOSTILE)._repr_mimebundle_()
    shown = checked_page(preview["text/html"])
    assert "<img src=x onerror=alert(1)>\\x1b[2J\\u202e: " in shown
    assert "\x1b" not in preview["text/plain"]
    trace = ask.trace()
    assert trace.stopped is not None
    assert trace.stopped.reason in checked_page(trace._repr_mimebundle_()["text/html"])


def test_a_function_shows_how_it_was_written_and_runs_nothing():
    @lm.function
    def touchy(s, city: str, n=1):
        """Says <nothing>."""
        raise AssertionError

    found = touchy.options(temperature=0.5).bind(city=HOSTILE)
    bundle = found._repr_mimebundle_()
    assert bundle["text/plain"] == repr(found)
    shown = checked_page(bundle["text/html"])
    assert "program touchy(s, city: str, n=1)" in shown
    assert "Says <nothing>." in shown
    assert "temperature0.5" in shown
    assert "<img src=x" in shown


def test_a_program_that_cannot_be_printed_says_what_it_is():
    from lmlang.frontend import ir

    broken = ir.Program("p", (ir.Start(), ir.SetVar(0, 1, "x", float("inf"))))
    assert broken._repr_mimebundle_() == {"text/plain": repr(broken)}


def test_a_runtimes_numbers_are_a_page():
    stats = Stats(*range(23), 0.5, 1.25)
    bundle = stats._repr_mimebundle_()
    assert bundle["text/plain"] == str(stats)
    assert "forward_seconds0.500step_seconds1.250" in checked_page(bundle["text/html"])


nodes = st.builds(
    TreeNode,
    st.integers(0, 100),
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.text(st.characters(), max_size=90),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 9),
    st.sampled_from(["", "<b>"]),
)


@settings(max_examples=40)
@given(st.lists(nodes, max_size=300).map(tuple))
@example((TreeNode(0, (1,), "a\u202e\U000e0101\x1b[31m", 0, 0, 0, ""),))
def test_any_radix_tree_is_shown(found):
    tree = CacheTree(found)
    bundle = tree._repr_mimebundle_()
    assert bundle["text/plain"] == str(tree)
    assert not HIDDEN.search(str(tree))
    shown = checked_page(bundle["text/html"])
    assert shown.startswith(str(tree).split("\n")[0])
    assert any(node.in_use for node in found[:200]) <= ("●" in shown or "left out" in shown)


def test_pages_are_bounded_whatever_is_put_into_them():
    sheet = markup.Sheet(1_000)
    for _ in range(100):
        sheet.open("div", "x" * 30)
        sheet.add("<" * 30)
    for _ in range(100):
        sheet.close()
    assert not sheet.add("y")
    found = sheet.end("print() shows it")
    assert len(found.encode()) <= 1_000
    assert "left out: print() shows it" in checked_page(found)


# ------------------------------------------------------------------------- progress


def batch(monkeypatch, stream, **keywords):
    monkeypatch.setattr(sys, "stderr", stream)
    rows = [("a",), ("b",), ("bad",)]
    with ScriptedBackend() as backend:
        ask.run_batch(rows, backend=backend, progress_bar=True, on_error="return", **keywords)
    return stream.getvalue()


def test_a_plain_bar_is_written_over_in_a_terminal_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setenv("COLUMNS", "60")
    shown = batch(monkeypatch, Terminal(), seed=1, num_threads=1)
    frames = shown.rstrip("\n").split("\r")[1:]
    assert frames[-1].startswith("[██████████] 3/3 rows, ")
    assert "0% cached, 1 failed" in frames[-1]
    assert max(map(len, frames)) < 60
    assert shown.endswith("\n")


def test_tqdm_draws_in_terminals_with_the_same_numbers(monkeypatch):
    pytest.importorskip("tqdm")
    shown = batch(monkeypatch, Terminal(), seed=1)
    assert "3/3" in shown
    assert re.search(r"tokens/s, 0% cached, 1 failed", shown)


def test_a_file_has_whole_lines_and_a_closed_stream_ends_nothing(monkeypatch):
    shown = batch(monkeypatch, io.StringIO(), seed=1)
    assert shown.count("\n") == 1
    assert "\r" not in shown
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with ScriptedBackend() as backend:
        assert len(ask.run_batch([("a",)], backend=backend, progress_bar=True)) == 1
    monkeypatch.setattr(sys, "stderr", None)
    with ScriptedBackend() as backend:
        assert len(ask.run_batch([("a",)], backend=backend, progress_bar=True)) == 1


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=9), st.booleans())
def test_the_bar_says_what_has_ended(rows, known):
    progress = Progress(True, len(rows) if known else None)
    for tokens, failed in rows:
        progress.one_ended(Usage(100, tokens, 10, 0, 5), failed)
    text = progress.text()
    failures = sum(failed for _, failed in rows)
    assert (f"{failures} failed" in text) == bool(failures)
    count = len(rows)
    expected = f"{count}/{count} rows" if known else f"{count} row{'' if count == 1 else 's'}"
    assert expected in text
    assert ("50% forced" in text) == bool(rows)
    if rows:
        assert f"{sum(n for n, _ in rows) / (100 * count):.0%} cached" in text


@pytest.fixture
def hours(monkeypatch):
    """Sets the clock of progress: it has gone on for so many hours."""
    begun = time.monotonic()

    def passed(count):
        monkeypatch.setattr(progresses, "monotonic", lambda: begun + count * 3_600)

    passed(0)
    return passed


def test_the_time_that_is_left_goes_by_the_rows_that_have_ended(hours):
    progress = Progress(True, 4)
    hours(1)
    progress.one_ended()
    assert "[██········] 1/4 rows, 0 tokens/s, 3:00:00 left" in progress.text()


def test_rows_from_a_journal_are_neither_fast_nor_a_measure_of_the_others(hours):
    progress = Progress(True, 4)
    hours(1)
    progress.one_ended(Usage(100, 0, 7_200, 0, 0), reused=Reused(0, 1, 7_200))
    assert re.search(r"1/4 rows, 0 tokens/s.*, 7,200 tokens from the journal$", progress.text())
    progress.one_ended(Usage(100, 0, 7_200, 0, 0))
    assert re.search(r"2/4 rows, 2 tokens/s.* the journal, 2:00:00 left$", progress.text())


# ------------------------------------------------------------------------- as it goes on


def test_a_line_that_is_written_over_leaves_nothing_of_the_one_before(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "70")
    line = StatusLine()
    line.show("a long line 漢字")
    line.end("short")
    assert shown.getvalue() == f"\ra long line 漢字\rshort{' ' * 11}\n"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_live_run_is_a_line_on_the_error_stream(monkeypatch, capsys, stream):
    shown = stream()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "70")
    with ScriptedBackend([HOSTILE]) as backend:
        state = ask("Rome", backend=backend, show="live")
    text = shown.getvalue()
    assert state["x"] == HOSTILE[:9]
    assert "ask: 1/1 output, 9 tokens, " in text
    assert text.endswith("x: <img src=\n" if stream is io.StringIO else "\n")
    assert not HIDDEN.search(text.replace("\r", ""))
    assert ("\r" in text) == (stream is Terminal)
    assert capsys.readouterr().out == ""


def test_a_live_run_that_fails_says_so_and_streams_are_shown_too(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    with pytest.raises(BackendError):
        ask("Rome", backend=ScriptedBackend(fail_at=0), show="live")
    assert "ask: 0/1 output, 0 tokens" in shown.getvalue()
    assert "BackendError: call 0 was scripted to fail." in shown.getvalue()
    with ask.stream("Rome", backend=ScriptedBackend(["abc"]), show="live") as events:
        assert "".join(event.text for event in events) == "Rome: abc"
    for thread in threading.enumerate():
        if thread.name in ("lmlang-run", "lmlang-live"):
            thread.join(60)
    assert "x: abc" in shown.getvalue()


def test_a_process_that_ends_while_a_run_is_shown_ends_in_peace():
    code = (
        "import time, lmlang as lm\n"
        "from lmlang.testing import ScriptedBackend\n"
        "@lm.function\n"
        "def ask(s):\n"
        "    s += lm.gen('x')\n"
        "    s['x']\n"
        "    begun.set()\n"
        "    time.sleep(600)\n"
        "import threading\n"
        "begun = threading.Event()\n"
        "state = ask(backend=ScriptedBackend(['abc']), stream=True, show='live')\n"
        "begun.wait()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150
    )
    assert ended.returncode == 0
    assert ended.stdout == ""
    assert ended.stderr == "ask: 1/1 output, 4 tokens, x: abc\n"


def test_show_is_live_or_nothing_and_for_one_run():
    with pytest.raises(lm.ProgramError, match="show='bars': give \"live\" to see the run"):
        ask("Rome", backend=ScriptedBackend(), show="bars")
    with pytest.raises(lm.ProgramError, match="for a batch give progress_bar=True"):
        ask.run_batch([("a",)], backend=ScriptedBackend(), show="live")


def test_a_status_shows_the_newest_text_within_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    with ScriptedBackend(["word " * 50]) as backend:
        log = ask.options(max_new_tokens=250)("Rome", backend=backend).run_log()
    assert markup.width(live.status(log)) < 140


def test_no_notebook_is_taken_for_one_where_there_is_none():
    assert status_line.notebook() is None


CELL = """
import lmlang as lm
from lmlang.testing import ScriptedBackend

@lm.function
def ask(s):
    s += "a <b> " + lm.gen("x", max_tokens=3)

ask(backend=ScriptedBackend(["abc"]), show="live").ret_value
"""
NOTEBOOK = """
import json, sys, nbclient, nbformat
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(sys.argv[1])])
nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
print(json.dumps(book.cells[0].outputs))
"""


def test_a_live_run_is_one_output_of_a_notebook():
    for package in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(package)
    # A process of its own: what a client of kernels leaves open is gone with it.
    command = [sys.executable, "-c", NOTEBOOK, CELL]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    (shown,) = json.loads(ended.stdout)
    assert shown["output_type"] == "display_data"
    assert "a <b> x: abc" in checked_page(shown["data"]["text/html"])
    assert "⟦x: abc" in shown["data"]["text/plain"]


@pytest.mark.parametrize("columns", [1, 12, 60])
def test_a_line_fits_the_terminal_that_it_is_written_to(monkeypatch, columns):
    pty = pytest.importorskip("pty", reason="there are no terminals of POSIX")
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    monkeypatch.setenv("COLUMNS", "100")  # as of a standard output that is elsewhere
    with open(ours, "rb", buffering=0) as read, open(theirs, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        StatusLine().end("a text that is longer than many a terminal is wide: " * 3)
        shown = read.read(1_000).decode().strip()
    assert 0 < len(shown) <= max(1, columns - 1)
