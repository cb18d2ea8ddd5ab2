r"""Texts that completions were asked for beyond their ends, for the generations that come next.

prompt "Name:"              asked without stops, 64 tokens     " Ann\nAge: 31\nCity: Bonn"
prompt "Name: Ann\nAge:"    agrees with what came: no request  " 31"
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from lmlang.backends.openai_answer import Token
from lmlang.grammar.stops import StopMatcher
from lmlang.protocol import Finish, Request, SamplingParams

MOST_KEPT = 1_024
"""Texts of all runs together; the oldest goes first."""


@dataclass(slots=True)
class Ahead:
    """What came behind a prompt, and the prompts that it has answered."""

    prompt: str
    tokens: tuple[Token, ...]
    ended: bool
    used: set[int] = field(default_factory=set)

    def behind(self, prompt: str, again: bool) -> tuple[Token, ...] | None:
        """The tokens behind a longer prompt; None where the texts do not agree.

        A prompt is answered once, unless ``again``: samples of one prompt are not to be equal.
        """
        place = len(self.prompt)
        if len(prompt) <= place or not prompt.startswith(self.prompt):
            return None
        if len(prompt) in self.used and not again:
            return None
        for index, token in enumerate(self.tokens):
            if place >= len(prompt):
                return self._taken(prompt, self.tokens[index:])
            due = prompt[place : place + len(token.text)]
            if not token.text.startswith(due):
                return None
            place += len(token.text)
            if place > len(prompt):  # the prompt ends within this token
                rest = replace(token, text=token.text[len(due) :])
                return self._taken(prompt, (rest, *self.tokens[index + 1 :]))
        return self._taken(prompt, ()) if place == len(prompt) else None

    def _taken(self, prompt: str, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        self.used.add(len(prompt))
        return tokens


class Aheads:
    """The texts of all runs under way. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[Hashable, Ahead]] = OrderedDict()
        self._number = 0

    def known(self, request: Request, prompt: str) -> tuple[tuple[Token, ...], bool] | None:
        """The tokens that are known behind a prompt, and whether the model ended there."""
        key, again = _key(request), request.params.temperature == 0
        with self._lock:
            for other, ahead in reversed(self._kept.values()):
                if other == key:
                    tokens = ahead.behind(prompt, again)
                    if tokens is not None:
                        return tokens, ahead.ended
        return None

    def keep(self, request: Request, ahead: Ahead) -> None:
        """Keep what came, for the run that asked."""
        with self._lock:
            self._number += 1
            self._kept[self._number] = (_key(request), ahead)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)

    def end_run(self, run_id: str) -> None:
        """Forget what is kept for a run."""
        with self._lock:
            for number, (key, _) in list(self._kept.items()):
                if isinstance(key, tuple) and key[0] == run_id:
                    del self._kept[number]


def can_run_ahead(request: Request) -> bool:
    """Whether what comes behind an output's end may be used: it must not hang on where it began."""
    params = request.params
    return (
        bool(request.tag.run_id)
        and request.constraint is None
        and not (params.min_tokens or params.stop_token_ids or params.ignore_eos)
        and not (params.frequency_penalty or params.presence_penalty)
        and params.repetition_penalty == 1
    )


def cut(
    tokens: Sequence[Token], ended: bool, params: SamplingParams
) -> tuple[int, str, Finish] | None:
    """The tokens of an output, its text and why it ends; None where more tokens are needed."""
    matcher = StopMatcher(params.stop, params.stop_regex)
    text = ""
    for count, token in enumerate(tokens, 1):
        shown, stop = matcher.push(token.text)
        text += shown
        if stop is not None:
            return count, text + stop * params.include_stop, Finish("stop", stop)
        if count == params.max_tokens:
            return count, text + matcher.finish(), Finish("length")
    return (len(tokens), text + matcher.finish(), Finish("eos")) if ended else None


def _key(request: Request) -> Hashable:
    """What two requests of a run share whose outputs may be parts of one text."""
    plain = SamplingParams()
    alike = replace(
        request.params,
        max_tokens=plain.max_tokens,
        stop=(),
        stop_regex=(),
        include_stop=False,
    )
    return request.tag.run_id, request.namespace, request.top_logprobs, alike
