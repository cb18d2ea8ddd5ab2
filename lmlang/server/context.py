"""The server as its routes see it: backend, configuration, who asks, and work to be done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from lmlang.errors import DeadlineExceeded, LMLangError, fresh
from lmlang.protocol import Backend, BackendInfo, Request, ScoreRequest, Scores
from lmlang.server.bodies import Room, json_body
from lmlang.server.caller import Caller
from lmlang.server.config import ServerConfig
from lmlang.server.desk import Desk, owned_tag, within
from lmlang.server.metrics import Metrics
from lmlang.server.stream import Work, stream_of
from lmlang.wire import dumps

T = TypeVar("T")
BODIES = 256
"""Of the largest bodies, so many are held at a time."""
PIECE = 16_384
"""Elements of a list that are written at once: under a millisecond."""


class Server:
    """What routes work with; made once, by `make_app`. For the event loop.

    A file of routes has one function, ``router(server) -> APIRouter``, whose handlers are

        async def complete(http: HTTPRequest) -> Response:
            body = await server.body(http)                   # a dict, read within the limits
            requests = [Request(…), …]                       # refusals raise errors of lmlang
            async with server.work(http, requests) as work:  # whose end ends all of them
                outputs = await work.outputs()
            return JSONResponse(…)

    and for a stream ``return await server.stream(http, values())`` with an async generator that
    holds the block: ``async for index, item in work.items(): yield {…}``. Errors of lmlang may
    leave both: they are answered with their status, or as the last value of a stream.

    Args:
        backend: What runs everything.
        config: Checked parameters.
    """

    def __init__(self, backend: Backend, config: ServerConfig) -> None:
        self.backend = backend
        self.config = config
        self.metrics = Metrics()
        self.desk = Desk(backend, config, self.metrics)
        self._room = Room(BODIES * config.max_body)

    def caller(self, http: HTTPRequest) -> Caller:
        """Who asks: its request id, its tenant, whether it is an administrator."""
        caller: Caller = http.scope["caller"]
        return caller

    async def body(self, http: HTTPRequest) -> dict[str, Any]:
        """The JSON object that a request carries, read within the limits; raises `Refusal`."""
        return await json_body(http, self.config, self._room, self.pooled)

    def model(self) -> str:
        """What the model is called here; it may ask the backend: not for the event loop."""
        return self.config.name or self.backend.info().model

    def info(self) -> BackendInfo:
        """What the backend says of itself, which may be far away: not for the event loop."""
        return self.backend.info()

    async def pooled(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """What a function returns that would hold the event loop up: runs on a thread."""
        return await asyncio.wrap_future(self.desk.submit(partial(function, *arguments, **named)))

    def work(
        self,
        http: HTTPRequest,
        requests: Sequence[Request],
        *,
        name: str | None = None,
        own_stops: int = 0,
    ) -> Work:
        """Generations for one HTTP request; to be used in ``async with``.

        Args:
            http: The request.
            requests: What is to be generated; the namespace of each becomes the caller's own.
            name: What an abort calls it, where that is not the request's id.
            own_stops: Stop strings of each request that are the server's, and not the client's.
        """
        return Work(self.desk, self.caller(http), requests, name, own_stops)

    async def json(self, make: Callable[[], Any]) -> Response:
        """The answer of a JSON value that a function makes; made and written on a thread."""
        text = await self.pooled(lambda: written(make()))
        return Response(text, media_type="application/json")

    async def stream(self, http: HTTPRequest, values: AsyncIterator[Any]) -> Response:
        """Server-sent events of the JSON values of an async generator, and ``[DONE]``.

        Raises:
            LMLangError: What the generator raises before its first value.
        """
        return await stream_of(http, values)

    async def score(self, http: HTTPRequest, request: ScoreRequest) -> Scores:
        """Scores of choices; dropped where the client is gone."""
        caller = self.caller(http)
        self.config.check_scores(request)
        request = replace(
            request,
            namespace=within(caller.tenant, request.namespace),
            tag=owned_tag(request.tag, caller),
        )
        scoring = _Scoring(caller)
        self.desk.enter(scoring, 1)
        try:
            job = self.desk.submit(self.desk.offer_score, request)
            try:
                future: Future[Scores] = await asyncio.wrap_future(job)
            except asyncio.CancelledError:
                job.add_done_callback(_drop)
                raise
            return await scoring.wait(future, self.config.request_timeout)
        finally:
            self.desk.leave(scoring, 1)


def _drop(job: Future[Future[Scores]]) -> None:
    """End scores whose asker is gone before it got them."""
    if not job.cancelled() and job.exception() is None:
        job.result().cancel()


def written(value: Any) -> str:
    """A JSON value as text; the long lists of an object in pieces, between which others run.

    A list is written without letting any other thread of the process run meanwhile, and one of
    some hundred thousand ids takes so long that streams would be seen to stand.
    """
    if type(value) is dict:
        fields = [f"{dumps(name)}:{_listed(held)}" for name, held in value.items()]
        return "{" + ",".join(fields) + "}"
    return dumps(value)


def _listed(value: Any) -> str:
    """A JSON value as text, in pieces where it is a long list, or a list of lists."""
    if type(value) is not list:
        return dumps(value)
    if value and all(type(held) is list for held in value):
        return "[" + ",".join(map(_listed, value)) + "]"
    places = range(0, len(value), PIECE)
    return "[" + ",".join([dumps(value[place : place + PIECE])[1:-1] for place in places]) + "]"


class _Scoring:
    """One select under way; the event loop's own."""

    def __init__(self, caller: Caller) -> None:
        self.tenant, self.name = caller.tenant, caller.request_id
        self._reason: LMLangError | None = None
        self._waiting: asyncio.Future[Scores] | None = None

    def end(self, reason: LMLangError) -> None:
        """End it; whoever reads gets the reason."""
        self._reason = self._reason or reason
        if self._waiting is not None:
            self._waiting.cancel()

    async def wait(self, future: Future[Scores], seconds: float) -> Scores:
        """The scores; where nobody waits any more, the backend drops them."""
        self._waiting = asyncio.wrap_future(future)
        if self._reason is not None:
            self._waiting.cancel()
        try:
            return await asyncio.wait_for(self._waiting, seconds)
        except asyncio.TimeoutError:
            raise DeadlineExceeded(
                f"the scores were not there within the server's {seconds:g} s: ask for fewer."
            ) from None
        except asyncio.CancelledError:
            if self._reason is None:
                raise
            raise fresh(self._reason) from None
