"""The real `openai` client against a real server on this machine."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from lmlang.backends.characters import END
from lmlang.errors import ModelError
from lmlang.protocol import EndTurn, Prompt, Request, SamplingParams, Text, Turn
from lmlang.runtime.local import Runtime
from lmlang.server.openai_calls import MAX_CALLS
from lmlang.testing import ScriptedBackend
from tests.server.harness import engine_held, until
from tests.server.served import served
from tests.tiny import tiny_model, tiny_tokenizer

openai = pytest.importorskip(
    "openai", reason="needs the openai client: pip install 'lmlang[openai]'"
)

MODEL = "default"
HELLO: list[Any] = [{"role": "user", "content": "hello the world"}]
PROMPT = Prompt.of(Turn("user"), Text("hello the world"), EndTurn(), Turn("assistant"))
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"size": {"enum": ["big", "small"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["size", "count"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
TOOL: Any = {"type": "function", "function": {"name": "measure", "parameters": SCHEMA}}
LARGE: Any = {
    "type": "function",
    "function": {"name": "large", "parameters": {"description": "x" * 70_000, "type": "object"}},
}
OTHER: Any = {"type": "function", "function": {"name": "stop"}}


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime.over(*tiny_model(max_positions=2_000), kv_tokens=4_000) as made:
        yield made


@pytest.fixture(scope="module")
def client(runtime: Runtime) -> Iterator[Any]:
    with served(runtime) as url, connected(url) as made:
        yield made


def connected(url: str, key: str = "unused") -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def chat(client: Any, messages: Any = HELLO, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": MODEL, "messages": messages, "max_tokens": 12, "seed": 5} | fields
    )


# ---------------------------------------------------------------------------- chats


def test_a_chat_is_what_the_runtime_itself_gives(client: Any, runtime: Runtime) -> None:
    params = SamplingParams(max_tokens=12, temperature=0)
    expected = runtime.generate(Request(PROMPT, params)).result(timeout=60)
    answer = chat(client, temperature=0)
    (choice,) = answer.choices
    assert choice.message.content == expected.text
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert answer.object == "chat.completion"
    assert answer.model == runtime.info().model
    usage = answer.usage
    assert usage.prompt_tokens == len(runtime.encode(PROMPT))
    assert (usage.completion_tokens, usage.total_tokens) == (12, usage.prompt_tokens + 12)
    again = chat(client, temperature=0).usage.prompt_tokens_details.cached_tokens
    assert again == usage.prompt_tokens - 1


def test_samples_differ_and_a_seed_repeats_them(client: Any) -> None:
    texts = [choice.message.content for choice in chat(client, n=3).choices]
    assert len(set(texts)) == 3
    assert [choice.message.content for choice in chat(client, n=3).choices] == texts
    assert chat(client).choices[0].message.content == texts[0]
    assert chat(client, seed=6).choices[0].message.content != texts[0]
    assert chat(client, n=3).usage.completion_tokens == 36


def test_a_stream_is_the_answer_in_parts(client: Any) -> None:
    whole = chat(client, n=2, logprobs=True, top_logprobs=2)
    stream = chat(
        client, n=2, logprobs=True, top_logprobs=2, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    parts = list(stream)
    assert len({part.id for part in parts}) == 1
    assert {part.object for part in parts} == {"chat.completion.chunk"}
    assert [part.usage for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].choices == []
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    for choice in whole.choices:
        own = [c for part in parts for c in part.choices if c.index == choice.index]
        assert own[0].delta.role == "assistant"
        assert len(own) > 3
        assert "".join([c.delta.content or "" for c in own]) == choice.message.content
        assert [c.finish_reason for c in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        told = [token for c in own if c.logprobs is not None for token in c.logprobs.content]
        assert [token.token for token in told] == [t.token for t in choice.logprobs.content]
        assert [t.logprob for t in told] == pytest.approx(
            [t.logprob for t in choice.logprobs.content], abs=1e-4
        )


def test_without_being_asked_a_stream_has_no_usage(client: Any) -> None:
    assert all(part.usage is None and part.choices for part in chat(client, stream=True))


def test_logprobs_are_the_model_s(client: Any, runtime: Runtime) -> None:
    params = SamplingParams(max_tokens=12, temperature=0)
    expected = runtime.generate(Request(PROMPT, params, top_logprobs=3)).result(timeout=60)
    told = chat(client, temperature=0, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert [t.logprob for t in told] == pytest.approx(expected.logprobs, abs=1e-4)
    assert b"".join([bytes(t.bytes) for t in told]) == b"".join(
        [tiny_tokenizer().token_bytes[index] for index in expected.ids]
    )
    assert [[top.logprob for top in t.top_logprobs] for t in told] == [
        pytest.approx([logprob for _, logprob in tops], abs=1e-4) for tops in expected.top_logprobs
    ]
    assert all(t.top_logprobs[0].token == t.token for t in told)


def test_a_stop_ends_the_answer_and_is_no_part_of_it(client: Any) -> None:
    text = chat(client, temperature=0).choices[0].message.content
    stop = text[4:6]
    stopped = chat(client, temperature=0, stop=[stop], logprobs=True).choices[0]
    assert stopped.message.content == text[: text.index(stop)]
    assert stopped.finish_reason == "stop"
    assert len(stopped.logprobs.content) < 12


def test_a_bias_keeps_tokens_away(client: Any) -> None:
    (token,) = tiny_tokenizer().encode("e")
    answer = chat(client, max_tokens=5, logit_bias={str(token): 100}, temperature=0)
    assert answer.choices[0].message.content == "eeeee"


def test_output_follows_a_schema(client: Any) -> None:
    for seed in range(4):
        answer = chat(client, response_format=FORMAT, max_tokens=60, seed=seed).choices[0]
        value = json.loads(answer.message.content)
        assert list(value) == ["size", "count"]
        assert value["size"] in ("big", "small")
        assert answer.finish_reason == "stop"


def test_output_that_had_to_be_cut_short_says_so(client: Any) -> None:
    forever = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string"}}}
    answer = chat(client, response_format=forever, max_tokens=4).choices[0]
    assert isinstance(json.loads(answer.message.content), str)
    assert answer.finish_reason == "length"


def test_json_mode_gives_an_object(client: Any) -> None:
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=20)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


# ---------------------------------------------------------------------------- tools


def test_a_required_call_has_arguments_by_its_schema(client: Any) -> None:
    answer = chat(client, tools=[TOOL, OTHER], tool_choice="required", max_tokens=90, n=3)
    for choice in answer.choices:
        (call,) = choice.message.tool_calls
        assert choice.message.content is None
        assert choice.finish_reason == "tool_calls"
        value = json.loads(call.function.arguments)
        assert set(value) == ({"size", "count"} if call.function.name == "measure" else set())
        assert call.id.startswith("call_")


def test_a_named_call_streams(client: Any) -> None:
    choice = {"type": "function", "function": {"name": "measure"}}
    fields: Any = {"tools": [TOOL, OTHER], "tool_choice": choice, "max_tokens": 90}
    (whole,) = chat(client, **fields).choices[0].message.tool_calls
    parts = [part.choices[0] for part in chat(client, stream=True, **fields)]
    calls = [call for part in parts for call in part.delta.tool_calls or ()]
    assert [call.function.name for call in calls] == ["measure"] + [None] * (len(calls) - 1)
    assert calls[0].id.startswith("call_")
    assert len(calls) > 3
    assert {call.index for call in calls} == {0}
    assert "".join([call.function.arguments for call in calls]) == whole.function.arguments
    assert parts[-1].finish_reason == "tool_calls"


CALL = '{"name": "measure", "arguments": {"size": "big", "count": 3}}'


def test_a_model_may_call_a_tool_behind_its_text() -> None:
    backend = ScriptedBackend(["Let me see.\n<tool_call>\n", CALL, ""] * 2, chunk=3)
    with served(backend) as url, connected(url) as client:
        choice = chat(client, tools=[TOOL], max_tokens=200).choices[0]
        assert choice.message.content == "Let me see.\n"
        (call,) = choice.message.tool_calls
        assert call.function.name == "measure"
        assert call.function.arguments == '{"size": "big", "count": 3}'
        assert choice.finish_reason == "tool_calls"
        parts = [
            p.choices[0].delta for p in chat(client, tools=[TOOL], max_tokens=200, stream=True)
        ]
    assert "".join([part.content or "" for part in parts]) == "Let me see.\n"
    calls = [call for part in parts for call in part.tool_calls or ()]
    assert "".join([call.function.arguments for call in calls]) == call.function.arguments
    first, second = backend.requests[:2]
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert backend.render(second.prompt) == (
        backend.render(first.prompt) + "Let me see.\n<tool_call>\n"
    )
    assert second.params.max_tokens == 200 - len("Let me see.\n<tool_call>")


SECOND = '{"name": "stop", "arguments": {}}'


def calls_of(client: Any, **fields: Any) -> tuple[Any, list[tuple[str, str]]]:
    """The only choice, and its calls; a stream has the same, each under its index."""
    fields = {"tools": [TOOL, OTHER], "max_tokens": 300, **fields}
    choice = chat(client, **fields).choices[0]
    told = choice.message.tool_calls or ()
    assert len({call.id for call in told}) == len(told)
    found: dict[int, list[str]] = {}
    for part in chat(client, stream=True, **fields):
        for call in part.choices[0].delta.tool_calls or ():
            assert (call.id is None) == (call.function.name is None) == (call.index in found)
            found.setdefault(call.index, [call.function.name, ""])[1] += call.function.arguments
        finish = part.choices[0].finish_reason
    assert finish == choice.finish_reason
    calls = [(call.function.name, call.function.arguments) for call in told]
    assert [tuple(found[index]) for index in sorted(found)] == calls
    assert list(found) == list(range(len(calls)))
    return choice, calls


BOTH = [("measure", '{"size": "big", "count": 3}'), ("stop", "{}")]


@pytest.mark.parametrize(
    ("mode", "first"), [("auto", ["Now.\n<tool_call>"]), ("required", [])], ids=["auto", "required"]
)
def test_a_model_may_call_several_tools(mode: str, first: list[str]) -> None:
    backend = ScriptedBackend([*first, CALL, "\n", SECOND, ""] * 2, chunk=3)
    with served(backend) as url, connected(url) as client:
        choice, calls = calls_of(client, tool_choice=mode)
    assert calls == BOTH
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == ("Now.\n" if first else None)
    asked = backend.requests[len(first) + 2]
    shown = backend.render(asked.prompt)
    assert shown.endswith(f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n")


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": {"type": "function", "function": {"name": "measure"}}},
    ],
    ids=["not in parallel", "named"],
)
def test_one_call_is_made_where_one_is_wanted(fields: dict[str, Any]) -> None:
    backend = ScriptedBackend([CALL] * 2)
    with served(backend) as url, connected(url) as client:
        choice, calls = calls_of(client, **fields)
    assert calls == BOTH[:1]
    assert choice.finish_reason == "tool_calls"
    assert len(backend.requests) == 2
    assert "several" not in backend.render(backend.requests[0].prompt) or len(fields) == 1


def test_a_call_that_fits_no_more_is_not_begun() -> None:
    backend = ScriptedBackend([CALL, "\n", SECOND] * 2)
    with served(backend) as url, connected(url) as client:
        choice, calls = calls_of(client, tool_choice="required", max_tokens=len(CALL) + 9)
        assert calls == BOTH[:1]
        assert choice.finish_reason == "tool_calls"
    assert len(backend.requests) == 6


def test_calls_have_an_end() -> None:
    numbers = itertools.count()
    schema = {"properties": {"to": {"type": "integer"}}, "required": ["to"]}
    schema |= {"type": "object", "additionalProperties": False}
    counting = {"type": "function", "function": {"name": "count", "parameters": schema}}

    def answers(prompt: str) -> str:
        call = {"name": "count", "arguments": {"to": next(numbers)}}
        return "\n" if prompt.endswith("</tool_call>") else json.dumps(call)

    with served(ScriptedBackend(answers)) as url, connected(url) as client:
        answer = chat(client, tools=[counting], tool_choice="required", max_tokens=3_000)
    assert len(answer.choices[0].message.tool_calls) == MAX_CALLS
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_call_that_has_been_made_is_not_made_again(mode: str) -> None:
    first = ["<tool_call>"] if mode == "auto" else []
    script = [*first, CALL, "\n", SECOND, "\n", CALL]
    with served(ScriptedBackend(script * 2, chunk=3)) as url, connected(url) as client:
        choice, calls = calls_of(client, tool_choice=mode, max_tokens=600)
    assert calls == BOTH
    assert choice.finish_reason == "tool_calls"


def test_each_choice_has_its_own_calls() -> None:
    backend = ScriptedBackend([CALL, CALL, "\n", SECOND, "", ""])
    with served(backend) as url, connected(url) as client:
        answer = chat(client, tools=[TOOL, OTHER], tool_choice="required", n=2, max_tokens=300)
    assert [len(choice.message.tool_calls) for choice in answer.choices] == [2, 1]


def test_a_model_need_not_call_a_tool() -> None:
    with served(ScriptedBackend(["Just text."])) as url, connected(url) as client:
        answer = chat(client, tools=[TOOL], max_tokens=50)
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.tool_calls) == ("Just text.", None)
    assert choice.finish_reason == "stop"


def test_where_no_call_fits_any_more_the_answer_was_too_long() -> None:
    with served(ScriptedBackend(["Well <tool_call>", CALL])) as url, connected(url) as client:
        choice = chat(client, tools=[TOOL], max_tokens=20).choices[0]
    assert (choice.message.content, choice.message.tool_calls) == ("Well ", None)
    assert choice.finish_reason == "length"


# ---------------------------------------------------------------------------- completions


def test_completions_of_several_prompts_with_samples(client: Any, runtime: Runtime) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["hello", "the world"], max_tokens=6, n=2, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text != answer.choices[1].text
    assert answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens == sum(
        len(tiny_tokenizer().encode(text)) for text in ("hello", "the world")
    )
    ids = tiny_tokenizer().encode("hello")
    same = client.completions.create(model=MODEL, prompt=ids, max_tokens=6, seed=1)
    assert same.choices[0].text == answer.choices[0].text


def test_an_echo_has_the_prompt_s_own_logprobs(client: Any, runtime: Runtime) -> None:
    text = "hello the world and hello"
    prompt = Prompt.of(Text(text))
    expected = runtime.generate(
        Request(prompt, SamplingParams(max_tokens=0), input_logprobs_from=0, top_logprobs=2)
    ).result(timeout=60)
    assert expected.input_logprobs is not None
    answer = client.completions.create(
        model=MODEL, prompt=text, max_tokens=0, echo=True, logprobs=2
    ).choices[0]
    assert answer.text == text
    told = answer.logprobs
    assert told.token_logprobs[0] is None
    assert told.token_logprobs[1:] == pytest.approx(
        list(expected.input_logprobs.logprobs[1:]), abs=1e-4
    )
    assert "".join(told.tokens) == text
    assert told.text_offset == [
        len("".join(told.tokens[:number])) for number in range(len(told.tokens))
    ]
    assert all(len(tops) in (2, 3) for tops in told.top_logprobs[1:])
    more = client.completions.create(
        model=MODEL, prompt=text, max_tokens=3, echo=True, logprobs=0, temperature=0
    ).choices[0]
    assert len(more.logprobs.tokens) == len(told.tokens) + 3
    assert more.logprobs.text_offset[len(told.tokens)] == len(text)


def test_a_completion_streams(client: Any) -> None:
    fields: Any = {"model": MODEL, "prompt": "hello", "max_tokens": 8, "seed": 2, "logprobs": 1}
    whole = client.completions.create(**fields).choices[0]
    parts = list(
        client.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    )
    choices = [choice for part in parts for choice in part.choices]
    assert "".join([choice.text for choice in choices]) == whole.text
    assert choices[-1].finish_reason == whole.finish_reason == "length"
    told = [token for c in choices if c.logprobs is not None for token in c.logprobs.tokens]
    assert told == whole.logprobs.tokens
    assert parts[-1].usage.completion_tokens == 8
    fields.pop("logprobs")
    echoed = client.completions.create(**fields, stream=True, echo=True)
    assert "".join([part.choices[0].text for part in echoed]) == "hello" + whole.text


def test_control_tokens_are_spelled_in_completions_alone(client: Any, runtime: Runtime) -> None:
    rendered = runtime.render(PROMPT)
    completed = client.completions.create(
        model=MODEL, prompt=rendered, max_tokens=12, temperature=0
    )
    answer = chat(client, temperature=0)
    assert completed.choices[0].text == answer.choices[0].message.content
    assert completed.usage.prompt_tokens == answer.usage.prompt_tokens


# ---------------------------------------------------------------------------- models, errors


def test_the_model_is_listed_by_its_name(client: Any, runtime: Runtime) -> None:
    (card,) = client.models.list().data
    assert card.id == runtime.info().model
    assert client.models.retrieve(card.id).id == card.id
    assert client.chat.completions.create(model=card.id, messages=HELLO, max_tokens=1)
    for ask in (
        lambda: client.models.retrieve("gpt-4"),
        lambda: chat(client, model="gpt-4"),
        lambda: client.completions.create(model="gpt-4", prompt="x"),
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            ask()
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        (
            {"tools": [OTHER], "extra_body": {"tools": [LARGE]}, "tool_choice": "required"},
            *("tools", "invalid_value"),
        ),
        ({"max_tokens": 100_000}, "messages", "context_length_exceeded"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"response_format": FORMAT, "max_tokens": 3}, "max_tokens", "invalid_value"),
        ({"extra_body": {"chat_template": "{{ x }}"}}, "chat_template", "unsupported_parameter"),
        ({"extra_body": {"what": 1}}, "what", "unknown_parameter"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
        ({"stop": ["x" * 300]}, "stop", "invalid_value"),
    ],
)
def test_a_bad_request_names_its_field(
    client: Any, stream: bool, fields: Any, param: str | None, code: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        chat(client, stream=stream, **fields)
    assert (refusal.value.param, refusal.value.code) == (param, code)
    assert refusal.value.type == "invalid_request_error"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_schema_that_cannot_be_kept_is_refused_by_its_place(client: Any, choice: str) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(a)\1"}}}
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": bad}}
    with pytest.raises(openai.BadRequestError, match=r"tools\[1\].function.parameters") as refusal:
        chat(client, tools=[TOOL, tool], tool_choice=choice, max_tokens=90)
    assert refusal.value.param == "tools"
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": bad}}
    with pytest.raises(openai.BadRequestError, match="/properties/a") as refusal:
        chat(client, response_format=form)
    assert refusal.value.param == "response_format"


def test_samples_count_what_was_cached_before_them(client: Any) -> None:
    messages = [{"role": "user", "content": "and the user and the world"}]
    first = chat(client, messages, n=4).usage
    second = chat(client, messages, n=4).usage
    assert first.prompt_tokens_details.cached_tokens < first.prompt_tokens // 2
    assert second.prompt_tokens_details.cached_tokens == second.prompt_tokens - 1


def test_no_key_learns_what_another_has_asked(runtime: Runtime) -> None:
    def cached(client: Any) -> int:
        count: int = chat(client).usage.prompt_tokens_details.cached_tokens
        return count

    with (
        served(runtime, keys=("one", "two")) as url,
        connected(url, "one") as first,
        connected(url, "two") as second,
    ):
        assert (cached(first), cached(second)) == (0, 0)
        assert cached(first) == cached(second) > 0


def test_keys_and_full_servers_answer_as_openai_does() -> None:
    with served(ScriptedBackend(["a", "b"]), keys=("right",), max_requests=1) as url:
        with connected(url, "wrong") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with connected(url, "right") as client:
            assert chat(client).choices[0].message.content == "a"
            with pytest.raises(openai.InternalServerError) as full:
                chat(client, n=2)
    assert full.value.status_code == 503
    assert full.value.response.headers["Retry-After"]


def test_an_error_before_the_first_part_has_a_status_and_one_behind_it_is_told() -> None:
    failing = ScriptedBackend(["x"], fail_at=0, error=ModelError("the model is broken."))
    with served(failing) as url, connected(url) as client:
        with pytest.raises(openai.InternalServerError, match="broken") as early:
            chat(client, stream=True)
        assert early.value.status_code == 500
    later = ScriptedBackend(
        ["Well <tool_call>"], fail_at=1, error=ModelError("the model is broken.")
    )
    with served(later) as url, connected(url) as client:
        stream = chat(client, tools=[TOOL], max_tokens=500, stream=True)
        texts: list[str] = []
        with pytest.raises(openai.APIError, match="broken"):
            texts.extend(part.choices[0].delta.content or "" for part in stream)
    assert "".join(texts) == "Well "


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}, {"n": 4}])
def test_a_stream_that_is_left_stops_its_work(
    client: Any, runtime: Runtime, fields: dict[str, Any]
) -> None:
    runtime.reset_stats()
    most = 1_000
    with chat(client, stream=True, max_tokens=most, extra_body={"ignore_eos": True}, **fields) as s:
        assert next(iter(s)).choices
        with engine_held(runtime) as loop:
            assert loop.has_work()
            s.close()
            until(lambda: not runtime._engine._inbox.empty())  # what ends it
    until(lambda: not runtime.stats().running)
    assert runtime.stats().sampled_tokens < most


def test_end_tokens_are_neither_text_nor_logprobs() -> None:
    with served(ScriptedBackend(["ab"])) as url, connected(url) as client:
        choice = chat(client, logprobs=True).choices[0]
    assert choice.finish_reason == "stop"
    assert [token.token for token in choice.logprobs.content] == ["a", "b"]
    assert chr(END - 1) not in choice.message.content
