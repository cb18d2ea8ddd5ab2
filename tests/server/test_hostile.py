"""Requests of a hostile client, and of an odd one: refused by name, or answered to their end."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from lmlang.cli import main
from lmlang.errors import ProgramError
from lmlang.protocol import Generation, Request
from lmlang.server.app import make_app
from lmlang.server.bodies import parsed
from lmlang.server.config import ServerConfig
from lmlang.server.context import BODIES
from lmlang.server.lifecycle import ServerProcess, bind
from lmlang.server.openai_fields import IGNORED
from lmlang.server.refusals import Refusal
from lmlang.testing import ScriptedBackend
from tests.server.harness import Running, running, until

TOOL = {
    "type": "function",
    "function": {"name": "stop", "parameters": {"type": "object", "additionalProperties": False}},
}
OTHER = {
    "type": "function",
    "function": {
        "name": "measure",
        "parameters": {
            "type": "object",
            "properties": {"count": {"type": "integer"}},
            "required": ["count"],
            "additionalProperties": False,
        },
    },
}
FIRST = '{"name": "stop", "arguments": {}}'
SECOND = '{"name": "measure", "arguments": {"count": 3}}'


def chat(server: Running, **fields: Any) -> Any:
    asked = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], **fields}
    with server.client() as client:
        return client.post("/v1/chat/completions", json=asked)


@pytest.mark.parametrize(
    "data", [b'{"a": 1, "a": 1}', b'{"a": [{"b": {}, "c": 0, "b": {}}]}', b'{"a": 1, "\\u0061": 2}']
)
def test_a_key_that_stands_twice_is_refused(data: bytes) -> None:
    with pytest.raises(Refusal, match=r"the key '[ab]' stands twice") as caught:
        parsed(data, 64)
    assert caught.value.status == 400


def test_refusals_of_bodies_have_no_class_of_python_as_their_code(server: Running) -> None:
    with server.client() as client:
        headers = {"content-type": "application/json"}
        answer = client.post("/generate", content=b'\xef\xbb\xbf{"text": "a"}', headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "BOM" in error["message"]
    assert (error["param"], error["code"]) == (None, None)


def test_headers_without_end_are_told_to_be_too_long(server: Running) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 65_536)
        head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["message"] == "the headers are too long: send fewer."


def test_a_request_of_two_lengths_is_refused_and_nothing_behind_it_is_read(
    server: Running,
) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 47\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        told = connection.makefile("rb").read()
    assert told.startswith(b"HTTP/1.1 400 ")
    assert b"says its length twice" in told
    assert told.count(b"HTTP/1.1") == 1


def test_a_lone_surrogate_is_an_error_of_its_messages(server: Running) -> None:
    bad = b'{"model": "default", "messages": [{"role": "user", "content": "\\ud800"}]}'
    with server.client() as client:
        headers = {"content-type": "application/json"}
        answer = client.post("/v1/chat/completions", content=bad, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_fields_that_change_nothing_have_their_types_too(server: Running, name: str) -> None:
    right: Any = {} if IGNORED[name] is dict else "a"
    assert chat(server, max_tokens=1, **{name: right}).status_code == 200
    for wrong in (5, [], "a" if right == {} else {}):
        answer = chat(server, max_tokens=1, **{name: wrong})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (name, "invalid_type")


@pytest.mark.parametrize(("count", "status"), [(16, 200), (17, 400)])
def test_what_begins_a_call_is_none_of_the_client_s_stops(count: int, status: int) -> None:
    stops = [f"stop {number}" for number in range(count)]
    with running(ScriptedBackend(["Hello."] * 2)) as server:
        answer = chat(server, tools=[TOOL], stop=stops, max_tokens=40)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["param"] == "stop"
        assert "17 strings" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_all_calls_of_an_answer_have_its_place_and_come_while_the_server_drains(
    stream: bool,
) -> None:
    class Ending(ScriptedBackend):
        def generate(self, request: Request) -> Generation:
            if not self.requests:
                server.drain()
            return super().generate(request)

    backend = Ending([FIRST, "\n", SECOND, ""])
    with running(backend, max_requests=1, drain_timeout=60) as server:
        answer = chat(
            server, tools=[TOOL, OTHER], tool_choice="required", max_tokens=200, stream=stream
        )
        assert server.joined()
    assert answer.status_code == 200
    assert len(backend.requests) == 4
    if stream:
        assert '"name":"measure"' in answer.text
        assert '"error"' not in answer.text
        return
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == [
        "stop", "measure",
    ]  # fmt: skip
    assert answer.json()["usage"]["completion_tokens"] > len(FIRST)


def test_bodies_under_way_have_so_much_room_and_no_more() -> None:
    """All but the last of their bytes have come; nobody waits for those of one more."""
    size = 1_000
    head = (
        "POST /lm/abort HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {size}\r\n\r\n"
    )
    name = b'{"request_id": "none"}'
    with running(ScriptedBackend([]), max_body=size) as server, ExitStack() as stack:
        address = urlsplit(server.url)
        open_ = [
            stack.enter_context(socket.create_connection((address.hostname, address.port)))
            for _ in range(BODIES)
        ]
        for connection in open_:
            connection.sendall(head.encode() + b" " * (size - 1))
        client = stack.enter_context(server.client())

        def status() -> int:
            headers = {"content-type": "application/json"}
            return client.post("/lm/abort", content=name * 45, headers=headers).status_code

        until(lambda: status() == 503)
        for connection in open_:
            connection.close()
        until(lambda: status() == 400)


@pytest.mark.parametrize(
    ("option", "message"),
    [("--quantize", "'blocks8'"), ("--kv-dtype", "'int8'"), ("--dtype", "'bfloat16'")],
)
def test_a_kind_of_weights_that_there_is_not_is_refused(
    option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", option, "frog"]) == 1
    told = capsys.readouterr().err
    assert "='frog' is unknown" in told
    assert message in told


def test_of_two_servers_that_begin_at_once_the_second_says_that_its_port_is_taken() -> None:
    with bind(ServerConfig(port=0)) as first:
        config = ServerConfig(port=first.getsockname()[1])
        with bind(config) as second:  # while its model was loaded the other one has begun
            first.listen()
            with pytest.raises(ProgramError, match=f"port={config.port} of 127.0.0.1 cannot be"):
                ServerProcess(make_app(ScriptedBackend([]), config)).run(sockets=[second])


def test_an_address_of_another_machine_is_none_to_listen_on() -> None:
    with pytest.raises(ProgramError, match=r"host='192\.0\.2\.1' is no address of this machine"):
        bind(ServerConfig(host="192.0.2.1", insecure=True))
