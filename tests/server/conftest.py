"""A server over a real engine with a tiny model, and a client of it; one for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from lmlang.runtime.local import Runtime
from tests.server.harness import Running, running
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def rt() -> Iterator[Runtime]:
    model, tokenizer, template = tiny_model(max_positions=8_192)
    with Runtime.over(model, tokenizer, template, kv_tokens=60_000) as rt:
        yield rt
        rt.check()


@pytest.fixture(scope="module")
def server(rt: Runtime) -> Iterator[Running]:
    with running(rt) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
