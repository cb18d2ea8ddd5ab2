"""lm.OpenAI against lmlang's own server, and against one that answers as a test says."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import lmlang as lm
from lmlang.errors import (
    BackendError,
    BudgetExceeded,
    Cancelled,
    GrammarDeadEnd,
    ProgramError,
    ProgramTypeError,
)
from lmlang.grammar import Choice, Ebnf, JsonSchema, Regex
from lmlang.protocol import (
    EndTurn,
    Finish,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Tag,
    Text,
    Turn,
    Usage,
)
from lmlang.runtime.local import Runtime
from tests.backends.served import (
    SECONDS,
    Answer,
    Asked,
    Held,
    Scripted,
    Site,
    pass_time,
    plain,
    site,
    stream,
)
from tests.server.served import served
from tests.tiny import tiny_model

pytest.importorskip("openai", reason="needs the openai package: pip install 'lmlang[openai]'")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"size": {"enum": ["big", "small"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["size", "count"],
    "additionalProperties": False,
}
CHAT = Prompt.of(Turn("user"), Text("hello the world"), EndTurn(), Turn("assistant"))
PLAIN = Prompt.of(Text("Name:"))
KEY = "sk-secret-0123456789"


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime.over(*tiny_model(max_positions=2_000), kv_tokens=4_000) as made:
        yield made


@pytest.fixture(scope="module")
def address(runtime: Runtime) -> Iterator[str]:
    with served(runtime) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def apps() -> Iterator[Site]:
    with site() as made:
        yield made


def chunk(text: str = "", reason: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": text}, "text": text, "finish_reason": reason, **more}
    return json.dumps({"id": "1", "object": "x", "created": 1, "model": "m", "choices": [choice]})


def usage(prompt: int, completion: int) -> str:
    told = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 0}
    return json.dumps({"id": "1", "object": "x", "created": 1, "choices": [], "usage": told})


def told(text: str, reason: str = "stop", **more: Any) -> Answer:
    return stream(chunk(text), chunk("", reason, **more), usage(3, 2))


def words(*tokens: str, reason: str = "length") -> Answer:
    """A completion with the log-probabilities of its tokens."""
    parts = [chunk(t, None, logprobs={"tokens": [t], "token_logprobs": [-1.0]}) for t in tokens]
    return stream(*parts, chunk("", reason), usage(3, len(tokens)))


class Unended:
    """An answer that says something, and then waits for the client to go away."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self.gone = threading.Semaphore(0)

    async def __call__(self, asked: Asked, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for text in self._texts:
            data = f"data: {chunk(text)}\n\n".encode()
            await send({"type": "http.response.body", "body": data, "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        self.gone.release()


def asking(apps: Site, *answers: Answer, **parameters: Any) -> tuple[lm.OpenAI, Scripted]:
    app = Scripted(*answers)
    given = {"base_url": f"{apps.add(app)}/v1", "api_key": KEY} | parameters
    return lm.OpenAI("m", **given), app


def output(backend: lm.OpenAI, prompt: Prompt = CHAT, **fields: Any) -> Any:
    names = ("constraint", "top_logprobs", "tag", "probs", "input_logprobs_from", "resumed")
    mine = {name: fields.pop(name) for name in names if name in fields}
    request = Request(prompt, SamplingParams(**fields), **mine)
    return backend.generate(request).result(timeout=SECONDS)


# ---------------------------------------------------------------- against lmlang's own server


def test_a_chat_is_what_the_runtime_gives(address: str, runtime: Runtime) -> None:
    expected = output(runtime, max_tokens=12, temperature=0)  # type: ignore[arg-type]
    with lm.OpenAI("default", base_url=address) as backend:
        found = output(backend, max_tokens=12, temperature=0, top_logprobs=2)
    assert (found.text, found.finish) == (expected.text, Finish("length"))
    assert found.usage.prompt_tokens == expected.usage.prompt_tokens
    assert found.usage.generated_tokens == 12
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert [len(top) for top in found.top_logprobs] == [2] * 12
    assert found.history == (Text(found.text),)


def test_a_schema_is_kept_and_written_as_the_type_asks(address: str) -> None:
    with lm.OpenAI("default", base_url=address) as backend:
        for style in ("line", "compact", 2):
            spec = JsonSchema.of(SCHEMA, style)
            found = output(backend, max_tokens=60, temperature=0, constraint=spec)
            assert found.finish == Finish("complete")
            separators = (",", ":") if style == "compact" else None
            indent = style if isinstance(style, int) else None
            again = json.dumps(json.loads(found.text), indent=indent, separators=separators)
            assert found.text == again


def test_tools_are_called_by_json_which_a_message_is_all_of(address: str, apps: Site) -> None:
    def add(a: int, b: int = 3) -> int:
        """Adds two numbers."""
        return a + b

    @lm.function(temperature=0)
    def agent(s: lm.ProgramState) -> None:
        box = s.tools([add])
        s += lm.user("the user and the world")
        for _ in range(2):
            s += lm.assistant(box.call("step", max_tokens=80))
            s += box.result(s["step"].observe())
        s += lm.assistant(lm.gen("answer", max_tokens=4))

    with lm.OpenAI("default", base_url=address) as backend:
        state = agent.run(backend=backend)
    assert state["step"].name == "add"
    assert isinstance(state["step"].run(), int)
    call = '{"name": "add", "arguments": {"a": 2}}'
    backend, app = asking(apps, *[told(each) for each in (call, call, "5")])
    with backend:
        state = agent.run(backend=backend)
    assert [message["content"] for message in state.messages()[1:3]] == [
        f"<tool_call>\n{call}\n</tool_call>",
        "<tool_response>\n5\n</tool_response>",
    ]
    first, second, last = [asked.message["messages"] for asked in app.asked]
    assert [message["role"] for message in first] == ["system", "user"]
    assert second[2]["content"] == f"<tool_call>\n{call}\n</tool_call>"
    assert [message["role"] for message in last[2:]] == ["assistant", "user"] * 2


def test_choices_are_scored_as_the_runtime_does(address: str, runtime: Runtime) -> None:
    request = ScoreRequest(Prompt.of(Text("hello the ")), ("world", "hello", "and user"))
    expected = runtime.score(request).result(SECONDS)
    with lm.OpenAI("default", False, base_url=address) as backend:
        found = backend.score(request).result(SECONDS)
    for one, other in zip(found.choices, expected.choices, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_an_emulated_select_is_what_the_model_names(address: str) -> None:
    @lm.function
    def program(s: lm.ProgramState) -> None:
        s += lm.user("hello the world")
        s += lm.assistant(lm.select("x", ["world", "hello"]))

    with lm.OpenAI("default", base_url=address, emulate=True) as backend:
        state = program.run(backend=backend)
    assert state["x"] in ("world", "hello")
    assert state.meta("x").probs[state["x"]] == 1.0


def test_extensions_go_to_servers_that_take_them(address: str) -> None:
    with lm.OpenAI("default", False, base_url=address, extensions=("regex", "top_k")) as backend:
        found = output(backend, PLAIN, top_k=3, constraint=Regex("[ab]{3}"))
    assert found.finish == Finish("complete")
    assert len(found.text) == 3
    assert set(found.text) <= {"a", "b"}


def test_samples_differ_and_a_seed_repeats_them(address: str) -> None:
    @lm.function
    def program(s: lm.ProgramState) -> None:
        s += lm.user("hello") + lm.assistant(lm.gen("x", max_tokens=8, n=3, temperature=1.5))

    with lm.OpenAI("default", base_url=address) as backend:
        first, second = (program.run(backend=backend, seed=4)["x"] for _ in range(2))
    assert first == second
    assert len(set(first)) == 3


# ---------------------------------------------------------------- what is sent, what comes


def test_a_prompt_becomes_messages(apps: Site) -> None:
    backend, app = asking(apps, told("Hi"))
    with backend:
        params = {"top_p": 0.5, "stop": ["\n"], "logit_bias": {7: 2.0}, "frequency_penalty": 1.0}
        found = output(backend, max_tokens=9, temperature=0.5, **params)
    message = app.asked[0].message
    assert app.asked[0].path == "/v1/chat/completions"
    assert app.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert message["messages"] == [{"role": "user", "content": "hello the world"}]
    sent = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.5, "stop": ["\n"], "seed": 0}
    sent |= {"logit_bias": {"7": 2.0}, "frequency_penalty": 1.0, "stream": True}
    assert {name: message[name] for name in sent} == sent
    assert found.text == "Hi"
    assert found.usage == Usage(prompt_tokens=3, generated_tokens=2)
    assert found.finish == Finish("stop")  # OpenAI does not say which, or whether one


@pytest.mark.parametrize(
    ("more", "finish"),
    [({"stop_reason": "\n"}, Finish("stop", "\n")), ({"stop_reason": None}, Finish("eos"))],
)
def test_a_server_may_say_what_stopped(apps: Site, more: Any, finish: Finish) -> None:
    backend, _ = asking(apps, told("Hi", **more))
    with backend:
        assert output(backend, stop="\n").finish == finish


def test_stops_that_the_server_has_not_are_found_here(apps: Site) -> None:
    held = Unended("one t", "wo", " three")
    backend, app = asking(apps, held)
    with backend:
        found = output(backend, stop=("two",), include_stop=True)
        assert held.gone.acquire(timeout=SECONDS)  # it is not read to its end
    assert (found.text, found.finish) == ("one two", Finish("stop", "two"))
    assert "stop" not in app.asked[0].message


def test_text_comes_as_it_is_told(apps: Site) -> None:
    held = Unended("Hel")
    backend, _ = asking(apps, held)
    with backend:
        generation = backend.generate(Request(CHAT))
        assert next(generation.events()).text == "Hel"
        generation.cancel()
        with pytest.raises(Cancelled):
            generation.result(SECONDS)
        assert held.gone.acquire(timeout=SECONDS)


@pytest.mark.parametrize("reason", ["content_filter", "tool_calls"])
def test_an_answer_that_is_no_output_is_an_error(apps: Site, reason: str) -> None:
    backend, _ = asking(apps, told("Hi", reason))
    with backend, pytest.raises(BackendError, match=reason):
        output(backend)


def test_a_refusal_is_an_error(apps: Site) -> None:
    backend, _ = asking(apps, stream(chunk(delta={"refusal": "No."})))
    with backend, pytest.raises(BackendError, match=r"refused to answer: 'No\.'"):
        output(backend)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (told('{"size": "big", "count": 10}'), GrammarDeadEnd, "breaks the constraint at char"),
        (told("Sure!"), GrammarDeadEnd, "is no JSON"),
        (told('{"size": "bi', "length"), BudgetExceeded, "max_tokens=128"),
    ],
)
def test_answers_are_checked_by_our_own_grammar(
    apps: Site, answer: Answer, error: type[Exception], words: str
) -> None:
    backend, app = asking(apps, answer)
    with backend, pytest.raises(error, match=words):
        output(backend, constraint=JsonSchema.of(SCHEMA))
    sent = app.asked[0].message["response_format"]["json_schema"]
    assert (sent["schema"], sent["strict"]) == (SCHEMA, True)


def test_no_tokens_need_no_request(apps: Site) -> None:
    backend, app = asking(apps, plain(500, {}))
    with backend:
        assert output(backend, max_tokens=0).finish == Finish("length")
    assert not app.asked


# ---------------------------------------------------------------- errors


def test_a_busy_server_is_asked_again(apps: Site) -> None:
    busy = plain(429, {"error": {"message": "slow down"}}, retry_after="0")
    backend, app = asking(apps, busy, stream(done=False), told("Hi"))
    with backend:
        assert output(backend).text == "Hi"
    assert len(app.asked) == 3


def test_a_stream_that_breaks_after_text_was_told_is_not_begun_again(apps: Site) -> None:
    backend, app = asking(apps, stream(chunk("Hel"), done=False))
    with backend, pytest.raises(BackendError) as caught:
        output(backend)
    assert caught.value.retryable
    assert len(app.asked) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_refusals_have_their_status_and_never_the_key(apps: Site, status: int) -> None:
    backend, app = asking(apps, plain(status, {"error": {"message": f"no {KEY} here"}}))
    with backend, pytest.raises(BackendError, match="no … here") as caught:
        output(backend)
    assert (caught.value.status, caught.value.retryable) == (status, False)
    assert KEY not in repr(caught.value) + str(caught.value) + repr(backend)
    assert len(app.asked) == 1


def test_what_is_not_openais_interface_is_an_error(apps: Site) -> None:
    backend, _ = asking(apps, stream('{"choices": "no"}'), stream("[1]"), stream("nonsense"))
    with backend:
        for _ in range(3):
            with pytest.raises(BackendError, match="not OpenAI's interface"):
                output(backend)


def test_a_server_that_is_silent_is_given_up(apps: Site) -> None:
    held = Held()
    backend, _ = asking(apps, held, timeout=20)
    with backend:
        generation = backend.generate(Request(CHAT))
        assert held.here.acquire(timeout=SECONDS)
        pause = threading.Event()
        while not generation.done():  # it may begin to wait after this
            loop = backend._connection._loop
            assert loop is not None
            pass_time(loop, 20)
            pause.wait(0.01)
        with pytest.raises(BackendError, match=r"sent nothing for 20 s") as caught:
            generation.result(0)
    held.release()
    assert caught.value.retryable


def test_closing_fails_what_is_under_way_and_ends_the_thread(apps: Site) -> None:
    held = Held()
    backend, _ = asking(apps, held)
    generation = backend.generate(Request(CHAT))
    assert held.here.acquire(timeout=SECONDS)
    backend.close()
    with pytest.raises(BackendError, match="closed"):
        generation.result(SECONDS)
    with pytest.raises(BackendError, match="closed"):
        output(backend)
    del backend, generation
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name == "lmlang-remote"]


def test_so_many_are_under_way_at_a_time(apps: Site) -> None:
    held = Held(told("Hi"))
    backend, _ = asking(apps, held, max_concurrency=2)
    with backend:
        generations = [backend.generate(Request(CHAT)) for _ in range(5)]
        assert all(held.here.acquire(timeout=SECONDS) for _ in range(2))
        held.release()
        assert [each.result(SECONDS).text for each in generations] == ["Hi"] * 5
    assert held.most == 2


# ---------------------------------------------------------------- what is refused by name

OPEN = CHAT.append(Text("Well, "))
REFUSED: list[tuple[Prompt, dict[str, Any], str]] = [
    (CHAT, {"constraint": Regex("a")}, r"^regex: .*extensions="),
    (CHAT, {"constraint": Ebnf('root ::= "a"')}, r"^ebnf: .*extensions="),
    (CHAT, {"constraint": Choice(("a", "b"))}, "^choices: "),
    (CHAT, {"constraint": JsonSchema.of(SCHEMA), "stop": "x"}, "^stop beside a constraint"),
    (CHAT, {"top_k": 3}, "^top_k: "),
    (CHAT, {"min_p": 0.5}, "^min_p: "),
    (CHAT, {"min_tokens": 3}, "^min_tokens: "),
    (CHAT, {"ignore_eos": True}, "^ignore_eos: "),
    (CHAT, {"repetition_penalty": 2.0}, "^repetition_penalty: "),
    (CHAT, {"stop_token_ids": (3,)}, "^stop_token_ids: "),
    (CHAT, {"heal": True}, "^heal: "),
    (CHAT, {"input_logprobs_from": 0}, "^logprob_start_len: "),
    (CHAT, {"resumed": (3,)}, "^resumed: "),
    (PLAIN, {}, "'Name:' stands outside of all turns"),
    (Prompt.of(Turn("user"), Text("Hi"), EndTurn()), {}, "no turn is open"),
    (Prompt.of(Turn("user"), Text("Hi")), {}, "'user' turn is open"),
    (OPEN, {}, "has begun with 'Well, '"),
    (CHAT.append(Text("<tool_call>\n")), {}, "has begun with '<tool_call>"),  # what is no JSON
]


@pytest.mark.parametrize(("prompt", "fields", "words"), REFUSED)
def test_what_a_chat_cannot_do_is_refused_by_name(
    prompt: Prompt, fields: dict[str, Any], words: str
) -> None:
    with (
        lm.OpenAI("m", base_url="http://localhost:9/v1") as backend,
        pytest.raises(ProgramError, match=words),
    ):
        output(backend, prompt, **fields)


@pytest.mark.parametrize(
    ("prompt", "fields", "words"),
    [
        (CHAT, {}, "no chat template"),
        (PLAIN, {"constraint": JsonSchema.of(SCHEMA)}, "^json_schema: "),
    ],
)
def test_what_completions_cannot_do_is_refused_by_name(
    prompt: Prompt, fields: dict[str, Any], words: str
) -> None:
    with (
        lm.OpenAI("m", False, base_url="http://localhost:9/v1") as backend,
        pytest.raises(ProgramError, match=words),
    ):
        output(backend, prompt, **fields)


def test_a_turn_that_has_begun_goes_to_servers_that_go_on_with_it(apps: Site) -> None:
    backend, app = asking(apps, told("yes"), prefill={"continue_final_message": True})
    with backend:
        assert output(backend, OPEN).text == "yes"
    message = app.asked[0].message
    assert message["messages"][-1] == {"role": "assistant", "content": "Well, "}
    assert message["continue_final_message"] is True


@pytest.mark.parametrize(
    ("chat", "parameters", "fields", "words"),
    [
        (True, {}, {}, "emulate=True"),
        (False, {"echo": False}, {}, "emulate=True"),
        (False, {}, {"unconditional": True}, "^choices_method: "),
        (False, {}, {"end_turn": True}, "no turn"),
    ],
)
def test_selects_without_scores_are_refused(
    chat: bool, parameters: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    request = ScoreRequest(CHAT if chat else PLAIN, ("a", "b"), **fields)
    with (
        lm.OpenAI("m", chat, base_url="http://localhost:9/v1", **parameters) as backend,
        pytest.raises(ProgramError, match=words),
    ):
        backend.score(request).result(SECONDS)


def test_a_server_that_does_not_echo_is_told_of(apps: Site) -> None:
    choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None}
    answer = {"id": "1", "object": "x", "created": 1, "model": "m", "choices": [choice, choice]}
    backend, _ = asking(apps, plain(200, answer), is_chat_model=False)
    with backend, pytest.raises(BackendError, match="echo=False"):
        backend.score(ScoreRequest(PLAIN, ("a", "b"))).result(SECONDS)


def test_completions_name_a_choice_by_how_they_begin(apps: Site) -> None:
    backend, _ = asking(apps, told(" yes sir, I"), is_chat_model=False, echo=False, emulate=True)
    with backend:
        scores = backend.score(ScoreRequest(PLAIN, ("yes", "yes sir", "no"))).result(SECONDS)
    assert [sum(choice.logprobs) for choice in scores.choices] == [
        float("-inf"),
        0.0,
        float("-inf"),
    ]


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"timeout": 0}, ProgramError, "timeout"),
        ({"max_concurrency": 0}, ProgramError, "max_concurrency"),
        ({"requests_per_minute": 0}, ProgramError, "requests_per_minute"),
        ({"num_api_spec_tokens": 0}, ProgramError, "num_api_spec_tokens"),
        ({"extensions": ("top_q",)}, ProgramError, "'top_q' is none of"),
        ({"prefill": True}, ProgramTypeError, "prefill must be a dict"),
        ({"max_tokens_field": "tokens"}, ProgramError, "max_tokens_field='tokens'"),
        ({"api_key": ""}, ProgramError, "api_key is empty"),
        ({"is_chat_model": "yes"}, ProgramTypeError, "is_chat_model"),
    ],
)
def test_parameters_are_checked(parameters: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        lm.OpenAI("m", **({"base_url": "http://localhost:9/v1"} | parameters))


def test_without_a_key_openai_itself_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ProgramError, match="api_key="):
        lm.OpenAI("gpt-4o")


def test_the_environments_key_goes_to_openai_alone(
    apps: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    backend, app = asking(apps, told("Hi"), api_key=None)
    with backend:
        output(backend)
    assert KEY not in app.asked[0].headers["authorization"]


def test_metadata_is_what_the_server_tells(apps: Site, address: str) -> None:
    @lm.function
    def program(s: lm.ProgramState, report: bool) -> None:
        s += lm.user("hello")
        s += lm.assistant(lm.gen("x", max_tokens=4, return_logprob=report))

    backend, app = asking(apps, told("Hi"))
    with backend:
        state = program.run(False, backend=backend)
        assert state.messages()[-1] == {"role": "assistant", "content": "Hi"}
        assert state.get_meta_info("x")["completion_tokens"] == 2
        with pytest.raises(BackendError, match="told no log-probabilities"):
            program.run(True, backend=backend)
    assert "logprobs" not in app.asked[0].message
    with lm.OpenAI("default", base_url=address) as other:
        info = program.run(True, backend=other, temperature=0).get_meta_info("x")
    assert len(info["output_token_logprobs"]) == 4


# ---------------------------------------------------------------- running ahead


@lm.function
def person(s: lm.ProgramState) -> None:
    s += "Name:" + lm.gen("name", stop="\n", max_tokens=8)
    s += "\nAge:" + lm.gen("age", stop="\n", max_tokens=8)
    s += "\nCity:" + lm.gen("city", stop="\n", max_tokens=2)


def test_one_long_call_is_reused_as_long_as_the_text_agrees(apps: Site) -> None:
    long = words(" Ann", "\n", "Age", ": ", "31", "\n", "City", ":", " New", " York", " City")
    backend, app = asking(apps, long, is_chat_model=False, num_api_spec_tokens=32)
    with backend:
        state = person.run(backend=backend, temperature=0)
    assert (state["name"], state["age"], state["city"]) == (" Ann", " 31", " New York")
    (asked,) = app.asked
    assert asked.message["max_tokens"] == 32
    assert "stop" not in asked.message
    assert [state.meta(name).finish for name in ("age", "city")] == ["stop", "length"]
    assert state.meta("name").generated_tokens == 11
    assert state.meta("city").generated_tokens == 0  # nothing was asked for


@pytest.mark.parametrize("of_backend", [None, 9])
def test_a_program_says_how_far_its_calls_run_ahead(apps: Site, of_backend: int | None) -> None:
    long = words(" Ann", "\n", "Age", ": ", "31", "\n", "City", ":", " New", " York", " City")
    backend, app = asking(apps, long, is_chat_model=False, num_api_spec_tokens=of_backend)
    ahead = person.options(num_api_spec_tokens=32)
    with backend:
        state = ahead.run(backend=backend, temperature=0)
    assert (state["name"], state["age"], state["city"]) == (" Ann", " 31", " New York")
    (asked,) = app.asked
    assert asked.message["max_tokens"] == 32


def test_a_text_that_does_not_agree_is_asked_for_anew(apps: Site) -> None:
    first = words(" Ann", "\n", "Town", ": ", "Ur", "\n")
    backend, app = asking(
        apps,
        first,
        words(" 31", "\n"),
        words(" Ur", " of", " the"),
        is_chat_model=False,
        num_api_spec_tokens=16,
    )
    with backend:
        state = person.run(backend=backend, temperature=0)
    assert (state["name"], state["age"], state["city"]) == (" Ann", " 31", " Ur of")
    assert [each.message["prompt"] for each in app.asked] == [
        "Name:",
        "Name: Ann\nAge:",
        "Name: Ann\nAge: 31\nCity:",
    ]


def test_samples_of_one_prompt_are_not_the_same_text(apps: Site) -> None:
    backend, app = asking(
        apps,
        words(" Ann", "\n", "Age", ":", " 1", "\n"),
        is_chat_model=False,
        num_api_spec_tokens=9,
    )
    later = Prompt.of(Text("Name: Ann\nAge:"))
    fields: dict[str, Any] = {"tag": Tag("run"), "stop": "\n", "max_tokens": 5}
    with backend:
        output(backend, PLAIN, **fields)
        assert output(backend, later, **fields).usage == Usage()
        output(backend, later, **fields)
        assert len(app.asked) == 2
        backend.end_run("run")
        output(backend, Prompt.of(Text("Name: Ann\nAge: ")), **fields)
    assert len(app.asked) == 3


def test_running_ahead_changes_no_greedy_output(address: str) -> None:
    @lm.function
    def program(s: lm.ProgramState) -> None:
        s += "hello the" + lm.gen("a", max_tokens=5) + lm.gen("b", max_tokens=5)

    found = []
    for ahead in (None, 24):
        with lm.OpenAI("default", False, base_url=address, num_api_spec_tokens=ahead) as backend:
            state = program.run(backend=backend, temperature=0)
            found.append((state["a"], state["b"]))
    assert found[0] == found[1]


# ---------------------------------------------------------------- tokens


def test_tokens_are_counted_by_tiktoken() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"he": 256}
    encoding = tiktoken.Encoding(
        "tiny", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={"<|end|>": 257}
    )
    with lm.OpenAI("m", base_url="http://localhost:9/v1", encoding=encoding) as backend:
        ids = backend.encode(Prompt.of(Text("he <|end|>")))
        assert ids == [256, *b" <|end|>"]
        assert backend.decode(ids) == "he <|end|>"


def test_a_model_that_tiktoken_does_not_know_has_no_ids() -> None:
    with (
        lm.OpenAI("m", base_url="http://localhost:9/v1") as backend,
        pytest.raises(ProgramError, match="knows no encoding of 'm'"),
    ):
        backend.encode(PLAIN)


def test_tokens_with_log_probabilities_can_be_read(address: str) -> None:
    with lm.OpenAI("default", base_url=address, logprobs=True) as backend:
        found = output(backend, max_tokens=4, temperature=0)
        assert len(found.ids) == len(found.logprobs) == 4
        assert backend.decode(found.ids)
