"""What schemathesis and hypothesis make of the app's own description: nothing breaks.

A few examples each time; more of them by hand:
LMLANG_EXAMPLES=500 python -m pytest tests/server/test_scenarios_schema.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.runtime.local import Runtime
from lmlang.server.app import make_app
from lmlang.server.config import ServerConfig
from lmlang.testing import ScriptedBackend
from tests.server.harness import Running, running, until
from tests.server.test_scenarios import NATIVE, is_idle, odd_requests
from tests.tiny import tiny_model

schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
EXAMPLES = int(os.environ.get("LMLANG_EXAMPLES", "10"))


def described() -> dict[str, Any]:
    """The app's description of itself."""
    with ScriptedBackend() as backend:
        found: dict[str, Any] = make_app(backend, ServerConfig()).openapi()
        return found


SCHEMA = schemathesis.openapi.from_dict(described())
OPERATIONS = sorted(
    (method.upper(), path)
    for path, methods in SCHEMA.raw_schema["paths"].items()
    for method in methods
)


@pytest.fixture(scope="module")
def rt() -> Iterator[Runtime]:
    with Runtime.over(*tiny_model(), kv_tokens=4_000) as rt:
        yield rt
        rt.check()


@pytest.fixture(scope="module")
def server(rt: Runtime) -> Iterator[Running]:
    with running(rt) as server:
        yield server
        until(lambda: is_idle(server, rt))


def test_the_description_has_the_routes_of_all_interfaces() -> None:
    posts = {path for method, path in OPERATIONS if method == "POST"}
    assert posts >= {"/v1/completions", "/v1/chat/completions", "/generate", "/lm/generate"}


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_what_fits_the_description_or_does_not_is_answered(
    server: Running, method: str, path: str, data: st.DataObject
) -> None:
    operation = SCHEMA[path][method]
    kinds = [operation.as_strategy(generation_mode=kind) for kind in schemathesis.GenerationMode]
    case = data.draw(st.one_of(kinds))
    answer = case.call(base_url=server.url)
    case.validate_response(answer, checks=[schemathesis.checks.not_a_server_error])


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=8)
    | st.sampled_from(["text", "json_schema", "object", "function", "user", "auto", "[a-z]+"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "schema", "ids", "regex"])
            | st.text(st.characters(codec="utf-8"), max_size=4),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
ASKED = list(odd_requests("default"))
PATHS = sorted({path for path, _, _ in ASKED})


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=4 * EXAMPLES)
@given(data=st.data())
def test_anything_in_the_known_fields_is_taken_or_refused(
    client: httpx.Client, path: str, data: st.DataObject
) -> None:
    known = [(name, body) for where, name, body in ASKED if where == path]
    body = data.draw(st.sampled_from([body for _, body in known]))
    body = body | data.draw(
        st.dictionaries(st.sampled_from([name for name, _ in known]), ANYTHING, max_size=3)
    )
    if path == "/generate" and isinstance(body["sampling_params"], dict):
        names = st.sampled_from(NATIVE)
        odd = data.draw(st.dictionaries(names, ANYTHING, max_size=3))
        body["sampling_params"] = {"max_new_tokens": 2} | odd
    answer = client.post(path, json=body)
    allowed = (200, 400, 404) if "model" in body else (200, 400)
    assert answer.status_code in allowed, (body, answer.text)
