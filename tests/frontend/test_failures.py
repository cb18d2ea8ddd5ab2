import asyncio
import signal
import threading

import pytest

import lmlang as lm
from lmlang.testing import ScriptedBackend

PATIENCE = 60.0
"""Seconds after which a test says that something hangs."""


def bounded(work):
    """What ``work()`` returns or raises; an AssertionError if it does not end."""
    outcome = []

    def attempt():
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"
    return outcome[0]


def everything(s):
    """All kinds of operations: 9 calls of the backend."""
    s += lm.user("a" + lm.gen("a"))
    s["set"] = 1
    forks = s.fork(2)
    for fork in forks:
        with fork.assistant():
            fork += lm.gen("b")
            fork += lm.select("c", ["x", "y"])
    with s.var_scope("scope"):
        s += lm.gen("d")
    lone = s.fork(1)[0]
    lone += lm.gen("lone")
    s += lm.select("e", ["x", "y"]) + lm.gen("f")
    return forks, lone


@lm.function
def another(s):
    s += lm.gen("g")
    return s["g"]


async def collect(chunks):
    return [chunk async for chunk in chunks]


def threads():
    """All that there are, besides those of servers and connections, and the dispatcher."""
    line = ("lmlang-server", "lmlang-remote", "asyncio", "Thread-", "lmlang-dispatcher")
    return {thread for thread in threading.enumerate() if not thread.name.startswith(line)}


CALLS = 9
ACCESSORS = {
    "a": lambda s: s["a"],
    "set": lambda s: s["set"],
    "d": lambda s: s["d"],
    "e": lambda s: s["e"],
    "f": lambda s: s["f"],
    "undefined": lambda s: s["undefined"],
    "text_of": lambda s: s.text_of("e"),
    "meta": lambda s: s.meta("e"),
    "contains": lambda s: "f" in s,
    "text": lambda s: s.text(),
    "token_ids": lambda s: s.token_ids(),
    "messages": lambda s: s.messages(),
    "sync": lambda s: s.sync(),
    "error": lambda s: s.error(),
    "usage": lambda s: s.usage(),
    "run_log": lambda s: s.run_log().to_json(),
    "program": lambda s: s.program(),
    "repr": repr,
    "append": lambda s: s.__iadd__("x" + lm.gen("g")),
    "assign": lambda s: s.__setitem__("h", 1),
    "fork": lambda s: s.fork(2)[0].error(),
    "join": lambda s: s.fork(2).join(),
    "concat": lambda s: s.fork(2).join("concate_and_append"),
    "turn": lambda s: s.user("x"),
    "scope": lambda s: s["scope"],
    "open a scope": lambda s: s.var_scope("w").__enter__(),
    "copy": lambda s: s.copy().__enter__().text(),
    "call": lambda s: s.call(lambda c: c.text()),
    "inline": lambda s: another(s),
    "fork and append": lambda s: s.fork(2).__iadd__(lm.gen("g"))[1]["g"],
    "text_iter": lambda s: list(s.text_iter()),
    "variable iter": lambda s: list(s.text_iter("f")),
    "scope iter": lambda s: list(s.text_iter("scope")),
    "async iter": lambda s: asyncio.run(collect(s.text_async_iter())),
    "async variable iter": lambda s: asyncio.run(collect(s.text_async_iter("e"))),
    "aget": lambda s: asyncio.run(s.aget("f")),
    "adone": lambda s: asyncio.run(s.adone()),
    "ajoin": lambda s: asyncio.run(s.fork(2).ajoin()),
    "get_meta_info": lambda s: s.get_meta_info("e"),
    "ret_value": lambda s: s.ret_value,
    "cancel": lambda s: s.cancel(),
}


def test_the_program_of_these_tests_calls_as_often_as_it_says():
    backend = ScriptedBackend()
    lm.function(everything)(backend=backend)
    assert len(backend.requests) == CALLS


def attempt(access, state):
    try:
        return access(state)
    except lm.LMLangError as error:
        return error


@pytest.mark.parametrize("completes", ["at once", "on a thread"])
@pytest.mark.parametrize("accessor", ACCESSORS)
def test_with_a_failure_at_any_call_every_accessor_ends(accessor, completes):
    before = threads()
    for k in range(CALLS):
        with ScriptedBackend(fail_at=k, completes=completes) as backend:
            seen = []

            @lm.function
            def program(s, seen=seen):
                forks, lone = everything(s)
                for state in (s, *forks, lone):
                    seen.append(attempt(ACCESSORS[accessor], state))

            outcome = bounded(lambda program=program, b=backend: program(backend=b))
            if accessor == "cancel":
                assert isinstance(outcome, (lm.BackendError, lm.Cancelled)), outcome
                continue
            assert isinstance(outcome, lm.BackendError), outcome
            assert f"call {k} was scripted to fail" in str(outcome)
            assert outcome.context.program == "program"
            assert outcome.context.op_path is not None
            for error in seen:
                if isinstance(error, Exception):
                    assert isinstance(error, (lm.BackendError, lm.CaptureError, lm.ProgramError))
    assert threads() <= before


@pytest.mark.parametrize("completes", ["at once", "on a thread"])
def test_with_a_failure_at_any_call_all_accessors_end_one_after_the_other(completes):
    before = threads()
    for k in range(CALLS):
        with ScriptedBackend(fail_at=k, completes=completes) as backend:

            @lm.function
            def program(s):
                forks, lone = everything(s)
                for state in (s, *forks, lone):
                    for name, access in ACCESSORS.items():
                        if name != "cancel":
                            attempt(access, state)

            outcome = bounded(lambda program=program, b=backend: program(backend=b))
            assert isinstance(outcome, lm.BackendError), outcome
            assert f"call {k} was scripted to fail" in str(outcome)
    assert threads() <= before


OUTSIDE = {name: access for name, access in ACCESSORS.items() if "append" not in name} | {
    "undefined iter": lambda s: list(s.text_iter("undefined"))
}
APPENDING = ("assign", "fork", "join", "concat", "turn", "open a scope", "copy", "call", "inline")


@pytest.mark.parametrize("completes", ["at once", "on a thread"])
@pytest.mark.parametrize("accessor", [n for n in OUTSIDE if n not in (*APPENDING, "ajoin")])
def test_with_a_failure_at_any_call_every_accessor_of_a_streaming_run_ends(accessor, completes):
    before = threads()

    @lm.function
    def program(s):
        everything(s)

    for k in range(CALLS):
        with ScriptedBackend(fail_at=k, completes=completes, chunk=1) as backend:
            state = program.run(stream=True, backend=backend)
            outcome = bounded(lambda state=state: attempt(OUTSIDE[accessor], state))
            if isinstance(outcome, Exception):
                assert isinstance(outcome, (lm.BackendError, lm.CaptureError, lm.Cancelled))
            if accessor != "cancel":
                final = bounded(lambda state=state: attempt(lambda s: s.sync(), state))
                assert f"call {k} was scripted to fail" in str(final)
    await_no_program()
    assert threads() <= before


@pytest.mark.parametrize("completes", ["at once", "on a thread"])
def test_with_a_failure_at_any_call_async_programs_end(completes):
    before = threads()

    @lm.function
    async def program(s):
        forks, _ = everything(s)
        await forks.ajoin()
        return [await s.aget(name) for name in ("a", "d", "scope", "e", "f", "b")]

    for k in range(CALLS):
        with ScriptedBackend(fail_at=k, completes=completes) as backend:
            for run in (
                lambda b=backend: asyncio.run(program.arun(backend=b)),
                lambda k=k: program(backend=ScriptedBackend(fail_at=k)),
            ):
                outcome = bounded(run)
                assert f"call {k} was scripted to fail" in str(outcome)
                assert outcome.context.source.startswith(__file__)
    await_no_program()
    assert threads() <= before


def await_no_program():
    for thread in threading.enumerate():
        if thread.name == "lmlang-run":
            thread.join(PATIENCE)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failure_in_a_hundredfold_nested_fork_names_its_branch(failing):
    depth = [0, 50, 99][failing]

    def body(s):
        states = [s]
        for level in range(100):
            child = states[-1].fork(3)[2]
            child += f"{level} " + lm.gen("x")
            states.append(child)
        states[-1]["x"]

    with ScriptedBackend(fail_at=depth, completes="on a thread") as backend:
        outcome = bounded(lambda: lm.function(body)(backend=backend))
    assert isinstance(outcome, lm.BackendError)
    assert outcome.context.branch == 2
    assert outcome.context.op_path.count("fork0.2") == depth + 1
    assert outcome.context.source == f"{__file__}:{body.__code__.co_firstlineno + 4}"


def test_what_was_finished_stays_readable_and_all_later_things_raise():
    def body(s):
        s += "p" + lm.gen("x")
        s["y"] = 1
        s += lm.gen("z")
        s["late"] = 2
        s += lm.gen("w")
        assert (s["x"], s["y"], s.meta("x").finish) == ("ok", 1, "eos")
        for read in (
            lambda: s["z"],
            lambda: s["late"],
            lambda: s["w"],
            lambda: s.text_of("z"),
            lambda: s.meta("w"),
            s.text,
            s.token_ids,
            s.messages,
            s.sync,
        ):
            with pytest.raises(lm.BackendError, match="call 1 was scripted to fail"):
                read()
        s += "more" + lm.gen("v")
        assert "v" in s
        assert isinstance(s.error(), lm.BackendError)

    backend = ScriptedBackend(["ok"], fail_at=1)
    with pytest.raises(lm.BackendError):
        lm.function(body)(backend=backend)
    assert len(backend.requests) == 2


def test_an_error_says_where_in_the_program_it_arose():
    def body(s):
        s += lm.system("long " * 100)
        s += "the tail" + lm.gen("x")

    with pytest.raises(lm.BackendError) as caught:
        lm.function(body)(backend=ScriptedBackend(fail_at=0))
    context = caught.value.context
    assert (context.program, context.op_path, context.branch) == ("body", "0", None)
    assert context.source == f"{__file__}:{body.__code__.co_firstlineno + 2}"
    assert context.prompt_tail.endswith("the tail")
    assert len(context.prompt_tail) == 80
    assert "  operation: 0" in str(caught.value)


def test_every_reader_gets_a_copy_of_its_own():
    def body(s):
        s += lm.gen("x")
        errors = []
        for _ in range(3):
            try:
                s["x"]
            except lm.BackendError as error:
                errors.append(error)
        return errors

    shared = lm.BackendError("shared", retryable=True, status=503)
    backend = ScriptedBackend(fail_at=0, error=shared)
    seen = []
    with pytest.raises(lm.BackendError, match="shared"):
        lm.function(lambda s: seen.extend(body(s)))(backend=backend)
    assert len({id(error) for error in seen}) == 3
    assert all((error.retryable, error.status) == (True, 503) for error in seen)
    assert shared.context is None


class Foreign(Exception):
    pass


def test_an_error_that_is_not_ours_passes_as_itself():
    mine = Foreign("mine")

    def from_backend(s):
        s += lm.gen("x")
        return s["x"]

    def from_body(s):
        s += lm.gen("x")
        raise mine

    with pytest.raises(Foreign) as caught:
        lm.function(from_backend)(backend=ScriptedBackend(fail_at=0, error=mine))
    assert caught.value is mine
    with pytest.raises(Foreign) as caught:
        lm.function(from_body)(backend=ScriptedBackend())
    assert caught.value is mine


@pytest.mark.parametrize("method", ["generate", "score"])
@pytest.mark.parametrize("nonsense", [Foreign("raised"), None, 3])
def test_a_backend_that_raises_or_returns_nonsense_fails_the_operation(method, nonsense):
    class Odd(ScriptedBackend):
        pass

    def odd(self, request):
        if isinstance(nonsense, Exception):
            raise nonsense
        return nonsense

    setattr(Odd, method, odd)

    @lm.function
    def program(s):
        s += lm.gen("x") + lm.select("y", ["a", "b"])

    outcome = bounded(lambda: program(backend=Odd()))
    if isinstance(nonsense, Exception):
        assert outcome is nonsense
    else:
        assert isinstance(outcome, lm.ProgramError)
        assert f"Odd.{method}() returned {'None' if nonsense is None else 'an int'}" in str(outcome)


def test_a_backend_that_scores_too_few_choices_is_named():
    class Short(ScriptedBackend):
        def _scored(self, request):
            scores = super()._scored(request)
            return type(scores)(scores.choices[:1], scores.usage)

    @lm.function
    def program(s):
        s += lm.select("y", ["a", "b"])

    with pytest.raises(lm.BackendError, match="scored 1 choices where 2 were asked"):
        program(backend=Short())


@pytest.mark.parametrize("operation", [lm.gen("x"), lm.select("x", ["a", "b"])])
def test_an_error_in_the_body_cancels_what_is_under_way(operation):
    kept = []
    with ScriptedBackend(completes="when released") as backend:

        @lm.function
        def program(s):
            kept.append(s)
            s["before"] = 1
            s += operation + lm.gen("y")
            raise Foreign("stop")

        with pytest.raises(Foreign):
            program(backend=backend)
        (state,) = kept
        assert state["before"] == 1
        for read in (lambda: state["x"], lambda: state["y"], state.text, state.sync):
            with pytest.raises(Foreign, match="stop"):
                bounded_raise(read)
        assert len(backend.requests) == 1


def bounded_raise(work):
    outcome = bounded(work)
    assert isinstance(outcome, Exception), outcome
    raise outcome


def test_closing_the_backend_ends_programs_that_wait_for_it():
    backend = ScriptedBackend(completes="when released")

    @lm.function
    def program(s):
        for fork in s.fork(3):
            fork += lm.gen("x") + lm.select("y", ["a", "b"])
        backend.close()

    with pytest.raises(lm.BackendError, match="closed before it answered"):
        program(backend=backend)
    with pytest.raises(lm.BackendError, match="the backend is closed"):
        program(backend=backend)


def test_errors_of_forks_are_raised_in_program_order_whatever_failed_first():
    with ScriptedBackend(["only"], completes="when released") as backend:

        @lm.function
        def program(s):
            for i, fork in enumerate(s.fork(3)):
                fork += f"{i}" + lm.gen("x")
            backend.release(2)
            backend.release(1)
            backend.release(0)

        with pytest.raises(lm.BackendError) as caught:
            program(backend=backend)
    assert caught.value.context.branch == 0


def interrupt_main_thread():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_an_interrupt_while_waiting_ends_the_run():
    with ScriptedBackend(completes="when released") as backend:

        @lm.function
        def program(s):
            s += lm.gen("x")
            threading.Thread(target=interrupt_main_thread).start()
            return s["x"]

        with pytest.raises(KeyboardInterrupt):
            program(backend=backend)
        assert backend.pending() == []
