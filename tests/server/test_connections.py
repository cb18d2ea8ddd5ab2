"""Connections of slow clients and of those that speak no HTTP, or an odd one."""

import json
import re
import socket
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from lmlang.testing import ScriptedBackend
from tests.backends.served import pass_time
from tests.server.harness import SECONDS, running, text, until

pytest.importorskip("fastapi")

SOON = 0.5
LATE = 20
"""Seconds for headers; they pass when a test says so."""
JSON = b"host: localhost\r\ncontent-type: application/json\r\n"
PROMPT = b'{"v": 1, "prompt": [{"text": "hello"}]}'
ASKED = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def backend():
    with ScriptedBackend(completes="when released") as made:
        yield made


@pytest.fixture(scope="module")
def server(backend):
    with running(backend, header_timeout=LATE) as found:
        yield found


@contextmanager
def connected(server, *small):
    """A connection that has said nothing yet; the buffers of these options are small."""
    address = urlsplit(server.url)
    with socket.socket() as made:
        for option in small:
            made.setsockopt(socket.SOL_SOCKET, option, 4_096)
        made.settimeout(SECONDS)
        made.connect((address.hostname, address.port))
        yield made


@pytest.fixture
def hurried(server):
    until(lambda: not server.server_state.connections)
    with connected(server) as made:
        until(lambda: server.server_state.connections)
        yield made


@pytest.fixture(scope="module")
def unhurried(backend):
    with running(backend) as found:
        yield found


@pytest.fixture
def connection(unhurried):
    with connected(unhurried) as made:
        yield made


def rest(connection):
    """All that comes, to the end that the server makes."""
    found = b""
    while piece := connection.recv(65_536):
        found += piece
    return found


def answer(connection):
    """An answer as short as that of /health."""
    found = b""
    while not found.endswith(b"}"):
        piece = connection.recv(65_536)
        assert piece
        found += piece
    return found


def waits(server):
    """Whether the one connection has begun with headers that have not ended."""
    (connection,) = server.server_state.connections
    return connection._waiting is not None


@pytest.mark.parametrize("begun", [b"G", b"GET /health HTTP/1.1\r\n", ASKED[:-2]])
def test_headers_that_do_not_end_are_answered_408(server, hurried, begun):
    hurried.sendall(begun)
    pass_time(server._loop, LATE)
    found = rest(hurried)
    assert found.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive in time" in found


def test_headers_that_drip_are_not_waited_for_either(server, hurried):
    hurried.sendall(b"GET /health HTTP/1.1\r\nx-slow: ")
    for _ in range(4):
        hurried.sendall(b"a")
        pass_time(server._loop, LATE / 4)
    assert rest(hurried).startswith(b"HTTP/1.1 408 ")


def test_who_says_nothing_is_told_nothing(server, hurried):
    pass_time(server._loop, LATE)
    assert rest(hurried) == b""


def test_a_kept_connection_may_rest_and_not_begin_without_an_end(server, hurried):
    for _ in range(2):
        hurried.sendall(ASKED)
        assert answer(hurried).startswith(b"HTTP/1.1 200 ")
    hurried.sendall(b"GET /hea")
    until(lambda: waits(server))
    pass_time(server._loop, LATE)
    assert rest(hurried).startswith(b"HTTP/1.1 408 ")


def test_a_request_that_comes_with_half_of_the_next_one_is_answered(server, hurried):
    hurried.sendall(ASKED + ASKED[:9])
    found = answer(hurried)
    until(lambda: waits(server))
    pass_time(server._loop, LATE)
    found += rest(hurried)
    assert found.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in found


def test_answers_may_take_longer(server, backend):
    found = []

    def ask():
        with server.client() as client:
            found.append(client.post("/lm/generate", json=text("hello", params={"max_tokens": 3})))

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: len(backend.pending()) == 1)
    with connected(server) as other:
        until(lambda: len(server.server_state.connections) == 2)
        other.sendall(b"GET /")
        pass_time(server._loop, LATE)
        assert rest(other).startswith(b"HTTP/1.1 408 ")  # as long as the other one has waited
    backend.release()
    asking.join(SECONDS)
    assert found[0].status_code == 200


def test_an_answer_that_nobody_reads_is_dropped_with_its_connection():
    with (
        ScriptedBackend(["x" * 500_000], chunk=10_000) as backend,
        running(backend, send_timeout=SOON) as server,
        connected(server, socket.SO_RCVBUF) as client,
    ):
        body = json.dumps(text("a", params={"max_tokens": 500_000})).encode()
        client.sendall(request(body, path=b"/lm/generate"))
        assert client.recv(12) == b"HTTP/1.1 200"
        until(lambda: not server.server_state.connections, SECONDS)
        until(lambda: not server.inside.desk.under_way)


# ------------------------------------------------------------------------------ odd requests


def request(body=PROMPT, headers=b"", path=b"/lm/render", length=True):
    """A request of a few bytes."""
    if length:
        headers += b"content-length: %d\r\n" % len(body)
    return b"POST " + path + b" HTTP/1.1\r\n" + JSON + headers + b"\r\n" + body


def statuses(data):
    """The statuses of the answers in what came."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", data)]


CHUNKED = b"transfer-encoding: chunked\r\n"
CLOSE = b"connection: close\r\n"
CHUNKS = b"".join(b"1\r\n%c\r\n" % byte for byte in PROMPT) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 50, 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (request(headers=b"content-length: 5\r\n"), 400),
        (request(headers=b"content-length: -5\r\n", length=False), 400),
        (request(headers=CLOSE + b"content-length: 99999999999999999999\r\n", length=False), 413),
        (request(b"0\r\n\r\n", CLOSE + CHUNKED + b"content-length: 3\r\n", length=False), 400),
        (request(b"zz\r\n", CHUNKED, length=False), 400),
        (request(CHUNKS, CLOSE + CHUNKED, length=False), 200),
        (b"GET /he%00alth HTTP/1.1\r\n" + JSON + CLOSE + b"\r\n", 404),
        (b"GET /%ff%zz HTTP/1.1\r\n" + JSON + CLOSE + b"\r\n", 404),
        (b"OPTIONS * HTTP/1.1\r\n" + JSON + CLOSE + b"\r\n", 404),
        (b"TRACE /health HTTP/1.1\r\n" + JSON + CLOSE + b"\r\n", 405),
        (request(headers=CLOSE + b"content-encoding: gzip\r\n"), 415),
        (request(PROMPT.decode().encode("utf-16"), CLOSE), 400),
        (request(b"\xef\xbb\xbf" + PROMPT, CLOSE), 400),
    ],
    ids=[
        *("tls", "no host", "two lengths", "negative length", "huge length", "length and chunks"),
        *("no chunk", "chunks of a byte", "nul", "no utf-8", "options", "trace", "gzip", "utf-16"),
        "byte order mark",
    ],
)
def test_odd_requests_are_answered_once_in_json(connection, sent, status):
    connection.sendall(sent)
    head, _, body = rest(connection).partition(b"\r\n\r\n")
    assert statuses(head) == [status]
    assert b"content-type: application/json" in head
    assert json.loads(body)


def test_a_connection_goes_on_behind_errors(connection):
    asked = [
        *(request(b"{"), request(b"[]"), request(b'{"v": 2}'), request(path=b"/nope")),
        *(request(), request(b"\xff"), request(headers=CLOSE)),
    ]
    for each in asked:
        connection.sendall(each)
    assert statuses(rest(connection)) == [400, 400, 400, 404, 200, 400, 200]


def test_what_is_sent_behind_an_answer_and_is_no_request_ends_the_connection(connection, caplog):
    connection.sendall(request(b"", CHUNKED, path=b"/nope", length=False))
    assert b"no such route" in answer(connection)
    connection.sendall(b"zz\r\n")
    assert rest(connection) == b""
    assert "Traceback" not in caplog.text
    assert "data_received" not in caplog.text


def test_an_upgrade_that_nobody_speaks_is_passed_over_without_a_word(connection, caplog):
    headers = b"connection: upgrade, close\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    connection.sendall(b"GET /health HTTP/1.1\r\n" + JSON + headers + b"\r\n")
    assert statuses(rest(connection)) == [200]
    assert "WebSocket" not in caplog.text
