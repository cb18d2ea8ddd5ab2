"""OpenAI's requests as requests of ours, without HTTP: what is taken, what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lmlang.grammar.spec import Ebnf, JsonSchema, Regex
from lmlang.protocol import Prompt, Text, Tokens
from lmlang.protocol.tools import FORMS
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.local import Runtime
from lmlang.runtime.tokenizer import CONTROL, Tokenizer
from lmlang.server.config import ServerConfig
from lmlang.server.openai_answers import CALLED, FINISHES, Placed, Spelling
from lmlang.server.openai_chat import FIELDS as CHAT_FIELDS
from lmlang.server.openai_chat import Chat, chat_of
from lmlang.server.openai_completions import FIELDS as COMPLETION_FIELDS
from lmlang.server.openai_completions import Completion, completion_of
from lmlang.server.openai_fields import IGNORED, SAMPLING, SETTLED
from lmlang.server.openai_tools import CallReader, ToolUse
from lmlang.server.refusals import Refusal
from lmlang.testing import ScriptedBackend
from tests import pages
from tests.runtime.test_chat_tools import BARE, TAGGED
from tests.tiny import MERGES, tiny_model, tiny_tokenizer, tiny_vocabulary

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"City": {"enum": ["Oslo", "Rome"]}},
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}


def chat(messages: Any = HELLO, *, backend: Any = None, **fields: Any) -> Chat:
    body = {"model": "scripted", "messages": messages, **fields}
    return chat_of(body, backend or ScriptedBackend(), ServerConfig())


def completion(prompt: Any, *, backend: Any = None, **fields: Any) -> Completion:
    body = {"model": "scripted", "prompt": prompt, **fields}
    return completion_of(body, backend or ScriptedBackend(), ServerConfig())


def schema_format(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": fields}


def function_tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": fields}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def shown(prompt: Prompt) -> str:
    return ScriptedBackend().render(prompt)


# ---------------------------------------------------------------------------- messages


def test_messages_become_turns() -> None:
    made = chat(
        [
            {"role": "developer", "content": "Be kind."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {
                "role": "assistant",
                "content": "c",
                "refusal": None,
                "tool_calls": None,
                "audio": None,
            },
            {"role": "user", "content": "<|im_end|>"},
        ]
    )
    assert shown(made.requests[0].prompt) == (
        "<system>Be kind.</system><user>a\nb</user><assistant>c</assistant>"
        "<user><|im_end|></user><assistant>"
    )


def test_calls_and_results_are_written_as_the_model_wrote_and_read_them() -> None:
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "cold"},
    ]
    made = chat(messages, tools=[WEATHER], tool_choice="none")
    assert shown(made.requests[0].prompt) == (
        "<user>Hello</user>"
        '<assistant><tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
        "</assistant><user><tool_response>\ncold\n</tool_response></user><assistant>"
    )


@pytest.mark.parametrize(
    ("message", "param", "word"),
    [
        ({"content": "x"}, "messages[0].role", "no role"),
        ({"role": "wizard", "content": "x"}, "messages[0].role", "developer"),
        ({"role": ["user"], "content": "x"}, "messages[0].role", "list"),
        ({"role": "user"}, "messages[0].content", "missing"),
        ({"role": "user", "content": 5}, "messages[0].content", "integer"),
        ({"role": "user", "content": [7]}, "messages[0].content[0]", "integer"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]},
            "messages[0].content[0].type",
            "image_url",
        ),
        ({"role": "user", "content": "x", "name": "Ann"}, "messages[0].name", "not available"),
        ({"role": "user", "content": "x", "mood": 1}, "messages[0].mood", "unknown"),
        ({"role": "assistant"}, "messages[0].content", "missing"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id", "missing"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]},
            "messages[0].tool_calls[0].function.arguments",
            "no JSON object",
        ),
        ("x", "messages[0]", "string"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(message: Any, param: str, word: str) -> None:
    with pytest.raises(Refusal, match=word) as refusal:
        chat([message])
    assert refusal.value.param == param
    assert refusal.value.status == 400


# ---------------------------------------------------------------------------- parameters


def test_parameters_become_ours() -> None:
    made = chat(
        temperature=0.5, top_p=0.9, max_completion_tokens=7, stop=["a", "b"], seed=3, n=2,
        frequency_penalty=1, presence_penalty=-1, logit_bias={"5": -100}, logprobs=True,
        top_logprobs=4, user="me", metadata={"a": "b"}, store=False, modalities=["text"],
        top_k=9, min_p=0.1,
    )  # fmt: skip
    first, second = made.requests
    params = first.params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, 7)
    assert (params.stop, params.logit_bias) == (("a", "b"), ((5, -100.0),))
    assert (params.frequency_penalty, params.presence_penalty) == (1.0, -1.0)
    assert (params.top_k, params.min_p, first.top_logprobs) == (9, 0.1, 4)
    assert first.draw_key != second.draw_key
    assert chat(seed=3).requests[0].draw_key == first.draw_key
    assert chat().requests[0].draw_key != chat().requests[0].draw_key
    greedy = chat(top_p=0).requests[0].params
    assert (greedy.top_p, greedy.top_k) == (1.0, 1)


def test_without_a_limit_an_answer_may_fill_the_context() -> None:
    with Runtime.over(*tiny_model(), kv_tokens=100) as runtime:
        made = chat(backend=runtime)
        assert made.requests[0].params.max_tokens == 100 - len(
            runtime.encode(made.requests[0].prompt)
        )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": float("inf")}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"max_completion_tokens": 2**31}, "max_completion_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"functions": [{}]}, "functions"),
        ({"audio": {}}, "audio"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"store": True}, "store"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"nonsense": 1}, "nonsense"),
        ({"\ud800": 1}, r"\ud800"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": schema_format(name="a b", schema={})},
            "response_format.json_schema.name",
        ),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"regex": ""}, "regex"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as refusal:
        chat(**fields)
    assert refusal.value.param == param
    assert refusal.value.status == 400
    assert refusal.value.code


def test_formats_become_constraints() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    named = {"name": "x", "schema": schema, "strict": True}
    given = {"type": "json_schema", "json_schema": named}
    assert chat(response_format=given).requests[0].constraint == JsonSchema(json.dumps(schema))
    told = chat(response_format={"type": "json_object"}).requests[0].constraint
    assert told == JsonSchema.of({"type": "object"})
    assert chat(response_format={"type": "text"}).requests[0].constraint is None
    assert chat(regex="a+").requests[0].constraint == Regex("a+")
    assert chat(ebnf='root ::= "a"').requests[0].constraint == Ebnf('root ::= "a"')


# ---------------------------------------------------------------------------- tools


def test_required_tools_leave_nothing_but_a_call() -> None:
    made = chat(tools=[WEATHER, TIME], tool_choice="required", stop="}")
    (request,) = made.requests
    assert shown(request.prompt).endswith("<assistant><tool_call>\n")
    assert json.dumps(WEATHER["function"]) in shown(request.prompt)
    assert request.params.stop == ()
    assert isinstance(request.constraint, JsonSchema)
    calls = json.loads(request.constraint.text)["anyOf"]
    assert [call["properties"]["name"]["const"] for call in calls] == ["weather", "time"]


def test_a_named_tool_is_the_only_one_that_may_be_called() -> None:
    choice = {"type": "function", "function": {"name": "time"}}
    made = chat(tools=[WEATHER, TIME], tool_choice=choice)
    assert isinstance(made.requests[0].constraint, JsonSchema)
    (call,) = json.loads(made.requests[0].constraint.text)["anyOf"]
    assert call["properties"]["name"]["const"] == "time"
    assert "weather" in shown(made.requests[0].prompt)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_some_tools_alone_may_be_called(mode: str) -> None:
    use = chat(tools=[WEATHER, TIME], tool_choice=allowed(mode, "time")).use
    assert [tool.name for tool in use.tools] == ["weather", "time"]
    assert [tool.name for tool in use.callable] == ["time"]
    assert use.mode == mode


def test_tools_may_be_called_by_default_and_join_the_system_turn() -> None:
    made = chat([{"role": "system", "content": "Be kind."}, *HELLO], tools=[TIME])
    assert made.requests[0].params.stop == ("<tool_call>",)
    assert made.requests[0].constraint is None
    assert shown(made.requests[0].prompt).startswith("<system>Be kind.\n\nYou can call")
    assert "time" not in shown(chat(tools=[TIME], tool_choice="none").requests[0].prompt)


@pytest.mark.parametrize(("source", "key"), [(TAGGED, "arguments"), (BARE, "parameters")])
def test_a_template_that_knows_of_tools_writes_them(source: str, key: str) -> None:
    model, tokenizer, _ = tiny_model()
    template = ChatTemplate(source, bos_token="<|im_start|>")
    with Runtime.over(model, tokenizer, template, kv_tokens=64) as runtime:
        messages = [*HELLO, {"role": "tool", "tool_call_id": "1", "content": "cold"}]
        made = chat(
            messages, backend=runtime, tools=[WEATHER], tool_choice="required", max_tokens=9
        )
        rendered = "".join(
            [segment.text for segment in made.requests[0].prompt.segments()
             if isinstance(segment, (Text, Tokens))]
        )  # fmt: skip
        assert "<|im_start|>tool\ncold<|im_end|>" in rendered
        assert "The weather of a city." in rendered
        assert "You can call" not in rendered
        assert rendered.endswith("<tool_call>\n") == (source is TAGGED)
        assert made.call is not None
        assert key in json.loads(made.call.text)["anyOf"][0]["properties"]


def test_a_control_token_that_begins_calls_stops_the_text_too() -> None:
    tokens, kinds = tiny_vocabulary()
    tokenizer = Tokenizer(
        [*tokens, "<tool_call>"], MERGES, kinds=[*kinds, CONTROL], bos_id=1, eos_id=2
    )
    model, _, template = tiny_model(vocab=len(tokens) + 1)
    with Runtime.over(model, tokenizer, template, kv_tokens=500) as runtime:
        made = chat(backend=runtime, tools=[TIME], max_tokens=9)
        assert made.triggers == {"<tool_call>", len(tokens)}
        assert made.requests[0].params.stop_token_ids == (len(tokens),)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [TIME, TIME]}, "tools"),
        ({"tools": [TIME] * 65}, "tools"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [function_tool(name="a", parameters={"type": "array"})]},
            "tools[0].function.parameters",
        ),
        ({"tools": [TIME], "tool_choice": "always"}, "tool_choice"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TIME], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [TIME], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tools": [TIME], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        (
            {"tools": [TIME], "tool_choice": allowed("often", "time")},
            "tool_choice.allowed_tools.mode",
        ),
        (
            {"tools": [TIME], "tool_choice": allowed("auto", "weather")},
            "tool_choice.allowed_tools.tools[0]",
        ),
    ],
)  # fmt: skip
def test_tools_that_cannot_be_called_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as refusal:
        chat(**fields)
    assert refusal.value.param == param


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_a_call_is_read_in_any_pieces(size: int) -> None:
    use = chat(tools=[WEATHER, TIME], tool_choice="required").use
    assert isinstance(use, ToolUse)
    for form in FORMS.values():
        reader = CallReader(form, use.callable)
        text = f'{form.head("weather")}{{"city": "Oslo"}}}}'
        parts = [reader.add(text[at : at + size]) for at in range(0, len(text), size)]
        calls = [part for part in parts if part is not None]
        assert [call.name for call in calls if call.name is not None] == ["weather"]
        assert "".join([call.arguments for call in calls]) == '{"city": "Oslo"}'


# ---------------------------------------------------------------------------- completions


def test_prompts_come_as_text_as_texts_and_as_ids() -> None:
    with Runtime.over(*tiny_model(), kv_tokens=64) as runtime:
        made = completion("<|im_start|>user", backend=runtime, n=2, echo=True)
        ids = (1, *tiny_tokenizer().encode("user"))
        assert [request.prompt.segments() for request in made.requests] == [
            [Tokens(ids, "<|im_start|>user")]
        ] * 2
        assert made.requests[0].params.max_tokens == 16
        assert made.text(1) == "<|im_start|>user"
        assert len(completion(["a", "b"], backend=runtime).requests) == 2
        assert len(completion([5, 6], backend=runtime).requests) == 1
        assert len(completion([[5], [6]], backend=runtime).requests) == 2


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        (None, {}, "prompt"),
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ([[]], {}, "prompt"),
        ([True], {}, "prompt"),
        (["a"] * 65, {}, "prompt"),
        (5, {}, "prompt"),
        ("\ud800", {}, "prompt"),
        ([-1], {}, "prompt"),
        ([10**9], {}, "prompt"),
        ("a", {"suffix": "b"}, "suffix"),
        ("a", {"best_of": 3}, "best_of"),
        ("a", {"logprobs": 21}, "logprobs"),
        ("a", {"logprobs": True}, "logprobs"),
        ("a", {"max_tokens": -1}, "max_tokens"),
        ("a", {"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ("a", {"messages": []}, "messages"),
    ],
)
def test_a_completion_that_cannot_be_is_refused(
    prompt: Any, fields: dict[str, Any], param: str
) -> None:
    with Runtime.over(*tiny_model(), kv_tokens=64) as runtime, pytest.raises(Refusal) as refusal:
        completion(prompt, backend=runtime, **fields)
    assert refusal.value.param == param


# ---------------------------------------------------------------------------- tokens


def test_tokens_are_told_when_their_text_is_shown_and_what_ends_an_output_is_not() -> None:
    with Runtime.over(*tiny_model(), kv_tokens=64) as runtime:
        placed = Placed(Spelling(runtime))
        smile = tiny_tokenizer().encode("😀")
        assert len(smile) > 1
        assert placed.add(smile[:1], [-1.0], [], "") == []
        more = smile[1:]
        told = placed.add(more, [-2.0] * len(more), [], "😀")
        assert [token.offset for token in told] == [0] * len(smile)
        end = placed.add([*tiny_tokenizer().encode("hello"), 2], [-3.0, -4.0], [], "hello")
        assert [(token.logprob, token.offset) for token in end] == [(-3.0, 1)]


def test_bytes_that_are_no_text_are_written_as_such() -> None:
    with Runtime.over(*tiny_model(), kv_tokens=64) as runtime:
        spelling = Spelling(runtime)
        first = tiny_tokenizer().encode("é😀")[1]
        data = runtime.token_bytes(first)
        assert spelling.name(first, "bytes:") == "bytes:" + "".join([f"\\x{b:02x}" for b in data])
        assert spelling.name(1) == "<|im_start|>"


# ---------------------------------------------------------------------------- the reference


def test_the_reference_names_every_field() -> None:
    sections = {section.title: section for section in pages.sections("docs/reference/openai.md")}

    def fields(title: str) -> set[str]:
        rows = pages.table(sections[title], "field")
        return {name for first, *_ in rows for name in pages.coded(first)}

    both = fields("Fields of both")
    assert both == SAMPLING | {"model"}
    assert fields("Fields of completions") == COMPLETION_FIELDS - both
    assert fields("Fields of chats") == CHAT_FIELDS - both
    assert set(pages.coded(sections["Fields that change nothing"].text)) == set(IGNORED)
    refused = sections["Fields that are refused"].text.split("` are refused")[0] + "`"
    assert set(pages.coded(refused)) == set(SETTLED)
    reasons = pages.table(sections["Reasons to end"], "`finish_reason`")
    assert {name for first, *_ in reasons for name in pages.coded(first)} == {
        *FINISHES.values(),
        CALLED,
    }
