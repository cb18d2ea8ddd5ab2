"""The door of the app: who comes in, under which name, until when; and nothing leaves it raised.

    request -> keys -> handler (a task) -> answer -> log line
                          ^--cancel-- the connection is gone

Routes need not look for a client that is gone: their task is cancelled, wherever it waits.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmlang.errors import LMLangError
from lmlang.server import logs
from lmlang.server.auth import OPEN_PATHS, Access, verdict
from lmlang.server.caller import Caller
from lmlang.server.refusals import CLIENT_CLOSED, Refusal, answer_to

REQUEST_ID = b"x-request-id"
LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
"""With both, a proxy in front may see another request's beginning where this server sees a body."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NAME = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Door:
    """ASGI middleware around all routes.

    Args:
        app: What is behind it.
        access: Who may come in.
        check_open: Raises where no work is taken now; asked for each POST and PUT.
        free_paths: Paths of those that need no place.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        check_open: Callable[[], None],
        free_paths: frozenset[str] = frozenset(),
    ) -> None:
        self._app = app
        self._access = access
        self._check_open = check_open
        self._free_paths = free_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = scope["caller"] = Caller(_name(scope))
        connection = _Connection(receive, send, caller)
        try:
            self._let_in(scope, caller)
        except LMLangError as refusal:
            caller.error = type(refusal).__name__
            await answer_to(scope["path"], refusal)(scope, receive, connection.send)
            _tell(scope, caller, connection.status)
            return
        handler = asyncio.ensure_future(self._answer(scope, caller, connection))
        watch = asyncio.ensure_future(connection.watch(handler))
        try:
            await handler
        except asyncio.CancelledError:
            if not handler.done():  # not the client has gone: the server ends
                handler.cancel()
                raise
            caller.error = caller.error or "Cancelled"
        finally:
            watch.cancel()
            _tell(scope, caller, connection.status or CLIENT_CLOSED)

    def _let_in(self, scope: Scope, caller: Caller) -> None:
        """Say whose the request is; raises where it may not come in."""
        method, path = scope["method"], scope["path"]
        if LENGTHS.issubset(name for name, _ in scope["headers"]):
            raise Refusal(
                400,
                "the request says its length twice, by Content-Length and by Transfer-Encoding: "
                "send one of them.",
                headers={"Connection": "close"},
            )
        found = verdict(method, path, scope["headers"], self._access)
        if found.refusal is not None:
            raise Refusal(found.refusal, found.message)
        caller.tenant, caller.admin = found.tenant, found.admin
        if method in ("POST", "PUT") and path not in self._free_paths:
            self._check_open()

    async def _answer(self, scope: Scope, caller: Caller, connection: _Connection) -> None:
        """Have the app answer; whatever goes wrong there is answered too."""
        try:
            await self._app(scope, connection.receive, connection.send)
        except Exception as error:
            caller.error = type(error).__name__
            if not isinstance(error, LMLangError):
                logs.failed("failed", error, request=caller.request_id)
            if not connection.status:
                await answer_to(scope["path"], error)(scope, connection.receive, connection.send)
        finally:
            if caller.stream is not None:
                await caller.stream.aclose()


class _Connection:
    """The two ends of one HTTP request, watched.

    Attributes:
        status: The answer's; 0 before it has begun.
    """

    def __init__(self, receive: Receive, send: Send, caller: Caller) -> None:
        self.status = 0
        self._receive = receive
        self._send = send
        self._caller = caller
        self._read = asyncio.Event()
        self._gone = asyncio.Event()

    async def receive(self) -> Message:
        """The next part of the body; behind the last, that the client is gone once it is."""
        if self._read.is_set():
            await self._gone.wait()
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone.set()
        if not message.get("more_body", False):
            self._read.set()
        return message

    async def send(self, message: Message) -> None:
        """A part of the answer, with the request's name in its headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            name = (REQUEST_ID, self._caller.request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), name]}
        await self._send(message)

    async def watch(self, handler: asyncio.Future[None]) -> None:
        """Cancel the handler once the client is gone; from when its body has been read."""
        await self._read.wait()
        while not self._gone.is_set():
            if (await self._receive())["type"] == "http.disconnect":
                self._gone.set()
        handler.cancel()


def _name(scope: Scope) -> str:
    """The client's name for its request, where it is a plain word, or a new one."""
    given = [value for key, value in scope["headers"] if key == REQUEST_ID]
    if len(given) == 1 and _NAME.fullmatch(given[0]):
        return str(given[0].decode())
    return uuid.uuid4().hex


def _tell(scope: Scope, caller: Caller, status: int) -> None:
    """One line of the log: the route, not the path, which may hold anything."""
    route = getattr(scope.get("route"), "path", "-")
    if route in OPEN_PATHS and status == 200:
        return  # asked every few seconds
    logs.told(
        "request",
        request=caller.request_id,
        method=scope["method"] if scope["method"] in _METHODS else "-",
        route=route,
        status=status,
        ms=round((perf_counter() - caller.began) * 1000, 1),
        **({"tenant": caller.tenant} if caller.tenant else {}),
        **({"error": caller.error} if caller.error else {}),
        **({"prompt_tokens": caller.prompt_tokens} if caller.prompt_tokens else {}),
        **({"generated_tokens": caller.generated_tokens} if caller.generated_tokens else {}),
    )
