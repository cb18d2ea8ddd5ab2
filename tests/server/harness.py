"""A server that listens, with its inside at hand; and prompts of the wire."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import httpx

from lmlang.protocol import Backend
from lmlang.runtime.local import Runtime
from lmlang.runtime.loop import EngineLoop
from lmlang.server.app import make_app
from lmlang.server.config import ServerConfig
from lmlang.server.context import Server
from lmlang.server.lifecycle import ServerProcess

SECONDS = 120.0


class Running(ServerProcess):
    """A server on a free port, on a thread.

    Attributes:
        url: Its address.
        app: What it serves.
    """

    def __init__(self, backend: Backend, config: ServerConfig) -> None:
        self.app = make_app(backend, config)
        super().__init__(self.app)
        self.config.access_log = False
        self._listens = threading.Event()
        self.url = ""
        self._on = threading.Thread(target=self.run, name="server of a test")
        self._on.start()
        assert self._listens.wait(SECONDS)

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        self.url = f"http://127.0.0.1:{self.port}"
        self._listens.set()

    @property
    def inside(self) -> Server:
        return self.context

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=SECONDS, **options)

    def joined(self) -> bool:
        """Whether it has ended, after a while."""
        self._on.join(SECONDS)
        return not self._on.is_alive()


@contextmanager
def running(backend: Backend, **parameters: Any) -> Iterator[Running]:
    """A server over a backend; ``parameters`` are of its `ServerConfig`."""
    server = Running(backend, ServerConfig(port=0, **parameters))
    try:
        yield server
    finally:
        server.should_exit = True
        assert server.joined()


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something to be so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)


@contextmanager
def engine_held(rt: Runtime) -> Iterator[EngineLoop]:
    """The loop of an engine that stands between two steps, for the length of a block."""
    gate, held = threading.Event(), Future[EngineLoop]()

    def hold(loop: EngineLoop) -> None:
        held.set_result(loop)
        assert gate.wait(SECONDS)

    rt._engine.tell(hold)
    loop = held.result(SECONDS)
    try:
        yield loop
    finally:
        gate.set()


def text(words: str, **fields: Any) -> dict[str, Any]:
    """A request of the wire whose prompt is a text."""
    return {"v": 1, "prompt": [{"text": words}], **fields}


def values(body: str) -> list[Any]:
    """The values of a stream, [DONE] as a text."""
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]
