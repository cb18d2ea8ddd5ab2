"""A real server on a free port of this machine, for the length of a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lmlang.protocol import Backend
from lmlang.server.app import make_app
from lmlang.server.config import ServerConfig
from lmlang.server.lifecycle import ServerProcess

SECONDS = 120.0
"""For a server to begin and to end."""


class _Announced(ServerProcess):
    """A server that says when it listens."""

    def __init__(self, backend: Backend, config: ServerConfig) -> None:
        super().__init__(make_app(backend, config))
        self.listens = threading.Event()

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


@contextmanager
def served(backend: Backend, **parameters: Any) -> Iterator[str]:
    """The address of a server over a backend; ``parameters`` are of its `ServerConfig`."""
    server = _Announced(backend, ServerConfig(port=0, **parameters))
    thread = threading.Thread(target=server.run, name="server of a test")
    thread.start()
    try:
        assert server.listens.wait(SECONDS), "the server did not begin to listen"
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive(), "the server did not end"
