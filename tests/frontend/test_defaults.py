import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import lmlang as lm
from lmlang.frontend import defaults
from lmlang.testing import ScriptedBackend


@lm.function
def which(s):
    s += lm.gen("x")
    return s["x"]


@pytest.fixture(autouse=True)
def unset():
    yield
    lm.set_default_backend(None)


def named(name):
    return ScriptedBackend(lambda prompt: name)


def test_the_nearest_backend_wins():
    lm.set_default_backend(named("default"))
    assert which().ret_value == "default"
    with lm.use(named("used")) as used:
        assert isinstance(used, ScriptedBackend)
        assert which().ret_value == "used"
        with lm.use(named("inner")):
            assert which().ret_value == "inner"
            assert which.options(backend=named("option")).run().ret_value == "option"
            assert which(backend=named("own")).ret_value == "own"
        assert which().ret_value == "used"
    assert which().ret_value == "default"


def test_use_ends_with_its_block_on_errors_too():
    lm.set_default_backend(named("default"))
    with pytest.raises(ZeroDivisionError), lm.use(named("used")):
        raise ZeroDivisionError
    assert which().ret_value == "default"


def test_one_use_may_be_entered_in_many_threads_at_once():
    lm.set_default_backend(named("default"))
    shared = lm.use(named("used"))
    barrier = threading.Barrier(4)
    seen = []

    def work():
        with shared:
            barrier.wait(60)
            seen.append(which().ret_value)
            barrier.wait(60)
        seen.append(which().ret_value)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == ["default"] * 4 + ["used"] * 4
    assert which().ret_value == "default"


def test_without_a_backend_one_is_made_once_and_said_on_the_log(monkeypatch, caplog):
    made = []

    def factory():
        made.append(named("embedded"))
        return made[-1]

    monkeypatch.setattr(defaults._defaults, "factory", factory)
    with caplog.at_level(logging.INFO, "lmlang"):
        threads = [threading.Thread(target=which) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert which().ret_value == "embedded"
    assert len(made) == 1
    assert [r.message for r in caplog.records if "embedded model" in r.message] == [
        "no backend is set: loading the embedded model, once for this process"
    ]


def test_a_factory_that_failed_is_asked_again(monkeypatch):
    outcomes = [lm.ModelError("no file"), named("embedded")]

    def factory():
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(defaults._defaults, "factory", factory)
    with pytest.raises(lm.ModelError, match="no file"):
        which()
    assert which().ret_value == "embedded"


def test_without_a_factory_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr(defaults._defaults, "factory", None)
    with pytest.raises(lm.ProgramError, match=r"call lm\.set_default_backend"):
        which()


@pytest.mark.parametrize("setter", [lm.set_default_backend, lm.use, lm.flush_cache])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (object(), r"backend is an object, which is no backend \(it has no generate"),
        (ScriptedBackend, "backend=ScriptedBackend is a class"),
    ],
)
def test_what_is_no_backend_is_a_type_error(setter, wrong, message):
    with pytest.raises(TypeError, match=message):
        setter(wrong)


def test_flush_cache_reaches_the_backend_in_use_and_makes_none(monkeypatch):
    flushed = []

    class Flushing(ScriptedBackend):
        def flush_cache(self):
            flushed.append(self)

    monkeypatch.setattr(defaults._defaults, "factory", lambda: pytest.fail("it made one"))
    lm.flush_cache()
    one, two = Flushing(), Flushing()
    lm.flush_cache(one)
    with lm.use(two):
        lm.flush_cache()
    assert flushed == [one, two]


# ------------------------------------------------------------------------------- the face


def test_every_public_name_is_there():
    assert sorted(set(lm.__all__)) == sorted(lm.__all__)
    assert set(lm.__all__) <= set(dir(lm))
    for name in set(lm.__all__) - {"Runtime", "Engine"}:
        assert getattr(lm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lm.nonsense  # noqa: B018


def test_the_version_is_the_packages():
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert f'version = "{lm.__version__}"' in project.read_text().splitlines()


def test_importing_and_writing_programs_loads_no_model_library():
    code = (
        "import sys, lmlang as lm\n"
        "b = lm.testing.ScriptedBackend()\n"
        "f = lm.function(lambda s: s.user(lm.gen('x')))\n"
        "f(backend=b); f.run_batch([()], backend=b)\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'gguf') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_process_may_end_while_programs_wait():
    code = (
        "import threading, lmlang as lm\n"
        "b = lm.testing.ScriptedBackend(completes='on a thread')\n"
        "@lm.function\n"
        "def f(s):\n"
        "    for fork in s.fork(50):\n"
        "        fork += lm.gen('x') + lm.gen('y')\n"
        "    return len(b.requests)\n"
        "f(backend=b)\n"
        "hang = lm.testing.ScriptedBackend(completes='when released')\n"
        "threading.Thread(target=lambda: f(backend=hang), daemon=True).start()\n"
        "hang.wait_for(50)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is of POSIX")
def test_programs_run_in_a_child_of_os_fork():
    code = (
        "import os, lmlang as lm\n"
        "f = lm.function(lambda s: s.user(lm.gen('x') + lm.gen('y')))\n"
        "def go():\n"
        "    with lm.testing.ScriptedBackend(completes='on a thread') as b:\n"
        "        f(backend=b)\n"
        "go()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    go()\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert done.stdout == "7\n"
