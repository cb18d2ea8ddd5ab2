"""Apps behind uvicorn on a free port, and an app that answers as a test says."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from lmlang import wire

SECONDS = 120
"""More than anything here takes; so that a test that fails does not hang."""


def pass_time(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Set the clock of an event loop forward, from another thread.

    What has been sent to it by then is read first; then the timers ring that are due.
    """

    def forward() -> None:
        now = loop.time
        loop.time = lambda: now() + seconds  # type: ignore[method-assign]

    loop.call_soon_threadsafe(forward)


class _Server(uvicorn.Server):
    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="critical",
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=1,
            )
        )
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of a server of an app, which ends with the block."""
    # With its protocol, or asyncio leaves small writes to wait for one another.
    with socket.socket(proto=socket.IPPROTO_TCP) as free:
        free.bind(("127.0.0.1", 0))
        server = _Server(app)
        thread = threading.Thread(target=server.run, args=([free],), daemon=True)
        thread.start()
        assert server.ready.wait(SECONDS)
        try:
            yield f"http://127.0.0.1:{free.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive()


class Site:
    """Many apps behind one server, each under a path of its own."""

    def __init__(self, url: str, apps: dict[str, Any]) -> None:
        self._url = url
        self._apps = apps

    def add(self, app: Any) -> str:
        """The address of one more app."""
        name = str(len(self._apps))
        self._apps[name] = app
        return f"{self._url}/{name}"


@contextmanager
def site() -> Iterator[Site]:
    """A site without apps."""
    apps: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        _, name, path = scope["path"].split("/", 2)
        await apps[name]({**scope, "path": f"/{path}"}, receive, send)

    with served(app) as url:
        yield Site(url, apps)


class Asked:
    """One request that came in."""

    def __init__(self, scope: Any, body: bytes) -> None:
        self.path: str = scope["path"]
        self.client: tuple[str, int] = scope["client"]
        self.headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        self.message: Any = json.loads(body) if body else None


Answer = Callable[["Asked", Any, Any], Awaitable[None]]
"""Takes what was asked, and ASGI's receive and send."""


class Scripted:
    """An ASGI app that gives some answers in turn, the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = deque(answers)
        self.asked: list[Asked] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        asked = Asked(scope, body)
        self.asked.append(asked)
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.popleft()
        await answer(asked, receive, send)


def plain(status: int, body: Any, **headers: str) -> Answer:
    """A whole answer: text, or JSON of anything else."""

    async def answer(asked: Asked, receive: Any, send: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        named = {"content-type": "application/json", "content-length": str(len(data))} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        pairs = [(name.encode(), value.encode()) for name, value in named.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": data})

    return answer


def error(status: int, raised: BaseException, **headers: str) -> Answer:
    """The refusal of an lmlang server."""
    return plain(status, wire.to_wire(raised), **headers)


def stream(*items: Any, done: bool = True, media: str = "text/event-stream") -> Answer:
    """A stream of values, or of texts as they are; without its end it breaks off."""
    return streamed(lambda _: items, done=done, media=media)


def streamed(
    items: Callable[[Asked], Any], *, done: bool = True, media: str = "text/event-stream"
) -> Answer:
    """A stream of what depends on what is asked."""

    async def answer(asked: Asked, receive: Any, send: Any) -> None:
        headers = [(b"content-type", media.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for item in items(asked):
            text = item if isinstance(item, str) else wire.dumps(wire.to_wire(item))
            data = b"data: " + text.encode() + b"\n\n"
            await send({"type": "http.response.body", "body": data, "more_body": True})
        if not done:
            raise ConnectionAbortedError  # uvicorn closes the connection
        data = b"data: [DONE]\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": False})

    return answer


class Held:
    """An answer that waits: for the test to let it go, or for the client to go away."""

    def __init__(self, then: Answer | None = None, *first: Any) -> None:
        self._then = then
        self._first = first
        self._free = threading.Event()
        self.here = threading.Semaphore(0)
        self.gone = threading.Semaphore(0)
        self.now = 0
        self.most = 0

    def release(self) -> None:
        """Let all that wait, and will wait, go on."""
        self._free.set()

    async def __call__(self, asked: Asked, receive: Any, send: Any) -> None:
        if self._first:
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for item in self._first:
                data = f"data: {wire.dumps(wire.to_wire(item))}\n\n".encode()
                await send({"type": "http.response.body", "body": data, "more_body": True})
        self.now += 1
        self.most = max(self.most, self.now)
        self.here.release()
        leaving = asyncio.ensure_future(receive())
        freed = asyncio.ensure_future(asyncio.to_thread(self._free.wait, SECONDS))
        await asyncio.wait([leaving, freed], return_when=asyncio.FIRST_COMPLETED)
        self.now -= 1
        if leaving.done():
            assert leaving.result()["type"] == "http.disconnect"
            self._free.set()
            self.gone.release()
            return
        leaving.cancel()
        if self._then is not None:
            await self._then(asked, receive, send)
