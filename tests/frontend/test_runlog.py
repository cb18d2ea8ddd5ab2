import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.frontend import draws, ir
from lmlang.frontend.runlog import Choice, Failure, RunLog, Sample
from lmlang.protocol import SamplingParams, Usage
from lmlang.testing import RandomBackend, ScriptedBackend
from tests.frontend.by_hand import PATIENCE, ByHand

# ------------------------------------------------------------------ programs of all kinds

gens = st.tuples(
    st.just("gen"), st.sampled_from([1, 1, 2, 3]), st.integers(0, 9), st.sampled_from([0, 1])
)
selects = st.tuples(st.just("select"), st.integers(1, 3), st.sampled_from([0, 1]))
others = st.sampled_from([("text",), ("set",), ("scope",), ("call",), ("turn",)])


def bodies(steps):
    children = st.lists(st.lists(steps, max_size=3), min_size=1, max_size=3)
    ends = st.sampled_from(["join", "concatenate", "leave", "cancel"])
    return gens | selects | others | st.tuples(st.just("fork"), children, ends)


programs = st.lists(st.recursive(gens | selects | others, bodies, max_leaves=8), max_size=6)
backends = st.one_of(
    st.builds(
        ScriptedBackend,
        fail_at=st.none() | st.integers(0, 6),
        completes=st.sampled_from(["at once", "on a thread"]),
    ),
    st.builds(RandomBackend, completes=st.sampled_from(["at once", "on a thread"])),
)


@lm.function
def called(s):
    s += lm.gen("inner", max_tokens=2)


def follow(s, steps):
    for step in steps:
        match step:
            case ("gen", n, most, temperature):
                s += lm.gen("g", n=n, max_tokens=most, temperature=temperature)
            case ("select", count, temperature):
                s += lm.select("c", ["a", "b", "ab"][:count], temperature=temperature)
            case ("fork", children, end):
                forks = s.fork(len(children))
                for fork, inner in zip(forks, children, strict=True):
                    follow(fork, inner)
                if end == "cancel":
                    forks[-1].cancel()
                elif end != "leave":
                    forks.join("gather_variable" if end == "join" else "concate_and_append")
            case ("set",):
                s["v"] = [1]
            case ("scope",):
                with s.var_scope("z"):
                    s += "in" + lm.gen("g", max_tokens=3)
            case ("call",):
                called(s)
            case ("turn",):
                s += lm.user("u")
            case _:
                s += "text"


def settled(s):
    """Wait until what an ended run had under way has ended too."""
    run = s._cursor.run
    with run.changed:
        assert run.changed.wait_for(lambda: all(x.settled() for x in run.states), PATIENCE)


def ran(steps, backend, **keywords):
    """The state and what the run raised."""
    seen, error = [], None

    @lm.function
    def program(s):
        seen.append(s)
        follow(s, steps)

    with backend:
        try:
            program(backend=backend, **keywords)
        except lm.LMLangError as raised:
            error = raised
        settled(seen[0])
    return seen[0], error


LOGGED = {
    ir.Gen: "gen",
    ir.Select: "select",
    ir.Fork: "fork",
    ir.Join: "join",
    ir.SetVar: "set",
    ir.EndScope: "scope",
    ir.Call: "call",
}


@settings(max_examples=150, deadline=None)
@given(programs, backends, st.none() | st.integers(1, 20))
def test_a_log_tells_of_every_operation_and_its_usage_is_the_runs(steps, backend, most):
    state, error = ran(steps, backend, max_program_tokens=most)
    log = state.run_log()
    assert log.usage == state.usage()
    nodes = [node for node in state.program().nodes if type(node) in LOGGED]
    assert [each.kind for each in log.operations] == [LOGGED[type(node)] for node in nodes]
    assert (log.error is None) == (error is None)
    assert log.seconds is not None
    if error is not None:
        # A join raises its child's error even where a budget has ended the run meanwhile.
        told = [log.error, *(each.error for each in log.failed())]
        assert Failure(type(error).__name__, str(error).split("\n")[0]) in told
        if error.context.op_path is not None:
            assert error.context.op_path in [each.path for each in log.failed()]
    for node, each in zip(nodes, log.operations, strict=True):
        check(node, each)
    assert RunLog.from_json(log.to_json()) == log
    assert len(str(log).splitlines()) == len(log.operations) + 3 + (error is not None)


def check(node, each):
    reached = [t for t in (each.queued, each.submitted, each.first_token) if t is not None]
    assert reached == sorted(reached)
    assert each.status in ("done", "failed", "cancelled", "skipped")
    assert (each.finished is None) == (each.status in ("cancelled", "skipped"))
    assert (each.error is not None) == (each.status == "failed")
    if each.finished is not None:
        assert reached[-1] <= each.finished
    if each.status == "skipped":
        assert each.submitted is None
    if each.status != "done":
        assert each.usage == Usage() or each.error.type == "BudgetExceeded"
    elif each.kind == "gen":
        n, drawn = node.n or 1, node.temperature != 0
        assert (len(each.samples), len(each.draw_keys)) == (n, n * drawn)
        assert sum(len(x.tokens) for x in each.samples) == each.usage.generated_tokens
        assert all(len(x.tokens) == len(x.logprobs) for x in each.samples)
        assert each.text == each.samples[0].text
    elif each.kind == "select":
        assert each.text in node.choices
        asked = len(node.choices) > 1
        assert len(each.choices) == (len(node.choices) if asked else 0)
        assert len(each.draw_keys) == int(asked and node.temperature == 1)
    else:
        assert each.usage == Usage()


@settings(max_examples=50, deadline=None)
@given(programs, st.integers(0, 9))
def test_the_draw_keys_are_those_that_the_backend_was_given(steps, seed):
    backend = ScriptedBackend()
    log = ran(steps, backend, seed=seed)[0].run_log()
    given_keys, logged = {}, {}
    for request in backend.requests:
        if hasattr(request, "draw_key") and request.params.temperature > 0:
            given_keys.setdefault(request.tag.op_path, []).append(request.draw_key)
    for each in log.operations:
        if each.kind == "gen" and each.draw_keys:
            logged[each.path] = list(each.draw_keys)
    assert logged == given_keys


# ------------------------------------------------------------------------- what it says


def test_what_a_log_says_of_a_run():
    @lm.function
    def tips(s, topic):
        s += f"Two tips about {topic}: "
        forks = s.fork(2)
        for fork in forks:
            fork += lm.gen("tip", max_tokens=20, stop="!", n=1)
        forks.join()
        s["best"] = 2
        s += lm.select("verdict", ["good", "bad"], temperature=0.5)

    line = tips._body.__code__.co_firstlineno
    backend = ScriptedBackend(["Sit!", "Stand, walk"], scores={"good": -1.0, "bad": -9.0})
    state = tips("health", backend=backend, seed=7, temperature=0.5, max_program_tokens=99)
    log, run = state.run_log(), state._cursor.run
    assert (log.version, log.program, log.model, log.seed) == (2, "tips", "scripted", 7)
    assert (log.run_id, log.row_key) == (run.id, run.row_key.hex())
    assert (log.params, log.n) == (SamplingParams(temperature=0.5), 1)
    assert (log.max_program_tokens, log.error, log.failed()) == (99, None, ())
    assert [
        (x.path, x.kind, x.status, x.state, x.branch, x.name, x.children, x.text)
        for x in log.operations
    ] == [
        ("0", "fork", "done", "", None, None, 2, None),
        ("0/fork0.0/0", "gen", "done", "0/fork0.0", 0, "tip", 0, "Sit"),
        ("0/fork0.1/0", "gen", "done", "0/fork0.1", 1, "tip", 0, "Stand, walk"),
        ("", "join", "done", "", None, None, 2, None),
        ("", "set", "done", "", None, "best", 0, "2"),
        ("1", "select", "done", "", None, "verdict", 0, "good"),
    ]
    lines = [3, 5, 5, 6, 7, 8]
    assert [x.source for x in log.operations] == [f"{__file__}:{line + n}" for n in lines]
    first, chosen = log.operations[1], log.operations[5]
    assert first.samples == (Sample("Sit", tuple(map(ord, "Sit!")), (-1.0,) * 4, "stop", "!"),)
    assert first.usage == Usage(prompt_tokens=23, generated_tokens=4)
    assert (first.draw_keys, first.first_draw) == (
        (draws.draw_key(7, run.row_key, "0/fork0.0/0"),),
        0,
    )
    assert chosen.choices == (Choice("good", -1.0), Choice("bad", -9.0))
    assert chosen.draw_keys == (draws.draw_key(7, run.row_key, "1"),)
    assert chosen.usage.scored_tokens == 7


def test_samples_scopes_calls_pictures_and_values_as_text():
    @lm.function
    def program(s):
        s += lm.gen("x", n=2, seed=5)
        with s.var_scope("sc"):
            s += "abc"
        called(s)
        s["list"], s["huge"], s["joined"] = [1], 2**70, "\ud83d\ude00"
        s += lm.image(b"\x89PNG\r\n\x1a\n")

    backend = ScriptedBackend(["one", "two", "in"], vision=True)
    log = program(backend=backend, seed=1).run_log()
    several, scope, call, _, *values, picture = log.operations
    assert [x.text for x in several.samples] == ["one", "two"]
    assert several.text == "one"
    row_key = bytes.fromhex(log.row_key)
    assert several.draw_keys == tuple(draws.draw_key(5, row_key, "0", i) for i in range(2))
    assert (scope.kind, scope.name, scope.text) == ("scope", "sc", "abc")
    assert (call.kind, call.name, call.text) == ("call", "called", None)
    assert [x.text for x in values] == ["<list>", hex(2**70), "\U0001f600"]
    assert (picture.kind, picture.status) == ("image", "done")
    assert RunLog.from_json(log.to_json()) == log


def test_a_log_of_a_run_that_goes_on_says_where_it_stands():
    backend, appended = ByHand(), threading.Event()

    @lm.function
    def program(s):
        s += lm.gen("x") + lm.gen("y")
        s["v"] = 1
        appended.set()

    state = program(backend=backend, stream=True)
    assert appended.wait(PATIENCE)
    log = state.run_log()
    assert [x.status for x in log.operations] == ["running", "queued", "queued"]
    assert (log.seconds, log.error, log.usage) == (None, None, Usage())
    assert "not ended" in str(log)
    backend.say("a")
    backend.end("b")
    backend.end("c", 1)
    assert state["v"] == 1
    log = state.run_log()
    assert [x.status for x in log.operations] == ["done"] * 3
    assert log.usage == state.usage() == Usage(prompt_tokens=2, generated_tokens=3)
    first = log.operations[0]
    assert 0 <= first.queued <= first.submitted <= first.first_token <= first.finished
    assert first.seconds == first.finished - first.submitted
    assert log.operations[2].seconds is None


def test_a_generation_without_tokens_has_no_first_one():
    @lm.function
    def program(s):
        s += lm.gen("x", max_tokens=0)

    (only,) = program(backend=ScriptedBackend()).run_log().operations
    assert (only.first_token, only.status, only.samples[0].finish) == (None, "done", "length")


def test_a_select_among_one_choice_asks_nobody():
    @lm.function
    def program(s):
        s += lm.select("x", ["only"], temperature=1)

    (only,) = program(backend=ScriptedBackend()).run_log().operations
    assert (only.submitted, only.choices, only.draw_keys) == (None, (), ())
    assert (only.status, only.text, only.usage) == ("done", "only", Usage())


# ------------------------------------------------------------------------- failures


def test_the_log_of_a_failed_row_says_which_operation_failed():
    @lm.function
    def program(s):
        s += lm.gen("x") + lm.gen("y") + lm.gen("z")

    backend = ScriptedBackend(fail_at=1)
    (state,) = program.run_batch([()], backend=backend, on_error="return")
    log = state.run_log()
    assert [x.status for x in log.operations] == ["done", "failed", "skipped"]
    (failed,) = log.failed()
    assert (failed.name, failed.path) == ("y", "1")
    assert failed.error == log.error == Failure("BackendError", "call 1 was scripted to fail.")
    assert log.operations[2].error is None
    assert "failed: BackendError: call 1 was scripted to fail." in str(log)


def test_an_error_that_the_program_gets_over_stays_in_the_log():
    @lm.function
    def program(s):
        forks = s.fork(2)
        forks += lm.gen("x")
        with pytest.raises(lm.BackendError):
            forks.join()

    log = program(backend=ScriptedBackend(fail_at=1)).run_log()
    assert (log.error, [x.path for x in log.failed()]) == (None, ["0/fork0.1/0"])


def test_an_error_of_the_body_cancels_what_is_under_way():
    kept = []

    @lm.function
    def program(s):
        kept.append(s)
        s += lm.gen("x") + lm.gen("y")
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        program(backend=ByHand(stubborn=True))
    log = kept[0].run_log()
    assert [x.status for x in log.operations] == ["cancelled", "skipped"]
    assert (log.error, log.failed()) == (Failure("ValueError", "mine"), ())


def test_what_a_budget_refuses_has_been_charged():
    state, error = ran(
        [("gen", 2, 9, 1), ("gen", 1, 9, 1)], ScriptedBackend(), max_program_tokens=9
    )
    assert isinstance(error, lm.BudgetExceeded)
    log = state.run_log()
    assert log.usage == state.usage()
    assert [x.status for x in log.operations] == ["failed", "skipped"]
    assert log.operations[0].usage.generated_tokens > 9
    assert len(log.operations[0].samples) == 2


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unreadable(), "(its message cannot be read)"),
        (ValueError("x" * 9_999), "x" * 2_048),
        (ValueError("\ud800"), "\ud800"),
    ],
)
def test_errors_of_others_are_told_within_limits(error, message):
    @lm.function
    def program(s):
        s += lm.gen("x")

    backend = ScriptedBackend(fail_at=0, error=error)
    (state,) = program.run_batch([()], backend=backend, on_error="return")
    log = state.run_log()
    assert log.failed()[0].error == Failure(type(error).__name__, message)
    assert RunLog.from_json(log.to_json()) == log


def test_a_log_names_the_adapter():
    @lm.function
    def program(s):
        s += lm.gen("x")

    log = program(backend=ScriptedBackend(), lora="mine").run_log()
    assert log.lora == "mine"
    assert str(log).startswith("program on scripted + adapter mine: ")
    assert RunLog.from_json(log.to_json()) == log
    assert program(backend=ScriptedBackend()).run_log().lora is None


def test_a_log_holds_what_the_program_asked_to_be_told_of_tokens():
    @lm.function
    def program(s):
        s += "a" + lm.gen("x", regex="ab?", provenance=True)
        s += lm.gen("y", top_logprobs_num=2, return_text_in_logprobs=True, max_tokens=3)

    state = program(backend=RandomBackend(), seed=3)
    log = state.run_log()
    for operation in log.operations:
        (sample,), meta = operation.samples, state.meta(operation.name)
        for name in ("probs", "top_logprobs", "top_probs", "provenance"):
            assert getattr(sample, name) == getattr(meta, name)
    assert log.operations[0].samples[0].provenance
    asked = log.operations[1].samples[0]
    ids = {*asked.tokens, *(token for top in asked.top_logprobs for token, _ in top)}
    assert dict(log.spelling) == {token: chr(token) for token in ids}
    assert log.recording == state.program()
    nodes = {ir.made_by(node)[0]: node for node in log.recording.nodes[:-1]}
    assert [nodes[each.made].name for each in log.operations] == ["x", "y"]
    read = RunLog.from_json(log.to_json())
    assert read == log
    assert read.recording.sources == log.recording.sources


def test_a_log_has_the_text_so_far_of_what_is_under_way():
    backend = ByHand()

    @lm.function
    def program(s):
        s += lm.gen("x")

    state = program(backend=backend, stream=True)
    backend.say("ab")
    (operation,) = state.run_log().operations
    assert (operation.status, operation.text) == ("running", "ab")
    backend.end("c")
    assert state["x"] == "abc"
    (operation,) = state.run_log().operations
    assert (operation.status, operation.text) == ("done", "abc")
    assert state._cursor.run.records[0].handle is None


def test_a_backend_that_does_not_say_its_name_keeps_no_log_from_its_reader():
    class Nameless(ScriptedBackend):
        def info(self):
            raise lm.BackendError("gone")

    @lm.function
    def program(s):
        s += lm.gen("x")

    log = program(backend=Nameless()).run_log()
    assert log.model == ""
    assert "an unknown model" in str(log)
