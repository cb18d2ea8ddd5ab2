"""``lmlang serve`` as people run it: its words, its refusals, its end by signals."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmlang.cli import main
from tests.server.harness import text, until, values
from tests.tiny import tiny_shape, write_tiny_gguf

SECONDS = 120.0
LONG = {"max_tokens": 4_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_tiny_gguf(path, tiny_shape(max_positions=4_096))


def test_the_help_has_every_option_with_a_word_about_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    told = capsys.readouterr().out
    assert "lmlang serve --host 0.0.0.0 --api-key-file keys.txt" in told
    for group in ("model:", "address and keys:", "engine:", "limits:"):
        assert group in told
    options = re.findall(r"^  (--[a-z-]+)[^\n]*\n?((?:   +[^\n]*\n)*)", told, re.MULTILINE)
    assert len(options) > 20
    assert max(map(len, told.splitlines())) <= 100


def test_without_its_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["serve"]) == 1
    assert 'pip install "lmlang[server]"' in capsys.readouterr().err


def test_what_is_not_safe_or_not_there_is_refused_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LMLANG_API_KEYS", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, told in (
            (["--host", "0.0.0.0"], "reached by other machines, and there is no key"),
            (["--port", port], f"port={port} of 127.0.0.1 cannot be had"),
            (["--port", "70000"], "port=70000 is out of range"),
            (["--host", "no such host"], "there is no key"),
            (["--host", "no such host", "--insecure"], "is no address"),
            (["--api-key-file", str(tmp_path / "none")], "cannot be read"),
            (["--cors", "*"], "is no origin"),
            (["--max-requests", "0"], "max_requests=0 is out of range"),
            (["--model", str(tmp_path / "none.gguf"), "--port", "0"], "none.gguf"),
        ):
            assert main(["serve", *arguments]) == 1
            assert told in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "--api-key", "a-key"])  # other users of the machine would see it


class Process:
    """A server in a process of its own."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.lines: list[dict[str, Any]] = []
        self.other: list[str] = []
        self.listens = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lmlang", "serve", "--port", "0", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.other.append(line)
            else:
                if self.lines[-1].get("event") == "listening":
                    self.listens.set()
        self.listens.set()  # it has ended before

    @property
    def port(self) -> int:
        told = [line for line in self.lines if line.get("event") == "listening"]
        assert told, self.other
        return int(told[0]["port"])

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        base = f"http://127.0.0.1:{self.port}"
        return httpx.Client(base_url=base, headers=headers, timeout=SECONDS)

    def signal(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        status = self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        return status

    def end(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


@contextmanager
def process(model: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    made = Process(["--model", str(model), "--kv-tokens", "30000", *arguments], environment)
    try:
        assert made.listens.wait(SECONDS)
        yield made
    finally:
        made.end()


def streams(client: httpx.Client, pool: ThreadPoolExecutor, params: dict[str, Any]) -> list[Any]:
    """Eight streams, each of which has had its first event."""
    begun = threading.Semaphore(0)

    def read(number: int) -> str:
        told = ""
        with client.stream(
            "POST", "/lm/generate", json=text(f"hello {number}", params=params)
        ) as answer:
            for piece in answer.iter_text():
                if not told:
                    begun.release()
                told += piece
        return told

    reading = [pool.submit(read, number) for number in range(8)]
    for _ in reading:
        assert begun.acquire(timeout=SECONDS)
    return reading


def test_a_signal_lets_streams_end_and_then_the_process(model: Path) -> None:
    with (
        process(model, LMLANG_API_KEYS="a-key") as server,
        server.client("a-key") as client,
        ThreadPoolExecutor(8) as pool,
    ):
        with server.client() as nobody:
            assert nobody.get("/lm/info").status_code == 401
        reading = streams(client, pool, {**LONG, "max_tokens": 300})
        assert client.get("/ready").status_code == 200
        # One that does not end by itself meanwhile, nor the process before it.
        with client.stream("POST", "/lm/generate", json=text("hello", params=LONG)) as kept:
            next(kept.iter_text())
            server.signal()
            until(lambda: client.get("/ready").status_code == 503, SECONDS)
            refused = client.post("/lm/generate", json=text("hello"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        for asked in reading:
            told = values(asked.result(SECONDS))
            assert len(told[-2]["output"]["ids"]) == 300
            assert told[-1] == "[DONE]"
        assert server.ended() == 0
        assert not server.other
        events = [line["event"] for line in server.lines if "event" in line]
        assert events[:2] == ["loaded", "listening"]
        assert "draining" in events
        assert "a-key" not in str(server.lines)


def test_a_second_signal_ends_the_process_at_once(model: Path) -> None:
    with process(model) as server, server.client() as client, ThreadPoolExecutor(8) as pool:
        reading = streams(client, pool, LONG)
        server.signal()
        until(lambda: client.get("/ready").status_code == 503, SECONDS)
        server.signal()
        assert server.ended() == 128 + signal.SIGTERM
        for asked in reading:
            with pytest.raises(httpx.HTTPError):
                asked.result(SECONDS)
