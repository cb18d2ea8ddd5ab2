"""The `openai` client and the embedded model: structured output, tools, a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from lmlang.runtime.local import Runtime
from tests.server.served import served

openai = pytest.importorskip(
    "openai", reason="needs the openai client: pip install 'lmlang[openai]'"
)

MODEL = "default"


class Animal(BaseModel):
    """A type that the client turns into a schema, and back."""

    name: str
    legs: int
    habitat: Literal["land", "water", "air"]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        Runtime(kv_tokens=4_096) as runtime,
        served(runtime) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as made,
    ):
        yield made


def test_structured_output_is_an_instance(client: Any) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe a dog."}],
        response_format=Animal,
        temperature=0,
        max_tokens=80,
    )
    value = answer.choices[0].message.parsed
    assert isinstance(value, Animal)
    assert json.loads(answer.choices[0].message.content) == value.model_dump()


def test_a_conversation_with_a_tool(client: Any) -> None:
    tool = openai.pydantic_function_tool(Animal, name="look_up", description="Looks an animal up.")
    messages: list[Any] = [
        {"role": "system", "content": "You answer questions about animals."},
        {"role": "user", "content": "How many legs has a spider?"},
    ]
    fields: Any = {"model": MODEL, "tools": [tool], "temperature": 0, "max_tokens": 80}
    first = client.chat.completions.create(messages=messages, tool_choice="required", **fields)
    message = first.choices[0].message
    assert first.choices[0].finish_reason in ("tool_calls", "length")
    assert all(Animal(**json.loads(call.function.arguments)) for call in message.tool_calls)
    messages += [message.model_dump()] + [
        {"role": "tool", "tool_call_id": call.id, "content": "A spider has 8 legs."}
        for call in message.tool_calls
    ]
    second = client.chat.completions.create(messages=messages, **fields)
    assert second.choices[0].message.content
    assert second.choices[0].finish_reason in ("stop", "length")
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens // 2


def test_streamed_structured_output_parses(client: Any) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe a whale."}],
        response_format=Animal,
        temperature=0,
        max_tokens=80,
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Animal)
