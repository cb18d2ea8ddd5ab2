"""OpenAI's routes: /v1/models, /v1/completions, /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from lmlang.errors import DeadlineExceeded, LMLangError, quote
from lmlang.grammar.compiler import rules_of
from lmlang.grammar.spec import Spec
from lmlang.server.context import Server
from lmlang.server.openai_chat import Chat, chat_of
from lmlang.server.openai_completions import Completing, Completion, completion_of
from lmlang.server.openai_deltas import Answering, answer, chunks, gathered
from lmlang.server.openai_fields import refused, wrong
from lmlang.server.refusals import Refusal

DEFAULT = "default"
"""A name that means the model of every server."""
SHOWN = 16
"""Adapters that a refusal names."""
Asked = TypeVar("Asked", Chat, Completion)


def router(server: Server) -> APIRouter:
    """The routes of a server."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])
    begun = int(time.time())

    @routes.get("/models")
    async def models() -> Response:
        """The model that there is, and its adapters."""
        return await server.json(lambda: {"object": "list", "data": _cards(server, begun)})

    @routes.get("/models/{model:path}")
    async def model(model: str) -> Response:
        """What is said of a model."""
        return await server.json(lambda: _card(server, model, begun))

    @routes.post("/completions", openapi_extra=_takes("model", "prompt"))
    async def completions(http: HTTPRequest) -> Response:
        """Text behind prompts."""
        asked, model = await server.pooled(_read, server, completion_of, await server.body(http))
        completing = Completing(asked, partial(server.work, http), server.backend)
        if asked.stream:
            return await server.stream(http, completing.chunks(model))
        outputs = await completing.gathered()
        return await server.json(lambda: completing.answer(outputs, model))

    @routes.post("/chat/completions", openapi_extra=_takes("model", "messages"))
    async def chat_completions(http: HTTPRequest) -> Response:
        """The next message of a chat."""
        chat, model = await server.pooled(_read, server, chat_of, await server.body(http))
        await _check_call(server, chat)
        works = partial(server.work, http, own_stops=chat.own_stops)
        answering = Answering(chat, works, server.backend)
        if chat.stream:
            return await server.stream(http, chunks(chat, answering, model))
        choices = await gathered(chat, answering)
        return await server.json(lambda: answer(chat, answering, choices, model))

    return routes


def _read(server: Server, read: Callable[..., Asked], body: dict[str, Any]) -> tuple[Asked, str]:
    """What a body asks for, and of which model, which is looked at first; on a thread."""
    name = body.get("model")
    if name is None:
        raise wrong("model", "missing required parameter: 'model'.", "missing_required_parameter")
    if not isinstance(name, str):
        raise wrong("model", "model must be a string.", "invalid_type")
    model, lora = _found(server, name)
    try:
        asked = read(body, server.backend, server.config)
    except LMLangError as error:
        raise refused(error, {"prompt": "messages" if read is chat_of else "prompt"}) from None
    if lora is not None:
        requests = tuple([replace(request, lora=lora) for request in asked.requests])
        asked = replace(asked, requests=requests)
    return asked, model


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


def _found(server: Server, name: str) -> tuple[str, str | None]:
    """What a name means: the model's own name and None, or an adapter's, twice.

    Raises:
        Refusal: There is no such model.
    """
    model = server.model()
    if name in (model, DEFAULT):
        return model, None
    adapters = server.info().adapters
    if name in adapters:
        return name, name
    known = ", ".join(map(quote, (model, *adapters[:SHOWN])))
    more = f" and {len(adapters) - SHOWN:,} more" if len(adapters) > SHOWN else ""
    raise Refusal(
        404,
        f"there is no model {quote(name)} here: this server has {known}{more}.",
        param="model",
        code="model_not_found",
    )


def _cards(server: Server, begun: int) -> list[dict[str, Any]]:
    """What is said of the model, and of each adapter, whose parent it is."""
    info, model = server.info(), server.model()
    card = {
        "id": model,
        "object": "model",
        "created": begun,
        "owned_by": "lmlang",
        "max_model_len": info.context_length,
        "parent": None,
    }
    others = [name for name in info.adapters if name not in (model, DEFAULT)]
    return [card, *[{**card, "id": name, "parent": model} for name in others]]


def _card(server: Server, name: str, begun: int) -> dict[str, Any]:
    model, _ = _found(server, name)
    return next(card for card in _cards(server, begun) if card["id"] == model)


def _takes(*required: str) -> dict[str, Any]:
    """What OpenAPI says of a body."""
    schema = {"type": "object", "required": list(required)}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}
