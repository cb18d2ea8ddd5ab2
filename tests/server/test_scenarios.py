"""A server over a real engine under abuse: odd values, and bodies that are none."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from lmlang.runtime.local import Runtime
from tests.server.harness import Running, text, until
from tests.server.test_stream import Pulse

JSON = {"Content-Type": "application/json"}
ODD = ("-1", "0", "2147483648", "1000000000", "1e400", "NaN", '"5"', "true", "null", "[]")
MEGABYTE = 1 << 20
MESSAGES = [{"role": "user", "content": "hello"}]


def is_idle(server: Running, rt: Runtime) -> bool:
    """Whether nothing runs, waits or is remembered anywhere."""
    stats = rt.stats()
    return stats.running == stats.waiting == server.inside.desk.under_way == 0 and not (
        server.inside.desk._works
    )


def memory() -> int:
    """Bytes of this process that are in memory; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
    return 0


def canary(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    body = {"prompt": "hello", "max_tokens": 2}
    assert client.post("/v1/completions", json={"model": model_of(client), **body}).is_success


def model_of(client: httpx.Client) -> str:
    return str(client.get("/v1/models").json()["data"][0]["id"])


def program(tokens: int) -> str:
    """A program as text: two branches that generate."""
    return (
        'program two()\n  %0 = start\n  %1 = text %0 "a"\n  %2, %3 = fork %1 2\n'
        f"  %4 = gen %2 -> x [max_tokens={tokens}, ignore_eos=True]\n"
        f"  %5 = gen %3 -> x [max_tokens={tokens}, ignore_eos=True]\n  %6 = join %1 %4 %5\n"
    )


# ---------------------------------------------------------------- odd values

SAMPLING = (
    *("temperature", "top_p", "n", "seed", "stop", "logit_bias", "frequency_penalty"),
    *("presence_penalty", "max_tokens", "stream", "stream_options", "top_k", "min_p"),
    *("repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "logprobs"),
)
NATIVE = (
    *("max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop"),
    *("stop_token_ids", "frequency_penalty", "presence_penalty", "repetition_penalty", "n"),
    *("ignore_eos", "sampling_seed", "regex", "json_schema", "ebnf", "logit_bias"),
)


def odd_requests(model: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, field, and a body whose field of this name is to be odd."""
    base: dict[str, Any] = {"model": model, "max_tokens": 2}
    for name in (*SAMPLING, "prompt", "echo", "model"):
        yield "/v1/completions", name, {**base, "prompt": "a"}
    chat = ("messages", "tools", "tool_choice", "response_format", "top_logprobs")
    for name in (*SAMPLING, *chat, "max_completion_tokens", "parallel_tool_calls"):
        yield "/v1/chat/completions", name, {**base, "messages": MESSAGES}
    for name in ("text", "input_ids", "sampling_params", "stream", "return_logprob", "rid"):
        yield "/generate", name, {"text": "a", "sampling_params": {"max_new_tokens": 2}}
    for name in ("logprob_start_len", "top_logprobs_num"):
        few = {"max_new_tokens": 2}
        yield "/generate", name, {"text": "a", "return_logprob": True, "sampling_params": few}
    for name in ("prompt", "choices", "namespace"):
        yield "/lm/score", name, {**text("a"), "choices": ["b", "c"]}
    for path in ("/lm/prefill", "/lm/render", "/lm/encode"):
        yield path, "prompt", text("a")
    yield "/lm/decode", "ids", {"v": 1, "ids": [65]}
    for name in ("program", "run", "known"):
        yield "/lm/programs", name, {"v": 1, "program": program(2)}
    yield "/lm/abort", "request_id", {}
    yield "/abort_request", "rid", {}
    yield "/tokenize", "prompt", {"prompt": "a"}
    yield "/detokenize", "tokens", {"tokens": [65]}


def with_odd(body: dict[str, Any], name: str, odd: str) -> bytes:
    """The body with a value that need not be JSON."""
    return json.dumps({**body, name: "ODD"}).replace('"ODD"', odd).encode()


def odd_cases(model: str) -> Iterator[tuple[str, str, bytes]]:
    for odd in ODD:
        for path, name, body in odd_requests(model):
            yield path, name, with_odd(body, name, odd)
        for name in NATIVE:
            inner = with_odd({"max_new_tokens": 2}, name, odd)
            yield "/generate", name, b'{"text": "a", "sampling_params": %s}' % inner


def test_odd_values_are_taken_or_refused_by_name_on_every_route(
    server: Running, rt: Runtime, client: httpx.Client
) -> None:
    cases = list(odd_cases(model_of(client)))
    assert len(cases) > 700
    before = 0
    for number, (path, name, body) in enumerate(cases):
        if number == 100:
            before = memory()
        answer = client.post(path, content=body, headers=JSON)
        allowed = (200, 400, 404) if name == "model" else (200, 400)
        assert answer.status_code in allowed, (path, body, answer.text)
        if answer.status_code != 200:
            assert len(answer.content) < 1_024
            message = answer.json()["error"]["message"]
            near = {"n": "best_of", "text": "prompt", "input_ids": "text"}.get(name, name)
            assert name in message or near in message, (path, body, message)
    assert memory() - before < 32 * MEGABYTE
    until(lambda: is_idle(server, rt))
    canary(client)


# ---------------------------------------------------------------- bodies

BODILESS = {"/flush_cache", "/concate_and_append_request"}
"""Of these the body says nothing, and is not read."""
BAD_BODIES = {
    b"": (400, JSON),
    b"[" * 100_000: (400, JSON),
    b'{"prompt":' * 100_000: (400, JSON),
    b'["a"]': (400, JSON),
    b"null": (400, JSON),
    b'{"prompt": "\xff\xfe"}': (400, JSON),
    b"prompt=a": (415, {"Content-Type": "application/x-www-form-urlencoded"}),
    b"x" * (5 * MEGABYTE): (413, JSON),
}


def test_bodies_that_are_none_are_refused_at_once_by_every_route(
    server: Running, client: httpx.Client
) -> None:
    routes = client.get("/openapi.json").json()["paths"]
    paths = {path for path, methods in routes.items() if "post" in methods} - BODILESS
    assert len(paths) > 12
    pulse = Pulse(server)
    for path in sorted(paths):
        for content, (status, headers) in BAD_BODIES.items():
            try:
                answer = client.post(path, content=content, headers=headers)
            except httpx.WriteError:  # it hung up before all of it was sent
                assert status == 413
                continue
            assert answer.status_code == status, (path, content[:20], answer.text)
            assert len(answer.content) < 4_096
            assert answer.json()["error"]["message"]
    assert pulse.end() < 1.0
    canary(client)


def test_a_body_of_fifty_megabytes_is_refused_though_none_was_announced(
    server: Running, client: httpx.Client
) -> None:
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(50):
            sent += MEGABYTE
            yield b" " * MEGABYTE

    before, pulse = memory(), Pulse(server)
    try:
        answer = client.post("/lm/generate", content=pieces(), headers=JSON)
    except httpx.WriteError:
        answer = None
    assert answer is None or answer.status_code == 413
    assert sent < 50 * MEGABYTE
    assert pulse.end() < 1.0
    assert memory() - before < 32 * MEGABYTE
    canary(client)
