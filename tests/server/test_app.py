"""The app around its routes: statuses, request ids, places, tenants, logs, and what never is."""

from __future__ import annotations

import ast
import io
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmlang import errors
from lmlang.errors import BackendError, LMLangError, ProgramError, QueueFull
from lmlang.protocol import Prompt, Request, Text
from lmlang.runtime.local import Runtime
from lmlang.server import logs
from lmlang.server.auth import tenant_of
from lmlang.server.refusals import Refusal, answer_to, error_body, status_of
from lmlang.testing import ScriptedBackend
from tests.server.harness import Running, running, text, until, values
from tests.tiny import tiny_model

SECRET = "the secret of the prompt"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with ScriptedBackend(lambda _: "yes") as backend, running(backend) as server:
        yield server


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the server logs while a test runs."""
    stream = io.StringIO()
    names = ("lmlang", "uvicorn.error", "asyncio", "py.warnings")
    loggers = [logging.getLogger(name) for name in names]
    before = [(log, log.handlers, log.propagate, log.level) for log in loggers]
    logs.set_up(stream)
    yield stream
    logging.captureWarnings(False)
    for log, handlers, propagate, level in before:
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


def test_every_error_has_a_status() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, LMLangError)]
    statuses = {kind.__name__: status_of(kind("x")) for kind in kinds}
    assert statuses == {
        "LMLangError": 500, "ProgramError": 400, "ProgramTypeError": 400, "CaptureError": 400,
        "ConstraintError": 400, "GrammarSyntaxError": 400, "GrammarTooLarge": 400,
        "SchemaUnsupported": 400, "Unsatisfiable": 400, "GrammarDeadEnd": 400,
        "LimitExceeded": 400, "ContextOverflow": 400, "BudgetExceeded": 400, "QueueFull": 503,
        "DeadlineExceeded": 504, "Cancelled": 499, "ModelError": 500, "BackendError": 500,
        "JournalError": 500, "ReplayError": 500,
        "WireError": 400,
    }  # fmt: skip
    assert status_of(BackendError("x", retryable=True)) == 503
    assert status_of(BackendError("x", status=502)) == 502
    assert status_of(BackendError("x", status=200)) == 500
    assert status_of(ValueError("x")) == 500
    assert answer_to("/", QueueFull("full")).headers["retry-after"] == "1"


def test_errors_speak_the_words_of_the_interface_that_was_asked() -> None:
    error = ProgramError("top_p=2 is out of range.")
    assert error_body("/lm/generate", error) == {
        "v": 1,
        "error": {"type": "ProgramError", "message": "top_p=2 is out of range."},
    }
    assert error_body("/v1/completions", error) == {
        "error": {
            "message": "top_p=2 is out of range.",
            "type": "invalid_request_error",
            "param": None,
            "code": "ProgramError",
        }
    }
    told = error_body("/generate", Refusal(404, "no", param="model", code="model_not_found"))
    assert told["error"]["param"] == "model"
    assert told["error"]["code"] == "model_not_found"
    assert SECRET not in str(error_body("/v1/completions", ValueError(SECRET)))


def test_unknown_routes_and_methods_have_bodies(server: Running) -> None:
    with server.client() as client:
        for path in ("/v1/nothing", "/", "/lm", "/lm/generate/", "//health", "/Health"):
            answer = client.get(server.url + path)
            assert answer.status_code == 404
            assert "no such route" in answer.json()["error"]["message"]
        assert client.get("/v1/nothing").json()["error"]["code"] == "unknown_url"
        wrong = client.delete("/lm/generate")
        assert wrong.status_code == 405
        assert wrong.json()["error"]["message"] == "this route does not take this method."
        assert "allow" in wrong.headers
        assert client.request("HEAD", "/health").status_code == 200


def test_a_plain_request_id_is_kept_and_any_other_replaced(server: Running) -> None:
    with server.client() as client:
        asked = client.get("/health", headers={"X-Request-Id": "run.7:a-B_3"})
        assert asked.headers["x-request-id"] == "run.7:a-B_3"
        seen = set()
        for name in ("", "a b", "x" * 129, "a\tb", "<script>", "ü".encode("latin-1")):
            answer = client.get("/health", headers={"X-Request-Id": name})
            seen.add(answer.headers["x-request-id"])
            assert len(answer.headers["x-request-id"]) == 32
        assert len(seen) == 6
        refused = client.post("/lm/generate", headers={"X-Request-Id": "mine"})
        assert refused.status_code == 415
        assert refused.headers["x-request-id"] == "mine"


def test_a_full_server_says_so_at_once_and_goes_on() -> None:
    with (
        ScriptedBackend(lambda _: "yes", completes="when released") as backend,
        running(backend, max_requests=4) as server,
        ThreadPoolExecutor(44) as pool,
        server.client(limits=httpx.Limits(max_connections=44)) as client,
    ):

        def ask(number: int) -> httpx.Response:
            return client.post("/lm/generate", json=text(f"hello {number}"))

        accepted = [pool.submit(ask, number) for number in range(4)]
        backend.wait_for(4)
        assert server.inside.desk.under_way == 4
        refused = [pool.submit(ask, number) for number in range(40)]
        for asked in refused:  # while all places are taken: none waits for one
            answer = asked.result(60)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["type"] == "QueueFull"
        assert client.get("/health").status_code == 200
        for _ in range(4):
            backend.release()
        assert [asked.result(60).status_code for asked in accepted] == [200] * 4
        until(lambda: server.inside.desk.under_way == 0)
        assert not server.inside.desk._works


def test_the_engines_own_full_queue_is_a_503_too() -> None:
    with (
        Runtime.over(*tiny_model(), kv_tokens=600, max_queued=1, max_running=1) as rt,
        running(rt) as server,
        server.client() as client,
    ):
        gate, held = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            held.set()
            gate.wait(60)

        rt._engine.tell(hold)
        assert held.wait(60)
        first = rt.generate(Request(Prompt.of(Text("hello"))))
        refused = client.post("/lm/generate", json=text("hello"))
        gate.set()
        assert refused.status_code == 503
        assert "max_queued is 1" in refused.json()["error"]["message"]
        first.result(60)


def abort(client: httpx.Client, name: Any, path: str = "/lm/abort") -> Any:
    key = "request_id" if path.startswith("/lm") else "rid"
    return client.post(path, json={key: name})


def test_only_ones_own_requests_are_aborted_and_by_their_whole_name() -> None:
    with (
        ScriptedBackend(lambda _: "yes", completes="when released") as backend,
        running(backend, keys=("key-a", "key-b"), admin_keys=("key-c",)) as server,
        ThreadPoolExecutor(4) as pool,
        server.client("key-a") as mine,
        server.client("key-b") as theirs,
        server.client("key-c") as admin,
    ):

        def ask(name: str) -> httpx.Response:
            return mine.post("/lm/generate", json=text(name), headers={"X-Request-Id": name})

        running_ = [pool.submit(ask, name) for name in ("one", "one", "one.two", "last")]
        backend.wait_for(4)
        for name in ("on", "ONE", "one*", ".", "missing"):
            assert abort(mine, name).json() == {"v": 1, "aborted": 0}
        for name in ("", None, 5, [], {"a": 1}, True):
            assert abort(mine, name).status_code == 400
        assert abort(theirs, "one").json()["aborted"] == 0
        assert abort(theirs, "one", "/abort_request").status_code == 403
        assert len(backend.pending()) == 4
        assert abort(mine, "one").json()["aborted"] == 2
        for asked in running_[:2]:
            answer = asked.result(60)
            assert answer.status_code == 499
            assert answer.json()["error"]["message"] == "the request was aborted."
        assert abort(mine, "one").json()["aborted"] == 0
        assert abort(admin, "one.two", "/abort_request").json() == {"aborted": 1}
        assert running_[2].result(60).status_code == 499
        everything = admin.post("/abort_request", json={"abort_all": True})
        assert everything.json() == {"aborted": 1}
        assert running_[3].result(60).status_code == 499
        until(lambda: server.inside.desk.under_way == 0)
        assert not server.inside.desk._works
        assert not backend.pending()


def test_selects_are_aborted_too() -> None:
    with (
        ScriptedBackend(completes="when released") as backend,
        running(backend) as server,
        ThreadPoolExecutor(1) as pool,
        server.client() as client,
    ):
        body = text("yes or no?", choices=["yes", "no"])
        asked = pool.submit(client.post, "/lm/score", json=body, headers={"X-Request-Id": "s"})
        backend.wait_for(1)
        assert abort(client, "s").json()["aborted"] == 1
        assert asked.result(60).status_code == 499
        until(lambda: not backend.pending() and server.inside.desk.under_way == 0)


def cached(client: httpx.Client, words: str, **fields: Any) -> int:
    body = text(words, params={"max_tokens": 1, "temperature": 0.0}, **fields)
    output = values(client.post("/lm/generate", json=body).text)[-2]["output"]
    return int(output["usage"].get("cached_tokens", 0))


def test_caches_of_different_keys_never_share() -> None:
    with (
        Runtime.over(*tiny_model(), kv_tokens=2_000) as rt,
        running(rt, keys=("key-a", "key-b"), admin_keys=("key-c",)) as server,
        server.client("key-a") as one,
        server.client("key-b") as other,
        server.client("key-c") as admin,
    ):
        words = "hello world and the user and the world"
        assert cached(one, words) == 0
        assert cached(one, words) > 5
        assert cached(other, words) == 0
        assert cached(admin, words) == 0
        # nor by saying that one is somebody else
        for name in (tenant_of("key-a"), f"{tenant_of('key-a')}/", "/"):
            assert cached(other, words, namespace=name) == 0
        assert cached(one, words, namespace="mine") == 0
        assert cached(one, words, namespace="mine") > 5
        spaces = {node.namespace for node in rt.tree().nodes}
        assert all(space.split("/")[0] in map(tenant_of, ("key-a", "key-b")) or space == "admin"
                   for space in spaces)  # fmt: skip


def test_a_fault_of_ours_is_a_500_without_details(lines: io.StringIO) -> None:
    def broken(_: str) -> str:
        raise RuntimeError(SECRET)

    with (
        ScriptedBackend() as backend,
        running(backend, keys=("a-key",)) as server,
        server.client("a-key") as client,
    ):
        backend.render = broken  # type: ignore[method-assign, assignment]
        answer = client.post("/lm/render", json=text(SECRET))
        assert answer.status_code == 500
        assert SECRET not in answer.text
        assert "RuntimeError" in answer.text
        assert client.get("/lm/info").status_code == 200
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    fault = next(line for line in told if line["level"] == "error")
    assert fault["error"] == "RuntimeError"
    assert fault["at"][-1].endswith(" broken")
    assert fault["request"] == answer.headers["x-request-id"]
    assert SECRET not in lines.getvalue()


def test_the_log_is_lines_of_json_without_prompts_or_keys(lines: io.StringIO) -> None:
    with (
        Runtime.over(*tiny_model(), kv_tokens=2_000) as rt,
        running(rt, keys=("a-secret-key",), admin_keys=("another-key",)) as server,
        server.client("a-secret-key") as client,
        server.client("a-wrong-key") as wrong,
        server.client("another-key") as admin,
    ):
        hidden = f"{SECRET}\n\u2028 {{}}"
        assert client.post("/lm/generate", json=text(hidden)).status_code == 200
        assert client.post("/lm/generate", json=text(hidden, extra=SECRET)).status_code == 400
        assert client.get(f"/{SECRET}?key={SECRET}").status_code == 404
        assert client.post("/lm/score", json=text(hidden, choices=["a", SECRET])).is_success
        assert wrong.get("/lm/info").status_code == 401
        shown = admin.get("/metrics").text + admin.get("/server_info").text
        logging.getLogger("uvicorn.error").warning("%s", SECRET)
        logging.getLogger("asyncio").error("went wrong", exc_info=ValueError(SECRET))
        for health in ("/health", "/ready"):
            client.get(health)
    logged = lines.getvalue()
    told = [json.loads(line) for line in logged.splitlines()]
    for hidden in (SECRET, "a-secret-key", "another-key", "a-wrong-key"):
        assert hidden not in logged + shown
    requests = [line for line in told if line.get("event") == "request"]
    assert [(line["route"], line["status"]) for line in requests] == [
        ("/lm/generate", 200), ("/lm/generate", 400), ("-", 404), ("/lm/score", 200), ("-", 401),
        ("/metrics", 200), ("/server_info", 200),
    ]  # fmt: skip
    assert requests[0]["tenant"] == tenant_of("a-secret-key")
    assert requests[0]["generated_tokens"] > 0
    assert requests[1]["error"] == "WireError"
    assert all(isinstance(line["ms"], float) for line in requests)


def test_nothing_that_comes_from_outside_can_become_code() -> None:
    package = Path(logs.__file__).parent.parent
    barred = {"pickle", "marshal", "dill", "cloudpickle", "shelve", "ctypes", "subprocess"}
    for room in ("server", "wire", "protocol"):
        for path in (package / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names: set[str] = set()
                if isinstance(node, ast.Import):
                    names = {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names = {(node.module or "").split(".")[0]}
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    names = {node.func.id} & {"eval", "exec", "compile", "__import__"}
                assert not names & (barred | {"eval", "exec", "compile", "__import__"}), path
