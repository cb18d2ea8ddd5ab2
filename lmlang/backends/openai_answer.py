"""What a server of OpenAI's interface answers, part by part, and what it comes to.

{"choices": [{"delta": {"content": "Par"}}]} … {"finish_reason": "stop"} … {"usage": …}   an Answer
'{"a":1}'   checked against {"a": integer} in the style "line"   '{"a": 1}'
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lmlang.errors import BackendError, BudgetExceeded, GrammarDeadEnd, quote
from lmlang.grammar.grammar import Grammar
from lmlang.grammar.spec import JsonSchema, Spec, Style
from lmlang.grammar.toolbox import compile as compiled
from lmlang.grammar.vocabulary import Vocabulary
from lmlang.protocol import Finish, Request, TopLogprobs, Usage

FIRST_ID = 1 << 24
"""The first id of a token that is known by its text alone."""
FOREIGN = (TypeError, KeyError, AttributeError, ValueError, OverflowError)
"""What reading an answer comes to that is not OpenAI's."""
_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


class TokenTexts:
    """Ids for tokens that a server tells by their texts; the same text has one id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}
        self._texts: list[str] = []

    def id_of(self, text: str) -> int:
        """The id of a token."""
        with self._lock:
            if text not in self._ids:
                self._ids[text] = FIRST_ID + len(self._texts)
                self._texts.append(text)
            return self._ids[text]

    def text_of(self, token: int) -> str | None:
        """The text of an id; None for one that is not of these."""
        index = token - FIRST_ID
        return self._texts[index] if 0 <= index < len(self._texts) else None


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer whose log-probabilities were asked for."""

    text: str
    id: int
    logprob: float
    top: TopLogprobs


class Answer:
    """One answer of a stream as far as it has come.

    Args:
        chat: Whether it is of the chat endpoint.
        texts: Gives tokens their ids.

    Attributes:
        tokens: All tokens, where log-probabilities were asked for.
        reason: Why it ended, in OpenAI's words; None while it goes on.
    """

    def __init__(self, chat: bool, texts: TokenTexts) -> None:
        self._chat = chat
        self._texts = texts
        self._parts: list[str] = []
        self.tokens: list[Token] = []
        self.reason: str | None = None
        self._matched: dict[str, object] = {}
        self._usage: Usage | None = None

    @property
    def text(self) -> str:
        """All text."""
        return "".join(self._parts)

    def take(self, chunk: Mapping[str, Any]) -> str:
        """Add one part; its text.

        Raises:
            BackendError: The model refused, or the part is not OpenAI's.
        """
        try:
            if chunk.get("usage"):
                self._usage = usage_of(chunk["usage"])
            return "".join([self._choice(choice) for choice in chunk.get("choices") or ()])
        except FOREIGN as error:
            raise BackendError(
                f"the server's answer is not OpenAI's interface ({type(error).__name__}): check "
                "base_url, and that is_chat_model says what it is."
            ) from None

    def _choice(self, choice: Mapping[str, Any]) -> str:
        if choice.get("index"):
            return ""  # of another answer, which nobody asked for
        delta = (choice.get("delta") or {}) if self._chat else choice
        if delta.get("refusal"):
            raise BackendError(f"the model refused to answer: {quote(delta['refusal'])}")
        text = delta.get("content" if self._chat else "text") or ""
        if not isinstance(text, str):
            raise TypeError
        if text:
            self._parts.append(text)
        if choice.get("logprobs"):
            self.tokens += tokens_of(choice["logprobs"], self._chat, self._texts)
        if choice.get("finish_reason"):
            self.reason = str(choice["finish_reason"])
            for name in ("stop_reason", "matched_stop"):
                if name in choice:
                    self._matched["stop"] = choice[name]
        return text

    def finish(self, request: Request) -> Finish:
        """Why the output ended.

        Raises:
            BackendError: It has no end that an output can have.
        """
        if self.reason == "length":
            return Finish("length")
        if self.reason != "stop":
            raise BackendError(
                f"the answer ended with {quote(str(self.reason))} and is no whole output: change "
                "the prompt, or look at the server."
            )
        params, stop = request.params, self._matched.get("stop")
        if isinstance(stop, str) or (type(stop) is int and stop in params.stop_token_ids):
            return Finish("stop", stop)
        if self._matched or not (params.stop or params.stop_token_ids):
            return Finish("eos")
        return Finish("stop")  # which of the stops, or the model's own end: nobody says

    def usage(self) -> Usage:
        """The server's count; where it has told none, of what came."""
        return self._usage or Usage(generated_tokens=len(self.tokens) or len(self._parts))


def usage_of(told: Mapping[str, Any]) -> Usage:
    """A server's count; what it leaves out is 0.

    Raises:
        TypeError, AttributeError, ValueError, OverflowError: It is none.
    """
    details = told.get("prompt_tokens_details") or {}
    usage = Usage(
        prompt_tokens=int(told.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        generated_tokens=int(told.get("completion_tokens") or 0),
    )
    if min(usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens) < 0:
        raise ValueError("a negative number of tokens")
    return usage


def tokens_of(logprobs: Mapping[str, Any], chat: bool, texts: TokenTexts) -> list[Token]:
    """The tokens of a ``logprobs``; a first one of a prompt, which has none, has NaN."""
    found = []
    if chat:
        for entry in logprobs.get("content") or ():
            top = [(each["token"], each["logprob"]) for each in entry.get("top_logprobs") or ()]
            found.append(_token(entry["token"], entry["logprob"], top, texts))
        return found
    words = logprobs["tokens"]
    tops = logprobs.get("top_logprobs") or [None] * len(words)
    for text, logprob, top in zip(words, logprobs["token_logprobs"], tops, strict=True):
        found.append(_token(text, logprob, list((top or {}).items()), texts))
    return found


def _token(
    text: str, logprob: float | None, top: Sequence[tuple[str, float]], texts: TokenTexts
) -> Token:
    ranked = sorted(top, key=lambda pair: -pair[1])
    if not all(isinstance(word, str) for word in (text, *[each for each, _ in ranked])):
        raise TypeError("a token is no text")
    return Token(
        text,
        texts.id_of(text),
        float("nan") if logprob is None else float(logprob),
        tuple([(texts.id_of(each), float(value)) for each, value in ranked]),
    )


@lru_cache(maxsize=1)
def _bytes() -> Vocabulary:
    return Vocabulary([bytes([byte]) for byte in range(256)], encode=lambda text: [*text.encode()])


def grammar_of(spec: Spec) -> Grammar:
    """The grammar of a constraint; takes its time where it is new.

    Raises:
        ConstraintError: It cannot be used.
    """
    return compiled(spec, _bytes())


def checked(text: str, finish: Finish, request: Request, grammar: Grammar) -> str:
    """A constrained output as it is returned, JSON in the white space of its spec.

    Raises:
        BudgetExceeded: It was cut.
        GrammarDeadEnd: It breaks the constraint.
    """
    spec = request.constraint
    if finish.reason == "length" and not grammar.match(text):
        raise BudgetExceeded(
            f"the output needs more than max_tokens={request.params.max_tokens:,}, and a server "
            "of OpenAI's interface cannot be made to complete it in time: raise max_tokens."
        )
    if isinstance(spec, JsonSchema):
        text = respaced(text, spec.style)
    found = grammar.match(text)
    if not found:
        raise GrammarDeadEnd(
            f"the server's answer {quote(text)} breaks the constraint {found}: the server does not "
            "keep it; use one that does, or a Runtime."
        )
    return text


def respaced(text: str, style: Style) -> str:
    """JSON text with other white space; its literals stay as they are written.

    Raises:
        GrammarDeadEnd: It is no JSON.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise GrammarDeadEnd(
            f"the server's answer {quote(text)} is no JSON: it does not keep response_format; use "
            "a server that does, or a Runtime."
        ) from None
    comma, colon = (",", ":") if style == "compact" else (", ", ": ")
    if not isinstance(style, int):
        return "".join([{",": comma, ":": colon}.get(each, each) for each in _JSON.findall(text)])
    depth, made, before = 0, list[str](), ""
    for each in _JSON.findall(text):
        depth -= each in "}]"
        if (each in "}]" and before not in ("{", "[")) or (
            before in ("{", "[", ",") and each not in "}]"
        ):
            made.append("\n" + " " * (style * depth))
        made.append(colon if each == ":" else each)
        depth += each in "{["
        before = each
    return "".join(made)
