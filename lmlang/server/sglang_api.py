"""SGLang's native routes, so that its own frontend works unmodified.

POST /generate          texts or ids -> texts, one at once or as a stream; also by PUT
GET  /model_info        the model (also /get_model_info)
GET  /get_server_info   the server (also /get_server_args)
GET  /health_generate   200 once one token has been generated
POST /tokenize, /detokenize
POST /concate_and_append_request   nothing to do: the client has appended the texts itself
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from lmlang import limits
from lmlang.errors import (
    BackendError,
    Cancelled,
    ConstraintError,
    DeadlineExceeded,
    LMLangError,
    ProgramError,
    quote,
)
from lmlang.protocol import Backend, Prompt, Request, SamplingParams, Text, TokenAware, Tokens
from lmlang.server.context import Server
from lmlang.server.ops import described
from lmlang.server.refusals import Refusal
from lmlang.server.sglang_answer import Answer, token_name
from lmlang.server.sglang_request import Asked, asked_for, ids_of, prompt_of

HEALTH_SECONDS = 20.0
"""For one token to come."""


def router(server: Server) -> APIRouter:
    """The routes of a server."""
    routes = APIRouter(tags=["sglang"])

    takes = _takes("text or input_ids, sampling_params, stream, return_logprob, …")

    @routes.post("/generate", openapi_extra=takes)
    @routes.put("/generate", openapi_extra=takes)
    async def generate(http: HTTPRequest) -> Response:
        """Generate behind texts or token ids."""
        body = await server.body(http)
        asked = await server.pooled(asked_for, body, server.backend, server.config)
        if asked.stream:
            return await server.stream(http, _pieces(server, http, asked))
        return await _whole(server, http, asked)

    @routes.get("/model_info")
    @routes.get("/get_model_info")
    async def model_info() -> Response:
        """What is served."""
        return await server.json(
            lambda: {
                **dict.fromkeys(("model_path", "tokenizer_path"), server.model()),
                "is_generation": True,
                "preferred_sampling_params": None,
                "has_image_understanding": server.info().has_vision,
                "has_audio_understanding": False,
            }
        )

    @routes.get("/get_server_info")
    @routes.get("/get_server_args")
    async def server_info() -> Response:
        """What the server is and does at the moment; no keys, no prompts."""
        told = await described(server)
        named = dict.fromkeys(("model_path", "tokenizer_path"), told["model"])
        return JSONResponse({**named, **told, "internal_states": [told["stats"] or {}]})

    @routes.get("/health_generate")
    async def health_generate(http: HTTPRequest) -> Response:
        """Whether a token can be generated."""
        request = Request(Prompt.of(Text("Hello")), SamplingParams(max_tokens=1, temperature=0))
        async with server.work(http, [request]) as work:
            try:
                await asyncio.wait_for(work.outputs(), HEALTH_SECONDS)
            except asyncio.TimeoutError:
                raise Refusal(
                    HTTPStatus.SERVICE_UNAVAILABLE, f"no token came within {HEALTH_SECONDS:g} s."
                ) from None
        return Response()

    @routes.post("/concate_and_append_request", openapi_extra=_takes("src_rids, dst_rid"))
    async def concate_and_append_request(http: HTTPRequest) -> Response:
        """Nothing is to be done: what the client has appended comes with its next request."""
        await server.body(http)
        return JSONResponse({})

    @routes.post("/tokenize", openapi_extra=_takes("prompt: a text or a list of texts"))
    async def tokenize(http: HTTPRequest) -> Response:
        """The token ids of texts, as /generate reads them."""
        body = await server.body(http)
        return await server.json(lambda: _tokenized(server, body))

    @routes.post("/detokenize", openapi_extra=_takes("tokens: token ids, or a list of such lists"))
    async def detokenize(http: HTTPRequest) -> Response:
        """The texts of token ids."""
        body = await server.body(http)
        return await server.json(lambda: _detokenized(server, body))

    return routes


async def _whole(server: Server, http: HTTPRequest, asked: Asked) -> Response:
    """The answers to all requests, at once."""
    answers = _answers(server, http, asked)
    try:
        async with server.work(http, asked.requests, name=asked.rid) as work:
            async for index, item in work.items():
                answers[index].take(item)
    except Cancelled as reason:
        _abort(answers, reason)
    except ConstraintError as error:
        raise _named(error, asked) from error
    if asked.is_list:
        return await server.json(lambda: [answer.body() for answer in answers])
    return await server.json(answers[0].body)


async def _pieces(
    server: Server, http: HTTPRequest, asked: Asked
) -> AsyncIterator[dict[str, Any] | str]:
    """The answers as they grow; the last of each as JSON text.

    It is made beside the event loop: it may tell of thousands of tokens of a prompt.
    """
    answers = _answers(server, http, asked)
    begun = False
    try:
        async with server.work(http, asked.requests, name=asked.rid) as work:
            async for index, item in work.items():
                answer = answers[index]
                if not answer.take(item):
                    continue
                begun = True
                yield await server.pooled(answer.text) if answer.ended else answer.body()
    except ConstraintError as error:
        raise _named(error, asked) from error
    except LMLangError as reason:
        if not _ends_from_outside(reason, begun):
            raise
        for answer in _abort(answers, reason):
            yield answer.text()


def _named(error: ConstraintError, asked: Asked) -> Refusal:
    """The refusal of a constraint, with the field that holds it."""
    message = f"{asked.constraint}: {Exception.__str__(error)}"
    pointer = getattr(error, "pointer", "")
    if pointer and pointer not in message:
        message += f" (at {quote(pointer)})"
    kind = type(error).__name__
    return Refusal(HTTPStatus.BAD_REQUEST, message, param=asked.constraint, code=kind)


def _ends_from_outside(reason: LMLangError, begun: bool) -> bool:
    """Whether what is left has been ended by somebody, and did not fail; SGLang tells them apart.

    Before anything was sent, only an abort is told so: the other reasons have a status.
    """
    if isinstance(reason, Cancelled):
        return True
    drained = isinstance(reason, BackendError) and reason.status == HTTPStatus.SERVICE_UNAVAILABLE
    return begun and (drained or isinstance(reason, DeadlineExceeded))


def _answers(server: Server, http: HTTPRequest, asked: Asked) -> list[Answer]:
    """An answer for each request, none of which has anything yet."""
    name = asked.rid or server.caller(http).request_id
    count = len(asked.requests)
    numbered = asked.stream and asked.is_list
    return [
        Answer(
            server.backend,
            report,
            name if count == 1 else f"{name}_{number}",
            number if numbered else None,
            whole=not asked.stream,
        )
        for number, report in enumerate(asked.reports)
    ]


def _abort(answers: list[Answer], reason: LMLangError) -> list[Answer]:
    """End those that have not ended; which they were."""
    left = [answer for answer in answers if not answer.ended]
    for answer in left:
        answer.abort(reason)
    return left


def _tokenized(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of /tokenize."""
    backend, given = server.backend, body.get("prompt")
    texts: list[Any] = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ProgramError("prompt must be a text, or a list of texts that is not empty.")
    server.config.check_counts(len(texts))
    special = limits.boolean("add_special_tokens", body.get("add_special_tokens", True))
    lists = [_ids(text, backend, special) for text in texts]
    counts = [len(ids) for ids in lists]
    one = not isinstance(given, list)
    context = server.info().context_length
    return {
        "tokens": lists[0] if one else lists,
        "count": counts[0] if one else counts,
        "max_model_len": -1 if context is None else context,
    }


def _ids(text: str, backend: Backend, special: bool) -> list[int]:
    """The ids of a text; with those that every prompt begins with, if ``special``."""
    prompt = prompt_of(text, backend)
    (segment,) = prompt.segments()
    if not special and isinstance(segment, Tokens):
        return list(segment.ids)
    return backend.encode(prompt)


def _detokenized(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of /detokenize."""
    given = body.get("tokens")
    is_list = isinstance(given, list) and bool(given) and isinstance(given[0], list)
    lists = given if is_list and given is not None else [given]
    server.config.check_counts(len(lists))
    skips = limits.boolean("skip_special_tokens", body.get("skip_special_tokens", True))
    texts = [_text(ids_of("tokens", ids), server.backend, skips) for ids in lists]
    return {"text": texts if is_list else texts[0]}


def _text(ids: tuple[int, ...], backend: Backend, skips: bool) -> str:
    """The text of ids, without control tokens or with them as templates spell them."""
    if skips or not isinstance(backend, TokenAware):
        return backend.decode(ids)
    name = token_name(backend)
    spelled = [backend.token_bytes(token) or name(token).encode() for token in ids]
    return b"".join(spelled).decode("utf-8", "replace")


def _takes(text: str) -> dict[str, Any]:
    """A body of JSON, for the description of the interface."""
    schema = {"type": "object", "description": text}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
