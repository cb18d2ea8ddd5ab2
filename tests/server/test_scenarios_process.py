"""``lmlang serve`` as a process under abuse: its port, its sockets, its log, its end."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.harness import text, until
from tests.server.test_cli import SECONDS, Process, process
from tests.server.test_scenarios import program
from tests.tiny import tiny_shape, write_tiny_gguf

KEY, ADMIN = "the-key-of-a-user", "the-key-of-an-administrator"
SECRET = "what nobody but the model reads"
ALIVE = Path("/proc/self/net/tcp").exists()
LISTENS = "0A"
"""The state of a socket that listens, in Linux' table."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_tiny_gguf(path, tiny_shape(max_positions=8_192))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Process]:
    with process(model, LMLANG_API_KEYS=KEY, LMLANG_ADMIN_KEYS=ADMIN) as server:
        yield server


def sockets(server: Process) -> list[tuple[str, str, str]]:
    """Kind, own address and state of every socket that the process has, with an address."""
    pid = server._process.pid
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    found = []
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw"):
        table = Path(f"/proc/{pid}/net/{kind}")
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            cells = line.split()
            if f"socket:[{cells[9]}]" in own:
                found.append((kind, cells[1], cells[3]))
    return found


@pytest.mark.skipif(not ALIVE, reason="the system does not list the sockets of a process")
def test_one_port_listens_and_only_this_machine_reaches_it(server: Process) -> None:
    listening = [(kind, at) for kind, at, state in sockets(server) if state == LISTENS]
    assert listening == [("tcp", f"0100007F:{server.port:04X}")]
    with socket.socket() as other:  # an address of this machine that is not the one it listens on
        other.settimeout(2)
        assert other.connect_ex(("127.0.0.2", server.port)) != 0


PICTURES = (
    *("http://169.254.169.254/latest/meta-data", "http://127.0.0.1:{port}/bait"),
    *("file:///etc/passwd", "../../../../etc/passwd", "/etc/passwd", "data:image/png;base64,AAAA"),
)


def requests_with(picture: str) -> Iterator[tuple[str, dict[str, Any]]]:
    image = {"type": "image_url", "image_url": {"url": picture}}
    yield (
        "/v1/chat/completions",
        {"model": "default", "messages": [{"role": "user", "content": [image]}]},
    )
    yield "/generate", {"text": "a", "image_data": picture}
    yield "/lm/generate", {"v": 1, "prompt": [{"image": picture}]}
    yield "/lm/generate", text("a", constraint={"json_schema": json.dumps({"$ref": picture})})
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": picture}}}
    yield (
        "/v1/chat/completions",
        {
            "model": "default",
            "messages": [{"role": "user", "content": "a"}],
            "response_format": form,
        },
    )


def test_no_address_in_a_request_is_ever_fetched(server: Process) -> None:
    with socket.socket() as bait, server.client(KEY) as client:
        bait.bind(("127.0.0.1", 0))
        bait.listen()
        bait.setblocking(False)
        for picture in PICTURES:
            place = picture.format(port=bait.getsockname()[1])
            for path, body in requests_with(place):
                answer = client.post(path, json=body)
                assert answer.status_code == 400, (path, place, answer.text)
                assert "root:" not in answer.text
        with pytest.raises(BlockingIOError):  # nobody has come
            bait.accept()


@pytest.mark.parametrize("name", ["chat_template", "chat_template_kwargs"])
def test_no_template_comes_in_a_request(server: Process, name: str) -> None:
    template = "{{ ''.__class__ }}{% for i in range(10**9) %}{% endfor %}"
    value = template if name == "chat_template" else {"chat_template": template}
    messages = [{"role": "user", "content": "a"}]
    with server.client(KEY) as client:
        body = {"model": "default", "messages": messages, name: value, "max_tokens": 1}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400, answer.text
        assert name in answer.json()["error"]["message"]
        asked = client.post("/generate", json={"text": "a", name: value})
        assert asked.status_code == 400
        rendered = client.post("/lm/render", json={**text("a"), name: value})
        assert rendered.status_code == 400


def test_the_log_holds_neither_prompts_nor_keys_nor_broken_lines(server: Process) -> None:
    hostile = f'{SECRET}\n{{"event": "forged"}}\r\n\x1b[31m\u2028'
    began = len(server.lines)
    with server.client(KEY) as client, server.client(ADMIN) as admin:
        bodies: dict[str, dict[str, Any]] = {
            "/lm/generate": text(hostile, params={"max_tokens": 2}),
            "/lm/score": text(hostile, choices=[SECRET, "b"]),
            "/v1/completions": {"model": "default", "prompt": hostile, "max_tokens": 2},
            "/v1/chat/completions": {
                "model": "default",
                "messages": [{"role": "user", "content": hostile}],
                "max_tokens": 2,
            },
            "/generate": {"text": hostile, "sampling_params": {"max_new_tokens": 2}},
            "/tokenize": {"prompt": hostile},
        }
        for path, body in bodies.items():
            assert client.post(path, json=body).status_code == 200, path
            refused = client.post(path, json={**body, hostile: 1, "stop": 5})
            assert refused.status_code in (200, 400), path
        for header in ({"X-Request-Id": SECRET}, {"User-Agent": SECRET}, {"Cookie": SECRET}):
            assert client.get("/lm/info", headers=header).status_code == 200
        assert client.get("/lm/info", params={"key": SECRET}).status_code == 200
        assert client.get(f"/{SECRET}").status_code == 404
        assert client.get("/lm/info", headers={"Authorization": f"Bearer {SECRET}"}).is_error
        shown = "".join(
            admin.get(path).text for path in ("/metrics", "/server_info", "/get_server_args")
        )
        until(lambda: len(server.lines) > began + 2 * len(bodies) + 8, SECONDS)
    assert not server.other
    logged = json.dumps(server.lines)
    for secret in (SECRET, "forged", KEY, ADMIN):
        assert secret not in logged + shown
    assert not any(str(value).startswith(SECRET[:10]) for line in server.lines for value in line)


def endless(path: str) -> dict[str, Any]:
    """A stream of this route that no drain would wait for."""
    long = {"stop": "no such text", "ignore_eos": True}
    if path == "/generate":
        return {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 3_000, **long}}
    body = {"model": "default", "stream": True, "max_tokens": 3_000, **long}
    if path == "/v1/completions":
        return {**body, "prompt": "a"}
    if path == "/v1/chat/completions":
        return {**body, "messages": [{"role": "user", "content": "a"}]}
    if path == "/lm/programs":
        return {"v": 1, "program": program(3_000)}
    return text("a", params={"max_tokens": 3_000, "ignore_eos": True})


def test_what_a_drain_does_not_wait_for_is_told_so_on_every_interface(model: Path) -> None:
    paths = ("/lm/generate", "/v1/completions", "/v1/chat/completions", "/generate") * 2
    paths += ("/lm/programs",)
    begun = threading.Semaphore(0)
    with (
        process(model, "--drain-timeout", "0.05") as server,
        server.client() as client,
        ThreadPoolExecutor(len(paths)) as pool,
    ):

        def read(path: str) -> list[str]:
            lines = []
            with client.stream("POST", path, json=endless(path)) as answer:
                for line in filter(None, answer.iter_lines()):
                    if not lines:
                        begun.release()
                    lines.append(line)
            return lines

        reading = [pool.submit(read, path) for path in paths]
        for _ in paths:
            assert begun.acquire(timeout=SECONDS)
        server.signal()
        for path, asked in zip(paths, reading, strict=True):
            lines = asked.result(SECONDS)
            assert lines[-1] == "data: [DONE]"
            last = json.loads(lines[-2].removeprefix("data: "))
            if path == "/generate":
                assert last["meta_info"]["finish_reason"]["type"] == "abort"
            else:
                assert "shut down" in last["error"]["message"]
        assert server.ended() == 0
        assert not server.other
        with pytest.raises(httpx.ConnectError):
            client.get("/health")
