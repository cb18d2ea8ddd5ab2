import contextlib
import threading

import pytest

import lmlang as lm
from lmlang.testing import ScriptedBackend

PATIENCE = 20.0
"""Seconds after which a test says that something hangs; nothing ever takes a tenth of it."""


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
