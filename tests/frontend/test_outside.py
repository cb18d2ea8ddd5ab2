"""The state of a run that goes on elsewhere: others read it, and append when it has ended."""

import gc
import threading
import weakref

import pytest

import lmlang as lm
from lmlang.testing import ScriptedBackend
from tests.frontend.by_hand import ByHand, bounded


@lm.function
def program(s):
    s += "Hi " + lm.gen("a")
    return s["a"]


@lm.function
def inline(s):
    s += "more"


def add(state):
    state += "x"


def in_a_turn(state):
    with state.user():
        state += "x"


def in_a_scope(state):
    with state.var_scope("v"):
        state += "x"


def on_a_copy(state):
    with state.copy() as copy:
        copy += "x"


WRITES = {
    "+=": add,
    "set": lambda state: state.set_var("v", 1),
    "[]=": lambda state: state.__setitem__("v", 1),
    "turn": lambda state: state.user("x"),
    "with turn": in_a_turn,
    "scope": in_a_scope,
    "fork": lambda state: state.fork(2),
    "copy": on_a_copy,
    "call": lambda state: state.call(inline),
    "inline": lambda state: inline(state),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_others_write_to_a_state_only_when_its_program_has_ended(write):
    with ByHand() as backend:
        state = program.run(stream=True, backend=backend)
        backend.asked()
        with pytest.raises(lm.ProgramError, match="still runs on another thread") as caught:
            write(state)
        assert caught.value.context.source.startswith(__file__)
        backend.end("there")
        bounded(state.sync)
        write(state)
        bounded(state.sync)
        assert state.text().startswith("Hi there")
        assert state.ret_value == "there"


def test_what_was_appended_after_the_end_is_generated():
    state = program.run(stream=True, backend=ScriptedBackend(["one", "two"]))
    bounded(state.sync)
    state += " and " + lm.gen("b")
    assert bounded(lambda: state["b"]) == "two"
    assert bounded(lambda: "".join(state.text_iter())) == "Hi one and two"


# ---------------------------------------------------------------- leaving what has settled


def first_of(texts):
    for text in texts:
        return text
    return None


def test_leaving_a_variable_that_is_there_cancels_nothing_inside():
    @lm.function
    def reads(s):
        s += lm.gen("a")
        s.sync()
        assert first_of(s.text_iter("a")) == "one"
        with s.var_scope("v"):
            s += "text"
        assert first_of(s.text_iter("v")) == "text"
        assert first_of(s.text_iter()) == "one"
        s += lm.gen("b")
        return s["a"] + s["b"]

    assert reads(backend=ScriptedBackend(["one", "two"])).ret_value == "onetwo"


def test_leaving_a_variable_that_is_there_cancels_nothing_outside():
    @lm.function
    def goes_on(s):
        s += lm.gen("a") + lm.gen("b")

    with ByHand() as backend:
        state = goes_on.run(stream=True, backend=backend)
        backend.end("one")
        assert bounded(lambda: state["a"]) == "one"
        assert first_of(state.text_iter("a")) == "one"
        backend.end("two", index=1)
        assert bounded(lambda: state["b"]) == "two"
        bounded(state.sync)  # the body's thread ends a little after its last generation
        assert first_of(state.text_iter()) == "one"
        assert state.error() is None


def test_leaving_a_stream_spares_what_was_appended_after_its_end():
    with ByHand() as backend:
        stream = program.stream(backend=backend)
        backend.end("one")
        bounded(stream.state.sync)
        state = stream.state
        state += lm.gen("b")
        stream.close()
        backend.end("two", index=1)
        assert bounded(lambda: state["b"]) == "two"


def test_leaving_what_is_under_way_still_cancels_it():
    with ByHand() as backend:
        state = program.run(stream=True, backend=backend)
        backend.say("o")
        assert bounded(lambda: first_of(state.text_iter("a"))) == "o"
        with pytest.raises(lm.Cancelled, match="the reader of its stream left"):
            bounded(lambda: state["a"])


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("completes", ["at once", "on a thread"])
def test_the_last_run_is_kept_by_no_thread(completes):
    with ScriptedBackend(completes=completes) as backend:
        state = program(backend=backend)
        gone = threading.Event()
        weakref.finalize(state._cursor.run, gone.set)
        backend.requests.clear()
        del state
        for _ in range(1_200):  # until the threads have come to the end of their last work
            gc.collect()
            if gone.wait(0.05):
                break
        assert gone.is_set()
