"""A server over a real engine and many clients: some leave, some flood it, some send long texts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from uvicorn.server import ServerState

from lmlang.runtime.local import Runtime
from lmlang.server.app import make_app
from lmlang.server.config import ServerConfig
from lmlang.server.lifecycle import ServerProcess
from lmlang.testing import RandomBackend
from tests.server.harness import Running, engine_held, running, text, until
from tests.server.test_scenarios import (
    MEGABYTE,
    MESSAGES,
    canary,
    is_idle,
    memory,
    model_of,
    program,
)
from tests.server.test_stream import Pulse

HOPELESS = {"stop": "no such text", "ignore_eos": True}


# ---------------------------------------------------------------- clients that leave


def leaving(model: str) -> list[tuple[str, dict[str, Any]]]:
    """Requests that would go on for long; streams and answers in one piece."""
    long = {"max_tokens": 3_000, **HOPELESS}
    own = {"max_new_tokens": 3_000, **HOPELESS}
    return [
        ("/lm/generate", text("hello", params={**long, "stop": ["no such text"]})),
        ("/v1/completions", {"model": model, "prompt": "hello", "stream": True, **long}),
        ("/v1/chat/completions", {"model": model, "messages": MESSAGES, "stream": True, **long}),
        ("/generate", {"text": "hello", "stream": True, "sampling_params": own}),
        ("/lm/programs", {"v": 1, "program": program(3_000)}),
        ("/v1/completions", {"model": model, "prompt": ["a", "b"], "n": 2, **long}),
        ("/generate", {"text": ["a", "b"], "sampling_params": own}),
    ]


def test_of_200_clients_that_leave_nothing_goes_on(
    server: Running, rt: Runtime, client: httpx.Client
) -> None:
    asked = leaving(model_of(client))
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
    assert port is not None

    def leave(number: int) -> None:
        path, body = asked[number % len(asked)]
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        with socket.create_connection((host, port), timeout=60) as connection:
            connection.sendall(head.encode() + content)
            if "stream" in body or path.startswith("/lm"):
                for _ in range(1 + number % 5):
                    assert connection.recv(512)
            elif number % 3:
                until(lambda: rt.stats().running > 0)
            if number % 2:  # a reset, not an end
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(leave, range(200)))
    left = time.process_time()  # of server and engine, which no other process lengthens
    until(lambda: is_idle(server, rt))
    assert time.process_time() - left < 1.0
    steps = rt.stats().steps
    canary(client)
    assert rt.stats().steps - steps < 20
    rt.check()


def test_who_leaves_costs_one_more_step_at_most(server: Running, rt: Runtime) -> None:
    """All leave while the engine stands: the step that has been planned is the last of theirs."""
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
    assert port is not None
    body = json.dumps(text("hello", params={"max_tokens": 500, "ignore_eos": True})).encode()
    head = (
        "POST /lm/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    with contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(socket.create_connection((host, port), timeout=60))
            for _ in range(200)
        ]
        for some in (readers[:100], readers[100:]):
            for reader in some:
                reader.sendall(head + body)
            for reader in some if some[0] is readers[0] else ():
                assert reader.recv(512)
        until(lambda: server.inside.desk.under_way == len(readers))
        with engine_held(rt) as loop:
            assert loop.stats().running >= 100
            for number, reader in enumerate(readers):
                if number % 2:
                    linger = struct.pack("ii", 1, 0)
                    reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                reader.close()
            until(lambda: not server.inside.desk._works)
            steps = loop.stats().steps
    until(lambda: is_idle(server, rt))
    assert rt.stats().steps - steps <= 1
    rt.check()


# ---------------------------------------------------------------- floods


def test_ten_times_the_queue_at_once_is_refused_fast_and_the_accepted_end(rt: Runtime) -> None:
    places = 16
    with running(rt, max_requests=places) as server, server.client() as client:
        before = memory()
        limits = httpx.Limits(max_connections=10 * places)
        with ThreadPoolExecutor(10 * places) as pool, server.client(limits=limits) as flood:

            def ask(number: int) -> httpx.Response:
                body = text(f"hello {number}", params={"max_tokens": 4, "ignore_eos": True})
                return flood.post("/lm/generate", json=body)

            with engine_held(rt):  # so that all of them come before any ends
                waiting = [pool.submit(ask, number) for number in range(10 * places)]
                until(lambda: sum(asked.done() for asked in waiting) == 9 * places, 60)
                assert client.get("/health").status_code == 200
                refused = client.post("/v1/completions", json={"model": "x", "prompt": "a"})
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            answers = [asked.result(60) for asked in waiting]
        assert sorted(answer.status_code for answer in answers) == (
            [200] * places + [503] * 9 * places
        )
        for answer in answers:
            if answer.status_code == 503:
                assert answer.headers["retry-after"] == "1"
                assert answer.json()["error"]["type"] == "QueueFull"
            else:
                assert answer.text.endswith("data: [DONE]\n\n")
        assert memory() - before < 64 * MEGABYTE
        until(lambda: is_idle(server, rt))
        canary(client)


class End(asyncio.Transport):
    """The server's end of a connection without a network."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


def test_the_last_of_a_flood_s_excess_is_refused_within_50_milliseconds() -> None:
    """In CPU seconds from the first byte to the last answer, which nothing else lengthens."""
    app = make_app(RandomBackend(), ServerConfig(max_requests=1))
    app.state.server.desk.under_way = 1
    process = ServerProcess(app)
    process.config.access_log = False
    process.config.load()
    body = json.dumps(text("hello")).encode()
    head = (
        "POST /lm/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )

    async def asked(count: int, data: bytes) -> tuple[float, list[bytes]]:
        """So many connections at once: seconds until all are answered, and the answers."""
        state, ends = ServerState(), [End() for _ in range(count)]
        began = time.thread_time()
        for end in ends:
            protocol = process.config.http_protocol_class(process.config, state, {})
            protocol.connection_made(end)
            protocol.data_received(data)
        while state.tasks:
            await asyncio.sleep(0)
        return time.thread_time() - began, [end.written for end in ends]

    seconds, answers = min(asyncio.run(asked(144, head.encode() + body)) for _ in range(5))
    nothing = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
    usual, _ = min(asyncio.run(asked(144, nothing)) for _ in range(5))
    assert seconds < max(0.05, 3 * usual)  # a machine may be slow
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1\r\n" in answer


# ---------------------------------------------------------------- long texts


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions", "/generate"])
def test_two_megabytes_are_encoded_while_eight_streams_go_on(
    server: Running, rt: Runtime, client: httpx.Client, path: str
) -> None:
    words = "the user and the world " * 91_000
    assert len(words) > 2_000_000
    enough = threading.Event()
    gaps: list[float] = []

    def read(number: int) -> None:
        with server.client() as own:
            body = text(f"hello {number}", params={"max_tokens": 4_000, "ignore_eos": True})
            with own.stream("POST", "/lm/generate", json=body) as answer:
                last = None
                for line in answer.iter_lines():
                    now = time.process_time()
                    if line and last is not None:
                        gaps.append(now - last)
                    last = now if line else last
                    if enough.is_set():
                        return

    with ThreadPoolExecutor(8) as pool:
        reading = [pool.submit(read, number) for number in range(8)]
        until(lambda: rt.stats().running == 8)
        begun = len(gaps)
        until(lambda: len(gaps) > begun + 500)
        count = len(gaps)
        pulse = Pulse(server)
        answer = client.post(path, json={"prompt": words, "text": words, "model": model_of(client)})
        beat = pulse.end()
        during = gaps[count:]
        enough.set()
        for asked in reading:
            asked.result(60)
    assert answer.status_code in (200, 400), answer.text
    assert answer.status_code == 200 or len(answer.content) < 4_096
    assert during, "the streams stood still"
    # In CPU seconds, which no other process lengthens. 0.1 s is the aim, beyond what eight readers
    # and the engine take by themselves. Encoded on the loop it would be the encoding's 0.4 s.
    assert beat < 0.2
    assert sorted(during)[int(0.99 * len(during))] < 0.1 + max(gaps[begun:count])
    until(lambda: is_idle(server, rt))
