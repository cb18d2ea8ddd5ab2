"""Scores of choices by a server of OpenAI's interface: by its own log-probabilities, or emulated.

completions  echo of "It is" + " good", " bad"    log-probabilities of the tokens that differ
emulated     asked for {"choice": one of them}    the chosen one 0, the others -inf
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from lmlang.backends.openai_answer import FOREIGN, Answer, Token, TokenTexts, tokens_of, usage_of
from lmlang.backends.openai_client import OpenAIClient
from lmlang.backends.openai_fields import Service, plain_text, prompt_fields, schema_format
from lmlang.backends.retries import Again, Retries
from lmlang.errors import BackendError, ProgramError, quote
from lmlang.protocol import ChoiceScore, ScoreRequest, Scores, Usage

BATCH = 16
"""Texts of one request."""
ROOM = 32
"""Tokens for the JSON around a choice."""


def refuse_scores(request: ScoreRequest, service: Service, echo: bool, emulate: bool) -> None:
    """Raise ProgramError where choices cannot be scored."""
    exact = echo and not service.chat
    if not exact and not emulate:
        raise ProgramError(
            "select: a chat endpoint tells no log-probabilities of given texts: use a completion "
            "endpoint (is_chat_model=False), or have the model itself name a choice, without "
            "scores, by emulate=True."
            if service.chat
            else "select: echo=False says that this server tells no log-probabilities of given "
            "texts: have the model itself name a choice, without scores, by emulate=True."
        )
    if request.lora is not None:
        raise ProgramError(
            "lora: OpenAI's interface has nothing of the kind: leave it out, or use a Runtime or "
            "an lmlang server (lm.connect)."
        )
    if request.unconditional:
        raise ProgramError(
            "choices_method: OpenAI's interface has no log-probabilities of a choice's tokens "
            "without their prompt: use another method, such as lm.joint."
        )
    if exact and request.end_turn:
        raise ProgramError("select: a completion endpoint has no turn that a choice could end.")


async def echoed(
    request: ScoreRequest, service: Service, texts: TokenTexts, client: OpenAIClient
) -> Scores:
    """Exact scores, by the endpoint's echo."""
    prompt = plain_text(request.prompt)
    whole = [prompt + choice for choice in request.choices]
    rows: list[list[Token]] = []
    usage = Usage()
    async with client.pace.place:
        for start in range(0, len(whole), BATCH):
            asked = whole[start : start + BATCH]
            answer = await client.completion(
                {
                    "model": service.model,
                    "prompt": asked,
                    "max_tokens": 0,
                    "echo": True,
                    "logprobs": 1,
                    "temperature": 0,
                }
            )
            rows += _rows(answer, asked, texts)
            usage += Usage(prompt_tokens=_prompt_tokens(answer))
    common = _common([[token.id for token in row] for row in rows])
    scores = tuple([_score(row[common:]) for row in rows])
    scored = sum(len(score.ids) for score in scores)
    return Scores(scores, usage + Usage(scored_tokens=scored))


def _rows(answer: dict[str, Any], asked: Sequence[str], texts: TokenTexts) -> list[list[Token]]:
    """The tokens of each text.

    Raises:
        BackendError: They are not told.
    """
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        rows = [tokens_of(choice["logprobs"], False, texts) for choice in choices]
    except FOREIGN:
        rows = []
    if len(rows) != len(asked) or not all(rows):
        raise BackendError(
            "select: the server tells no log-probabilities of given texts (echo with logprobs): "
            "say so by echo=False, and have the model name a choice by emulate=True."
        )
    for row, text in zip(rows, asked, strict=True):
        told = "".join([token.text for token in row])
        if not told.endswith(text) and told.removesuffix(row[-1].text).endswith(text):
            row.pop()  # one that the server generated, although none was asked for
    return rows


def _prompt_tokens(answer: dict[str, Any]) -> int:
    """How many tokens the server has read.

    Raises:
        BackendError: It tells something else.
    """
    try:
        return usage_of(answer.get("usage") or {}).prompt_tokens
    except FOREIGN as error:
        raise BackendError(
            f"the usage that the server tells is not OpenAI's ({type(error).__name__}): check "
            "base_url."
        ) from None


def _common(rows: Sequence[Sequence[int]]) -> int:
    """How many first tokens all rows share."""
    count = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def _score(tokens: Sequence[Token]) -> ChoiceScore:
    if any(math.isnan(token.logprob) for token in tokens):
        raise ProgramError(
            "select: the prompt is empty, so that the first token of a choice has no "
            "log-probability: begin with some text."
        )
    return ChoiceScore(
        tuple([token.id for token in tokens]), tuple([token.logprob for token in tokens])
    )


async def emulated(
    request: ScoreRequest, service: Service, texts: TokenTexts, client: OpenAIClient
) -> Scores:
    """The choice that the model names."""
    extra: dict[str, Any] = {}
    fields = {
        "model": service.model,
        "temperature": 0,
        service.limit: max(len(choice.encode()) for choice in request.choices) + ROOM,
        **prompt_fields(request.prompt, service, extra),
    }
    if service.chat:
        schema = {
            "type": "object",
            "properties": {"choice": {"type": "string", "enum": list(request.choices)}},
            "required": ["choice"],
            "additionalProperties": False,
        }
        fields["response_format"] = schema_format(schema)
    if extra:
        fields["extra_body"] = extra

    async def attempt(client: OpenAIClient, _: Retries) -> Answer:
        answer = Answer(service.chat, texts)
        async with aclosing(client.chunks(service.chat, fields)) as chunks:
            async for chunk in chunks:
                answer.take(chunk)
        if answer.reason is None:
            raise Again(client.lost("the answer has no end"))
        return answer

    async with client.pace.place:
        answer = await client.pace.retrying(partial(attempt, client))
    named = _named(answer.text, request.choices, service.chat)
    scores = [
        ChoiceScore((texts.id_of(choice),), (0.0 if choice == named else -math.inf,))
        for choice in request.choices
    ]
    return Scores(tuple(scores), answer.usage())


def _named(answer: str, choices: Sequence[str], chat: bool) -> str:
    """The choice of an answer: by its JSON, else the longest that it begins with."""
    if chat:
        try:
            found = [json.loads(answer)["choice"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            found = []
        named = [choice for choice in choices if choice in found]
    else:
        begun = answer.lstrip()
        named = [choice for choice in choices if begun.startswith(choice.lstrip())]
    if not named:
        raise BackendError(f"select: the model answered {quote(answer)}, which names no choice.")
    return max(named, key=len)
