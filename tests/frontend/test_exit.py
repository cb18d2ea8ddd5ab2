"""Whatever is open when the interpreter exits ends with it, at once and without a word."""

import subprocess
import sys
import textwrap

import pytest

from lmlang.server.app import make_app
from lmlang.testing import ScriptedBackend
from tests.backends.served import served

HEAD = """
import sys, threading, time
import lmlang as lm
from lmlang.testing import ScriptedBackend

def made():
    return lm.connect(sys.argv[1]) if len(sys.argv) > 1 else ScriptedBackend()

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
        rows = slow.run_batch(many, backend=made(), generator_style=True)
        next(rows)
        begun.wait()
    """,
    "a lazy batch of two threads": """
        rows = slow.run_batch(
            many, backend=made(), generator_style=True, num_threads=2
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
            many, backend=made(), generator_style=True, journal=folder.name + "/j"
        )
        next(rows)
        begun.wait()
    """,
    "an eager batch on a daemon thread": """
        work = lambda: slow.run_batch(many, backend=made())
        threading.Thread(target=work, daemon=True).start()
        begun.wait()
    """,
    "a streaming run": """
        state = slow.run(stream=True, backend=made())
        begun.wait()
    """,
    "a stream that is being read": """
        stream = slow.stream(backend=made())
        next(stream)
        begun.wait()
        text = stream.state.text_iter("a")
        next(text)
    """,
}


def ran(source, *arguments, when=lambda: None):
    """What a process of this source says, and how it ends; it must end soon.

    Args:
        source: Its ``input()`` returns when ``when`` has.
        arguments: Of the process.
        when: Returns when it may end.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(source), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        when()
        said, told = process.communicate("\n", timeout=150)
    return process.returncode, said, told


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_what_is_open_keeps_no_process_alive(source):
    assert ran(source) == (0, "", "")


@pytest.fixture(scope="module")
def server():
    """The address of a server whose model answers at once."""
    with served(make_app(ScriptedBackend())) as url:
        yield url


@pytest.mark.parametrize(
    "name", [name for name in PROGRAMS if name != "a lazy batch that waits for a backend"]
)
def test_what_is_open_on_a_server_keeps_no_process_alive(name, server):
    assert ran(PROGRAMS[name], server) == (0, "", "")


def test_who_waits_for_a_server_keeps_no_process_alive():
    source = """
    state = waiting.run(stream=True, backend=made())
    batch = lambda: waiting.run_batch(many, backend=made(), num_threads=2)
    threading.Thread(target=batch, daemon=True).start()
    input()
    """
    with ScriptedBackend(completes="when released") as silent, served(make_app(silent)) as url:
        assert ran(source, url, when=lambda: silent.wait_for(3)) == (0, "", "")


def test_daemon_threads_that_ask_a_runtime_end_with_the_process():
    """They wait for an output, ask for the next one, or for a constraint that is being compiled."""
    code, said, told = ran("""
    import asyncio
    from lmlang.runtime.local import Runtime
    from tests.tiny import tiny_model

    runtime = Runtime.over(*tiny_model(max_positions=1_000_000), kv_tokens=100_000)
    long = dict(max_tokens=90_000, ignore_eos=True)

    @lm.function
    def waits(s):
        s += "a b" + lm.gen("x", **long)
        return s["x"]

    @lm.function
    async def awaits(s):
        s += "a b" + lm.gen("x", **long)
        return await s.aget("x")

    @lm.function
    def asks(s, operation):
        for i in range(9_000):
            s += " a b" + operation(i)
            s["x"]

    def compiles(i):
        return lm.gen("x", regex=f"a{{{i}}}(b|c){{{i},99}}", max_tokens=30_000)

    lm.set_default_backend(runtime)
    for work in (
        waits,
        lambda: asyncio.run(awaits.arun()),
        lambda: waits.run_batch([()] * 3),
        lambda: asks(lambda i: lm.gen("x", max_tokens=1)),
        lambda: asks(lambda i: lm.select("x", ["a", "b"])),
        lambda: asks(compiles),
        lambda: "".join(waits.run(stream=True).text_iter("x")),
    ):
        threading.Thread(target=work, daemon=True).start()
    while not runtime.stats().steps:
        time.sleep(0.01)
    time.sleep(0.5)  # and the others are somewhere
    """)
    assert (code, said, told) == (0, "", "")


LOOP = """
for state in slow.run_batch(many, backend=made(), generator_style=True):
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
