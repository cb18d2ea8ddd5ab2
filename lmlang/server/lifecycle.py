"""A server process from its first breath to its last: loaded, listening, draining, gone.

SIGTERM or SIGINT  ready says 503, new work is refused, what is under way may end
drain_timeout      what has not ended is ended, and says so
a second signal    the process is gone at once
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from lmlang.errors import ProgramError, quote
from lmlang.server import logs
from lmlang.server.config import ServerConfig
from lmlang.server.connections import patient
from lmlang.server.context import Server

LAST_WORDS = 5.0
"""Seconds for the answers of what has been ended to leave."""
MAX_HEADER = 65_536
"""Bytes of a request's line and headers."""
MAX_CONNECTIONS = 65_536
"""Open at a time, as far as the system allows it."""
POLL = 0.02
"""Seconds between two looks at what is still under way."""


class ServerProcess(uvicorn.Server):
    """The HTTP server of one app. ``run`` returns when it has drained.

    Args:
        app: Made by `make_app`.
    """

    def __init__(self, app: FastAPI) -> None:
        self.context: Server = app.state.server
        config = self.context.config
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                # of h11, which has a limit for headers
                http=patient(config.header_timeout, config.send_timeout),
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                h11_max_incomplete_event_size=MAX_HEADER,
                timeout_graceful_shutdown=int(LAST_WORDS),
                timeout_keep_alive=30,
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Where it listens, once it has started."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Listen, and say where.

        Raises:
            ProgramError: Somebody else listens there by now.
        """
        try:
            await super().startup(sockets)
        except OSError as error:
            raise _unavailable(self.context.config, error) from None
        self._loop = asyncio.get_running_loop()
        if self.started:
            config: ServerConfig = self.context.config
            logs.told("listening", host=config.host, port=self.port, keys=not config.is_open)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain; the second one: go."""
        if self.context.desk.draining or self._loop is None:
            os._exit(128 + sig)
        self.context.desk.draining = True
        self._loop.call_soon_threadsafe(self._begin_to_drain)

    def drain(self) -> None:
        """End as a signal does; from any thread."""
        self.handle_exit(signal.SIGTERM, None)

    def _begin_to_drain(self) -> None:
        self._drain = asyncio.ensure_future(self._drained())

    async def _drained(self) -> None:
        desk = self.context.desk
        logs.told("draining", under_way=desk.under_way)
        await self._until_idle(self.context.config.drain_timeout)
        if desk.under_way:
            logs.told("ending", under_way=desk.under_way)
            desk.end_all()
            await self._until_idle(LAST_WORDS)
        self.should_exit = True

    async def _until_idle(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while self.context.desk.under_way and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(POLL)


def bind(config: ServerConfig) -> socket.socket:
    """A socket at the address, which does not listen yet.

    Raises:
        ProgramError: There is no such address, or somebody else has it.
    """
    try:
        found = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # Of localhost's two addresses the one that all clients try.
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ProgramError(f"host={quote(config.host)} is no address: {error.strerror}.") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _unavailable(config, error) from None
    return listener


def _unavailable(config: ServerConfig, error: OSError) -> ProgramError:
    """Why nobody can listen at an address."""
    if error.errno == errno.EADDRNOTAVAIL:
        return ProgramError(
            f"host={quote(config.host)} is no address of this machine: give one, or 0.0.0.0 for "
            "all."
        )
    return ProgramError(
        f"port={config.port} of {config.host} cannot be had ({error.strerror}): choose another."
    )


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until a signal ends it; the backend is still to be closed then.

    Args:
        app: Made by `make_app`.
        listener: Made by `bind`.
    """
    _allow_connections()
    gc.collect()
    gc.freeze()  # the model's tables live as long as the process: no collection looks at them again
    process = ServerProcess(app)
    with suppress(KeyboardInterrupt):
        process.run(sockets=[listener])
    app.state.server.desk.close()


def _allow_connections() -> None:
    """Let this process have as many open connections as the system allows it."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, MAX_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
