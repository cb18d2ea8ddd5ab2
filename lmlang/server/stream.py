"""Generations of one HTTP request, from engine threads to the event loop; and streams of answers.

    engine thread --push--> Generation --watch: call_soon_threadsafe--> Work (event loop) --> route
    client gone, time out, abort, drain --> Work ends its generations within a step

A route has its generations inside ``async with``; however that block is left, nothing of them goes
on. Whoever drops the connection cancels the route's task, and so leaves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from types import TracebackType
from typing import Any, cast

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lmlang.errors import Cancelled, DeadlineExceeded, LMLangError, fresh
from lmlang.protocol import Event, Generation, Output, Request
from lmlang.server import logs
from lmlang.server.caller import Caller
from lmlang.server.desk import Desk, owned
from lmlang.server.metrics import Timing
from lmlang.server.refusals import error_body
from lmlang.wire.forms import dumps

DONE = b"data: [DONE]\n\n"
"""The last line of every stream."""
LAST_WORDS = 10.0
"""Seconds for a client that reads slowly, or not at all, to take why its request was ended."""


class Work:
    """The generations of one HTTP request; the event loop's own. A context manager.

    Args:
        desk: Where it is known while it goes on.
        caller: Who asks.
        requests: What is asked for; the namespace of each is made the caller's own.
        name: What an abort calls it; None: as the caller calls the request.
        own_stops: Stop strings of each request that are the server's.
    """

    def __init__(
        self,
        desk: Desk,
        caller: Caller,
        requests: Sequence[Request],
        name: str | None = None,
        own_stops: int = 0,
    ) -> None:
        self.name = name or caller.request_id
        self.tenant = caller.tenant
        self._caller = caller
        self._desk = desk
        self._own_stops = own_stops
        self._requests = [owned(request, caller) for request in requests]
        self._begun: list[tuple[Timing, list[Generation]]] = []
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._reason: LMLangError | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._task: asyncio.Task[Any] | None = None
        self._unwatch: list[Callable[[], None]] = []

    async def __aenter__(self) -> Work:
        self._desk.bell.hang()
        for request in self._requests:
            self._desk.config.check(request, self._own_stops)
        self._desk.enter(self, len(self._requests))
        self._task = asyncio.current_task()
        seconds = self._desk.config.request_timeout
        self._timers.append(self._loop.call_later(seconds, self._expire, seconds))
        try:
            await self._begin(self._requests)
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cancel()
        for unwatch in self._unwatch:
            unwatch()
        self._leave()
        for timing, generations in self._begun:
            self._desk.metrics.ended(timing, self._caller, generations)

    async def outputs(self) -> list[Output]:
        """All outputs, in the order of the requests; raises the first error there is."""
        found: dict[int, Output] = {}
        async for index, item in self.items():
            if isinstance(item, Output):
                found[index] = item
        return [found[index] for index in range(len(found))]

    def items(self) -> AsyncIterator[tuple[int, Event | Output]]:
        """Events as they come, with the index of their request, and the output of each at its end.

        Raises:
            LMLangError: One has failed, or all were ended from outside.
        """
        return self._told(*self._begun[0])

    async def more(self, request: Request) -> AsyncGenerator[Event | Output, None]:
        """The events and the output of a further generation, in the place of one that has ended.

        It belongs to the same request of HTTP: whatever ends that ends it, its time is that one's,
        and a server that drains lets it begin.
        """
        request = owned(request, self._caller)
        self._desk.config.check(request)
        async with aclosing(self._told(*await self._begin([request]))) as told:
            async for _, item in told:
                yield item

    async def _begin(self, requests: Sequence[Request]) -> tuple[Timing, list[Generation]]:
        """Have the backend begin with some generations."""
        begun = (Timing(len(requests)), await self._offered(requests))
        self._begun.append(begun)
        for generation in begun[1]:
            self._unwatch.append(generation.watch(self._ring))
            generation.add_done_callback(lambda _: self._ring())
        if self._reason is not None:
            self._cancel()
        return begun

    async def _told(
        self, timing: Timing, generations: Sequence[Generation]
    ) -> AsyncGenerator[tuple[int, Event | Output], None]:
        positions = [0] * len(generations)
        left = list(range(len(positions)))
        while left:
            self._moved.clear()
            for index in list(left):
                generation = generations[index]
                ended = generation.done()  # asked first: what came before it is then there
                for event in generation.events_from(positions[index]):
                    positions[index] += 1
                    self._desk.metrics.event(timing, index, event)
                    yield index, event
                if ended:
                    left.remove(index)
                    yield index, self._output(generation)
            if left:
                await self._moved.wait()

    def end(self, reason: LMLangError) -> None:
        """End all of it from outside; whoever reads gets the reason, in `LAST_WORDS` seconds."""
        if self._reason is None and self._task is not None:
            self._timers.append(self._loop.call_later(LAST_WORDS, self._task.cancel))
        self._reason = self._reason or reason
        self._cancel()

    def _output(self, generation: Generation) -> Output:
        outcome = generation.outcome()
        if isinstance(outcome, Output):
            return outcome
        if isinstance(outcome, Cancelled) and self._reason is not None:
            raise fresh(self._reason)
        raise fresh(outcome)

    async def _offered(self, requests: Sequence[Request]) -> list[Generation]:
        """Hand the requests to the backend, on a thread of the pool: it encodes their prompts."""
        job = self._desk.submit(_offer, self._desk.offer, requests)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            job.add_done_callback(_drop)
            raise

    def _ring(self) -> None:
        """There is something to read; called on any thread."""
        self._desk.bell.ring(self._moved)

    def _expire(self, seconds: float) -> None:
        self.end(
            DeadlineExceeded(
                f"the request did not end within the server's {seconds:g} s: ask for fewer tokens."
            )
        )

    def _leave(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._desk.leave(self, len(self._requests))

    def _cancel(self) -> None:
        for _, generations in self._begun:
            for generation in generations:
                generation.cancel()


def _offer(offer: Any, requests: Sequence[Request]) -> list[Generation]:
    return [offer(request) for request in requests]


def _drop(job: Future[list[Generation]]) -> None:
    """End generations whose asker is gone before it got them."""
    if not job.cancelled() and job.exception() is None:
        for generation in job.result():
            generation.cancel()


class EventStream(Response):
    """Server-sent events of JSON values; the last one is ``[DONE]``.

    The first value is waited for before the status is sent, so that a refusal has its own. An
    error behind it is a value like the others, in the words of the route's interface.

    Args:
        values: JSON values, or texts that are sent as they are; errors of this library end it.
        path: The route's, which says how an error looks.
        first: The first of the values.
    """

    media_type = "text/event-stream"

    def __init__(self, values: AsyncIterator[Any], path: str, first: Any) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._values = values
        self._path = path
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all values."""
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        await _send(send, framed(self._first))
        try:
            async for value in self._values:
                await _send(send, framed(value))
        except Exception as error:
            _note(scope, error)
            await _send(send, framed(error_body(self._path, error)))
        await send({"type": "http.response.body", "body": DONE, "more_body": False})


async def stream_of(http: HTTPRequest, values: AsyncIterator[Any]) -> Response:
    """The answer that streams these values; raises what keeps the first from coming.

    Args:
        http: The request.
        values: An async generator that holds its `Work` open while it runs.
    """
    caller: Caller = http.scope["caller"]
    caller.stream = cast(AsyncGenerator[Any, None], values)  # which is to be closed, too
    return EventStream(values, http.url.path, await anext_of(values))


async def anext_of(values: AsyncIterator[Any]) -> Any:
    """The first value; RuntimeError where there is none, which is a fault of the route."""
    async for value in values:
        return value
    raise RuntimeError("a stream ended before it had a value")


def _note(scope: Scope, error: Exception) -> None:
    """Let the log know of an error that has no status."""
    caller: Caller = scope["caller"]
    caller.error = type(error).__name__
    if not isinstance(error, LMLangError):
        logs.failed("failed", error, request=caller.request_id)


def framed(value: Any) -> bytes:
    """A value as one server-sent event."""
    text = value if isinstance(value, str) else dumps(value)
    return b"data: " + text.encode() + b"\n\n"


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
