"""One app over any Backend: `make_app`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from lmlang.errors import LMLangError
from lmlang.protocol import Backend
from lmlang.server import logs
from lmlang.server.auth import OPEN_PATHS, Access
from lmlang.server.config import ServerConfig
from lmlang.server.context import Server
from lmlang.server.door import REQUEST_ID, Door
from lmlang.server.refusals import Refusal, answer_to

ROUTES = ("ops", "lm_api", "programs_api", "openai_api", "sglang_api")
"""Modules of routes, each with a function ``router(server)``; of equal routes the first acts."""
FREE_PATHS = frozenset({"/abort_request", "/flush_cache", "/lm/abort"})
"""Of these no place is needed: they end work."""


def make_app(backend: Backend, config: ServerConfig | None = None) -> FastAPI:
    """The app of a server; ``app.state.server`` is its `Server`.

    Args:
        backend: What runs everything; whoever made it closes it.
        config: Checked parameters; None: all as they are by default.
    """
    config = config or ServerConfig()
    server = Server(backend, config)
    app = FastAPI(
        title="lmlang", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=None
    )
    app.state.server = server
    for name in ROUTES:
        module = f"lmlang.server.{name}"
        if find_spec(module) is not None:
            router: Callable[[Server], APIRouter] = import_module(module).router
            app.include_router(router(server))
    app.add_exception_handler(LMLangError, _refused)
    app.add_exception_handler(HTTPException, _unrouted)
    app.add_middleware(
        Door,
        access=Access.of(config),
        check_open=server.desk.check_open,
        free_paths=FREE_PATHS | OPEN_PATHS,
    )
    if config.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", REQUEST_ID.decode()],
            expose_headers=[REQUEST_ID.decode()],
        )
    return app


async def _refused(http: Request, error: Exception) -> Response:
    """An error of lmlang, with its status."""
    http.scope["caller"].error = type(error).__name__
    answer = answer_to(http.url.path, error)
    if answer.status_code == 500:
        logs.failed("failed", error, request=http.scope["caller"].request_id)
    return answer


async def _unrouted(http: Request, error: Exception) -> Response:
    """What the router itself refuses: an unknown path, or a method that a path has not."""
    assert isinstance(error, HTTPException)
    told: dict[int, tuple[str, str | None]] = {
        404: ("there is no such route: see /openapi.json for those that there are.", "unknown_url"),
        405: ("this route does not take this method.", "method_not_allowed"),
    }
    message, code = told.get(error.status_code, ("the request was refused.", None))
    headers: Any = error.headers
    return await _refused(http, Refusal(error.status_code, message, code=code, headers=headers))
