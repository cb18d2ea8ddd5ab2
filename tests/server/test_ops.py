"""Health, readiness, metrics, and what an administrator may do."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lmlang import wire
from lmlang.grammar.spec import Regex
from lmlang.protocol import Prompt, Request, SamplingParams, Text
from lmlang.runtime.local import Runtime
from lmlang.server import ops
from lmlang.testing import ScriptedBackend
from tests.server.harness import running, text
from tests.tiny import tiny_model


@pytest.fixture
def rt() -> Iterator[Runtime]:
    with Runtime.over(*tiny_model(), kv_tokens=2_000) as rt:
        yield rt


def metrics(client: httpx.Client) -> dict[str, float]:
    """Every sample without labels, by its name."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if not sample.labels
    }


def test_metrics_count_what_was_done(rt: Runtime) -> None:
    constrained = Request(Prompt.of(Text("a")), SamplingParams(8), constraint=Regex("[0-9]{3}"))
    with running(rt) as server, server.client() as client:
        before = metrics(client)
        assert before["lmlang:num_requests_total"] == 0
        for _ in range(3):
            body = text("hello world and", params={"max_tokens": 5, "ignore_eos": True})
            assert client.post("/lm/generate", json=body).is_success
        for _ in range(2):
            assert client.post("/lm/generate", json=wire.to_wire(constrained)).is_success
        found, stats = metrics(client), rt.stats()
    assert found["lmlang:num_requests_total"] == 5
    assert found["lmlang:prompt_tokens_total"] == stats.prompt_tokens
    assert found["lmlang:generation_tokens_total"] == stats.generated_tokens
    assert found["lmlang:cached_tokens_total"] == stats.cached_tokens > 0
    assert found["lmlang:cache_hit_rate"] == stats.cached_tokens / stats.prompt_tokens
    assert found["lmlang:token_usage"] == stats.kv_tokens_used / 2_000
    assert found["lmlang:num_grammar_total"] == 1
    assert found["lmlang:num_grammar_cache_hit_total"] == 1
    for name, count in (
        ("time_to_first_token_seconds", 5),
        ("e2e_request_latency_seconds", 5),
        ("queue_time_seconds", 5),
        ("grammar_compile_time_seconds", 1),
        ("inter_token_latency_seconds", stats.generated_tokens - 5),
    ):
        assert found[f"lmlang:{name}_count"] == count
        assert found[f"lmlang:{name}_sum"] > 0
    for name in ("num_running_reqs", "num_queue_reqs", "num_grammar_queue_reqs"):
        assert found[f"lmlang:{name}"] == 0
    for name in ("evicted_tokens_total", "num_retracted_reqs_total", "num_aborted_requests_total"):
        assert found[f"lmlang:{name}"] == 0


def test_compile_times_are_a_histogram(rt: Runtime) -> None:
    with running(rt) as server, server.client() as client:
        for pattern in ("[a-c]{2}", "[a-c]{3}", "[a-c]{3}"):
            request = Request(Prompt.of(Text("a")), SamplingParams(8), constraint=Regex(pattern))
            assert client.post("/lm/generate", json=wire.to_wire(request)).is_success
        answer = client.get("/metrics").text
        waits = client.get("/server_info").json()["stats"]["grammar_waits"]
    (family,) = (
        family
        for family in text_string_to_metric_families(answer)
        if family.name == "lmlang:grammar_compile_time_seconds"
    )
    assert family.type == "histogram"
    assert waits[-1][1] <= rt.stats().grammars_made
    counts = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
    assert counts == sorted(counts)
    assert counts[-1] == rt.stats().grammars_made >= 2


def test_a_backend_without_numbers_has_those_of_the_server() -> None:
    with ScriptedBackend() as backend, running(backend) as server, server.client() as client:
        assert client.post("/lm/generate", json=text("hello")).is_success
        found = metrics(client)
        assert found["lmlang:num_requests_total"] == 1
        assert "lmlang:token_usage" not in found
        assert client.get("/server_info").json()["stats"] is None


def test_health_follows_the_engines_heart(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(rt) as server, server.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").json() == {"status": "ready"}
        gate, held = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            held.set()
            gate.wait(60)

        monkeypatch.setattr(ops, "STALLED", 0.0)
        monkeypatch.setattr(ops, "STATS_SECONDS", 0.05)
        rt._engine.tell(hold)
        assert held.wait(60)
        stalled = client.get("/health")
        info = client.get("/server_info").json()
        gate.set()
        assert stalled.status_code == 503
        assert "no sign of life" in stalled.json()["error"]["message"]
        assert info["stats"] is None
        rt.stats()
        rt.close()
        for path in ("/health", "/ready"):
            ended = client.get(path)
            assert ended.status_code == 503
            assert "closed" in ended.json()["error"]["message"]
            assert ended.headers["retry-after"] == "1"
        assert client.post("/lm/generate", json=text("hello")).status_code == 500


def test_the_cache_is_flushed_and_the_server_described(rt: Runtime) -> None:
    with running(rt, name="our-model", max_samples=3) as server, server.client() as client:
        client.post("/lm/prefill", json=text("hello world"))
        assert rt.stats().kv_tokens_tree > 0
        assert client.get("/flush_cache").is_success
        assert rt.stats().kv_tokens_tree == 0
        client.post("/lm/prefill", json=text("hello world"))
        assert client.post("/flush_cache", json={}).is_success
        assert rt.stats().kv_tokens_tree == 0
        info = client.get("/server_info").json()
        assert info["model"] == "our-model"
        assert info["limits"]["max_samples"] == 3
        assert info["stats"]["kv_tokens_total"] == 2_000
        assert not re.search("key", str(info))


def test_the_interface_is_described(rt: Runtime) -> None:
    with running(rt) as server, server.client() as client:
        described = client.get("/openapi.json").json()
        assert {"/lm/generate", "/health", "/metrics"} <= set(described["paths"])
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                assert operation.get("summary") or operation.get("description"), (path, method)
