"""OpenAI's routes: /v1/models, /v1/completions, /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from lmlang.errors import DeadlineExceeded, LMLangError, quote
from lmlang.grammar.compiler import rules_of
from lmlang.grammar.spec import Spec
from lmlang.server.context import Server
from lmlang.server.openai_chat import Chat, chat_of
from lmlang.server.openai_completions import Completing, completion_of
from lmlang.server.openai_deltas import Answering, answer, chunks, gathered
from lmlang.server.openai_fields import refused, wrong
from lmlang.server.refusals import Refusal

DEFAULT = "default"
"""A name that means the model of every server."""


def router(server: Server) -> APIRouter:
    """The routes of a server."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])
    begun = int(time.time())

    @routes.get("/models")
    async def models() -> Response:
        """The one model that there is."""
        return JSONResponse({"object": "list", "data": [_card(server, begun)]})

    @routes.get("/models/{model:path}")
    async def model(model: str) -> Response:
        """What is said of a model."""
        _check_model(server, model)
        return JSONResponse(_card(server, begun))

    @routes.post("/completions", openapi_extra=_takes("model", "prompt"))
    async def completions(http: HTTPRequest) -> Response:
        """Text behind prompts."""
        body = await _body(server, http)
        asked = await _read(server, completion_of, body)
        completing = Completing(asked, partial(server.work, http), server.backend)
        if asked.stream:
            return await server.stream(http, completing.chunks(server.model))
        outputs = await completing.gathered()
        return await server.json(lambda: completing.answer(outputs, server.model))

    @routes.post("/chat/completions", openapi_extra=_takes("model", "messages"))
    async def chat_completions(http: HTTPRequest) -> Response:
        """The next message of a chat."""
        body = await _body(server, http)
        chat = await _read(server, chat_of, body)
        await _check_call(server, chat)
        answering = Answering(chat, partial(server.work, http), server.backend)
        if chat.stream:
            return await server.stream(http, chunks(chat, answering, server.model))
        choices = await gathered(chat, answering)
        return await server.json(lambda: answer(chat, answering, choices, server.model))

    return routes


async def _body(server: Server, http: HTTPRequest) -> dict[str, Any]:
    """The body, of which the model is looked at first."""
    body = await server.body(http)
    name = body.get("model")
    if name is None:
        raise wrong("model", "missing required parameter: 'model'.", "missing_required_parameter")
    if not isinstance(name, str):
        raise wrong("model", "model must be a string.", "invalid_type")
    _check_model(server, name)
    return body


async def _read(server: Server, read: Any, body: dict[str, Any]) -> Any:
    """What a body asks for; it is read on a thread, as prompts are encoded there."""
    try:
        return await server.pooled(read, body, server.backend, server.config)
    except LMLangError as error:
        raise refused(error, {"prompt": "messages" if read is chat_of else "prompt"}) from None


async def _check_call(server: Server, chat: Chat) -> None:
    """Refuse, before anything is generated, tools whose calls cannot be kept to their schemas."""
    if chat.call is None or not chat.triggers:
        return
    try:
        server.config.check_constraint(chat.call)
        compile_for: Callable[[Spec], Future[Any]] | None
        compile_for = getattr(server.backend, "grammar", None)
        if compile_for is None:
            await server.pooled(rules_of, chat.call)
            return
        seconds = server.config.request_timeout
        future = asyncio.wrap_future(await server.pooled(compile_for, chat.call))
        # wait_for would lose, before Python 3.12, a cancellation that comes with the result
        await asyncio.wait({future}, timeout=seconds)
        if not future.done():
            future.cancel()
            raise DeadlineExceeded(
                f"the schemas of the tools were not compiled within {seconds:g} s."
            )
        future.result()
    except LMLangError as error:
        raise chat.refused(error) from None


def _check_model(server: Server, name: str) -> None:
    if name not in (server.model, DEFAULT):
        raise Refusal(
            404,
            f"there is no model {quote(name)} here: this server has {quote(server.model)}.",
            param="model",
            code="model_not_found",
        )


def _card(server: Server, begun: int) -> dict[str, Any]:
    length = server.info.context_length
    return {
        "id": server.model,
        "object": "model",
        "created": begun,
        "owned_by": "lmlang",
        "max_model_len": length,
    }


def _takes(*required: str) -> dict[str, Any]:
    """What OpenAPI says of a body."""
    schema = {"type": "object", "required": list(required)}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}
