import contextvars
import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.testing import ScriptedBackend


@lm.function
def ask(s, question, times=1):
    s += f"{question} x{times}: " + lm.gen("answer")
    return question


def answers(states):
    return [state["answer"] for state in states]


def test_rows_are_dicts_or_tuples_and_keep_their_order():
    rows = [("a",), {"question": "b"}, ("c", 2), {"question": "d", "times": 3}]
    states = ask.run_batch(rows, backend=ScriptedBackend(lambda prompt: prompt.upper()))
    assert answers(states) == ["A X1: ", "B X1: ", "C X2: ", "D X3: "]
    assert [state.ret_value for state in states] == list("abcd")
    assert (len(states), states[-1].ret_value, states.indices) == (4, "d", (0, 1, 2, 3))
    assert repr(states) == "<BatchResult of 4 rows>"


def test_no_rows_are_no_states():
    assert list(ask.run_batch([], backend=ScriptedBackend())) == []


questions = st.lists(st.sampled_from("abc"), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(questions, st.integers(0, 5), st.integers(1, 4))
def test_a_batch_equals_its_single_runs_and_equal_rows_differ(rows, seed, threads):
    with ScriptedBackend(completes="on a thread") as backend:
        batch = answers(
            ask.run_batch([(q,) for q in rows], seed=seed, backend=backend, num_threads=threads)
        )
    single = {q: ask(q, seed=seed, backend=ScriptedBackend())["answer"] for q in rows}
    for index, question in enumerate(rows):
        first = question not in rows[:index]
        assert (batch[index] == single[question]) == first
    assert len(set(batch)) == len(rows)


@settings(max_examples=25, deadline=None)
@given(questions, st.randoms(use_true_random=False))
def test_shuffled_rows_keep_their_outputs(rows, random):
    shuffled = random.sample(rows, len(rows))
    before, after = (
        answers(ask.run_batch([(q,) for q in order], seed=1, backend=ScriptedBackend()))
        for order in (rows, shuffled)
    )
    assert sorted(zip(rows, before, strict=True)) == sorted(zip(shuffled, after, strict=True))


def test_a_rows_form_and_defaults_do_not_matter_to_its_draws():
    first, second = (
        answers(ask.run_batch([row], seed=1, backend=ScriptedBackend()))
        for row in (("a",), {"times": 1, "question": "a"})
    )
    assert first == second


def test_a_given_key_decides_the_draws():
    keyed = ask.run_batch([("a",), ("a",)], seed=1, backend=ScriptedBackend(), key=lambda row: "k")
    assert len(set(answers(keyed))) == 1


def test_arguments_without_canonical_form_go_by_their_index():
    states = ask.run_batch([(object,), (object,)], seed=1, backend=ScriptedBackend())
    assert len(set(answers(states))) == 2


def test_the_body_runs_exactly_once_for_each_row():
    seen = []

    @lm.function
    def count(s, i):
        seen.append(i)

    count.run_batch([(i,) for i in range(200)], backend=ScriptedBackend(), num_threads=7)
    assert sorted(seen) == list(range(200))


def test_rows_run_side_by_side_up_to_num_threads_and_leave_no_thread():
    base = threading.active_count()
    barrier = threading.Barrier(5)

    @lm.function
    def meet(s, i):
        barrier.wait(20)
        return threading.active_count()

    states = meet.run_batch([(i,) for i in range(5)], backend=ScriptedBackend(), num_threads=5)
    assert max(state.ret_value for state in states) <= base + 5
    assert threading.active_count() == base


def test_context_variables_reach_the_rows():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")

    @lm.function
    def read(s, i):
        before = variable.get()
        variable.set(i)
        return before

    with lm.use(ScriptedBackend()):
        states = read.run_batch([(1,), (2,), (3,)], num_threads=1)
    assert [state.ret_value for state in states] == ["set"] * 3
    assert variable.get() == "set"


# -------------------------------------------------------------------------------- errors


@lm.function
def fragile(s, i):
    s["i"] = i
    s += f"{i}" + lm.gen("x")
    if i in (3, 5):
        raise ValueError(f"row {i}")
    return s["x"]


def test_returned_errors_stay_in_their_rows():
    def answer(prompt):
        if prompt == "4":
            raise lm.BackendError("four")
        return "ok"

    states = fragile.run_batch(
        [(i,) for i in range(6)], backend=ScriptedBackend(answer), on_error="return"
    )
    assert [type(state.error()).__name__ for state in states] == [
        "NoneType",
        "NoneType",
        "NoneType",
        "ValueError",
        "BackendError",
        "ValueError",
    ]
    assert [state["i"] for state in states] == list(range(6))
    with pytest.raises(lm.BackendError, match="four"):
        states[4]["x"]
    with pytest.raises(ValueError, match="row 5"):
        states[5].text()


def test_a_raised_error_is_a_rows_own_and_carries_the_finished_rows():
    with pytest.raises(ValueError, match="row 3") as caught:
        fragile.run_batch([(i,) for i in range(9)], backend=ScriptedBackend(), num_threads=1)
    partial = caught.value.partial
    assert isinstance(partial, lm.BatchResult)
    assert partial.indices == (0, 1, 2)
    assert [(state["i"], state.error()) for state in partial] == [(0, None), (1, None), (2, None)]
    assert partial[1].text() == "1" + partial[1]["x"]
    assert not hasattr(ValueError, "partial")


def test_a_raised_error_cancels_the_rows_that_wait():
    base = threading.active_count()
    with ScriptedBackend(completes="when released") as backend:
        errors = []

        @lm.function
        def wait(s, i):
            if i == 2:
                backend.wait_for(2)
                raise lm.ModelError("row 2")
            s += lm.gen("x")
            try:
                s["x"]
            except lm.Cancelled as error:
                errors.append(error)
                raise

        with pytest.raises(lm.ModelError, match="row 2") as caught:
            wait.run_batch([(i,) for i in range(3)], backend=backend, num_threads=3)
        assert backend.pending() == []
    assert len(errors) == 2
    assert list(caught.value.partial) == []
    assert caught.value.context.program == "wait"
    assert threading.active_count() <= base + 1  # the dispatcher may have come


def test_an_interrupt_cancels_the_rows_and_leaves_no_thread():
    base = threading.active_count()
    with ScriptedBackend(completes="when released") as backend:

        @lm.function
        def wait(s, i):
            if i == 1:
                backend.wait_for(1)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            s += lm.gen("x")
            return s["x"]

        with pytest.raises(KeyboardInterrupt):
            wait.run_batch([(0,), (1,), (2,)], backend=backend, num_threads=2)
        assert backend.pending() == []
    assert threading.active_count() <= base + 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a"], r"row 0 is a str: rows are dicts.*write \[\(x,\) for x in rows\]"),
        ([("a",), ["b"]], "row 1 is a list"),
        ([("a",), ()], "row 1: ask.*missing a required argument: 'question'"),
        ([{"question": "a", "x": 1}], "row 0: ask.*unexpected keyword argument 'x'"),
        ([{1: "a"}], "row 0 has keys that are no strings"),
        ("abc", "rows are a list of dicts or tuples, one for each run, not str"),
        ({"question": "a"}, "rows are a list of dicts or tuples.*not dict"),
        (3, "rows are a list of dicts or tuples.*not int"),
    ],
)
def test_what_is_no_row_raises_before_anything_runs(rows, message):
    backend = ScriptedBackend()
    with pytest.raises(TypeError, match=message):
        ask.run_batch(rows, backend=backend, on_error="return")
    assert backend.requests == []


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"num_threads": 0}, "num_threads=0 is out of range: it must be from 1 to 1,024"),
        ({"num_threads": "many"}, "num_threads='many': give \"auto\" or a number"),
        ({"num_threads": 1.5}, "num_threads=1.5 must be an integer"),
        ({"on_error": "ignore"}, 'on_error=\'ignore\' must be "raise" or "return"'),
        ({"progress_bar": True}, "progress_bar is not available in this version"),
        ({"generator_style": True}, "generator_style is not available"),
        ({"journal": "x.sqlite"}, "journal is not available"),
        ({"question": "a"}, "unknown keyword 'question': arguments of the program stand in"),
        ({"temperature": -1}, "temperature=-1 is out of range"),
    ],
)
def test_wrong_keywords_of_a_batch_raise(keyword, message):
    with pytest.raises(lm.ProgramError, match=message):
        ask.run_batch([("a",)], backend=ScriptedBackend(), **keyword)
