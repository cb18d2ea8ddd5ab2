"""``f.estimate(rows)``: the forecast is what a runtime then counts, within the bounds it states."""

from dataclasses import replace
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

import lmlang as lm
from lmlang.frontend.estimate import SLACK, Range
from lmlang.protocol import Usage
from lmlang.testing import RandomBackend
from tests.tiny import tiny_model

FIELDS = ("prompt_tokens", "cached_tokens", "generated_tokens", "scored_tokens")


@pytest.fixture(scope="module")
def runtime():
    model = tiny_model(max_positions=4_096)
    with lm.Runtime.over(*model, kv_tokens=16_384, max_running=32) as made:
        yield made


def counted(program, rows, runtime, **keywords):
    """The forecast, and what the batch took with nothing cached before."""
    runtime.flush_cache()
    forecast = program.estimate(rows, backend=runtime, **keywords)
    runtime.reset_stats()
    result = program.run_batch(rows, backend=runtime, seed=5, **keywords)
    return forecast, result.usage


def within(forecast, usage):
    assert "outside" not in forecast.beside(usage), forecast.beside(usage)


class Person(BaseModel):
    name: Annotated[str, Field(max_length=8)]
    age: Annotated[int, Field(ge=0, le=99)]


@lm.function
def single(s, word):
    s += "hello the world and so on and on " + word + " is" + lm.gen("x", max_tokens=4, n=2)


@lm.function
def forked(s, word):
    s += lm.system("hello the world") + lm.user("and so on " + word)
    forks = s.fork(3)
    for number, branch in enumerate(forks):
        branch += lm.user(f"number {number}") + lm.assistant(lm.gen("x", max_tokens=3))
    forks.join()


@lm.function
def typed(s, word):
    s += lm.user("hello " + word) + lm.assistant(lm.gen("who", type=Person, max_tokens=50))


WORDS = [(word,) for word in ("cat", "bird", "cat", "the world", "", "the world of dogs")]


@pytest.mark.parametrize("program", [single, forked, typed])
def test_prompts_without_outputs_are_counted_exactly(runtime, program):
    forecast, usage = counted(program, WORDS, runtime)
    assert forecast.prompt_tokens == Range(usage.prompt_tokens, usage.prompt_tokens)
    assert forecast.complete
    assert forecast.rows == len(WORDS)
    within(forecast, usage)
    # What is shared does not depend on which row comes first.
    assert abs(usage.cached_tokens - forecast.cached_tokens.high) <= SLACK * forecast.requests


def test_forced_shares_and_shortest_outputs_are_those_of_the_grammar(runtime):
    forecast, usage = counted(typed, WORDS, runtime)
    least = lm.grammar.compile(Person, runtime).min_tokens()
    assert forecast.generated_tokens.low == len(WORDS) * least
    assert forecast.forced_share == pytest.approx(
        usage.forced_tokens / usage.generated_tokens, abs=0.25
    )
    assert forecast.forced_share > 0.3
    assert typed.estimate(WORDS, backend=RandomBackend()).forced_share is None


def test_the_pool_never_holds_more(runtime):
    for program in (single, forked, typed):
        forecast, _ = counted(program, WORDS, runtime)
        assert 0 < runtime.stats().kv_tokens_tree <= forecast.peak_kv_tokens
        narrow = program.estimate(WORDS, backend=runtime, num_threads=1)
        assert narrow.peak_kv_tokens < forecast.peak_kv_tokens


@lm.function
def chat(s, word):
    s += lm.system("hello the world") + lm.user(word)
    s += lm.assistant(lm.gen("a", max_tokens=6, stop="e"))
    s += lm.user("more") + lm.assistant(lm.select("b", ["hello", "help", "the world"]))
    s += lm.user("and " + s["a"]) + lm.assistant(lm.gen("c", max_tokens=5))
    s += lm.user("on") + lm.assistant(lm.gen("d", max_tokens=5, min_tokens=2))


def test_prompts_with_outputs_have_bounds(runtime):
    forecast, usage = counted(chat, WORDS, runtime)
    assert forecast.prompt_tokens.low < usage.prompt_tokens < forecast.prompt_tokens.high
    within(forecast, usage)


def four_at_least(value):
    if value < 4:
        raise ValueError("too small")
    return value


@lm.function
def hidden(s, word):
    s += "hello " + word + lm.gen("kind", type=bool, think=5, max_tokens=6)
    s += " the wor" + lm.gen("healed", max_tokens=3, heal=True)
    choices = ["hello", "help", "the world"]
    s += lm.select("b", choices, choices_method=lm.unconditional_likelihood_normalized)


@lm.function
def refused(s, word):
    large = Annotated[int, AfterValidator(four_at_least)]
    s += "hello " + word + lm.gen("n", type=large, max_tokens=4, tries=100)


@lm.function
def joined(s, word):
    s += "hello " + word
    forks = s.fork(3)
    forks += " more and more" + lm.gen("x", max_tokens=9)
    forks.join("concate_and_append")
    s += lm.gen("y", max_tokens=9)


def test_what_is_hidden_healed_scored_alone_or_written_anew_has_bounds(runtime):
    for program in (hidden, refused, joined):
        forecast, usage = counted(program, WORDS, runtime)
        within(forecast, usage)
        peak = forecast.peak_kv_tokens
        assert peak is None or runtime.stats().kv_tokens_tree <= peak
        assert (forecast.prompt_tokens.high is None) == (program is not hidden)
        assert (peak is None) == (program is joined)


def test_where_a_trace_stops_numbers_are_lower_bounds(runtime):
    @lm.function
    def branching(s, word):
        s += "hello " + word + lm.gen("x", max_tokens=4)
        if len(s["x"]) >= 0:
            s += " more" + lm.gen("y", max_tokens=4)

    forecast, usage = counted(branching, WORDS, runtime)
    assert not forecast.complete
    assert forecast.prompt_tokens.high is None
    assert forecast.prompt_tokens.low < usage.prompt_tokens
    ((stop, rows),) = forecast.stops
    assert rows == len(WORDS)
    assert "test_estimate.py" in stop.source
    assert "at least" in str(forecast)
    assert forecast._repr_mimebundle_() == {"text/plain": str(forecast)}
    within(forecast, usage)


PIECES = st.sampled_from(["hello ", "the world ", "and so on ", "x", " 12", "\n", "hello the "])
OPERATIONS = st.one_of(
    st.tuples(st.just("text"), PIECES),
    st.tuples(st.just("gen"), st.integers(0, 4)),
    st.tuples(st.just("samples"), st.integers(1, 3)),
    st.tuples(
        st.just("select"), st.sampled_from([("a", "b"), ("hello", "help", "hell"), ("one",)])
    ),
    st.tuples(st.just("ref"), st.just(None)),
    st.tuples(st.just("fork"), st.integers(1, 3)),
    st.tuples(st.just("turn"), PIECES),
)


@settings(max_examples=25)
@given(
    operations=st.lists(OPERATIONS, max_size=6),
    words=st.lists(st.sampled_from(["cat", "the dog", "", "hello"]), min_size=1, max_size=4),
)
def test_any_program_keeps_within_the_bounds(runtime, operations, words):
    @lm.function
    def program(s, word):
        s += "hello the world " + word + " and"
        named = []
        for number, (kind, value) in enumerate(operations):
            name = f"x{number}"
            if kind == "text":
                s += value
            elif kind == "gen":
                s += lm.gen(name, max_tokens=value)
                named.append(name)
            elif kind == "samples":
                s += lm.gen(name, max_tokens=3, n=value)
            elif kind == "select":
                s += lm.select(name, list(value))
                named.append(name)
            elif kind == "ref" and named:
                s += s[named[-1]]
            elif kind == "turn":
                s += lm.user(value)
            elif kind == "fork":
                forks = s.fork(value)
                forks += lambda i: f"{i}" + lm.gen("f", max_tokens=2)
                forks.join()

    forecast, usage = counted(program, [(word,) for word in words], runtime)
    within(forecast, usage)
    if not any(kind in ("gen", "samples", "select", "ref") for kind, _ in operations):
        assert forecast.prompt_tokens == Range(usage.prompt_tokens, usage.prompt_tokens)


def test_budgets_of_runs_bound_what_rows_generate():
    backend = RandomBackend()
    forecast = single.estimate(WORDS, backend=backend, max_program_tokens=5)
    assert forecast.generated_tokens == Range(12, 30)
    assert single.estimate([], backend=backend).rows == 0


def test_the_forecast_stands_beside_states_batches_and_usages():
    backend = RandomBackend()
    forecast = single.estimate([("cat",)], backend=backend)
    state = single.run(word="cat", backend=backend)
    usage = state.usage()
    batch = single.run_batch([("cat",)], backend=backend, seed=state.meta("x").seed)
    assert forecast.beside(state) == forecast.beside(usage) == forecast.beside(batch)
    one_more = usage + Usage(prompt_tokens=1)
    line = forecast.beside(one_more).splitlines()[1]
    assert line.endswith("outside")
    most = forecast.cached_tokens.high + SLACK * forecast.requests
    for cached, outside in ((most, False), (most + 1, True)):
        line = forecast.beside(replace(usage, cached_tokens=cached)).splitlines()[2]
        assert line.endswith("outside") is outside
    with pytest.raises(lm.ProgramTypeError, match="has no counts of tokens"):
        forecast.beside("nothing")


def test_wrong_rows_and_keywords_are_refused():
    backend = RandomBackend()
    with pytest.raises(TypeError, match=r"row 1: single\(word\): missing a required argument"):
        single.estimate([("a",), ()], backend=backend)
    with pytest.raises(lm.ProgramError, match="'nonsense' is no keyword of a run"):
        single.estimate([("a",)], backend=backend, nonsense=1)
    with pytest.raises(lm.ProgramTypeError, match="rows are a list"):
        single.estimate("rows", backend=backend)
