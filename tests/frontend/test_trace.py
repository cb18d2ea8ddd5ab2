import asyncio
import inspect
import json
import os
import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.frontend import ir
from lmlang.frontend.printer import parse_program, print_program
from lmlang.frontend.trace import trace
from lmlang.frontend.verify import verify
from lmlang.testing import ScriptedBackend


def traced(body, **known):
    parameters = list(inspect.signature(body).parameters.values())[1:]
    return verify(trace(body.__name__, body, inspect.Signature(parameters), known))


def shown(program):
    return [line.strip() for line in print_program(program).splitlines()[1:]]


def line(body, number):
    return f"{__file__}:{body.__code__.co_firstlineno + number}"


# ------------------------------------------------------------------------- what is recorded


def test_the_documented_example():
    def tips(s, topic: str):
        s += "Two tips about " + topic
        forks = s.fork(2)
        forks += lm.gen("tip", max_tokens=32, stop="\n")
        forks.join()
        s += s["tip"][0]
        s += lm.select("verdict", ["good", "bad"])

    assert print_program(traced(tips)) == (
        "program tips(topic: str)\n"
        "  %0 = start\n"
        '  %1 = text %0 "Two tips about "\n'
        "  %2 = arg %1 topic\n"
        "  %3, %4 = fork %2 2\n"
        '  %5 = gen %3 -> tip [max_tokens=32, stop="\\n"]\n'
        '  %6 = gen %4 -> tip [max_tokens=32, stop="\\n"]\n'
        "  %7 = join %2 %5 %6\n"
        "  %8 = ref %7 tip[0]\n"
        '  %9 = select %8 -> verdict ["good", "bad"]\n'
        "  return %9\n"
    )


def test_what_is_given_and_defaults_are_known():
    def body(s, name, greeting="Hello", *rest, mark="!", **more):
        s += greeting + " " + name + "".join(rest) + mark
        return more

    assert shown(traced(body)) == [
        "%0 = start",
        '%1 = text %0 "Hello "',
        "%2 = arg %1 name",
        '%3 = text %2 "!"',
        "return %3 <dict>",
    ]
    known = traced(body, name="Ann", greeting="Hi", rest=("a", "b"), mark=".", extra=1)
    assert shown(known) == ["%0 = start", '%1 = text %0 "Hi Annab."', "return %1 <dict>"]


def test_an_argument_of_no_parameter_is_refused():
    with pytest.raises(lm.ProgramError, match=r"\(topic\) has no parameter 'tropic'"):
        traced(body_of_topic, tropic=1)


def body_of_topic(body, topic):
    body += topic


def test_appended_values_become_refs_that_name_a_state_only_where_they_must():
    def body(s, a):
        s += lm.gen("x")
        first = s["x"]
        s += "1" + first + "2" + s["x"]
        fork = s.fork(1)[0]
        fork += lm.gen("y")
        s += fork["y"]
        s += lm.gen("x") + first
        s["z"] = s["x"]
        s["w"] = "w" + a
        s += s["z"] + s["w"]
        return s["x"]

    assert shown(traced(body)) == [
        "%0 = start",
        "%1 = gen %0 -> x",
        '%2 = text %1 "1"',
        "%3 = ref %2 x",
        '%4 = text %3 "2"',
        "%5 = ref %4 x",
        "%6 = fork %5 1",
        "%7 = gen %6 -> y",
        "%8 = ref %5 y [of=%7]",
        "%9 = gen %8 -> x",
        "%10 = ref %9 x [of=%1]",
        "%11 = set_var %10 -> z ref x",
        "%12 = set_var %11 -> w <str>",
        "%13 = ref %12 x",
        '%14 = text %13 "w"',
        "%15 = arg %14 a",
        "return %15 ref x",
    ]


def test_lists_of_joins_and_samples_have_their_length():
    def body(s):
        s += lm.gen("x", n=2)
        assert len(s["x"]) == 2
        forks = s.fork(2)
        for fork in forks:
            fork += lm.gen("y", n=2)
        forks[1]["known"] = 7
        forks.join()
        assert s["known"] == [None, 7]
        (_, (_, last)) = s["y"]
        s += last + s["x"][1]

    assert [n for n in traced(body).nodes if isinstance(n, ir.Ref)] == [
        ir.Ref(7, 8, "y", (1, 1)),
        ir.Ref(8, 9, "x", (1,)),
    ]


def test_turns_scopes_copies_calls_and_text_are_recorded_as_in_a_run():
    def inner(s, n):
        with s.user():
            s += f"{n}" + lm.gen("i")
        return s["i"]

    def body(s):
        with s.var_scope("all"):
            s.system("a")
            with s.copy() as c:
                c += lm.gen("c")
            s += s.call(inner, 3)
            inner(s, 4)
        s += s["all"] + s.text_of("all")
        forks = s.fork(2)
        forks += "own"
        forks.join("concate_and_append")
        s.sync()
        assert "i" in s
        assert s.error() is None

    program = traced(body)
    assert program.stopped is None
    kinds = [type(node).__name__ for node in program.nodes]
    assert " ".join(kinds) == (
        "Start Scope Role Text EndRole Fork Gen Fork Role Text Gen EndRole Ref Role Text Gen "
        "EndRole EndScope Ref Ref Fork Text Text Join Return"
    )
    assert next(n for n in program.nodes if isinstance(n, ir.Join)).mode == "concate_and_append"


def test_async_bodies_are_traced():
    async def body(s, topic):
        s += topic + lm.gen("x")
        await asyncio.sleep(0)
        s += await s.aget("x")
        forks = s.fork(2)
        forks += lm.gen("y")
        await forks.ajoin()
        return (await s.aget("y"))[1]

    program = traced(body)
    assert program.stopped is None
    assert shown(program)[-1] == "return %8 ref y[1]"


# --------------------------------------------------------------- where the static part ends


def use_truth(x):
    return 1 if x else 2


# ruff: noqa: SIM300, UP031
DEPENDENT = {
    "truth": (use_truth, "its truth is asked"),
    "equal": (lambda x: x == "a", "it is compared"),
    "unequal": (lambda x: "a" != x, "it is compared"),
    "less": (lambda x: "a" < x, "it is compared"),
    "among": (lambda x: x in ["a"], "it is compared"),
    "key": (lambda x: {"a": 1}[x], "it is compared"),
    "inside": (lambda x: "a" in x, "its parts are asked"),
    "int": (lambda x: int(x), "it is read as a number"),
    "float": (lambda x: float(x), "it is read as a number"),
    "index": (lambda x: [1][x], "it is read as a number"),
    "len": (lambda x: len(x), "its parts are asked"),
    "iterate": (lambda x: list(x), "its parts are asked"),
    "item": (lambda x: x[0], "its parts are asked"),
    "method": (lambda x: x.strip(), ".strip is asked of it"),
    "f-string": (lambda x: f"a{x}", "its text is asked, as in an f-string"),
    "f-string repr": (lambda x: f"a{x!r}", "its text is asked"),
    "str": (lambda x: str(x), "its text is asked"),
    "percent": (lambda x: "%s" % x, "its text is asked"),
    "format": (lambda x: format(x, "3"), "its text is asked"),
    "modulo": (lambda x: x % 2, "it is computed with"),
    "repeat": (lambda x: x * 2, "it is computed with"),
    "join": (lambda x: "".join([x]), "expected str instance, SymbolicText found"),
    "find": (lambda x: "abc".find(x), "not SymbolicText"),
    "regex": (lambda x: re.match("a", x), "expected string or bytes-like object"),
    "json": (lambda x: json.dumps({"a": x}), "SymbolicText is not JSON serializable"),
    "path": (lambda x: os.fspath(x), "it is a path"),
    "call": (lambda x: x(), "it is called"),
    "stop": (lambda x: lm.gen("z", stop=x), "its text is asked"),
    "choices": (lambda x: lm.select("z", [x]), "its text is asked"),
    "name": (lambda x: lm.gen(x), "SymbolicText"),
    "sum": (lambda x: f"{'a' + x}", "its text is asked"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["argument", "variable"])
@pytest.mark.parametrize("use", DEPENDENT)
def test_any_other_use_ends_the_static_part(use, kind):
    work, reason = DEPENDENT[use]

    def body(s, topic):
        s += "a" + topic + lm.gen("x")
        value = topic if kind == "argument" else s["x"]
        with s.user():
            s += "b"
            work(value)
            s += "never"

    program = traced(body)
    assert shown(program)[1:] == [
        '%1 = text %0 "a"',
        "%2 = arg %1 topic",
        "%3 = gen %2 -> x",
        "%4 = role %3 user",
        '%5 = text %4 "b"',
    ]
    assert reason in program.stopped.reason
    assert program.stopped.source.startswith(f"{__file__}:")
    if "SymbolicText" not in reason and "expected string" not in reason:
        where = "argument 'topic'" if kind == "argument" else "variable 'x'"
        assert where in program.stopped.reason


def test_the_line_is_the_one_that_depends():
    def body(s):
        s += lm.gen("x")
        if s["x"] == "yes":
            s += "more"

    def helped(s):
        s += lm.gen("x")
        json.dumps(s["x"])

    def pictured(s):
        s += lm.gen("x")
        s += lm.image(s["x"])

    assert traced(pictured).stopped.source == line(pictured, 2)
    assert traced(body).stopped.source == line(body, 2)
    assert traced(helped).stopped.source == line(helped, 2)


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.text(),
        lambda s: s.token_ids(),
        lambda s: s.messages(),
        lambda s: s.meta("x").finish,
        lambda s: s.usage().prompt_tokens,
        lambda s: list(s.messages()),
        lambda s: lm.function(lambda t: t.__iadd__(lm.gen("y")))(),
        lambda s: lm.function(lambda t: t.__iadd__(lm.gen("y"))).run_batch([{}, {}]),
    ],
)
def test_what_only_a_run_has_ends_the_static_part(read):
    def body(s):
        s += "a" + lm.gen("x")
        read(s)
        s += "never"

    program = traced(body)
    assert program.stopped.source == f"{__file__}:{read.__code__.co_firstlineno}"
    assert shown(program)[1:] == ['%1 = text %0 "a"', "%2 = gen %1 -> x"]


def test_nothing_that_a_body_does_against_the_end_is_recorded():
    def body(s):
        s += lm.gen("x")
        try:
            bool(s["x"])
        except Exception:
            s += "not caught"
        except BaseException:
            s += "caught"
        finally:
            s["late"] = 1
        return 5

    program = traced(body)
    assert shown(program) == ["%0 = start", "%1 = gen %0 -> x"]
    assert program.stopped.source == line(body, 3)


def test_errors_of_the_body_pass():
    for error in (KeyError("mine"), TypeError("mine"), KeyboardInterrupt(), StopIteration()):

        def body(s, error=error):
            s += lm.gen("x")
            raise error

        with pytest.raises(type(error)) as caught:
            traced(body)
        assert caught.value is error

    def misuse(s):
        s += 3

    with pytest.raises(lm.ProgramError, match="cannot be appended"):
        traced(misuse)
    with pytest.raises(lm.CaptureError, match="no variable 'x'"):
        traced(lambda s: s["x"])


def test_no_backend_is_asked_and_none_is_loaded(monkeypatch):
    monkeypatch.setattr("lmlang.frontend.defaults._defaults.factory", None)
    with ScriptedBackend() as backend, lm.use(backend):

        def body(s):
            s += lm.gen("x") + lm.select("y", ["a", "b"])
            return s["x"]

        traced(body)
        assert backend.requests == []
        assert lm.function(body)().ret_value  # the backend is in use again


def test_traces_on_many_threads_do_not_mix():
    def body(s, number, topic):
        for _ in range(50):
            s += f"{number}" + topic
        return s.fork(number)[0]

    found = {}

    def work(number):
        found[number] = traced(body, number=number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(1, 9):
        assert found[number].nodes == traced(body, number=number).nodes


def test_sources_are_the_users_lines():
    def body(s, topic):
        s += "a"
        s += topic

    assert traced(body).sources == {1: line(body, 1), 2: line(body, 2)}


# ------------------------------------------------------------------ runs, traces, verification

pieces = st.one_of(
    st.sampled_from(["a", "b c", "\n", "é"]).map(lambda text: ("text", text)),
    st.tuples(st.just("gen"), st.sampled_from(["x", "y", None]), st.integers(1, 2)),
    st.tuples(st.just("select"), st.sampled_from(["x", "z"])),
    st.tuples(st.just("set"), st.sampled_from(["x", "w"]), st.integers() | st.text("ab")),
    st.tuples(st.just("turn"), st.deferred(lambda: bodies)),
    st.tuples(st.just("scope"), st.sampled_from(["v", "x"]), st.deferred(lambda: bodies)),
    st.tuples(st.just("copy"), st.deferred(lambda: bodies)),
    st.tuples(st.just("inline"), st.integers() | st.text("ab"), st.deferred(lambda: bodies)),
    st.tuples(st.just("call"), st.deferred(lambda: bodies)),
    st.tuples(
        st.just("fork"),
        st.lists(st.deferred(lambda: bodies), min_size=1, max_size=3),
        st.sampled_from([None, "gather_variable", "concate_and_append"]),
    ),
)
bodies = st.lists(pieces, max_size=4)


def perform(s, body, in_turn=False):
    for kind, *rest in body:
        if kind == "text":
            s += rest[0]
        elif kind == "gen":
            s += "g" + lm.gen(rest[0], max_tokens=4, n=rest[1])
        elif kind == "select":
            s += lm.select(rest[0], ["a", "b"])
        elif kind == "set":
            s[rest[0]] = rest[1]
        elif kind == "turn" and not in_turn:
            with s.user():
                perform(s, rest[0], True)
        elif kind == "turn":
            perform(s, rest[0], True)
        elif kind == "scope":
            with s.var_scope(rest[0]):
                perform(s, rest[1], in_turn)
        elif kind == "copy":
            with s.copy() as c:
                perform(c, rest[0], in_turn)
        elif kind == "inline":
            lm.function(lambda t, known, inner=rest[1]: perform(t, inner, in_turn))(s, rest[0])
        elif kind == "call":
            s.call(lambda t, inner=rest[0]: perform(t, inner, in_turn))
        else:
            forks = s.fork(len(rest[0]))
            for fork, inner in zip(forks, rest[0], strict=True):
                perform(fork, inner, in_turn)
            if rest[1] is not None:
                forks.join(rest[1])


@settings(max_examples=120, deadline=None)
@given(bodies, st.sampled_from(["at once", "on a thread"]))
def test_a_static_program_is_traced_as_it_is_recorded(body, completes):
    def program(s):
        perform(s, body)
        return 1

    with ScriptedBackend(completes=completes) as backend:
        recorded = lm.function(program)(backend=backend).program()
    assert verify(recorded) is recorded
    assert parse_program(print_program(recorded)) == recorded
    whole = traced(program)
    assert whole.stopped is None
    assert whole.nodes == recorded.nodes
    assert whole.sources == recorded.sources


# --------------------------------------------------------------------------- on programs


class Assistant:
    name = "Bo"

    @lm.function
    def greet(self, s, who: str, mark: str = "!"):
        s += self.name + " greets " + who + mark
        return who


def test_programs_trace_themselves_with_receivers_and_bound_arguments():
    program = Assistant().greet.trace()
    assert print_program(program) == (
        "program greet(who: str, mark: str)\n"
        "  %0 = start\n"
        '  %1 = text %0 "Bo greets "\n'
        "  %2 = arg %1 who\n"
        '  %3 = text %2 "!"\n'
        "  return %3 arg who\n"
    )
    bound = Assistant().greet.bind(who="Ann", mark=".")
    assert shown(bound.trace(mark="?"))[1:] == ['%1 = text %0 "Bo greets Ann?"', 'return %1 "Ann"']
    run = bound.run(backend=ScriptedBackend())
    assert run.program() == bound.trace()
    assert run.program().digest() == bound.trace().digest()


def test_a_keyword_of_runs_is_no_argument_of_a_trace():
    with pytest.raises(TypeError, match="has no parameter 'seed': give arguments by name"):
        Assistant().greet.trace(seed=1)
