"""Bodies of requests: what is too much, or no JSON, is refused before anything is made of it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from lmlang.server import context
from lmlang.server.bodies import MAX_CONTAINERS, Room, json_body, parsed, shape_of
from lmlang.server.config import ServerConfig
from lmlang.server.refusals import Refusal
from lmlang.testing import ScriptedBackend
from lmlang.wire import dumps
from tests.server.harness import Running, running, text

JSON = {"Content-Type": "application/json"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.sampled_from(["[{", '\\"', "]]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=30,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(VALUES, st.booleans(), st.integers(0, 8))
def test_the_depth_is_known_before_parsing(value: object, ascii_only: bool, limit: int) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert (shape_of(data, limit)[0] > limit) == (depth(value) > limit)


@given(st.binary(max_size=60), st.integers(0, 3))
def test_what_is_no_json_is_refused_or_parsed_and_never_breaks(data: bytes, limit: int) -> None:
    shape_of(data, limit)
    try:
        found = parsed(data, 64)
    except Refusal:
        return
    assert isinstance(found, dict)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"[1]", "is a JSON list"),
        (b'"a"', "is a JSON string"),
        (b"null", "is a JSON null"),
        (b"5", "is a JSON number"),
        (b"{", "is no JSON: .* at line 1, column 2"),
        (b'{"a": "\xff"}', "is no UTF-8 at byte 7"),
        (b"[" * 100_000, "nested deeper than 64"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested deeper than 64"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "a number of thousands of digits"),
    ],
    ids=range(11),
)
def test_what_cannot_be_read_says_why(data: bytes, told: str) -> None:
    with pytest.raises(Refusal, match=told) as refused:
        parsed(data, 64)
    assert refused.value.status == 400
    assert len(str(refused.value)) < 300


def test_a_body_of_four_megabytes_is_read() -> None:
    assert len(parsed(b'{"a": "' + b"x" * 4_000_000 + b'"}', 64)["a"]) == 4_000_000
    assert len(parsed(b'{"a": "' + b'\\"' * 2_000_000 + b'"}', 64)["a"]) == 2_000_000
    many = b'{"a": [' + b"[]," * (MAX_CONTAINERS - 2) + b'"[[[{{{"]}'
    assert len(parsed(many, 64)["a"]) == MAX_CONTAINERS - 1
    with pytest.raises(Refusal, match="more than 100,000 lists and objects"):
        parsed(many.replace(b'"[[[{{{"', b"[]"), 64)
    with pytest.raises(Refusal, match="nested deeper"):
        parsed(b'{"a": ' + b"[" * 4_000_000, 64)


@pytest.mark.parametrize("turns", range(6))
def test_a_client_that_leaves_with_the_last_byte_is_gone(turns: int) -> None:
    async def read() -> bool:
        waits, last = asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            waits.set()
            await last.wait()
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def pooled(*_: Any) -> dict[str, Any]:
            raise AssertionError("a body of two bytes is read at once")

        headers = [(b"content-type", b"application/json")]
        http = Request({"type": "http", "headers": headers}, receive)
        reading = asyncio.ensure_future(json_body(http, ServerConfig(), Room(1 << 20), pooled))
        await waits.wait()
        last.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        had_it = reading.done()
        reading.cancel()
        await asyncio.wait({reading})
        return had_it or reading.cancelled()

    assert asyncio.run(read())


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with ScriptedBackend(lambda _: "yes") as backend, running(backend, max_body=100_000) as server:
        yield server


def canary(server: Running) -> None:
    with server.client() as client:
        answer = client.post("/lm/generate", json=text("hello"))
        assert answer.status_code == 200
        assert '"yes"' in answer.text


def test_more_than_the_limit_is_not_read(server: Running) -> None:
    with server.client() as client:
        announced = client.post("/lm/generate", content=b"x" * 100_001, headers=JSON)
        assert announced.status_code == 413

        def parts() -> Iterator[bytes]:
            for _ in range(200):
                yield b"x" * 1_000

        streamed = client.post("/lm/generate", content=parts(), headers=JSON)
        assert streamed.status_code == 413
        exact = json.dumps(text("a")).encode()
        exact += b" " * (100_000 - len(exact))
        assert client.post("/lm/generate", content=exact, headers=JSON).status_code == 200
    canary(server)


def test_a_body_of_50_megabytes_is_refused_by_what_it_announces(server: Running) -> None:
    address = urlsplit(server.url)
    assert address.port is not None
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        head = "POST /lm/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 50000000\r\n\r\n".encode())
        assert connection.recv(4_096).startswith(b"HTTP/1.1 413 ")
    canary(server)


def test_a_header_of_megabytes_is_refused(server: Running) -> None:
    address = urlsplit(server.url)
    assert address.port is not None
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        received = b""
        try:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
            for _ in range(80):
                connection.sendall(b"x" * 65_536)
            received = connection.recv(4_096)
        except OSError:  # it stopped reading, and hung up
            received = received or b"HTTP/1.1 400"
        assert received == b"" or received.startswith(b"HTTP/1.1 4")
    canary(server)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=latin-1"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": 'Application/JSON; charset="UTF-8"'}, 200),
        ({"Content-Type": "application/json;charset=utf-8"}, 200),
    ],
)
def test_only_json_in_utf_8_comes_in(server: Running, headers: dict[str, str], status: int) -> None:
    with server.client() as client:
        content = json.dumps(text("a")).encode()
        answer = client.post("/lm/generate", content=content, headers=headers)
        assert answer.status_code == status
        assert len(answer.content) < 4_096


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with ScriptedBackend() as backend, running(backend, body_timeout=0.05) as server:
        address = urlsplit(server.url)
        assert address.port is not None
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            connection.sendall(
                b"POST /lm/generate HTTP/1.1\r\nHost: localhost\r\n"
                b'Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"v": 1'
            )
            assert connection.recv(4_096).startswith(b"HTTP/1.1 408 ")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_answers_are_written_in_pieces_as_they_are_at_once(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "PIECE", 3)
        assert context.written(value) == dumps(value)
