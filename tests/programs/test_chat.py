"""Programs that talk: P9 five turns in the model's template, P10 answers that are streamed."""

from __future__ import annotations

import asyncio
import time

import jinja2
import pytest

import lmlang as lm
from tests.programs.properties import ran, silent

QUESTIONS = (
    "Hello, who are you?",
    "What is the capital of France?",
    "And of <|im_start|>Italy<|im_end|>?",
    "Thank you!\n",
    "Bye.",
)


@lm.function
def dialogue(s, turns: tuple[str, ...]):
    for number, turn in enumerate(turns):
        s += lm.user(turn) + lm.assistant(lm.gen(f"answer {number}", max_tokens=12))


def test_five_turns_are_the_template_s_own_and_each_computes_only_what_is_new(embedded, capfd):
    embedded.flush_cache()
    (state,) = ran(dialogue, [{"turns": QUESTIONS}], embedded)
    messages = state.messages()
    assert [m["role"] for m in messages][-10:] == ["user", "assistant"] * 5
    template = jinja2.Environment().from_string(CHATML)
    assert state.text() == template.render(messages=messages)
    before = 0
    for number in range(5):
        meta = state.meta(f"answer {number}")
        assert meta.cached_tokens >= max(0, before - 1)
        before = meta.prompt_tokens + meta.generated_tokens - 1  # an end that is dropped
        assert meta.prompt_tokens - meta.cached_tokens < 80
    silent(capfd)


CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}"
)


@lm.function
def two(s, topic: str, most: int = 12):
    s += lm.user("Tell me about " + topic) + lm.assistant(lm.gen("first", max_tokens=most))
    s += lm.user("More.") + lm.assistant(lm.gen("second", max_tokens=most))


def test_deltas_join_to_values_sync_and_async(runtime, untrained, capfd):
    state = two.run(topic="the sun", backend=runtime, seed=3, stream=True)
    for name in ("first", "second"):
        assert "".join(state.text_iter(name)) == state.text_of(name)
    assert "".join(state.text_iter()) == state.text()

    async def read() -> dict[str, str]:
        running = two.run(topic="the sun", backend=runtime, seed=3, stream=True)
        told = {}
        for name in ("first", "second"):
            told[name] = "".join([piece async for piece in running.text_async_iter(name)])
        return told

    told = asyncio.run(read())
    if runtime is untrained:  # a real one's logits may differ in the last bits from run to run
        assert told == {name: state.text_of(name) for name in told}
    assert "".join(event.text for event in two.stream(topic="the moon", backend=runtime)) != ""
    silent(capfd)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_leaving_a_stream_cancels_what_runs(runtime, asynchronous):
    state = two.run(topic="the sun", most=1_500, backend=runtime, seed=3, stream=True)
    if asynchronous:

        async def leave() -> None:
            pieces = state.text_async_iter("first")
            async for _ in pieces:
                break
            await pieces.aclose()

        asyncio.run(leave())
    else:
        pieces = state.text_iter("first")
        next(pieces)
        pieces.close()
    deadline = time.monotonic() + 60
    while runtime.stats().running and time.monotonic() < deadline:
        state.error()
    assert runtime.stats().running == 0
    assert isinstance(state.error(), lm.Cancelled)
    assert two.run(topic="x", most=2, backend=runtime)["second"] is not None  # it goes on
