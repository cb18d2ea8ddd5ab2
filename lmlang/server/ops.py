"""Routes of whoever runs the server: health, readiness, metrics, its cache, aborts, what it is."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from lmlang.errors import BackendError, LMLangError, ProgramError
from lmlang.server.context import Server
from lmlang.server.refusals import Refusal

STALLED = 60.0
"""Seconds without a sign of life from the engine after which the server is not healthy."""
STATS_SECONDS = 5.0
"""For the engine to give its numbers between two steps."""


def router(server: Server) -> APIRouter:
    """The routes of a server."""
    routes = APIRouter(tags=["operations"])

    @routes.get("/health")
    @routes.head("/health", include_in_schema=False)
    async def health() -> Response:
        """Whether the engine lives."""
        silent = silence(server)
        if silent > STALLED:
            raise Refusal(503, f"the engine has given no sign of life for {silent:.0f} s.")
        return JSONResponse({"status": "ok"})

    @routes.get("/ready")
    @routes.head("/ready", include_in_schema=False)
    async def ready() -> Response:
        """Whether new work is taken."""
        if server.desk.draining:
            raise Refusal(503, "the server is shutting down.")
        silence(server)
        return JSONResponse({"status": "ready"})

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Everything that is counted, in Prometheus' format."""
        text = server.metrics.text(await numbers(server))
        return Response(text, media_type="text/plain; version=0.0.4")

    @routes.get("/flush_cache")
    @routes.post("/flush_cache")
    async def flush_cache() -> Response:
        """Forget all cached prefixes that nothing under way reads."""
        await server.pooled(server.backend.flush_cache)
        return JSONResponse({"status": "flushed"})

    @routes.post("/abort_request")
    async def abort_request(http: HTTPRequest) -> Response:
        """End requests of any tenant by their id: {"rid": …} or {"abort_all": true}."""
        body = await server.body(http)
        name, everything = body.get("rid"), body.get("abort_all", False)
        if everything is True:
            return JSONResponse({"aborted": server.desk.abort_all()})
        if not isinstance(name, str) or not name:
            raise ProgramError("rid must be the id of a request: a text that is not empty.")
        return JSONResponse({"aborted": server.desk.abort(name)})

    @routes.get("/server_info")
    async def server_info() -> Response:
        """What the server is and does at the moment; no keys, no prompts."""
        return JSONResponse(await described(server))

    return routes


def silence(server: Server) -> float:
    """Seconds for which the engine has owed a sign of life.

    Raises:
        Refusal: It has ended.
    """
    ask = getattr(server.backend, "silence", None)
    try:
        return float(ask()) if ask is not None else 0.0
    except LMLangError as error:
        raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


async def numbers(server: Server) -> Any | None:
    """The runtime's numbers; None where the backend has none, or is too busy to say."""
    stats = getattr(server.backend, "stats", None)
    if stats is None:
        return None
    try:
        return await asyncio.wait_for(server.pooled(stats), STATS_SECONDS)
    except (asyncio.TimeoutError, BackendError):
        return None


async def described(server: Server) -> dict[str, Any]:
    """The server in a few numbers."""
    config, stats, info = server.config, await numbers(server), await server.pooled(server.info)
    return {
        "version": importlib.metadata.version("lmlang"),
        "model": config.name or info.model,
        "context_length": info.context_length,
        "draining": server.desk.draining,
        "under_way": server.desk.under_way,
        "limits": {
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
            if field.name.startswith("max_") or field.name.endswith("_timeout")
        },
        "stats": dataclasses.asdict(stats) if stats is not None else None,
    }
