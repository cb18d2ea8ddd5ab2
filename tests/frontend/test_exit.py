"""Whatever is open when the interpreter exits ends with it, at once and without a word."""

import subprocess
import sys
import textwrap

import pytest

HEAD = """
import threading, time
import lmlang as lm
from lmlang.testing import ScriptedBackend

begun = threading.Event()

@lm.function
def slow(s, i=1):
    s += lm.gen("a")
    if i:
        begun.set()
        time.sleep(600)

@lm.function
def waiting(s, i=1):
    s += lm.gen("a")
    return s["a"]

many = [(i,) for i in range(1_000)]  # the first of them ends
"""

PROGRAMS = {
    "a lazy batch": """
        rows = slow.run_batch(many, backend=ScriptedBackend(), generator_style=True)
        next(rows)
        begun.wait()
    """,
    "a lazy batch of two threads": """
        rows = slow.run_batch(
            many, backend=ScriptedBackend(), generator_style=True, num_threads=2
        )
        next(rows)
        begun.wait()
    """,
    "a lazy batch that waits for a backend": """
        backend = ScriptedBackend(completes="when released")
        rows = waiting.run_batch(many, backend=backend, generator_style=True)
        work = lambda: (backend.wait_for(64), [backend.release() for _ in range(64)])
        threading.Thread(target=work).start()  # the first row is one of these
        next(rows)
    """,
    "a lazy batch with a journal": """
        import tempfile
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        rows = slow.run_batch(
            many, backend=ScriptedBackend(), generator_style=True, journal=folder.name + "/j"
        )
        next(rows)
        begun.wait()
    """,
    "an eager batch on a daemon thread": """
        work = lambda: slow.run_batch(many, backend=ScriptedBackend())
        threading.Thread(target=work, daemon=True).start()
        begun.wait()
    """,
    "a streaming run": """
        state = slow.run(stream=True, backend=ScriptedBackend())
        begun.wait()
    """,
    "a stream that is being read": """
        stream = slow.stream(backend=ScriptedBackend())
        next(stream)
        begun.wait()
        text = stream.state.text_iter("a")
        next(text)
    """,
}


def ran(source):
    """What a process of this source says, and how it ends; it must end soon."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_what_is_open_keeps_no_process_alive(source):
    assert ran(source) == (0, "", "")


LOOP = """
for state in slow.run_batch(many, backend=ScriptedBackend(), generator_style=True):
    1 / 0
"""


@pytest.mark.parametrize(
    "source",
    [textwrap.dedent(PROGRAMS["a lazy batch"]) + "1 / 0\n", LOOP],
    ids=["around it", "in its loop"],
)
def test_what_is_open_keeps_no_process_alive_after_an_error(source):
    code, said, told = ran(source)
    assert (code, said) == (1, "")
    assert told.rstrip().endswith("ZeroDivisionError: division by zero")
    assert told.count("Traceback") == 1
