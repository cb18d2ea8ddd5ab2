r"""Hidden reasoning before an output: two generations that are read as one, with a budget each.

    prompt <think> …up to N tokens… </think> output      what the model reads
    prompt                                   output      what text() shows

The markers are the model's own tokens where it has some, else plain text that is spelled as these
are. Tokens without a text hide them all, and so keep them for what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lmlang.errors import BackendError, quote
from lmlang.frontend.following import Following
from lmlang.protocol import (
    Backend,
    Generation,
    Output,
    Prompt,
    Request,
    Segment,
    Text,
    Tokens,
)

BEGIN, END = "<think>\n", "\n</think>\n\n"
"""Markers of a model that has none of its own."""
STOP = "</think>"
"""What ends the reasoning of such a model."""

Begin = Callable[[Request], Generation]


@dataclass(frozen=True, slots=True)
class _Markers:
    """How reasoning begins and ends: tokens, and what a backend stops at."""

    begin: Tokens
    end: Tokens
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


class Thinking(Following):
    """A generation whose output has been reasoned about before, unseen. Thread-safe.

    Attributes:
        thought: The reasoning, once it is there.
    """

    def __init__(self, backend: Backend, begin: Begin, first: Request, request: Request) -> None:
        super().__init__(request)
        self.thought = ""
        self._backend = backend
        self._begin = begin
        self._markers = marks = _markers(backend)
        self._passed = 0
        params = replace(first.params, stop=marks.stop, stop_token_ids=marks.stop_token_ids)
        asked = replace(first, prompt=first.prompt.append(marks.begin), params=params)
        self.follow(begin(asked), self._thought)

    def _thought(self, output: Output) -> None:
        """The reasoning is there: ask for the output behind it."""
        self.thought = output.text
        inside = [as_tokens(self._backend, segment) for segment in output.history]
        spoken = [self._markers.begin, *inside, self._markers.end]
        prompt = self.request.prompt
        for segment in spoken:
            prompt = prompt.append(segment)
        answer = self._begin(replace(self.request, prompt=prompt))
        answer.watch(lambda: self._pass_on(answer))
        hidden = tuple([replace(segment, text="") for segment in spoken])

        def answered(found: Output) -> None:
            self._pass_on(answer)
            usage, history = output.usage + found.usage, (*hidden, *found.history)
            self.complete(replace(found, usage=usage, history=history))

        self.follow(answer, answered)

    def _pass_on(self, answer: Generation) -> None:
        with self._lock:
            for event in answer.events_from(self._passed):
                self._passed += 1
                self.push(event)


def around(backend: Backend) -> tuple[int, int]:
    """How many tokens stand before reasoning, and how many behind it."""
    marks = _markers(backend)
    return len(marks.begin.ids), len(marks.end.ids)


def _markers(backend: Backend) -> _Markers:
    info = backend.info()
    if info.thinking is not None:
        begin, end = info.thinking
        line, lines = (as_tokens(backend, Text(text)).ids for text in ("\n", "\n\n"))
        return _Markers(
            Tokens((begin, *line), ""), Tokens((end, *lines), ""), stop_token_ids=(end,)
        )
    if not info.has_tokens:
        raise BackendError(
            f"think: the backend {quote(info.model)} has no token ids, without which nothing in a "
            "prompt can be hidden: leave think out, or use one that has."
        )
    begun, ended = (as_tokens(backend, Text(text)) for text in (BEGIN, END))
    return _Markers(begun, ended, stop=(STOP,))


def as_tokens(backend: Backend, segment: Segment) -> Tokens:
    """A segment of an output as tokens; text is tokenised by itself."""
    if isinstance(segment, Tokens):
        return segment
    assert isinstance(segment, Text)
    before = Prompt.of(Tokens((0,), ""))  # so that the text begins no prompt
    ids = backend.encode(before.append(segment))[len(backend.encode(before)) :]
    return Tokens(tuple(ids), segment.text)
