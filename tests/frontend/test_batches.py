import contextvars
import itertools
import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.frontend import defaults
from lmlang.testing import ScriptedBackend
from tests.frontend.by_hand import ByHand


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
    with pytest.raises(IndexError, match="row 4 of a batch of 4, counted from 0"):
        states[4]


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
    before = set(threading.enumerate())
    barrier = threading.Barrier(5)

    @lm.function
    def meet(s, i):
        barrier.wait(60)
        return len(set(threading.enumerate()) - before)

    states = meet.run_batch([(i,) for i in range(5)], backend=ScriptedBackend(), num_threads=5)
    assert max(state.ret_value for state in states) == 5
    assert set(threading.enumerate()) <= before


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
    before = set(threading.enumerate())
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
    assert came_since(before) <= {"lmlang-dispatcher"}


def came_since(before):
    """The names of threads that there were not."""
    return {thread.name for thread in set(threading.enumerate()) - before}


def interrupt_main_thread():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.parametrize("generator_style", [False, True])
def test_an_interrupt_keeps_the_finished_rows_and_cancels_the_others(generator_style):
    before = set(threading.enumerate())
    begun = []
    with ByHand() as backend:

        @lm.function
        def program(s, i):
            begun.append(i)
            if i == 3:
                backend.asked(0)  # row 0 waits for the model, and 1 and 2 have ended
                interrupt_main_thread()
            if i in (0, 3):
                s += lm.gen("x")
                s.sync()
            return i

        batch = program.options(backend=backend).run_batch
        rows = [(i,) for i in range(6)]
        with pytest.raises(lm.BatchInterrupted, match=r"2 of \d rows had finished.*\.partial") as e:
            list(batch(rows, num_threads=2, generator_style=generator_style))
        assert isinstance(e.value, KeyboardInterrupt)
        assert [state.ret_value for state in e.value.partial] == [1, 2]
        assert e.value.partial.indices == (1, 2)
        assert all(generation.cancelled for generation in backend.generations)
    assert sorted(begun) == [0, 1, 2, 3]
    assert came_since(before) <= {"lmlang-dispatcher"}


@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_an_interrupt_in_a_row_ends_the_batch(on_error):
    @lm.function
    def program(s, i):
        if i == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        program.run_batch(
            [(i,) for i in range(3)], backend=ScriptedBackend(), on_error=on_error, num_threads=1
        )
    assert caught.value.partial.indices == (0,)


# ----------------------------------------------------------------------------- lazy batches


def test_lazy_rows_are_taken_as_states_are_and_keep_their_order():
    taken = []

    def rows():
        for i in itertools.count():
            taken.append(i)
            yield (f"q{i}",)

    states = ask.run_batch(rows(), backend=ScriptedBackend(), num_threads=2, generator_style=True)
    assert taken == []
    first = [next(states).ret_value for _ in range(10)]
    assert first == [f"q{i}" for i in range(10)]
    assert len(taken) <= 10 + 2 * 2
    states.close()
    assert len(taken) <= 10 + 2 * 2


@settings(max_examples=25, deadline=None)
@given(questions, st.integers(1, 4))
def test_a_lazy_batch_is_the_same_batch(rows, threads):
    with ScriptedBackend(completes="on a thread") as backend:
        lazy, eager = (
            answers(
                ask.run_batch(
                    iter([(q,) for q in rows]),
                    seed=1,
                    backend=backend,
                    num_threads=threads,
                    generator_style=generator_style,
                )
            )
            for generator_style in (True, False)
        )
    assert lazy == eager


def test_a_lazy_batch_keeps_the_backend_in_use_where_it_was_called():
    with lm.use(ScriptedBackend(lambda prompt: "used")):
        states = ask.run_batch([("a",)], generator_style=True)
    with lm.use(ScriptedBackend(lambda prompt: "later")):
        assert answers(states) == ["used"]


def test_a_slow_row_holds_back_results_and_not_more_than_a_window_of_work():
    begun = []
    with ByHand() as backend:

        @lm.function
        def program(s, i):
            begun.append(i)
            if i == 0:
                s += lm.gen("x")
                s.sync()
            return i

        rows = ((i,) for i in range(100))
        states = program.run_batch(rows, backend=backend, num_threads=2, generator_style=True)
        threading.Thread(target=lambda: (backend.asked(), backend.end())).start()
        assert next(states).ret_value == 0
        assert len(begun) <= 4
        assert [state.ret_value for state in states] == list(range(1, 100))
    assert sorted(begun) == list(range(100))


def test_leaving_a_lazy_batch_cancels_its_rows_and_leaves_no_thread():
    before = set(threading.enumerate())
    with ByHand() as backend:

        @lm.function
        def program(s, i):
            if i:
                s += lm.gen("x")
                s.sync()

        rows = ((i,) for i in range(9))
        for _ in program.run_batch(rows, backend=backend, num_threads=3, generator_style=True):
            backend.asked(1)
            break
        assert all(generation.cancelled for generation in backend.generations)
    assert came_since(before) <= {"lmlang-dispatcher"}


def test_errors_of_a_lazy_batch_come_in_their_turn():
    backend = ScriptedBackend()
    states = fragile.run_batch(
        ((i,) for i in range(9)), backend=backend, num_threads=1, generator_style=True
    )
    assert [next(states)["i"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="row 3") as caught:
        next(states)
    assert set(caught.value.partial.indices) <= {4, 5}
    assert list(states) == []
    returned = fragile.run_batch(
        ((i,) for i in range(6)), backend=backend, on_error="return", generator_style=True
    )
    kinds = [type(state.error()).__name__ for state in returned]
    assert kinds == ["NoneType"] * 3 + ["ValueError", "NoneType", "ValueError"]


def test_an_error_of_the_rows_themselves_comes_in_its_turn():
    def rows():
        yield ("a",)
        yield ("b",)
        raise OSError("disk")

    def wrong():
        yield ("a",)
        yield "b"

    for source, error, message, on_error in (
        (rows, OSError, "disk", "return"),
        (wrong, TypeError, "row 1 is a str", "raise"),
    ):
        seen = []
        with pytest.raises(error, match=message):
            seen.extend(
                state["answer"]
                for state in ask.run_batch(
                    source(), backend=ScriptedBackend(), generator_style=True, on_error=on_error
                )
            )
        assert len(seen) == (2 if source is rows else 1) or seen == []
        with pytest.raises(error, match=message):
            ask.run_batch(source(), backend=ScriptedBackend(), on_error=on_error)


def test_async_bodies_run_in_batches():
    @lm.function
    async def program(s, i):
        s += f"{i}" + lm.gen("x")
        return await s.aget("x")

    with ScriptedBackend(lambda prompt: prompt + "!", completes="on a thread") as backend:
        states = program.run_batch([(i,) for i in range(20)], backend=backend)
    assert [state.ret_value for state in states] == [f"{i}!" for i in range(20)]


# ----------------------------------------------------------------------------- progress


@pytest.mark.parametrize("generator_style", [False, True])
def test_a_progress_bar_counts_rows_on_the_error_stream_without_a_thread(capsys, generator_style):
    before = set(threading.enumerate())
    rows = [(i,) for i in range(6)]
    for source, said in (
        (rows, "6/6 rows"),
        (iter(rows), "6 rows" if generator_style else "6/6 rows"),
    ):
        states = fragile.run_batch(
            source,
            backend=ScriptedBackend(),
            progress_bar=True,
            generator_style=generator_style,
            on_error="return",
        )
        assert len(list(states)) == 6
        shown = capsys.readouterr()
        assert shown.out == ""
        assert said in shown.err
    assert "2 failed" in shown.err
    assert set(threading.enumerate()) <= before


# ----------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a"], r"row 0 is a str: rows are dicts.*write \[\(x,\) for x in rows\]"),
        ([("a",), ["b"]], "row 1 is a list"),
        ([("a",), ()], "row 1: ask.*missing a required argument: 'question'"),
        ([{"question": "a", "x": 1}], "row 0: ask.*unexpected keyword argument 'x'"),
        ([{"question": "a", "seed": 1}], r"'seed' \(.* behind the rows: run_batch\(rows, seed=…"),
        ([{1: "a"}], "row 0 has keys that are no strings"),
        ("abc", "rows are a list of dicts or tuples, one for each run, not str"),
        ({"question": "a"}, "rows are a list of dicts or tuples.*not dict"),
        (3, "rows are a list of dicts or tuples.*not int"),
    ],
)
def test_what_is_no_row_raises_before_anything_runs(rows, message):
    backend = ScriptedBackend()
    with pytest.raises(TypeError, match=message):
        ask.run_batch(rows, backend=backend)
    assert backend.requests == []


@pytest.mark.parametrize("rows", ["abc", 3])
def test_what_has_no_rows_raises_whatever_is_done_with_errors(rows):
    with pytest.raises(TypeError, match="rows are a list of dicts or tuples"):
        ask.run_batch(rows, backend=ScriptedBackend(), on_error="return")


@pytest.mark.parametrize("generator_style", [False, True])
def test_a_row_that_is_none_has_its_error_and_spares_the_others(generator_style):
    def key(row):
        return row[0]

    rows = [("a",), "b", (), ("c",), [3], {"question": "d"}]
    keywords = {"generator_style": generator_style, "on_error": "return", "seed": 3}
    states = list(ask.run_batch(rows, backend=ScriptedBackend(), key=key, **keywords))
    messages = [None if s.error() is None else str(s.error()).splitlines()[0] for s in states]
    assert [message and message.partition(":")[0] for message in messages] == [
        None,
        "row 1 is a str",
        "row 2",
        None,
        "row 4 is a list",
        "0",
    ]
    assert isinstance(states[2].error(), lm.ProgramTypeError)
    assert states[2].error().context.program == "ask"
    alone = ask.run_batch([("c",)], backend=ScriptedBackend(), key=key, seed=3)
    assert states[3]["answer"] == alone[0]["answer"]


def test_rows_are_looked_at_before_a_backend_is_loaded(monkeypatch):
    monkeypatch.setattr(defaults._defaults, "factory", lambda: pytest.fail("it was loaded"))
    with pytest.raises(TypeError, match="row 1: ask"):
        ask.run_batch([("a",), ()])
    with pytest.raises(lm.ProgramError, match="num_threads=0"):
        ask.run_batch([("a",)], num_threads=0)
    with pytest.raises(TypeError, match="no parameter 'wrong'"):
        ask.preview(wrong=1)
    assert len(ask.run_batch([])) == 0


def test_every_accessor_of_a_failed_row_raises_what_the_row_failed_with():
    @lm.function
    def program(s, row):
        if row:
            raise LookupError("no such row")
        s += lm.gen("x")
        return "value"

    rows = [(0,), (1,)]
    good, bad = program.run_batch(rows, backend=ScriptedBackend(), on_error="return")
    assert (good["x"] is not None, good.ret_value) == (True, "value")
    for read in (
        lambda: bad["x"],
        lambda: bad.text_of("x"),
        lambda: bad.meta("x"),
        lambda: bad.ret_value,
        bad.text,
        bad.messages,
        lambda: list(bad.text_iter("x")),
    ):
        with pytest.raises(LookupError, match="no such row"):
            read()


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"num_threads": 0}, "num_threads=0 is out of range: it must be from 1 to 1,024"),
        ({"num_threads": "many"}, "num_threads='many': give \"auto\" or a number"),
        ({"num_threads": 1.5}, "num_threads=1.5 must be an integer"),
        ({"on_error": "ignore"}, 'on_error=\'ignore\' must be "raise" or "return"'),
        ({"progress_bar": 1}, "progress_bar=1 must be True or False"),
        ({"generator_style": "yes"}, "generator_style='yes' must be True or False"),
        ({"stream": True}, "stream=True: a batch returns finished states; with generator_style"),
        ({"journal": 3}, "journal=3 is an int: give the path of a file"),
        ({"journal": ""}, "journal='' is no path"),
        ({"version": "1"}, "version=.* says which rows of a journal hold: give journal"),
        ({"question": "a"}, "unknown keyword 'question': arguments of the program stand in"),
        ({"temperature": -1}, "temperature=-1 is out of range"),
    ],
)
def test_wrong_keywords_of_a_batch_raise(keyword, message):
    with pytest.raises(lm.ProgramError, match=message):
        ask.run_batch([("a",)], backend=ScriptedBackend(), **keyword)
