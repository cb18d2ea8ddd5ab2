"""Our own routes, under /lm: the protocol's values as the wire has them.

POST /lm/generate   a request -> a stream of events, the output, [DONE]
POST /lm/score      choices -> scores
POST /lm/prefill    a prompt, which is then cached -> its number of tokens
POST /lm/render, /lm/encode, /lm/decode     prompt -> text, prompt -> ids, ids -> text
POST /lm/inspect    a constraint -> its shortest output and how it was understood
POST /lm/abort      {"request_id": …} -> how many requests of one's own were ended
GET  /lm/info       what the backend says of itself
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from lmlang import wire
from lmlang.errors import DeadlineExceeded, ProgramError
from lmlang.grammar.grammar import Grammar
from lmlang.protocol import Event, Output, Request, RunAware, SamplingParams
from lmlang.server.context import Server
from lmlang.server.desk import within

SMALL = 4_096
"""Bytes of a body that is read on the event loop, which costs less than a thread's turn."""


def router(server: Server) -> APIRouter:
    """The routes of a server."""
    routes = APIRouter(prefix="/lm", tags=["lmlang"])

    @routes.post("/generate", openapi_extra=_takes("A request of the wire: prompt, params, …"))
    async def generate(http: HTTPRequest) -> Response:
        """One generation, as a stream of its events with its output last."""
        request: Request = await _read(server, http, wire.request_from_wire)

        async def values() -> AsyncGenerator[Any, None]:
            async with server.work(http, [request]) as work:
                async for _, item in work.items():
                    if isinstance(item, Event) or _is_small(item):
                        yield wire.to_wire(item)
                    else:
                        yield await server.pooled(_written, item)

        return await server.stream(http, values())

    @routes.post("/score", openapi_extra=_takes("A score request of the wire: prompt, choices."))
    async def score(http: HTTPRequest) -> Response:
        """Scores of the choices of a select."""
        request = await _read(server, http, wire.score_request_from_wire)
        scores = await server.score(http, request)
        return await server.json(lambda: wire.to_wire(scores))

    @routes.post("/prefill", openapi_extra=_takes("A prompt of the wire."))
    async def prefill(http: HTTPRequest) -> Response:
        """Compute a prompt now, so that whoever asks with it later finds it in the cache."""
        prompt = await _read(server, http, wire.prompt_from_wire)
        async with server.work(http, [Request(prompt, SamplingParams(max_tokens=0))]) as work:
            (output,) = await work.outputs()
        return JSONResponse(wire.count_to_wire(output.usage.prompt_tokens))

    @routes.post("/render", openapi_extra=_takes("A prompt of the wire."))
    async def render(http: HTTPRequest) -> Response:
        """The text of a prompt, as the model reads it."""
        prompt = await _read(server, http, wire.prompt_from_wire)
        return await server.json(lambda: wire.text_to_wire(server.backend.render(prompt)))

    @routes.post("/encode", openapi_extra=_takes("A prompt of the wire."))
    async def encode(http: HTTPRequest) -> Response:
        """The token ids of a prompt."""
        prompt = await _read(server, http, wire.prompt_from_wire)
        return await server.json(lambda: wire.ids_to_wire(server.backend.encode(prompt)))

    @routes.post("/decode", openapi_extra=_takes('Token ids: {"ids": […]}.'))
    async def decode(http: HTTPRequest) -> Response:
        """The text of token ids."""
        ids = await _read(server, http, wire.ids_from_wire)
        return await server.json(lambda: wire.text_to_wire(server.backend.decode(ids)))

    @routes.post("/inspect", openapi_extra=_takes("A constraint of the wire."))
    async def inspect(http: HTTPRequest) -> Response:
        """What a constraint means to this model, or why it cannot be used."""
        spec = await _read(server, http, wire.spec_from_wire)
        server.config.check_constraint(spec)
        grammar = await _compiled(server, spec)
        shortest, told = await server.pooled(lambda: (grammar.min_tokens(), grammar.explain()))
        return JSONResponse({"v": wire.VERSION, "min_tokens": shortest, "explain": told})

    @routes.post("/end_run", openapi_extra=_takes('A run: {"run_id": "…"}.'))
    async def end_run(http: HTTPRequest) -> Response:
        """Keep nothing for a run any more."""
        run_id = await _read(server, http, wire.run_from_wire)
        if isinstance(server.backend, RunAware):
            server.backend.end_run(within(server.caller(http).tenant, run_id))
        return JSONResponse({"v": wire.VERSION})

    @routes.post("/abort", openapi_extra=_takes('{"request_id": "…"}'))
    async def abort(http: HTTPRequest) -> Response:
        """End requests of one's own by their id."""
        body = await server.body(http)
        name = body.get("request_id")
        if not isinstance(name, str) or not name:
            raise ProgramError("request_id must be the id of a request: a text that is not empty.")
        count = server.desk.abort(name, tenant=server.caller(http).tenant)
        return JSONResponse({"v": wire.VERSION, "aborted": count})

    @routes.get("/info")
    async def info() -> Response:
        """The model, its context and what the backend can do."""
        return await server.json(lambda: wire.to_wire(server.info()))

    return routes


async def _read(server: Server, http: HTTPRequest, read: Callable[[object], Any]) -> Any:
    """A value of the wire; read on the pool where that may take long."""
    body = await server.body(http)
    length, params = http.headers.get("content-length", ""), body.get("params")
    searches = isinstance(params, dict) and "stop_regex" in params  # which is compiled
    if length.isdecimal() and int(length) <= SMALL and not searches:
        return read(body)
    return await server.pooled(read, body)


async def _compiled(server: Server, spec: Any) -> Grammar:
    """The grammar of a spec, made on the backend's own threads for that."""
    compile_for: Callable[[Any], Future[Grammar]] | None = getattr(server.backend, "grammar", None)
    if compile_for is None:
        raise ProgramError("this server's backend has no vocabulary to make a constraint for.")
    future = await server.pooled(compile_for, spec)
    try:
        seconds = server.config.request_timeout
        return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
    except asyncio.TimeoutError:
        raise DeadlineExceeded(f"the constraint was not compiled within {seconds:g} s.") from None


def _is_small(output: Output) -> bool:
    """Whether an output is written in no time."""
    reports = (output.top_logprobs, output.top_probs, output.provenance, output.input_logprobs)
    return not any(reports) and len(output.ids) <= SMALL // 16


def _written(item: object) -> str:
    return wire.dumps(wire.to_wire(item))


def _takes(text: str) -> dict[str, Any]:
    """A body of JSON, for the description of the interface."""
    schema = {"type": "object", "description": text}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
