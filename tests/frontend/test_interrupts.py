import contextlib
import ctypes
import gc
import signal
import sys
import threading
from pathlib import Path

import pytest

import lmlang as lm
from lmlang.frontend import batch, interrupts, workers
from lmlang.testing import ScriptedBackend

PATIENCE = 60.0
"""Seconds after which a test says that something hangs."""


def bounded(work):
    """What ``work()`` returns or raises; an AssertionError if it does not end."""
    outcome = []

    def attempt():
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"
    return outcome[0]


class Interrupted(ScriptedBackend):
    """Raises an interrupt at the calls that its test names."""

    def __init__(self, at=(), interrupt=KeyboardInterrupt, **keywords):
        super().__init__(**keywords)
        self.at = at
        self.interrupt = interrupt

    def generate(self, request):
        if len(self.requests) in self.at:
            raise self.interrupt
        return super().generate(request)


@lm.function
def program(s):
    s += "a" + lm.gen("x")


def interrupted_append(state):
    with pytest.raises(KeyboardInterrupt):
        state += lm.gen("y") + " and " + lm.gen("z")


def test_an_interrupt_while_appending_to_a_finished_run_hangs_nobody():
    state = program(backend=Interrupted(at=[1]))
    value = state["x"]
    interrupted_append(state)
    for read in (lambda: state["y"], lambda: state["z"], state.text, state.sync):
        assert isinstance(bounded(read), lm.Cancelled)
    assert isinstance(bounded(state.error), lm.Cancelled)
    assert bounded(lambda: state["x"]) == value


def test_what_is_appended_after_an_interrupt_fails_and_hangs_nobody():
    state = program(backend=Interrupted(at=[1]))
    interrupted_append(state)
    state += "more" + lm.gen("w")
    fork = state.fork(2)[1]
    fork += lm.gen("v")
    state["set"] = 1
    for read in (lambda: state["w"], lambda: fork["v"], fork.text, lambda: state["set"]):
        assert isinstance(bounded(read), lm.Cancelled)


def test_an_interrupt_spares_no_fork_that_was_waiting_for_its_turn():
    with Interrupted(at=[2], completes="when released") as backend:
        kept = []

        @lm.function
        def forking(s):
            s += lm.gen("x")
            kept.append(s)

        thread = threading.Thread(target=lambda: forking(backend=backend), daemon=True)
        thread.start()
        backend.wait_for(1)
        backend.release()
        thread.join(PATIENCE)
        (state,) = kept
        state += lm.gen("y")
        forks = state.fork(3)
        for fork in forks:
            fork += lm.gen("z")
        backend.interrupt = SystemExit
        backend.release()  # the dispatcher goes on: the first fork's generation interrupts it
        for fork in forks:
            for read in (lambda f=fork: f["z"], fork.text):
                assert isinstance(bounded(read), SystemExit)
            assert isinstance(bounded(fork.error), SystemExit)
        assert isinstance(bounded(lambda: state["y"]), str)


@pytest.mark.parametrize("completes", ["at once", "on a thread"])
def test_an_interrupt_in_a_choices_method_reaches_the_readers(completes):
    def stops(**_):
        raise SystemExit(3)

    state = program(backend=ScriptedBackend(completes=completes))
    with contextlib.suppress(SystemExit):
        state += lm.select("y", ["a", "b"], choices_method=stops) + lm.gen("z")
    for read in (lambda: state["y"], lambda: state["z"], state.text):
        assert isinstance(bounded(read), (SystemExit, lm.Cancelled))
    assert isinstance(bounded(lambda: state["x"]), str)


def test_locks_of_a_run_are_taken_and_left_where_no_interrupt_can_come():
    """Those of a condition are not: entering and leaving it are functions in Python."""

    @lm.function
    def joining(s):
        forks = s.fork(2)
        forks += lm.gen("x")
        forks.join()
        s += s["x"][0] + lm.gen("y")
        return s["y"]

    ends = {threading.Condition.__enter__.__code__, threading.Condition.__exit__.__code__}
    callers, before = set(), sys.gettrace()

    def at_call(frame, event, argument):
        if frame.f_code in ends:
            callers.add(frame.f_back.f_code.co_filename)

    sys.settrace(at_call)
    try:
        with ScriptedBackend(completes="on a thread") as backend:
            joining(backend=backend)
            list(program.stream(backend=backend))
            program.run_batch([(), ()], backend=backend)
    finally:
        sys.settrace(before)
    ours = str(Path(lm.__file__).parent)
    assert [path for path in callers if path.startswith(ours)] == []


# ------------------------------------------------------------------------ Ctrl-C in a batch


def interrupt_main_thread():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


press = ctypes.PYFUNCTYPE(None, *[ctypes.py_object] * 3)(("PyErr_SetInterrupt", ctypes.pythonapi))
"""What a key does, as a trace function: Python raises where it next looks for it."""
ENDING = {"_wait", "close", "_join", "_cancel", "_stop"}
"""Functions in which a batch waits and ends."""


def interrupted_everywhere(work):
    """What ``work(came)`` raises with Ctrl-C at the first line of its ending, at the second, …

    ``came()`` says whether Ctrl-C has been pressed by then.
    """
    files = [str(Path(module.__file__)) for module in (batch, workers)]
    for number in range(1_000):
        left, presses = [number], []

        def at_line(frame, event, argument, left=left):
            left[0] -= event == "line"
            return press if left[0] < 0 else at_line

        def at_call(frame, event, argument, at_line=at_line):
            code = frame.f_code
            return at_line if code.co_filename in files and code.co_name in ENDING else None

        def pressed(*_, presses=presses):
            sys.settrace(None)
            presses.append(1)
            raise KeyboardInterrupt

        before, handler = sys.gettrace(), signal.signal(signal.SIGINT, pressed)
        sys.settrace(at_call)
        try:
            work(lambda presses=presses: bool(presses))
        except BaseException as error:
            yield error
        else:
            assert left[0] >= 0, "an interrupt was lost"
            return
        finally:
            sys.settrace(before)
            signal.signal(signal.SIGINT, handler)


@pytest.fixture
def unraisable(monkeypatch):
    """What Python has printed as ignored, after the garbage is collected."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: found.append(each.exc_value))
    yield found
    gc.collect()
    assert found == []


@pytest.mark.usefixtures("unraisable")
def test_an_interrupt_at_any_line_where_a_batch_ends_keeps_its_rows():
    rows, backend = [(), ()], ScriptedBackend()
    found = list(interrupted_everywhere(lambda _: program.run_batch(rows, backend=backend)))
    assert len(found) > 20
    assert {type(error) for error in found} == {lm.BatchInterrupted}
    assert found[-1].partial.indices == (0, 1)


@pytest.mark.usefixtures("unraisable")
def test_an_interrupt_at_any_line_where_a_lazy_batch_is_left_is_raised_behind_it():
    backend = ScriptedBackend()

    def leave(came):
        left = program.run_batch([(), ()], backend=backend, generator_style=True)
        next(left)
        del left
        if came():  # as the generator was closed, which raises nothing: it comes again
            threading.Event().wait(PATIENCE)

    found = list(interrupted_everywhere(leave))
    assert len(found) > 20
    assert {type(error) for error in found} == {lm.BatchInterrupted, KeyboardInterrupt}


@pytest.mark.usefixtures("unraisable")
def test_an_interrupt_comes_behind_a_generator_that_takes_its_time_to_close(monkeypatch):
    monkeypatch.setattr(interrupts, "SOON", 0.001)
    monkeypatch.setattr(interrupts, "LOOKS", 1_000_000)

    def slow():
        try:
            yield
        finally:
            with interrupts.Held():
                interrupt_main_thread()
            threading.Event().wait(0.1)

    def outer():
        try:
            yield from slow()
        finally:
            threading.Event().wait(0.1)

    def leave():
        left = outer()
        next(left)
        del left
        threading.Event().wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        leave()


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_second_interrupt_waits_for_no_row_and_keeps_the_finished_ones(
    lazily, kept, tmp_path, capsys
):
    third, stays, ended = threading.Event(), threading.Event(), threading.Event()

    @lm.function
    def stubborn(s, i):
        if i == 1:
            return
        s += lm.gen("never")
        if i == 2:
            third.set()  # the second has ended on this thread
            s.sync()
        third.wait(PATIENCE)
        interrupt_main_thread()
        with contextlib.suppress(lm.Cancelled):
            s.sync()
        interrupt_main_thread()
        stays.wait(PATIENCE)
        ended.set()

    with ScriptedBackend(completes="when released") as backend:
        journal = tmp_path / "run.sqlite" if kept else None
        rows = [(0,), (1,), (2,)]
        with pytest.raises(lm.BatchInterrupted, match="1 of 3 rows had finished") as caught:
            list(
                stubborn.run_batch(
                    rows,
                    backend=backend,
                    generator_style=lazily,
                    num_threads=2,
                    journal=journal,
                    progress_bar=True,
                )
            )
        assert caught.value.partial.indices == (1,)
        assert not ended.is_set()
        told = capsys.readouterr().err
        assert "1/3 rows" in told
        assert "failed" not in told
        stays.set()
        assert ended.wait(PATIENCE)


def test_a_handler_of_the_user_s_own_says_what_an_interrupt_is():
    pressed = []
    with ScriptedBackend(completes="when released") as backend:

        @lm.function
        def pressing(s):
            s += lm.gen("x")
            interrupt_main_thread()
            backend.release()
            return s["x"]

        before = signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
        try:
            (state,) = pressing.run_batch([()], backend=backend)
        finally:
            signal.signal(signal.SIGINT, before)
    assert state.error() is None
    assert pressed == [1]
