"""Clients that take their time over headers: an answer 408, and the connection is free again."""

import socket
import threading
from urllib.parse import urlsplit

import pytest

from lmlang.testing import ScriptedBackend
from tests.server.harness import SECONDS, running, text, until

pytest.importorskip("fastapi")

SOON = 0.15
ASKED = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def backend():
    with ScriptedBackend(completes="when released") as made:
        yield made


@pytest.fixture(scope="module")
def server(backend):
    with running(backend, header_timeout=SOON) as found:
        yield found


@pytest.fixture
def connection(server):
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=SECONDS) as made:
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


@pytest.mark.parametrize("begun", [b"G", b"GET /health HTTP/1.1\r\n", ASKED[:-2]])
def test_headers_that_do_not_end_are_answered_408(connection, begun):
    connection.sendall(begun)
    found = rest(connection)
    assert found.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive in time" in found


def test_headers_that_drip_are_not_waited_for_either(connection):
    connection.sendall(b"GET /health HTTP/1.1\r\nx-slow: ")
    connection.settimeout(SOON / 5)
    for _ in range(1_000):
        try:
            found = connection.recv(65_536)
            break
        except TimeoutError:
            connection.sendall(b"a")
    assert found.startswith(b"HTTP/1.1 408 ")


def test_who_says_nothing_is_told_nothing(connection):
    assert rest(connection) == b""


def test_a_kept_connection_may_rest_and_not_begin_without_an_end(connection):
    for _ in range(2):
        connection.sendall(ASKED)
        assert answer(connection).startswith(b"HTTP/1.1 200 ")
    connection.sendall(b"GET /hea")
    assert rest(connection).startswith(b"HTTP/1.1 408 ")


def test_a_request_that_comes_with_half_of_the_next_one_is_answered(connection):
    connection.sendall(ASKED + ASKED[:9])
    found = rest(connection)
    assert found.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in found


def test_answers_may_take_longer(server, backend, connection):
    found = []

    def ask():
        with server.client() as client:
            found.append(client.post("/lm/generate", json=text("hello", params={"max_tokens": 3})))

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: len(backend.pending()) == 1)
    connection.sendall(b"GET /")
    assert rest(connection).startswith(b"HTTP/1.1 408 ")  # as long as the other one has waited
    backend.release()
    asking.join(SECONDS)
    assert found[0].status_code == 200
