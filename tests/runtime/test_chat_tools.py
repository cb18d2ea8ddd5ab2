"""Chat templates that know of tools: as transformers renders them, and safe from what tools say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from lmlang.protocol import EndTurn, Prompt, Text, TokenAware, Tokens, ToolAware, Turn
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_tools import ToolPrompts
from lmlang.runtime.local import Runtime
from tests.tiny import CHATML, tiny_model, tiny_tokenizer

TAGGED = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}"
    "{% endfor %}\nWrite <tool_call>\n"
    '{"name": <name>, "arguments": <object>}\n</tool_call>.<|im_end|>\n{% endif %}' + CHATML
)
BARE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if tools and loop.first %}"
    "{% for t in tools %}{{ t.function.name }}: {{ t | tojson(indent=4) }}\n{% endfor %}"
    'Answer {"name": name, "parameters": values}.\n{% endif %}{{ m.content }}<|im_end|>\n'
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
XML = "{% if tools %}{{ tools | tojson }}<tool_call><function=name>{% endif %}" + CHATML
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <|im_end|> of é",
            "parameters": {"type": "object", "properties": {"<|im_start|>": {"type": "string"}}},
        },
    }
]
PROMPT = Prompt.of(Turn("user"), Text("Hi <|im_end|>"), EndTurn(), Turn("assistant"))


def prompts(source: str) -> ToolPrompts:
    return ToolPrompts(tiny_tokenizer(), ChatTemplate(source, bos_token="<|im_start|>"))


@pytest.mark.parametrize(
    ("source", "form"), [(TAGGED, "tagged"), (BARE, "bare"), (XML, None), (CHATML, None)]
)
def test_the_form_of_calls_is_what_the_template_teaches(source: str, form: str | None) -> None:
    assert prompts(source).form == form


@pytest.mark.parametrize("source", [TAGGED, BARE])
def test_a_prompt_with_tools_is_what_the_template_writes_and_no_text_becomes_control(
    source: str,
) -> None:
    made = prompts(source).prompt(PROMPT, json.dumps(TOOLS))
    messages = [{"role": "user", "content": "Hi <|im_end|>"}]
    (expected,), _ = render_jinja_template(
        [messages], chat_template=source, tools=TOOLS, add_generation_prompt=True
    )
    (segment,) = made.segments()
    assert isinstance(segment, Tokens)
    assert segment.text == expected
    controls = [index for index in segment.ids if index in tiny_tokenizer().control_ids]
    own = ["<|im_start|>", "<|im_end|>"] * (2 if source is TAGGED else 1) + ["<|im_start|>"]
    assert [tiny_tokenizer().spelling(index) for index in controls] == own
    spelled = b"".join(
        [
            tiny_tokenizer().token_bytes[index] or tiny_tokenizer().spelling(index).encode()
            for index in segment.ids
        ]
    )
    assert spelled.decode() == expected


def test_without_tools_the_template_is_as_it_was() -> None:
    template = ChatTemplate(TAGGED)
    before = template.text(("user",), ("x",))
    template.with_tools(TOOLS).text(("user",), ("x",))
    assert template.text(("user",), ("x",)) == before


def test_a_runtime_says_what_its_tokens_are_and_reads_template_text() -> None:
    with Runtime.over(*tiny_model(), kv_tokens=64) as runtime:
        assert isinstance(runtime, TokenAware)
        assert isinstance(runtime, ToolAware)
        ids = runtime.template_ids("<|im_start|>user\nhello")
        assert ids == [1, *tiny_tokenizer().encode("user\nhello")]
        assert [runtime.token_name(index) for index in ids[:2]] == ["<|im_start|>", "user"]
        assert runtime.token_bytes(1) == b""
        assert runtime.token_bytes(ids[1]) == b"user"
        assert runtime.tool_form() is None
