"""Streams: first tokens at once, errors behind, clients that leave, a loop that never waits."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from lmlang.errors import BackendError, ProgramError
from lmlang.protocol import (
    Event,
    Finish,
    Generation,
    Output,
    Prompt,
    Request,
    ScoreRequest,
    Scores,
    Text,
    Usage,
)
from lmlang.runtime.local import Runtime
from lmlang.server import stream
from lmlang.testing import ScriptedBackend
from tests.server.harness import Running, engine_held, running, text, until, values
from tests.tiny import tiny_model

LONG = {"max_tokens": 3_000, "ignore_eos": True}


class Handmade(ScriptedBackend):
    """A backend whose generations a test moves on by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Generation] = []
        self.came = threading.Semaphore(0)

    def generate(self, request: Request) -> Generation:
        generation = Generation(request, self._cancel)
        self.made.append(generation)
        self.came.release()
        return generation

    def next(self) -> Generation:
        assert self.came.acquire(timeout=60)
        return self.made[-1]


def event(index: int, finish: Finish | None = None) -> Event:
    return Event(index, (65 + index,), chr(65 + index), (-0.5,), finish)


@pytest.fixture(scope="module")
def slow() -> Iterator[Runtime]:
    """A runtime with room for long outputs."""
    model, tokenizer, template = tiny_model(max_positions=8_192)
    with Runtime.over(model, tokenizer, template, kv_tokens=60_000) as rt:
        yield rt
        rt.check()


@contextmanager
def opened(
    server: Running, body: dict[str, Any], path: str = "/lm/generate"
) -> Iterator[socket.socket]:
    """A connection that has asked, and reads nothing by itself."""
    address, content = urlsplit(server.url), json.dumps(body).encode()
    assert address.port is not None
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        connection.sendall(head.encode() + content)
        yield connection


def test_each_event_is_sent_as_soon_as_it_is_there() -> None:
    with (
        Handmade() as backend,
        running(backend) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(lambda: backend.next().push(event(0)))
        with client.stream("POST", "/lm/generate", json=text("hello")) as answer:
            first.result(60)
            generation = backend.made[0]
            lines = answer.iter_lines()
            for index in range(3):
                assert json.loads(next(lines)[6:])["event"]["ids"] == [65 + index]
                assert next(lines) == ""
                generation.push(event(index + 1, Finish("length") if index == 2 else None))
            ids = tuple(range(65, 69))
            done = Output("ABCD", ids, (-0.5,) * 4, Finish("length"), Usage(5, 0, 4), ())
            generation.complete(done)
            rest = [line for line in lines if line]
        assert json.loads(rest[0][6:])["event"]["finish"] == {"reason": "length"}
        assert json.loads(rest[1][6:])["output"]["text"] == "ABCD"
        assert rest[2:] == ["data: [DONE]"]
        assert answer.headers["content-type"].startswith("text/event-stream")


def test_an_error_before_the_first_byte_has_its_status() -> None:
    with Handmade() as backend, running(backend) as server:
        for error, status in (
            (ProgramError("no"), 400),
            (BackendError("later", retryable=True), 503),
            (RuntimeError("the secret"), 500),
        ):
            with ThreadPoolExecutor(1) as pool:
                waiting = asked(server, pool)
                backend.next().fail(error)
                answer = waiting.result(60)
            assert answer.status_code == status
            assert "secret" not in answer.text
            assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("error", [BackendError("broken"), RuntimeError("the secret")])
def test_an_error_behind_three_events_is_the_last_value(error: Exception) -> None:
    with (
        Handmade() as backend,
        running(backend) as server,
        ThreadPoolExecutor(1) as pool,
        server.client() as client,
    ):
        answer = asked(server, pool)
        generation = backend.next()
        for index in range(3):
            generation.push(event(index))
        until(lambda: server.inside.metrics.text(None).count(b"_count 2.0") == 1)
        generation.fail(error)
        told = values(answer.result(60).text)
        assert [list(value)[1] for value in told[:-1]] == ["event"] * 3 + ["error"]
        assert told[-1] == "[DONE]"
        assert told[3]["error"]["type"] == "BackendError"
        assert "secret" not in str(told)
        assert client.get("/health").status_code == 200
        assert server.inside.desk.under_way == 0


@pytest.mark.parametrize("reset", [False, True])
def test_clients_that_go_away_leave_nothing_running(slow: Runtime, reset: bool) -> None:
    with running(slow) as server:

        def leave(number: int) -> None:
            body = text(f"hello {number}", params=LONG)
            with opened(server, body) as connection:
                for _ in range(number % 5):
                    assert connection.recv(1_024)
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

        with ThreadPoolExecutor(10) as pool:
            list(pool.map(leave, range(60)))
        until(lambda: server.inside.desk.under_way == 0)
        until(lambda: slow.stats().running == slow.stats().waiting == 0)
        assert not server.inside.desk._works
        with server.client() as client:
            assert client.post("/lm/generate", json=text("hello")).status_code == 200


def test_the_engine_stops_in_the_middle_for_a_client_that_is_gone(slow: Runtime) -> None:
    with running(slow) as server:
        slow.reset_stats()
        with opened(server, text("hello", params=LONG)) as connection:
            assert connection.recv(100)
            with engine_held(slow):
                connection.close()
                until(lambda: server.inside.desk.under_way == 0)
        until(lambda: slow.stats().running == 0)
        assert slow.stats().sampled_tokens < 3_000


def test_a_unary_request_that_is_dropped_is_cancelled_too() -> None:
    with (
        ScriptedBackend(completes="when released") as backend,
        running(backend) as server,
    ):
        body = text("hello", choices=["yes", "no"])
        address, content = urlsplit(server.url), json.dumps(body).encode()
        with socket.create_connection((address.hostname, address.port or 0), timeout=60) as left:
            head = (
                "POST /lm/score HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            left.sendall(head.encode() + content)
            backend.wait_for(1)
        until(lambda: not backend.pending() and server.inside.desk.under_way == 0)


def test_scores_whose_asker_is_gone_before_they_begin_are_dropped() -> None:
    offered, go_on = threading.Event(), threading.Event()

    class Slow(ScriptedBackend):
        def score(self, request: ScoreRequest) -> Future[Scores]:
            offered.set()
            assert go_on.wait(60)
            return super().score(request)

    with Slow(completes="when released") as backend, running(backend) as server:
        body = text("hello", choices=["yes", "no"])
        with opened(server, body, "/lm/score"):
            assert offered.wait(60)
        until(lambda: server.inside.desk.under_way == 0)
        go_on.set()
        until(lambda: len(backend.requests) == 1)
        until(lambda: not backend.pending())


def test_a_request_has_its_time() -> None:
    with (
        ScriptedBackend(completes="when released") as backend,
        running(backend, request_timeout=0.05) as server,
        server.client() as client,
    ):
        generated = client.post("/lm/generate", json=text("hello"))
        assert generated.status_code == 504
        assert "server's 0.05 s" in generated.json()["error"]["message"]
        scored = client.post("/lm/score", json=text("hello", choices=["a", "b"]))
        assert scored.status_code == 504
        assert scored.json()["error"]["type"] == "DeadlineExceeded"
        until(lambda: not backend.pending())


def test_a_client_that_reads_nothing_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LAST_WORDS", 0.05)
    with Handmade() as backend, running(backend, request_timeout=0.2) as server:
        with opened(server, text("hello")):
            generation = backend.next()
            for index in range(300):
                generation.push(Event(index, (65,), "x" * 100_000, (-0.5,)))
            until(lambda: server.inside.desk.under_way == 0)
            until(lambda: not server.server_state.tasks)
        assert generation.cancelled


class Pulse:
    """The most CPU seconds that the event loop took between two turns."""

    def __init__(self, server: Running) -> None:
        self.longest = 0.0
        self._stop = False
        assert server._loop is not None
        self._done = asyncio.run_coroutine_threadsafe(self._beat(), server._loop)

    async def _beat(self) -> None:
        last = time.thread_time()  # the loop's own, whatever else has a core meanwhile
        while not self._stop:
            await asyncio.sleep(0.002)
            now = time.thread_time()
            self.longest = max(self.longest, now - last)
            last = now

    def end(self) -> float:
        self._stop = True
        self._done.result(60)
        return self.longest


def test_a_long_text_is_encoded_beside_the_loop(slow: Runtime) -> None:
    words = "the user and the world " * 40_000
    threads: set[str] = set()
    encode = slow._intake.encoder.encode

    def watched(prompt: Any) -> list[int]:
        threads.add(threading.current_thread().name.rstrip("0123456789_"))
        return encode(prompt)

    slow._intake.encoder.encode = watched  # type: ignore[method-assign]
    try:
        with running(slow) as server, server.client() as client:
            answer = client.post("/lm/generate", json=text(words))
            assert answer.status_code == 400
            assert answer.json()["error"]["type"] == "ContextOverflow"
            assert client.post("/lm/encode", json=text(words)).status_code == 200
            assert client.post("/lm/prefill", json=text("hello")).status_code == 200
            assert client.post("/lm/score", json=text("a", choices=["b", "c"])).is_success
    finally:
        del slow._intake.encoder.encode
    assert threads == {"lmlang-server"}


def test_while_a_long_text_is_encoded_streams_go_on(slow: Runtime) -> None:
    words = "the user and the world " * 40_000
    with running(slow) as server, ThreadPoolExecutor(5) as pool:
        pulse = Pulse(server)
        gone = threading.Event()
        counts = [0] * 4

        def read(number: int) -> None:
            with server.client() as client:
                body = text(f"hello {number}", params=LONG)
                with client.stream("POST", "/lm/generate", json=body) as answer:
                    for _ in answer.iter_lines():
                        counts[number] += 1
                        if gone.is_set():
                            break

        encode, during = slow._intake.encoder.encode, list[int]()

        def beside(prompt: Any) -> list[int]:
            if len(prompt.segment.text) == len(words):
                before = list(counts)
                until(lambda: all(new > old + 1 for new, old in zip(counts, before, strict=True)))
                during.append(1)
            return encode(prompt)

        slow._intake.encoder.encode = beside  # type: ignore[method-assign]
        try:
            reading = [pool.submit(read, number) for number in range(4)]
            until(lambda: all(counts))
            with server.client() as client:
                assert client.post("/lm/generate", json=text(words)).status_code == 400
        finally:
            del slow._intake.encoder.encode
        gone.set()
        for asked in reading:
            asked.result(60)
        assert during
        began = time.thread_time()
        encode(Prompt.of(Text(words)))
        assert pulse.end() < (time.thread_time() - began) / 2


def asked(server: Running, pool: ThreadPoolExecutor) -> Any:
    """A generation asked for on another thread; the future of the whole answer."""

    def ask() -> httpx.Response:
        with server.client() as client:
            return client.post("/lm/generate", json=text("hello"))

    return pool.submit(ask)


def test_a_drain_lets_streams_end_and_takes_nothing_new() -> None:
    with (
        Handmade() as backend,
        running(backend, drain_timeout=60) as server,
        ThreadPoolExecutor(1) as pool,
        server.client() as client,
    ):
        answer = asked(server, pool)
        generation = backend.next()
        generation.push(event(0))
        server.drain()
        until(lambda: client.get("/ready").status_code == 503)
        refused = client.post("/lm/generate", json=text("hello"))
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["retryable"]
        assert client.get("/health").status_code == 200
        generation.push(event(1, Finish("length")))
        done = Output("AB", (65, 66), (-0.5,) * 2, Finish("length"), Usage(5, 0, 2), ())
        generation.complete(done)
        told = values(answer.result(60).text)
        assert told[-2]["output"]["text"] == "AB"
        assert told[-1] == "[DONE]"
        assert server.joined()


def test_what_does_not_end_while_the_server_drains_is_told_so() -> None:
    with (
        Handmade() as backend,
        running(backend, drain_timeout=0.05) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        streaming = asked(server, pool)
        backend.next().push(event(0))
        waiting = asked(server, pool)
        backend.next()
        until(lambda: server.inside.desk.under_way == 2)
        server.drain()
        told = values(streaming.result(60).text)
        assert told[-2]["error"]["message"].startswith("the server was shut down")
        assert told[-2]["error"]["retryable"]
        assert told[-1] == "[DONE]"
        assert waiting.result(60).status_code == 503
        assert server.joined()
        assert all(generation.done() for generation in backend.made)
