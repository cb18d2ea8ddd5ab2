"""The same programs in this process and over a server: the same texts, tokens, metadata, errors."""

import asyncio
import dataclasses
import enum
import itertools
import json
import re

import pytest

import lmlang as lm
from lmlang.backends import retries
from lmlang.protocol import Event, Prompt, Request, SamplingParams, Tag, Text
from tests.backends.served import SECONDS, served
from tests.tiny import tiny_model

pytest.importorskip("fastapi")

ROOMY = {"kv_tokens": 8_192, "deterministic": True}


class Sides:
    """Two runtimes of one model that have seen the same: one here, one behind a server."""

    def __init__(self, here, there):
        self.here = here
        self.there = there

    def both(self, ask):
        """What asking gives here and there, which must not differ."""
        first, second = ask(self.here), ask(self.there)
        assert second == first
        return first


class Breaking:
    """An app behind a line on which of three streams one breaks after 2 events, one after 3."""

    def __init__(self, app):
        self._app = app
        self._events = itertools.cycle([2, 3, 1_000])
        self.broken = 0

    async def __call__(self, scope, receive, send):
        sent, gone, most = 0, asyncio.Event(), next(self._events)

        async def sending(message):
            nonlocal sent
            if scope["path"] == "/lm/generate" and message["type"] == "http.response.body":
                sent += 1
                if sent > most:
                    gone.set()
            if not gone.is_set():
                await send(message)

        async def receiving():
            waiting = asyncio.ensure_future(receive())
            ended = asyncio.ensure_future(gone.wait())
            try:
                await asyncio.wait([waiting, ended], return_when=asyncio.FIRST_COMPLETED)
                return waiting.result() if waiting.done() else {"type": "http.disconnect"}
            finally:
                waiting.cancel()
                ended.cancel()

        await self._app(scope, receiving, sending)
        if gone.is_set():
            self.broken += 1
            raise ConnectionAbortedError  # uvicorn closes the connection


@pytest.fixture(scope="module")
def runtimes():
    with (
        lm.Runtime.over(*tiny_model(), **ROOMY) as here,
        lm.Runtime.over(*tiny_model(), **ROOMY) as behind,
    ):
        yield here, behind


@pytest.fixture(scope="module")
def sides(runtimes):
    from lmlang.server.app import make_app

    here, behind = runtimes
    with served(make_app(behind)) as url, lm.RuntimeEndpoint(url) as there:
        yield Sides(here, there)


@pytest.fixture
def breaking(runtimes, monkeypatch):
    """The same, over a line that breaks all the time."""
    from lmlang.server.app import make_app

    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.001)
    here, behind = runtimes
    app = Breaking(make_app(behind))
    with served(app) as url, lm.RuntimeEndpoint(url, max_retries=9) as there:
        yield Sides(here, there)
    assert app.broken


UNLIKE = (
    *("run_id", "model", "began", "seconds", "queued", "submitted", "first_token", "finished"),
    "spelling",  # of which a server is not asked
)
"""Parts of a run log that are the run's own."""


def log_of(state):
    """A run log without its times, and without what the cache had."""

    def alike(found):
        return {
            name: value for name, value in found.items() if name not in (*UNLIKE, "cached_tokens")
        }

    return json.loads(state.run_log().to_json(), object_hook=alike)


def meta_of(state, name):
    """Its metadata in both forms, without the run's name and what the cache had."""
    meta = state.meta(name)
    told = re.sub(r"'(id|cached_tokens)': [^,}]+", "", repr(state.get_meta_info(name)))
    return plain(meta, samples=tuple(map(plain, meta.samples))), told


def plain(meta, **changes):
    return dataclasses.replace(meta, id="", cached_tokens=0, **changes)


def found_in(state, *names):
    """All that there is to know of a run."""
    return {
        "values": [state[name] for name in names],
        "texts": [state.text_of(name) for name in names],
        "metas": [meta_of(state, name) for name in names],
        "text": state.text(),
        "ids": state.token_ids(),
        "messages": state.messages(),
        "returned": state.ret_value,
        "log": log_of(state),
    }


@lm.function
def chat(s, topic):
    s += lm.system("You are terse: <|im_end|> is ten characters.")
    s += lm.user("Say something of " + topic + " é 😀.")
    s += lm.assistant(lm.gen("first", max_tokens=12, stop="!!"))
    with s.user():
        s += "More."
    s += lm.assistant("Well, " + lm.gen("second", max_tokens=8, temperature=0))
    s["kept"] = len(s["second"])
    return s["first"][:1]


@lm.function
def sampled(s):
    s += "hello the world"
    s += lm.gen("a", max_tokens=10, top_k=20, top_p=0.9, min_p=0.01, temperature=0.7)
    s += lm.gen("b", max_tokens=9, min_tokens=4, stop=["the", "z"], include_stop=True)
    s += lm.gen("c", max_tokens=9, frequency_penalty=0.5, presence_penalty=0.25, ignore_eos=True)
    s += lm.gen("d", max_tokens=9, repetition_penalty=1.3, logit_bias={40: 20.0, 41: 19.0})
    s += lm.gen("e", max_tokens=9, stop_token_ids=[50, 60, 70, 80, 90], temperature=3.0)
    s += lm.gen("f", max_tokens=12, stop_regex="[a-z]{2}", temperature=2.0)
    s += "hel" + lm.gen("g", max_tokens=6, heal=True)
    s += lm.gen("h", max_tokens=0)
    s += lm.gen(
        "i",
        max_tokens=5,
        n=3,
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=3,
        return_text_in_logprobs=True,
    )
    s += lm.gen("j", max_tokens=5, seed=7)


@lm.function
def selected(s):
    s += "the world is "
    s += lm.select("a", ["good", "bad", "hello world"])
    for method in (
        lm.token_length_normalized,
        lm.greedy_token_selection,
        lm.unconditional_likelihood_normalized,
    ):
        s += lm.select(method.name, ["yes", "no", "and so on"], choices_method=method)
    s += lm.select("b", {1: "one", 2: "two"}, temperature=1.5)
    s += lm.user("Is it?") + lm.assistant(lm.select("c", [True, False]))
    s += lm.select("only", ["one"])


@lm.function
def forked(s):
    s += "Two tips on sleep: "
    forks = s.fork(3)
    forks += lambda i: f"{i}. " + lm.gen("tip", max_tokens=6, stop="\n")
    forks.join()
    s += " Of these " + s["tip"][0] + lm.gen("best", max_tokens=5)
    with s.copy() as c:
        c += " aside " + lm.gen("aside", max_tokens=3)
        s["heard"] = c["aside"]
    with s.var_scope("scope"):
        s += "x" + lm.gen("inner", max_tokens=4) + "y"
    s["called"] = s.call(helper, "hello")
    return s["called"]


@lm.function
def helper(s, word):
    s += word + lm.gen("x", max_tokens=4)
    return s["x"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Person:
    name: str
    age: int
    colour: Colour
    tags: list[str]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "é"]}}}
GRAMMAR = 'root ::= "(" item* ")"\nitem ::= [a-c] | root'


@lm.function
def constrained(s):
    s += "hello " + lm.gen("number", type=int, max_tokens=6)
    s += lm.gen("code", regex=r"(?P<head>[A-Z]{2})-\d{3}", max_tokens=8, provenance=True)
    s += lm.gen("colour", type=Colour, max_tokens=8)
    s += lm.gen("person", type=Person, max_tokens=80)
    s += lm.gen("json", json_schema=SCHEMA, max_tokens=40, return_logprob=True)
    s += lm.gen("free", ebnf=GRAMMAR, max_tokens=20)
    s += lm.gen("maybe", type=bool | None, max_tokens=8, n=2)
    s += lm.gen("thought", type=int, think=5, max_tokens=5)


PROGRAMS = [
    (chat, {"topic": "water"}, ("first", "second")),
    (sampled, {}, "abcdefghij"),
    (selected, {}, ("a", "b", "c", "only", "token_length_normalized", "greedy_token_selection")),
    (forked, {}, ("best", "tip", "inner")),
    (constrained, {}, ("number", "code", "colour", "person", "json", "free", "maybe", "thought")),
]


def each(programs):
    names = [program.__name__ for program, *_ in programs]
    return pytest.mark.parametrize(("program", "arguments", "names"), programs, ids=names)


def everything(program, arguments, names):
    """Runs a program and says all that there is to know of it."""

    def ask(backend):
        state = program.run(**arguments, backend=backend, seed=5, max_new_tokens=16)
        own = [name for name in names if program is not forked or name != "tip"]
        return found_in(state, *own), [state[name] for name in names]

    return ask


@each(PROGRAMS)
def test_programs_come_to_the_same(sides, program, arguments, names):
    found, _ = sides.both(everything(program, arguments, names))
    assert found["text"]
    assert found["log"]["operations"]


@each([given for given in PROGRAMS if given[0] is not selected])
def test_programs_come_to_the_same_over_a_line_that_breaks(breaking, program, arguments, names):
    breaking.both(everything(program, arguments, names))


def streamed(events):
    """What a stream says of each variable and between them, in whatever pieces it came."""
    runs = itertools.groupby(events, lambda event: event.variable)
    return [
        (
            variable,
            "".join(event.text for event in found),
            [token for event in found for token in event.tokens],
            [logprob for event in found for logprob in event.logprobs],
            [event.finish for event in found if event.finish is not None],
            [plain(event.meta, samples=()) for event in found if event.meta is not None],
        )
        for variable, found in ((variable, list(group)) for variable, group in runs)
    ]


def test_streams_tell_the_same(sides):
    def ask(backend):
        state = chat.run(topic="streams", backend=backend, seed=6, stream=True)
        chunks = list(state.text_iter("first"))
        whole = "".join(state.text_iter())
        assert "".join(chunks) == state["first"]
        assert whole == state.text()
        events = list(sampled.stream(backend=backend, seed=6))
        return whole, streamed(events)

    sides.both(ask)


def test_batches_come_to_the_same(sides):
    def ask(backend):
        rows = [{"topic": topic} for topic in ("a", "b", "a", "c" * 40)]
        return [found_in(state, "first") for state in chat.run_batch(rows, backend=backend, seed=3)]

    assert len(sides.both(ask)) == 4


def test_previews_and_what_a_backend_says_are_the_same(sides):
    def ask(backend):
        seen = chat.preview(topic="now", backend=backend)
        info = dataclasses.replace(backend.info(), model="")
        return seen.prompt, seen.token_ids, info, helper.cache(backend=backend, word="hello the")

    prompt, ids, _, cached = sides.both(ask)
    assert prompt
    assert ids
    assert cached == len(sides.here.encode(Prompt.of(Text("hello the"))))


def test_generations_have_the_same_events(sides):
    def ask(backend):
        request = Request(
            Prompt.of(Text("hello the")),
            SamplingParams(max_tokens=12, stop=("zz",)),
            2**64 - 1,
            top_logprobs=4,
            probs=True,
            input_logprobs_from=1,
            provenance=True,
        )
        generation = backend.generate(request)
        output = generation.result(SECONDS)
        usage = dataclasses.replace(output.usage, cached_tokens=0)
        return dataclasses.replace(output, usage=usage), list(generation.events())

    output, events = sides.both(ask)
    assert len(events) == len(output.ids) == 12
    assert all(isinstance(event, Event) for event in events)


def test_a_generation_goes_on_behind_what_has_come_as_it_would_have(sides):
    whole = sides.here.generate(
        Request(Prompt.of(Text("hello")), SamplingParams(max_tokens=8), 9)
    ).result(SECONDS)
    for count in range(1, 8):
        request = Request(
            Prompt.of(Text("hello")), SamplingParams(max_tokens=8), 9, resumed=whole.ids[:count]
        )
        generation = sides.there.generate(request)
        output = generation.result(SECONDS)
        assert (output.ids, output.text, output.logprobs) == (
            *(whole.ids, whole.text),
            whole.logprobs,
        )
        assert [event.index for event in generation.events()] == list(range(count, 8))


@lm.function
def asking(s, prompt, **parameters):
    s += prompt
    s += lm.gen("x", **parameters)


@lm.function
def choosing(s):
    s += lm.select("x", ["a", "b"])


@pytest.mark.parametrize(
    ("parameters", "kind"),
    [
        ({"prompt": "hello " * 600}, lm.ContextOverflow),
        ({"prompt": "hello the world", "max_tokens": 511}, lm.ContextOverflow),
        ({"prompt": ""}, lm.ProgramError),
        ({"prompt": "hello", "stop_token_ids": [5_000]}, lm.ProgramError),
        ({"prompt": "hello", "logit_bias": {5_000: 1.0}}, lm.ProgramError),
        ({"prompt": "hello", "regex": "[a-z]{99}", "max_tokens": 2}, lm.BudgetExceeded),
        ({"prompt": "hello", "regex": r"(a+)\1"}, lm.GrammarSyntaxError),
        ({"prompt": "hello", "ebnf": "root ::= nothing"}, lm.GrammarSyntaxError),
        (
            {"prompt": "hello", "json_schema": {"type": "integer", "minimum": "x"}},
            lm.ConstraintError,
        ),
        ({"prompt": "hello", "json_schema": {"not": {}}}, lm.ConstraintError),
    ],
    ids=str,
)
def test_errors_are_the_same(sides, parameters, kind):
    def ask(backend):
        with pytest.raises(lm.LMLangError) as caught:
            asking.run(**parameters, backend=backend, seed=1)
        error = caught.value
        where = [getattr(error, name, None) for name in ("keyword", "pointer")]
        return type(error), error.args, error.context, str(error), where

    assert issubclass(sides.both(ask)[0], kind)


def test_an_error_of_a_select_is_the_same(sides):
    def ask(backend):
        with pytest.raises(lm.ProgramError) as caught:
            choosing.run(backend=backend, seed=1)
        return str(caught.value)

    assert "the prompt is empty" in sides.both(ask)


def test_unknown_ids_are_the_same_errors(sides):
    def ask(backend):
        with pytest.raises(lm.ProgramError) as caught:
            backend.decode([5_000])
        return str(caught.value)

    sides.both(ask)


def test_the_cache_can_be_flushed_and_runs_end(sides):
    request = Request(
        Prompt.of(Text("hello the world")), SamplingParams(max_tokens=1), tag=Tag("r")
    )

    def cached():
        return sides.there.generate(request).result(SECONDS).usage.cached_tokens

    cached()
    assert cached() > 0
    sides.there.end_run("r")
    sides.there.flush_cache()
    assert cached() == 0


def test_async_programs_come_to_the_same(sides):
    @lm.function
    async def program(s):
        s += "hello " + lm.gen("x", max_tokens=4)
        s["length"] = len(await s.aget("x"))
        s += lm.select("y", ["a", "b"])
        return await s.aget("y")

    def ask(backend):
        state = asyncio.run(program.arun(backend=backend, seed=4))
        return found_in(state, "x", "y"), state["length"]

    sides.both(ask)


def test_keys_open_what_is_theirs(runtimes):
    from lmlang.server.app import make_app
    from lmlang.server.config import ServerConfig

    config = ServerConfig(keys=("one", "two"), admin_keys=("admin",))
    prompt = Prompt.of(Text("hello the world, hello the world"))
    request = Request(prompt, SamplingParams(max_tokens=1))

    def cached(remote):
        return remote.generate(request).result(SECONDS).usage.cached_tokens

    def refused(ask, status):
        with pytest.raises(lm.BackendError) as caught:
            ask()
        assert caught.value.status == status
        return True

    with served(make_app(runtimes[1], config)) as url:
        with lm.RuntimeEndpoint(url) as none, lm.RuntimeEndpoint(url, api_key="no") as wrong:
            for remote in (none, wrong):
                assert refused(remote.info, 401)
                assert refused(remote.generate(request).result, 401)
        with (
            lm.RuntimeEndpoint(url, api_key="one") as one,
            lm.RuntimeEndpoint(url, api_key="two") as two,
            lm.RuntimeEndpoint(url, api_key="admin") as admin,
        ):
            assert cached(one) == 0 < cached(one)
            assert cached(two) == 0  # of what the other one's runs have left it sees nothing
            assert refused(one.flush_cache, 403)
            admin.flush_cache()
            assert cached(one) == 0
