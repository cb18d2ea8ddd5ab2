"""What generations give in OpenAI's words: reasons to end, usage, tokens with their logprobs."""

from __future__ import annotations

import codecs
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmlang.protocol import Backend, FinishReason, TokenAware, TopLogprobs, Usage

FINISHES: Mapping[FinishReason, str] = {
    "stop": "stop",
    "eos": "stop",
    "complete": "stop",
    "length": "length",
    "forced_close": "length",
}
"""Reasons to end in OpenAI's words. A constrained output that was closed to fit its budget says
"length", since that may have shortened a value. An output that calls a tool and stops says
`CALLED`; "content_filter" is never said, as nothing is filtered."""

CALLED = "tool_calls"

LOWEST = -9999.0
"""A log-probability of minus infinity, as OpenAI writes it."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an output.

    Args:
        id: The token.
        logprob: Its log-probability; None for the first one of a prompt.
        top: The likeliest tokens in its place.
        offset: Character of the text that it begins in.
    """

    id: int
    logprob: float | None
    top: TopLogprobs
    offset: int


class Spelling:
    """How tokens are written in answers.

    Args:
        backend: Whose tokens they are.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def data(self, token: int) -> bytes:
        """The bytes of a token; none for control tokens."""
        if isinstance(self._backend, TokenAware):
            return self._backend.token_bytes(token)
        return self._backend.decode([token]).encode()

    def name(self, token: int, foreign: str = "") -> str:
        r"""A token as text; bytes that are none behind ``foreign``, as in ``\xf0\x9f``."""
        data = self.data(token)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return foreign + "".join([f"\\x{byte:02x}" for byte in data])
        if not text and isinstance(self._backend, TokenAware):
            return self._backend.token_name(token)
        return text


class Placed:
    """The tokens of one text, each as soon as the text that it begins has been shown.

    What ends an output without being text is never given: an end token, a stop string's tokens.

    Args:
        spelling: How its tokens are written.
    """

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._spelled = 0
        self._shown = 0
        self._pending: list[Token] = []

    def add(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float | None],
        tops: Sequence[TopLogprobs],
        text: str,
    ) -> list[Token]:
        """Take more tokens and more text; the tokens that can be told now."""
        for number, token in enumerate(ids):
            top = tops[number] if tops else ()
            self._pending.append(Token(token, logprobs[number], top, self._spelled))
            self._spelled += len(self._decoder.decode(self._spelling.data(token)))
        self._shown += len(text)
        told = 0
        while told < len(self._pending) and self._pending[told].offset < self._shown:
            told += 1
        found, self._pending = self._pending[:told], self._pending[told:]
        return found


def prompt_tokens(
    spelling: Spelling,
    ids: Sequence[int],
    logprobs: Sequence[float | None],
    tops: Sequence[TopLogprobs],
    text: str,
) -> list[Token]:
    """All tokens of a prompt with their places in its text."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    spelled, offsets = 0, []
    for token in ids:
        offsets.append(spelled)
        spelled += len(decoder.decode(spelling.data(token)))
    # A sentencepiece model begins with a space that is not there.
    shift = 1 if spelled == len(text) + 1 else 0
    return [
        Token(token, logprobs[n], tops[n] if tops else (), max(0, offsets[n] - shift))
        for n, token in enumerate(ids)
    ]


def chat_logprobs(tokens: Iterable[Token], spelling: Spelling) -> dict[str, Any]:
    """Tokens as a chat's answer has them."""
    content = [
        _chat_entry(token.id, token.logprob, spelling)
        | {"top_logprobs": [_chat_entry(one, logprob, spelling) for one, logprob in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _chat_entry(token: int, logprob: float | None, spelling: Spelling) -> dict[str, Any]:
    return {
        "token": spelling.name(token),
        "logprob": finite(logprob),
        "bytes": list(spelling.data(token)) or None,
    }


def text_logprobs(tokens: Sequence[Token], spelling: Spelling, base: int) -> dict[str, Any]:
    """Tokens as a completion's answer has them; ``base`` is the place of their text."""

    def tops(token: Token) -> dict[str, float | None] | None:
        if token.logprob is None:
            return None
        pairs = [*token.top, (token.id, token.logprob)]
        return {spelling.name(one, "bytes:"): finite(logprob) for one, logprob in pairs}

    return {
        "tokens": [spelling.name(token.id, "bytes:") for token in tokens],
        "token_logprobs": [finite(token.logprob) for token in tokens],
        "top_logprobs": [tops(token) for token in tokens],
        "text_offset": [base + token.offset for token in tokens],
    }


def finite(logprob: float | None) -> float | None:
    """A log-probability that JSON has a number for."""
    return logprob if logprob is None else max(logprob, LOWEST)


@dataclass(slots=True)
class Counted:
    """The usage of one HTTP request, as its generations end."""

    prompts: dict[int, Usage] = field(default_factory=dict)
    generated: int = 0

    def add(self, prompt: int, usage: Usage) -> None:
        """Count an output; of several for one prompt, the prompt is counted once.

        Samples find in the cache what the first of them has computed: that does not count.
        """
        known = self.prompts.get(prompt)
        if known is None or usage.cached_tokens < known.cached_tokens:
            self.prompts[prompt] = usage
        self.generated += usage.generated_tokens

    def go_on(self, usage: Usage) -> None:
        """Count more of an output, whose prompt is counted already."""
        self.generated += usage.generated_tokens

    def told(self) -> dict[str, Any]:
        """As OpenAI writes it."""
        asked = sum(usage.prompt_tokens for usage in self.prompts.values())
        cached = sum(usage.cached_tokens for usage in self.prompts.values())
        return {
            "prompt_tokens": asked,
            "completion_tokens": self.generated,
            "total_tokens": asked + self.generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def heading(kind: str, prefix: str, model: str) -> dict[str, Any]:
    """The fields that every answer and all parts of a stream begin with."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": None,
    }
