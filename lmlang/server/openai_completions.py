"""/v1/completions: prompts as text or token ids, each with its samples; answers and chunks of them.

A prompt's text is what a chat template would have written, as its clients apply templates
themselves: what spells a control token in it is one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from lmlang import limits
from lmlang.errors import LMLangError
from lmlang.frontend.draws import draw_key, fresh_seed
from lmlang.protocol import Backend, InputLogprobs, Output, Prompt, Request, Tokens
from lmlang.server.config import ServerConfig
from lmlang.server.openai_answers import (
    FINISHES,
    Counted,
    Placed,
    Spelling,
    Token,
    heading,
    prompt_tokens,
    text_logprobs,
)
from lmlang.server.openai_calls import Works
from lmlang.server.openai_chat import constraint_of
from lmlang.server.openai_fields import (
    SAMPLING,
    Fields,
    checked,
    refused,
    sampling,
    seed_of,
    wants_usage,
    wrong,
)
from lmlang.server.openai_messages import template_text

FIELDS = SAMPLING | {"model", "prompt", "echo", "logprobs"}
DEFAULT_TOKENS = 16
"""Of an output, as OpenAI has it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Prompts that are to be completed.

    Args:
        requests: One for each sample of each prompt, those of a prompt side by side.
        samples: How many each prompt has.
        texts: What is written before the outputs of each prompt: with echo the prompt, else "".
        params: The fields that errors are about.
        logprobs: Whether tokens are reported.
        stream: Whether the answer is streamed.
        usage: Whether a stream ends with its usage.
    """

    requests: tuple[Request, ...]
    samples: int
    texts: tuple[str, ...]
    params: dict[str, str]
    logprobs: bool
    stream: bool
    usage: bool

    def text(self, index: int) -> str:
        """What is written before an output."""
        return self.texts[index // self.samples]


def completion_of(body: dict[str, Any], backend: Backend, config: ServerConfig) -> Completion:
    """The completion that a body asks for. It encodes prompts: not for the event loop.

    Raises:
        Refusal: A field is not what it must be, or asks for what there is not.
        LMLangError: A prompt cannot be encoded.
    """
    fields = Fields(body, FIELDS)
    stream, usage = fields.flag("stream"), wants_usage(fields)
    n = fields.integer("n", 1, 1, config.max_samples)
    seed = seed_of(fields)
    echo, logprobs = fields.flag("echo"), "logprobs" in fields
    top = fields.integer("logprobs", 0, 0, config.max_top_logprobs)
    if echo and logprobs and stream:
        raise wrong("echo", "echo with logprobs cannot be streamed: leave one of the three out.")
    constraint, named = constraint_of(fields)
    params = sampling(fields, fields.integer("max_tokens", DEFAULT_TOKENS, 0, limits.MAX_TOKENS))
    prompts = _prompts(fields, backend, config)
    requests = []
    for prompt, _ in prompts:
        base = Request(
            prompt,
            params,
            top_logprobs=top,
            input_logprobs_from=0 if echo and logprobs else None,
            constraint=constraint,
        )
        own = fresh_seed() if seed is None else seed
        requests += [replace(base, draw_key=draw_key(own, b"", "", i)) for i in range(n)]
    return Completion(
        tuple(requests),
        n,
        tuple([text if echo else "" for _, text in prompts]),
        {"prompt": "prompt", "budget": "max_tokens", "constraint": named},
        logprobs,
        stream,
        usage,
    )


def _prompts(fields: Fields, backend: Backend, config: ServerConfig) -> list[tuple[Prompt, str]]:
    """All prompts and what they read as."""
    given = fields.need("prompt")
    if isinstance(given, str):
        given = [given]
    elif not isinstance(given, list) or not given:
        raise fields.mistyped("prompt", "a string, or a list of strings or token ids", given)
    elif all(type(item) is int for item in given):
        given = [given]
    if len(given) > config.max_batch:
        raise wrong(
            "prompt",
            f"there are {len(given):,} prompts: this server allows {config.max_batch:,}.",
        )
    return [_prompt(fields, item, backend) for item in given]


def _prompt(fields: Fields, item: Any, backend: Backend) -> tuple[Prompt, str]:
    if isinstance(item, str):
        if not item:
            raise wrong("prompt", "prompt is empty: give some text.")
        return Prompt.of(checked("prompt", template_text, item, backend)), item
    if not isinstance(item, list) or not item or not all(type(token) is int for token in item):
        raise fields.mistyped("prompt", "a string, or a list of strings or token ids", item)
    text = checked("prompt", backend.decode, item)
    return Prompt.of(Tokens(tuple(item), text)), text


@dataclass(slots=True)
class Choice:
    """One output as it grows."""

    text: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    finish: str = ""
    before: InputLogprobs | None = None
    """Of the prompt, where they are reported."""


class Completing:
    """Runs a completion.

    Args:
        asked: What is asked for.
        works: Begins generations.
        backend: What runs them.
    """

    def __init__(self, asked: Completion, works: Works, backend: Backend) -> None:
        self._asked = asked
        self._works = works
        self._spelling = Spelling(backend)
        self._counted = Counted()

    async def gathered(self) -> list[Choice]:
        """All outputs, once they have ended."""
        choices = [Choice() for _ in self._asked.requests]
        async with aclosing(self._pieces(choices)) as pieces:
            async for index, text, tokens, finish in pieces:
                choices[index].text.append(text)
                choices[index].tokens += tokens
                choices[index].finish = finish or choices[index].finish
        return choices

    def answer(self, choices: list[Choice], model: str) -> dict[str, Any]:
        """The whole answer; with logprobs it may be large."""
        return heading("text_completion", "cmpl", model) | {
            "choices": [
                {
                    "index": index,
                    "text": self._asked.text(index) + "".join(choice.text),
                    "logprobs": self._logprobs(index, choice),
                    "finish_reason": choice.finish,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": self._counted.told(),
        }

    async def chunks(self, model: str) -> AsyncGenerator[dict[str, Any], None]:
        """The parts of a stream."""
        asked = self._asked
        head = heading("text_completion", "cmpl", model)
        usage: dict[str, Any] = {"usage": None} if asked.usage else {}
        begun: set[int] = set()
        choices = [Choice() for _ in asked.requests]
        async with aclosing(self._pieces(choices)) as pieces:
            async for index, text, tokens, finish in pieces:
                told = None
                if asked.logprobs and tokens:
                    told = text_logprobs(tokens, self._spelling, 0)
                if index not in begun:
                    begun.add(index)
                    text = asked.text(index) + text
                if text or told or finish:
                    choice = {"index": index, "text": text, "logprobs": told}
                    yield {**head, "choices": [choice | {"finish_reason": finish}], **usage}
        if asked.usage:
            yield {**head, "choices": [], "usage": self._counted.told()}

    async def _pieces(
        self, choices: list[Choice]
    ) -> AsyncGenerator[tuple[int, str, list[Token], str | None], None]:
        """What comes: the index of its output, text, tokens, why it ended."""
        asked = self._asked
        placed = [Placed(self._spelling) for _ in asked.requests]
        try:
            async with self._works(asked.requests) as work:
                async for index, item in work.items():
                    if isinstance(item, Output):
                        self._counted.add(index // asked.samples, item.usage)
                        choices[index].before = item.input_logprobs
                        yield index, "", [], FINISHES[item.finish.reason]
                        continue
                    tokens: list[Token] = []
                    if asked.logprobs:
                        place = placed[index]
                        tokens = place.add(item.ids, item.logprobs, item.top_logprobs, item.text)
                    yield index, item.text, tokens, None
        except LMLangError as error:
            raise refused(error, asked.params) from error.__cause__

    def _logprobs(self, index: int, choice: Choice) -> dict[str, Any] | None:
        if not self._asked.logprobs:
            return None
        text, inputs = self._asked.text(index), choice.before
        told = text_logprobs(choice.tokens, self._spelling, len(text))
        if inputs is None:
            return told
        before = text_logprobs(
            prompt_tokens(self._spelling, inputs.ids, inputs.logprobs, inputs.top, text),
            self._spelling,
            0,
        )
        return {name: before[name] + held for name, held in told.items()}
