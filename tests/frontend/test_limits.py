import asyncio
import pickle
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.frontend import dispatcher as dispatching
from lmlang.frontend.dispatcher import SWEEP, Dispatcher
from lmlang.testing import ScriptedBackend
from tests.frontend.by_hand import ByHand, bounded, deadlines_pass

# ------------------------------------------------------------------------------- deadline

DEADLINES = (0.01, 0.1, 1.0, 10.0)
"""The first is enough, but for a machine that is so busy that nothing has begun within it."""

WAITS = {
    "item": lambda s: s["x"],
    "later item": lambda s: s["after"],
    "text": lambda s: s.text(),
    "sync": lambda s: s.sync(),
    "whole text": lambda s: list(s.text_iter()),
    "variable": lambda s: list(s.text_iter("x")),
    "aget": lambda s: asyncio.run(s.aget("x")),
    "adone": lambda s: asyncio.run(s.adone()),
}


def begin(s):
    s += "P" + lm.gen("x")
    s["after"] = 1


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("wait", WAITS)
def test_a_deadline_ends_every_wait_in_a_program(wait, stubborn):
    @lm.function
    def program(s):
        begin(s)
        WAITS[wait](s)

    for deadline in DEADLINES:
        backend = ByHand(stubborn)
        message = rf"within deadline={deadline:g} s.*more seconds"
        with pytest.raises(lm.DeadlineExceeded, match=message) as e:
            bounded(lambda d=deadline, b=backend: program.run(deadline=d, backend=b))
        assert e.value.context.program == "program"
        assert isinstance(e.value, lm.LimitExceeded)
        if backend.generations:
            break
    assert backend.cancels()


@pytest.mark.parametrize("wait", [*WAITS, "value", "undefined"])
def test_a_deadline_ends_every_wait_outside(wait):
    read = WAITS | {"value": lambda s: s.ret_value, "undefined": lambda s: s["undefined"]}
    release = threading.Event()

    @lm.function
    def program(s):
        begin(s)
        release.wait(60)  # what a program does besides is not ended, and holds nobody up

    state = program.run(deadline=0.01, stream=True, backend=ByHand(stubborn=True))
    with pytest.raises(lm.DeadlineExceeded):
        bounded(lambda: read[wait](state))
    release.set()


def test_a_deadline_ends_what_the_end_of_a_program_waits_for():
    @lm.function
    def program(s):
        s.fork(1)[0].__iadd__(lm.gen("x"))

    with pytest.raises(lm.DeadlineExceeded):
        bounded(lambda: program.run(deadline=0.01, backend=ByHand(stubborn=True)))


def test_a_deadline_ends_async_programs():
    @lm.function
    async def program(s):
        begin(s)
        await s.aget("x")

    async def main():
        await program.arun(deadline=0.01, backend=ByHand(stubborn=True))

    with pytest.raises(lm.DeadlineExceeded):
        bounded(lambda: asyncio.run(main()))


def test_a_program_that_ends_in_time_has_no_deadline_any_more():
    state = lm.function(begin).run(deadline=1e9, backend=ScriptedBackend())
    state += lm.gen("more")
    assert state["more"]


def test_each_row_of_a_batch_has_its_own_deadline():
    @lm.function
    def program(s, hangs):
        if hangs:
            s += lm.gen("x")
            s.sync()

    rows = [(True,), (False,)]  # the second begins when the deadline of the first is over
    keywords = {"on_error": "return", "backend": ByHand(), "num_threads": 1}
    for deadline in DEADLINES:
        late, good = program.run_batch(rows, deadline=deadline, **keywords)
        assert isinstance(late.error(), lm.DeadlineExceeded)
        if good.error() is None:
            break
    assert good.error() is None


def test_alarms_ring_when_they_are_due_and_cancelled_ones_are_forgotten(monkeypatch):
    now = 0.0
    monkeypatch.setattr(dispatching, "time", SimpleNamespace(monotonic=lambda: now))
    dispatcher, rung = Dispatcher(), []

    def settled():
        done = threading.Event()
        dispatcher.put(done.set)
        assert done.wait(60)
        return list(rung)

    for _ in range(2 * SWEEP):
        dispatcher.after(3600, lambda: rung.append("late")).cancel()
    for due in (1_003, 1_001, 1_002, 1_001.5):
        dispatcher.after(due, lambda due=due: rung.append(due))
    assert settled() == []
    assert len(dispatcher._alarms) < SWEEP
    now = 1_002.0
    assert settled() == [1_001, 1_001.5, 1_002]
    now = 5_000.0
    assert settled() == [1_001, 1_001.5, 1_002, 1_003]
    assert dispatcher._alarms == []


# ------------------------------------------------------------------------------- cancel


def test_cancel_from_another_thread_ends_the_run_and_keeps_what_was_finished():
    kept = []
    with ByHand() as backend:

        @lm.function
        def program(s):
            s["before"] = 1
            s += lm.gen("x")
            kept.append(s)
            threading.Thread(target=s.cancel).start()
            s["x"]

        with pytest.raises(lm.Cancelled, match="the program was cancelled"):
            bounded(lambda: program(backend=backend))
        assert backend.cancels()
    assert kept[0]["before"] == 1


def test_cancelling_a_fork_ends_it_and_the_forks_below_it_alone():
    with ByHand() as backend:

        @lm.function
        def program(s):
            forks = s.fork(2)
            forks += lambda i: f"{i}" + lm.gen("x")
            below = forks[0].fork(1)[0]  # not born: its parent waits
            below += lm.gen("y")
            forks[0].cancel()
            backend.end("one", index=1)
            for state, name in ((forks[0], "x"), (below, "y")):
                with pytest.raises(lm.Cancelled):
                    state[name]
            s += "more"
            return forks[1]["x"]

        state = bounded(lambda: program(backend=backend))
    assert (state.ret_value, state.text()) == ("one", "more")
    assert [generation.cancelled for generation in backend.generations] == [True, False]


def test_joining_a_cancelled_fork_raises_with_its_index():
    with ByHand() as backend:

        @lm.function
        def program(s):
            forks = s.fork(2)
            forks[1].__iadd__(lm.gen("x"))
            forks[1].cancel()
            forks.join()

        with pytest.raises(lm.Cancelled) as caught:
            bounded(lambda: program(backend=backend))
    assert caught.value.context.branch == 1


def test_cancelling_what_has_ended_changes_nothing():
    state = lm.function(begin)(backend=ScriptedBackend(["a"]))
    state.cancel()
    assert (state["x"], state.text(), state.error()) == ("a", "Pa", None)


def test_what_is_appended_after_the_run_can_be_cancelled_too():
    with ByHand() as backend:
        state = lm.function(lambda s: None)(backend=backend)
        state += lm.gen("x")
        state.cancel()
        with pytest.raises(lm.Cancelled):
            bounded(lambda: state["x"])
        assert backend.generations[0].cancelled


# ----------------------------------------------------------------------- max_program_tokens


@lm.function
def generate(s, sizes):
    for number, size in enumerate(sizes):
        s += lm.gen(f"x{number}", max_tokens=size, ignore_eos=True)


sizes = st.lists(st.integers(0, 6), max_size=5)


@given(sizes, st.integers(1, 20))
def test_a_program_generates_as_many_tokens_as_it_may(sizes, most):
    backend = ScriptedBackend()
    if sum(sizes) <= most:
        state = generate(sizes, max_program_tokens=most, backend=backend)
        assert state.usage().generated_tokens == sum(sizes)
        unlimited = generate.run(sizes, seed=1, backend=ScriptedBackend()).text()
        assert generate.run(sizes, seed=1, max_program_tokens=most, backend=backend).text() == (
            unlimited
        )
        return
    with pytest.raises(lm.BudgetExceeded, match=f"max_program_tokens={most}.*raise it, or lower"):
        generate(sizes, max_program_tokens=most, backend=backend)
    asked = [request.params.max_tokens for request in backend.requests]
    assert sum(asked) <= most


def test_an_output_that_ends_by_itself_within_the_budget_is_whole():
    @lm.function
    def program(s):
        s += lm.gen("x", max_tokens=100)

    state = program(max_program_tokens=4, backend=ScriptedBackend(["abc"]))
    assert (state["x"], state.meta("x").finish) == ("abc", "eos")
    with pytest.raises(lm.BudgetExceeded) as caught:
        program(max_program_tokens=4, backend=ScriptedBackend(["abcde"]))
    assert caught.value.context.op_path == "0"


@pytest.mark.parametrize("on_budget", ["close", "raise"])
def test_a_typed_output_is_not_closed_for_the_budget_of_its_program(on_budget):
    @lm.function
    def program(s):
        s += lm.gen("x", type=list[int], max_tokens=9, on_budget=on_budget)

    def ran(answer, most):
        return program(max_program_tokens=most, backend=ScriptedBackend([answer]))

    assert ran("[1, 2]", 6)["x"] == [1, 2]
    for most in (5, 1):  # it would be closed, and not even that is possible
        with pytest.raises(lm.BudgetExceeded, match=f"more than max_program_tokens={most} ") as it:
            ran("[1, 2]", most)
        assert it.value.context.op_path == "0"
    if on_budget == "close":  # for its own
        assert ran("[1, 2, 3, 4]", 9)["x"] == [1, 2, 3]


@settings(max_examples=20)
@given(st.integers(1, 8), st.integers(1, 40))
def test_forks_share_the_budget(forks, most):
    @lm.function
    def program(s):
        s.fork(forks).__iadd__(lm.gen("x", max_tokens=5, ignore_eos=True))

    with ScriptedBackend(completes="on a thread") as backend:
        if 5 * forks <= most:
            program(max_program_tokens=most, backend=backend)
        else:
            with pytest.raises(lm.BudgetExceeded):
                bounded(lambda: program(max_program_tokens=most, backend=backend))


def test_several_samples_count_each():
    @lm.function
    def program(s):
        s += lm.gen("x", n=3, max_tokens=2, ignore_eos=True)

    assert program(max_program_tokens=6, backend=ScriptedBackend()).usage().generated_tokens == 6
    with pytest.raises(lm.BudgetExceeded):
        program(max_program_tokens=5, backend=ScriptedBackend())


def test_what_was_finished_within_the_budget_stays_readable():
    kept = []

    @lm.function
    def program(s):
        kept.append(s)
        s += lm.gen("x", max_tokens=2, ignore_eos=True)
        s += lm.gen("y", max_tokens=2, ignore_eos=True)

    with pytest.raises(lm.BudgetExceeded):
        program(max_program_tokens=3, backend=ScriptedBackend(["ab", "cd"]))
    assert kept[0]["x"] == "ab"
    with pytest.raises(lm.BudgetExceeded):
        kept[0]["y"]


# --------------------------------------------------------------------------------- partial


@pytest.mark.parametrize("how", ["budget", "deadline"])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_ends_a_run_has_what_was_done_by_then(how, is_async):
    def begin(s):
        s += "P" + lm.gen("first") + lm.gen("second")

    def body(s):
        begin(s)
        s["set"] = 1
        s.sync()

    async def async_body(s):
        begin(s)
        s["set"] = 1
        await s.adone()

    backend = ScriptedBackend(["one", "two"], completes="when released")
    program = lm.function(async_body if is_async else body)
    limits = {"max_program_tokens": 5} if how == "budget" else {"deadline": 600}
    expected = {"budget": lm.BudgetExceeded, "deadline": lm.DeadlineExceeded}[how]

    def release():
        backend.wait_for(1)
        backend.release()
        backend.wait_for(1)
        if how == "budget":
            backend.release()
        else:
            deadlines_pass()

    hand = threading.Thread(target=release)
    hand.start()

    def run():
        if is_async:
            return asyncio.run(program.arun(backend=backend, **limits))
        return program.run(backend=backend, **limits)

    with backend, pytest.raises(expected) as e:
        run()
    hand.join()
    partial = e.value.partial
    assert partial["first"] == "one"
    assert partial.usage().generated_tokens >= 4
    with pytest.raises(expected):
        partial["second"]
    assert partial.run_log().operations[0].text == "one"
    copied = pickle.loads(pickle.dumps(e.value))
    assert type(copied) is expected
    assert copied.partial is None
    assert copied.context == e.value.context


def test_the_outer_run_is_what_an_error_of_an_inner_one_tells_of():
    @lm.function
    def inner(s):
        s += lm.gen("x")
        raise lm.ProgramError("no")

    @lm.function
    def outer(s):
        s += lm.gen("y")
        s.sync()
        inner()

    with lm.use(ScriptedBackend(["a", "b"])), pytest.raises(lm.ProgramError) as e:
        outer()
    assert e.value.partial["y"] == "a"
