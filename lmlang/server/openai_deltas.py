"""The answers of /v1/chat/completions: generations as deltas, and these as chunks or one answer.

Chat --works--> events --deltas--> (choice, Delta) …  --chunks--> parts of a stream
                                                      --gathered, answer--> the sum of them
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from lmlang.errors import LMLangError
from lmlang.protocol import Backend, Event, Output
from lmlang.server.openai_answers import (
    CALLED,
    Counted,
    Placed,
    Spelling,
    Token,
    chat_logprobs,
    heading,
)
from lmlang.server.openai_calls import Calls, Delta, Works, finish_of
from lmlang.server.openai_chat import Chat
from lmlang.server.openai_tools import CallReader
from lmlang.server.stream import Work


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
            async with self._works(self._chat.requests) as work:
                async with aclosing(self._first(work, begun)) as first:
                    async for found in first:
                        yield found
                made = 1 if self._chat.use.mode == "required" else 0
                for index, output in begun:
                    asked = self._chat.requests[index]
                    calls = Calls(self._chat, asked, work, self._backend, self.counted)
                    async with aclosing(calls.behind(output, made)) as behind:
                        async for delta in behind:
                            yield index, delta
        except LMLangError as error:
            raise self._chat.refused(error) from error.__cause__

    async def _first(
        self, work: Work, begun: list[tuple[int, Output]]
    ) -> AsyncGenerator[tuple[int, Delta], None]:
        """The generations that were asked for; those that calls follow go into ``begun``."""
        chat = self._chat
        placed = [Placed(self.spelling) for _ in chat.requests]
        must_call = chat.use.mode == "required"
        readers = [CallReader(chat.form, chat.use.callable) for _ in chat.requests]
        async for index, item in work.items():
            if isinstance(item, Output):
                self.counted.add(0, item.usage)
                finish = finish_of(item.finish, called=must_call)
                begins = item.finish.reason == "stop" and item.finish.stop in chat.triggers
                if begins or (finish == CALLED and chat.use.several):
                    begun.append((index, item))
                else:
                    yield index, Delta(finish=finish)
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


@dataclass(slots=True)
class Choice:
    """One choice as it grows."""

    text: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str = ""

    def add(self, delta: Delta) -> None:
        """Take what comes next."""
        self.text.append(delta.text)
        self.tokens += delta.tokens
        self.finish = delta.finish or self.finish
        if delta.call is None:
            return
        if delta.call.name is not None:
            function = {"name": delta.call.name, "arguments": ""}
            self.calls.append({"id": delta.call_id, "type": "function", "function": function})
        self.calls[-1]["function"]["arguments"] += delta.call.arguments


async def gathered(chat: Chat, answering: Answering) -> list[Choice]:
    """All choices, once they have ended."""
    choices = [Choice() for _ in chat.requests]
    async with aclosing(answering.deltas()) as deltas:
        async for index, delta in deltas:
            choices[index].add(delta)
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
    if choice.calls:
        message["content"] = text or None
        message["tool_calls"] = choice.calls
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
        return {"index": delta.number, "function": function}
    function = {"name": delta.call.name, **function}
    named = {"id": delta.call_id, "type": "function", "function": function}
    return {"index": delta.number, **named}
