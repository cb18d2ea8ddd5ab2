"""Values that validators refuse: only the refused part is written anew, with a hidden hint."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Literal
from uuid import UUID

import pydantic
import pytest
from pydantic import AfterValidator

import lmlang as lm
from lmlang.errors import BudgetExceeded, ConstraintError, ProgramError
from lmlang.frontend.dispatcher import Dispatcher, dispatcher
from lmlang.frontend.json_text import parsed, place_of
from lmlang.frontend.mending import LIVELY
from lmlang.frontend.refused import without
from lmlang.grammar.automaton import Automaton
from lmlang.grammar.compiler import rules_of
from lmlang.grammar.quotes import Quote
from lmlang.grammar.types import is_validated, spec_of
from lmlang.protocol import EndTurn, Prompt, Text, Turn
from lmlang.server.app import make_app
from lmlang.testing import RandomBackend, ScriptedBackend
from tests.backends.served import served
from tests.tiny import tiny_model, write_tiny_gguf


class Job(pydantic.BaseModel):
    start: int
    end: int
    at: str

    @pydantic.field_validator("end")
    @classmethod
    def after_start(cls, value, info):
        if value < info.data.get("start", 0):
            raise ValueError(f"*/ it ends before it starts, in {info.data['start']}")
        return value


@dataclass
class Span:
    low: int
    high: int

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError("low is above high")


@dataclass
class Record:
    name: str
    jobs: list[Job]
    span: Span | None = None


def large(value):
    if value < 4:
        raise ValueError("too small")
    return value


GOOD = (
    '{"name": "Bo", "jobs": [{"start": 1, "end": 2, "at": "x"}, {"start": 5, "end": 8, "at": "é"}]}'
)
BAD = GOOD.replace("8", "3")


def run(*answers, tp=Record, **keywords):
    backend = ScriptedBackend(list(answers))

    @lm.function
    def program(s):
        s += "CV: "
        s += lm.gen("x", type=tp, max_tokens=400, **keywords)
        s += " end"

    return program.run_batch([()], backend=backend, on_error="return", seed=1)[0], backend


def test_only_the_refused_field_is_written_anew():
    state, backend = run(BAD, "4", "8")
    assert state["x"].jobs[1] == Job(start=5, end=8, at="é")
    assert state.text_of("x") == GOOD
    assert state.text() == f"CV: {GOOD} end"
    first, *tries = backend.requests
    at = BAD.index("3")
    for request in tries:
        hole = request.constraint
        assert (hole.before + hole.lead, hole.after) == (BAD[:at], BAD[at + 1 :])
        assert request.prompt.segments()[1].text == BAD[:at]  # the very tokens that were generated
    read = backend.render(state._reader.prompt())
    assert "refused" not in read  # the hint is tokens without a text
    hints = [backend.decode(s.ids) for s in tries[1].prompt.segments()[2:]]
    assert hints == [
        "/* 3 was refused: * / it ends before it starts, in 5 */ ",
        "/* 4 was refused: * / it ends before it starts, in 5 */ ",
    ]
    assert len({first.draw_key, *(request.draw_key for request in tries)}) == 3
    assert [request.tag.op_path for request in tries] == ["0/try1", "0/try2"]


def test_all_tokens_are_counted_and_told_of():
    once, _ = run(GOOD)
    state, backend = run(BAD, "4", "8", return_logprob=True)
    generated = once.usage().generated_tokens
    assert state.usage().generated_tokens == generated + 2 * len("8\0")  # what ends it counts
    meta = state.meta("x")
    assert meta.generated_tokens == state.usage().generated_tokens
    assert len(meta.tokens) == len(meta.logprobs) == len(meta.probs)
    assert backend.decode(meta.tokens) == GOOD
    assert meta.finish == "complete"
    (operation,) = state.run_log().operations
    assert operation.text == GOOD
    assert operation.usage == state.usage()
    asked = sum(len(backend.encode(request.prompt)) for request in backend.requests)
    assert meta.prompt_tokens == asked
    assert (meta.tries, operation.samples[0].tries, once.meta("x").tries) == (3, 3, 1)
    assert "of them in values that validators refused" in " ".join(
        str(state.run_log().tokens()).split()
    )
    with pytest.raises(ProgramError, match="has values that validators refused, which no log"):
        state.run_log().replay(backend)


@pytest.mark.parametrize(
    ("bad", "new", "good"),
    [
        ('{"low": 3, "high": 1}', '{"low": 1, "high": 1}', '{"low": 1, "high": 1}'),
        ("null", None, "null"),
    ],
)
def test_a_part_that_is_an_object_is_written_anew_as_a_whole(bad, new, good):
    text = '{"name": "Bo", "jobs": [], "span": %s}'
    state, _ = run(text % bad, *([new] if new else []))
    assert state.text_of("x") == text % good


def test_a_value_that_is_refused_as_a_whole_is_written_anew_from_its_beginning():
    state, backend = run('{"low": 3, "high": 1}', '{"low": 0, "high": 1}', tp=Span, temperature=0)
    assert state["x"] == Span(0, 1)
    first, second = backend.requests
    assert second.constraint == first.constraint
    # It might be the same again, of which no constraint says within bounds that it is not.
    assert (first.params.temperature, second.params.temperature) == (0, LIVELY)
    assert backend.decode(second.prompt.segments()[1].ids) == (
        "/* what stood here was refused: low is above high */ "
    )
    state, _ = run("3", "7", tp=Annotated[int, pydantic.AfterValidator(large)])
    assert state["x"] == 7


def test_where_values_depend_on_one_another_all_that_follows_is_written_anew():
    class Even(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def even(cls, value):
            assert value % 2 == 0, "it is odd"
            return value

    union = list[Even] | list[str]
    state, backend = run('[{"n": 1}, {"n": 4}]', '2}, {"n": 6}]', tp=union)
    hole = backend.requests[1].constraint
    assert (hole.before, hole.lead, hole.after) == ('[{"n": ', "", None)
    assert [each.n for each in state["x"]] == [2, 6]


def test_what_was_closed_to_fit_stays_so_when_another_part_is_written_anew():
    class Noted(pydantic.BaseModel):
        count: Annotated[int, pydantic.AfterValidator(large)]
        note: str

    @lm.function
    def program(s):
        s += lm.gen("x", type=Noted, max_tokens=32)

    backend = ScriptedBackend(['{"count": 2, "note": "and so on and on"}', "7"])
    state = program.run(backend=backend)
    assert state.text_of("x") == '{"count": 7, "note": "and so o"}'
    assert (state.meta("x").finish, state.meta("x").tries) == ("forced_close", 2)


def test_after_so_many_tries_the_error_names_field_value_and_message():
    for tries, answers in ((1, [BAD]), (2, [BAD, "4"]), (None, [BAD, "4", "2"])):
        state, backend = run(*answers, tries=tries)
        error = state.error()
        assert type(error) is ConstraintError
        value = answers[-1] if len(answers) > 1 else "3"
        assert f"the field jobs[1].end = {value} was refused" in str(error)
        assert "it ends before it starts" in str(error)
        assert f"tries={len(answers)}" in str(error)
        assert len(backend.requests) == len(answers)
        assert state.usage().generated_tokens >= len(BAD)


def allows(spec, text):
    automaton = Automaton(rules_of(spec)[0])
    state = automaton.run(automaton.start, text.encode())
    return state is not None and state.accepting


class Everything(pydantic.BaseModel):
    word: Literal["a", "b", "d"]
    maybe: int | None = None
    ages: dict[str, float]
    inner: list[Job] | list[str] | Span
    tree: Everything | None = None


FULL = (
    '{"word": "a", "maybe": 1, "ages": {"x": 0.1, "y": 3, "z": 0.1}, '
    '"inner": [{"start": 1, "end": 2, "at": "x"}, {"start": 3, "end": 2, "at": "x"}], '
    '"tree": {"word": "b", "ages": {}, "inner": ["s", "t"]}}'
)


@pytest.mark.parametrize(
    ("path", "others", "never"),
    [
        (("word",), ['"b"', '"d"'], ['"c"']),
        (("maybe",), ["10", "2", "null"], ['"1"']),
        (("ages", "y"), ["0.1", "30", "3.5"], ["true"]),
        (("ages", "z"), ["3", "0.11", "1"], ["null"]),
        (("inner", 0, "at"), ['""', '"xx"', '"y"'], ["1"]),
        (("inner", 1, "end"), ["3", "20"], ["null"]),
        (("tree", "word"), ['"a"'], ['""']),
        (("tree", "inner", 1), ['"s"', '"tt"'], ["null"]),
    ],
)
def test_a_value_in_json_is_told_apart_and_all_else_stays(path, others, never):
    spec = spec_of(Everything)
    root = parsed(FULL)
    node = place_of(root, path)[1]
    before, value, after = FULL[: node.start], FULL[node.start : node.end], FULL[node.end :]
    found = without(spec, [value], path, root)
    assert allows(spec, FULL)
    assert not allows(found, FULL)
    for other in (*others, *never):
        text = before + other + after
        assert allows(found, text) == allows(spec, text) == (other in others)
    swapped = FULL.replace('"word": "a", "maybe": 1', '"maybe": 1, "word": "a"')
    assert not allows(found, swapped.replace(value, others[0]))
    assert not allows(without(spec, [value, others[0]], path, root), before + others[0] + after)


@pytest.mark.parametrize(
    ("tp", "values", "others"),
    [
        (int, ["7", "70"], ["700", "0", "-7"]),
        (date, ["2020-01-01"], ["2020-01-02"]),
        (Literal["a", 2, "c"], ["a", "2"], ["c"]),
        (int | str | None, ["5", '"x"', "None"], ["55", '"xy"', '"None"']),
        (str, ['"x\\u00e9"'], ['"x"', '"xéé"']),
        (Quote("a b c", min_length=1), ['"a"'], ['"a b"', '"b"']),
    ],
)
def test_a_whole_value_is_told_apart(tp, values, others):
    spec = spec_of(tp)
    found = without(spec, values)
    for text in values:
        assert (allows(spec, text), allows(found, text)) == (True, False)
    for text in others:
        assert (allows(spec, text), allows(found, text)) == (True, True)
    assert without(spec_of(Literal["a", "b"]), ["a", "b"]) is None


def test_what_was_refused_is_not_written_again_even_where_the_model_would():
    seen = []

    def never(value):
        seen.append(value)
        raise ValueError("never right")

    def shown(tp):
        @lm.function
        def program(s):
            s += "A: " + lm.gen("x", type=tp, temperature=0, max_tokens=90, tries=5)

        return program.run_batch([()], backend=runtime, on_error="return")[0].error()

    class Held(pydantic.BaseModel):
        before: bool
        value: Annotated[int, AfterValidator(never)]
        behind: bool

    class Coloured(pydantic.BaseModel):
        value: Annotated[Literal["red", "green", "blue"], AfterValidator(never)]

    with lm.Runtime.over(*tiny_model(), kv_tokens=4_000, max_batch_tokens=256) as runtime:
        for tp in (Annotated[int, AfterValidator(never)], Held):
            seen.clear()
            assert "was refused by a validator: never right. It was written 5 times" in str(
                shown(tp)
            )
            assert len(seen) == len(set(seen)) == 5
        for tp in (Annotated[Literal["a", "b"], AfterValidator(never)], Coloured):
            seen.clear()
            error = str(shown(tp))
            assert f"{len(seen)} times (its type allows no other): say in the prompt" in error
            assert len(seen) == len(set(seen)) == (3 if tp is Coloured else 2)


def test_what_reads_types_of_the_language_and_the_library_is_no_validator():
    for tp in (Decimal, UUID, lm.Quote("a b"), list[Annotated[str, lm.Quote("a b")]], dict):
        assert not is_validated(tp), tp
    for tp in (Job, Span, list[Record], Annotated[int, AfterValidator(large)]):
        assert is_validated(tp), tp


def test_a_backend_without_tokens_has_one_try():
    class Textual(ScriptedBackend):
        def info(self):
            return dataclasses.replace(super().info(), has_tokens=False)

    backend = Textual([BAD])

    @lm.function
    def program(s):
        s += lm.gen("x", type=Record, max_tokens=400)

    with pytest.raises(ConstraintError, match=r"= 3 was refused .* has no tokens to go on from"):
        program.run(backend=backend)


def test_each_sample_is_mended_by_itself():
    state, backend = run(BAD, GOOD, "8", n=2)
    assert [value.jobs[1].end for value in state["x"]] == [8, 8]
    assert [meta.tries for meta in state.meta("x").samples] == [2, 1]
    assert len({request.draw_key for request in backend.requests}) == 3


def test_streams_tell_of_a_value_once_it_is_sure():
    backend = ScriptedBackend([BAD, "8"], completes="on a thread", chunk=1)

    @lm.function
    def program(s):
        s += "CV: " + lm.gen("x", type=Record, max_tokens=400)

    state = program.run(backend=backend, stream=True)
    assert "".join(state.text_iter("x")) == GOOD
    backend = ScriptedBackend([BAD, "8"], completes="on a thread", chunk=1)
    state = program.run(backend=backend, stream=True)
    (found,) = state.partial_iter("x")
    assert found.done
    assert found.value == state["x"]
    backend.close()


def test_a_program_s_budget_counts_tries():
    backend = ScriptedBackend([BAD, "4", "4", "4", "4"])

    @lm.function
    def program(s):
        s += lm.gen("x", type=Record, max_tokens=400, tries=9)

    with pytest.raises((BudgetExceeded, ConstraintError)):
        program.run(backend=backend, max_program_tokens=len(BAD) + 3)
    assert len(backend.requests) < 4


def test_tries_without_a_type_and_what_is_no_number_are_refused():
    with pytest.raises(ProgramError, match="tries cannot act without type"):
        lm.gen("x", tries=2)
    with pytest.raises(ProgramError, match="tries"):
        lm.gen("x", type=Record, tries=0)


def test_an_exception_of_another_kind_stays_what_it_is():
    class Broken(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def broken(cls, value):
            raise ZeroDivisionError("mine")

    state, backend = run('{"n": 1}', tp=Broken)
    assert isinstance(state.error(), ZeroDivisionError)
    assert len(backend.requests) == 1


class Twice(pydantic.BaseModel):
    """Refuses the first value of ``b`` that it sees, whatever it is."""

    a: list[int]
    b: int
    c: bool

    @pydantic.field_validator("b")
    @classmethod
    def refused_once(cls, value):
        SEEN.append(value)
        if len(SEEN) % 2:
            raise ValueError("not this one")
        return value


SEEN: list[int] = []
PROMPT = Prompt.of(Turn("user"), Text("Numbers."), EndTurn(), Turn("assistant"))


@lm.function
def twice(s):
    with s.user():
        s += "Numbers."
    with s.assistant():
        s += lm.gen("x", type=Twice, max_tokens=120, return_logprob=True, think=4)
    with s.user():
        s += "More."


def test_a_runtime_keeps_the_prefix_in_its_cache_here_and_served():
    told = []
    with (
        lm.Runtime.over(*tiny_model(), kv_tokens=2_000, max_batch_tokens=256) as runtime,
        served(make_app(runtime)) as url,
        lm.connect(url) as remote,
    ):
        for backend in (runtime, remote):
            SEEN.clear()
            runtime.flush_cache()
            state = twice.run(backend=backend, seed=3)
            assert len(SEEN) == 2
            assert state["x"].b == SEEN[1]
            text, meta = state.text_of("x"), state.meta("x")
            assert runtime.decode(meta.tokens) == text
            assert len(meta.probs) == len(meta.tokens)
            assert set(meta.confidence) >= {"", "a", "b", "c"}
            # Of the value's prompts, first and second, only the hint and its borders are new.
            fresh = meta.prompt_tokens - meta.cached_tokens
            assert fresh < len(runtime.encode(PROMPT)) + len("/* was refused: not this one */") + 40
            told.append((text, state.usage(), state.token_ids()))
    assert told[0] == told[1]


def test_a_program_that_its_server_runs_has_one_try():
    @lm.function
    def program(s):
        s += lm.gen("x", type=Record, max_tokens=400)

    backend = ScriptedBackend([BAD, "8"])
    with served(make_app(backend)) as url, lm.connect(url) as remote:
        with pytest.raises(ConstraintError):
            program.run(backend=remote, ship=True)
        assert len(backend.requests) == 1


def test_what_is_cancelled_while_a_validator_thinks_is_not_written_anew():
    begun, may_end = threading.Event(), threading.Event()
    asked = []

    class Watched(ScriptedBackend):
        def generate(self, request):
            asked.append(super().generate(request))
            return asked[-1]

    def slow(value: int) -> int:
        begun.set()
        assert may_end.wait(60)
        raise ValueError("never right")

    @lm.function
    def program(s):
        s += lm.gen("x", type=Annotated[int, AfterValidator(slow)])

    backend = Watched(["1", "2"], completes="when released")
    state = program.run(backend=backend, stream=True)
    backend.wait_for(1)
    backend.release()
    assert begun.wait(60)
    state.cancel()
    may_end.set()
    with pytest.raises(lm.Cancelled):
        state["x"]
    for thread in [each for each in threading.enumerate() if each.name == "lmlang-validators"]:
        thread.join(60)
    done = threading.Event()
    dispatcher().put(done.set)  # behind whatever they have asked for
    assert done.wait(60)
    assert len(asked) == 1


def test_a_journal_has_what_was_written_anew(tmp_path):
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model)
    with (
        lm.Runtime(str(model), kv_tokens=2_000) as runtime,
        served(make_app(runtime)) as url,
        lm.connect(url) as remote,
    ):
        for number, backend in enumerate((runtime, remote)):
            told = []
            for _ in range(2):
                SEEN.clear()
                journal = tmp_path / f"{number}.sqlite"
                (state,) = done = twice.run_batch([()], backend=backend, journal=journal, seed=3)
                told.append((state.text_of("x"), state.meta("x").tokens))
            assert done.usage.reused_generations == 3  # the thought, the value, the part anew
            assert told[0] == told[1]


def test_a_backend_of_random_answers_mends_too():
    SEEN.clear()
    state = twice.run(backend=RandomBackend(2), seed=1)
    assert state["x"].b == SEEN[-1]
    assert len(SEEN) == 2


def test_validators_may_wait_and_run_programs_while_others_go_on() -> None:
    others = threading.Event()
    judge = ScriptedBackend(["no", "yes"], completes="on a thread")

    def judged(value: int) -> int:
        assert others.wait(60)
        if lm.generate(f"Is {value} right?") != "yes":
            raise ValueError("it is not right")
        return value

    @lm.function
    def f(s: lm.ProgramState, tp: object) -> None:
        s += "n: " + lm.gen("n", type=tp, max_tokens=9)

    with lm.use(judge):
        backend = ScriptedBackend(["7", "8"], completes="on a thread")
        state = f.run(Annotated[int, AfterValidator(judged)], backend=backend, stream=True)
    assert f(int, backend=ScriptedBackend(["5"], completes="on a thread"))["n"] == 5
    others.set()
    assert state["n"] == 8
    assert len(judge.requests) == 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_a_validator_raises_arrives_and_later_programs_run(kind: type) -> None:
    def raising(value: int) -> int:
        raise kind("by a validator")

    @lm.function(backend=RandomBackend(1))
    def f(s: lm.ProgramState, tp: object) -> None:
        s += "n: " + lm.gen("n", type=tp, max_tokens=9)

    refused = Annotated[int, AfterValidator(raising)]
    arrived: list[object] = []

    def run() -> None:
        with pytest.raises(kind) as raised:
            f(refused)
        arrived.append(raised)

    ran = threading.Thread(target=run, daemon=True)
    ran.start()
    ran.join(60)
    assert arrived, "the program hangs"
    assert isinstance(f(int)["n"], int)


def test_work_that_raises_is_not_the_end_of_all_work(caplog: pytest.LogCaptureFixture) -> None:
    here, done = Dispatcher(), threading.Event()

    def fault() -> None:
        raise SystemExit

    here.put(fault)
    here.after(0, fault)
    here.after(0.001, done.set)
    assert done.wait(60)
    assert caplog.text.count("what a program had to go on with raised") == 2
