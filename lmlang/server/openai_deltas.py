"""The answers of /v1/chat/completions: generations as deltas, and these as chunks or one answer.

Chat --works--> events --deltas--> (choice, Delta) …  --chunks--> parts of a stream
                                                      --gathered, answer--> the sum of them
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from lmlang.errors import BudgetExceeded, LMLangError
from lmlang.frontend.draws import draw_key
from lmlang.protocol import Backend, Event, Finish, Output, Request
from lmlang.server.openai_answers import (
    CALLED,
    FINISHES,
    Counted,
    Placed,
    Spelling,
    Token,
    chat_logprobs,
    heading,
)
from lmlang.server.openai_chat import Chat
from lmlang.server.openai_messages import opened
from lmlang.server.openai_tools import Call, CallReader
from lmlang.server.stream import Work

Works = Callable[[Sequence[Request]], Work]
"""Begins generations; see `Server.work`."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What comes next in one choice.

    Args:
        text: More of its content.
        tokens: Tokens of the content, where they are reported.
        call: More of its call.
        call_id: The name of that call.
        finish: Why it ended, in OpenAI's words.
    """

    text: str = ""
    tokens: tuple[Token, ...] = ()
    call: Call | None = None
    call_id: str = ""
    finish: str | None = None


class Answering:
    """Runs a chat.

    Args:
        chat: What is asked for.
        works: Begins generations.
        backend: What runs them.
    """

    def __init__(self, chat: Chat, works: Works, backend: Backend) -> None:
        self._chat = chat
        self._works = works
        self._backend = backend
        self.spelling = Spelling(backend)
        self.counted = Counted()

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """What comes, with the index of its choice; of each choice the last has a finish.

        Raises:
            LMLangError: In the words of the request.
        """
        try:
            begun: list[tuple[int, Output]] = []
            async with aclosing(self._first(begun)) as first:
                async for found in first:
                    yield found
            for index, output in begun:
                async with aclosing(self._called(index, output)) as called:
                    async for delta in called:
                        yield index, delta
        except LMLangError as error:
            raise self._chat.refused(error) from error.__cause__

    async def _first(
        self, begun: list[tuple[int, Output]]
    ) -> AsyncGenerator[tuple[int, Delta], None]:
        """The generations that were asked for; those that begin a call go into ``begun``."""
        chat = self._chat
        placed = [Placed(self.spelling) for _ in chat.requests]
        must_call = chat.use.mode == "required"
        readers = [CallReader(chat.form, chat.use.callable) for _ in chat.requests]
        async with self._works(chat.requests) as work:
            async for index, item in work.items():
                if isinstance(item, Output):
                    self.counted.add(0, item.usage)
                    if item.finish.reason == "stop" and item.finish.stop in chat.triggers:
                        begun.append((index, item))
                    else:
                        yield index, Delta(finish=_finish(item.finish, called=must_call))
                elif must_call:
                    call = readers[index].add(item.text)
                    if call is not None:
                        yield index, Delta(call=call, call_id=readers[index].id)
                else:
                    delta = self._told(item, placed[index])
                    if delta.text or delta.tokens:
                        yield index, delta

    def _told(self, event: Event, placed: Placed) -> Delta:
        if not self._chat.logprobs:
            return Delta(event.text)
        tokens = placed.add(event.ids, event.logprobs, event.top_logprobs, event.text)
        return Delta(event.text, tuple(tokens))

    async def _called(self, index: int, output: Output) -> AsyncGenerator[Delta, None]:
        """The call behind free text that ended where one begins."""
        chat, asked = self._chat, self._chat.requests[index]
        reader = CallReader(chat.form, chat.use.callable)
        prompt = asked.prompt
        for segment in output.history:
            prompt = prompt.append(segment)
        left = asked.params.max_tokens - len(output.ids)
        if left < 1:
            yield Delta(finish=FINISHES["length"])
            return
        request = replace(
            asked,
            prompt=opened(prompt, chat.form, self._backend),
            params=replace(
                asked.params, max_tokens=left, stop=(), stop_token_ids=(), min_tokens=0,
                ignore_eos=False,
            ),
            constraint=chat.call,
            draw_key=draw_key(asked.draw_key >> 1, b"call", ""),
            top_logprobs=0,
        )  # fmt: skip
        try:
            async with self._works([request]) as work:
                async for _, item in work.items():
                    if isinstance(item, Output):
                        self.counted.go_on(item.usage)
                        yield Delta(finish=_finish(item.finish, called=True))
                        continue
                    call = reader.add(item.text)
                    if call is not None:
                        yield Delta(call=call, call_id=reader.id)
        except BudgetExceeded:  # not even the shortest call fits: no part of it has been told
            yield Delta(finish=FINISHES["length"])


def _finish(finish: Finish, *, called: bool) -> str:
    told = FINISHES[finish.reason]
    return CALLED if called and told == "stop" else told


@dataclass(slots=True)
class Choice:
    """One choice as it grows."""

    text: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    name: str | None = None
    call_id: str = ""
    arguments: list[str] = field(default_factory=list)
    finish: str = ""


async def gathered(chat: Chat, answering: Answering) -> list[Choice]:
    """All choices, once they have ended."""
    choices = [Choice() for _ in chat.requests]
    async with aclosing(answering.deltas()) as deltas:
        async for index, delta in deltas:
            choice = choices[index]
            choice.text.append(delta.text)
            choice.tokens += delta.tokens
            choice.finish = delta.finish or choice.finish
            if delta.call is not None:
                choice.name, choice.call_id = choice.name or delta.call.name, delta.call_id
                choice.arguments.append(delta.call.arguments)
    return choices


def answer(chat: Chat, answering: Answering, choices: list[Choice], model: str) -> dict[str, Any]:
    """The whole answer; with logprobs it may be large."""
    return heading("chat.completion", "chatcmpl", model) | {
        "choices": [
            _whole(number, choice, chat, answering.spelling)
            for number, choice in enumerate(choices)
        ],
        "usage": answering.counted.told(),
    }


def _whole(number: int, choice: Choice, chat: Chat, spelling: Spelling) -> dict[str, Any]:
    text = "".join(choice.text)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if choice.name is not None:
        message["content"] = text or None
        function = {"name": choice.name, "arguments": "".join(choice.arguments)}
        message["tool_calls"] = [{"id": choice.call_id, "type": "function", "function": function}]
    told = chat_logprobs(choice.tokens, spelling) if chat.logprobs else None
    return {
        "index": number, "message": message, "logprobs": told, "finish_reason": choice.finish,
    }  # fmt: skip


async def chunks(
    chat: Chat, answering: Answering, model: str
) -> AsyncGenerator[dict[str, Any], None]:
    """The parts of a stream."""
    head = heading("chat.completion.chunk", "chatcmpl", model)
    usage: dict[str, Any] = {"usage": None} if chat.usage else {}
    begun: set[int] = set()

    def chunk(index: int, delta: dict[str, Any], told: Any, finish: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": told, "finish_reason": finish}
        return {**head, "choices": [choice], **usage}

    async with aclosing(answering.deltas()) as deltas:
        async for index, delta in deltas:
            if index not in begun:
                begun.add(index)
                content = None if chat.use.mode == "required" else ""
                yield chunk(index, {"role": "assistant", "content": content}, None, None)
            if delta.text or delta.tokens:
                told = chat_logprobs(delta.tokens, answering.spelling) if chat.logprobs else None
                yield chunk(index, {"content": delta.text}, told, None)
            if delta.call is not None:
                yield chunk(index, {"tool_calls": [_part(delta)]}, None, None)
            if delta.finish is not None:
                yield chunk(index, {}, None, delta.finish)
    if chat.usage:
        yield {**head, "choices": [], "usage": answering.counted.told()}


def _part(delta: Delta) -> dict[str, Any]:
    """A part of a call."""
    assert delta.call is not None
    function: dict[str, Any] = {"arguments": delta.call.arguments}
    if delta.call.name is None:
        return {"index": 0, "function": function}
    function = {"name": delta.call.name, **function}
    return {"index": 0, "id": delta.call_id, "type": "function", "function": function}
