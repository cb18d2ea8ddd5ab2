"""What answers in the place of a server, and is none, or an odd one: each is told as what it is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import lmlang as lm
from lmlang.backends.addresses import is_local
from lmlang.backends.client import Client
from lmlang.errors import BackendError, LMLangError, ProgramError, WireError
from lmlang.protocol import (
    EndTurn,
    Output,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Tag,
    Text,
    Turn,
)
from tests.backends.served import SECONDS, Asked, Scripted, Site, plain, site

PAGE = "<html><body>Welcome to the proxy of this company</body></html>"
NEWER = {"v": 2, "error": {"type": "Strange", "message": "?"}}
ADMINS = {"error": {"message": "for administrators", "type": "x", "param": None, "code": None}}


@pytest.fixture(scope="module")
def apps() -> Iterator[Site]:
    with site() as made:
        yield made


def html(status: int = 200) -> Any:
    return plain(status, PAGE, content_type="text/html")


class Sent:
    """An answer of these bytes."""

    def __init__(self, data: bytes, **headers: str) -> None:
        given = {"content-type": "text/event-stream"} | headers
        self._data = data
        self._headers = [(k.replace("_", "-").encode(), v.encode()) for k, v in given.items()]

    async def __call__(self, asked: Asked, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._data})


# ------------------------------------------------------------------ of lm.connect


def refused_by(apps: Site, answer: Any, ask: Any) -> LMLangError:
    with (
        lm.connect(apps.add(Scripted(answer)), max_retries=0) as remote,
        pytest.raises(LMLangError) as caught,
    ):
        ask(remote)
    return caught.value


def generate(remote: Any) -> Output:
    return remote.generate(Request(Prompt.of(Text("Hi")))).result(timeout=SECONDS)


@pytest.mark.parametrize("ask", [generate, lambda remote: remote.info()])
def test_a_page_of_a_proxy_is_told_as_such(apps, ask):
    found = refused_by(apps, html(), ask)
    assert isinstance(found, WireError)
    assert "answered with 'text/html'" in str(found)
    assert "check the address" in str(found)


def test_a_proxy_that_packs_streams_is_named(apps):
    packed = Sent(gzip.compress(b"data: [DONE]\n\n"), content_encoding="gzip")
    assert "'text/event-stream in gzip'" in str(refused_by(apps, packed, generate))


def test_a_redirect_says_where_it_leads(apps):
    found = refused_by(apps, plain(302, PAGE, location="https://login.example/"), generate)
    assert isinstance(found, BackendError)
    assert "leads to 'https://login.example/'" in str(found)


def test_a_refusal_of_a_newer_version_says_so(apps):
    found = refused_by(apps, plain(400, NEWER), generate)
    assert isinstance(found, WireError)
    assert "version 2" in str(found)


def test_an_administrator_s_route_says_itself_why_it_is_shut(apps):
    found = refused_by(apps, plain(403, ADMINS), lambda remote: remote.flush_cache())
    assert isinstance(found, BackendError)
    assert (str(found), found.status) == ("for administrators", 403)


def test_who_asks_for_https_where_there_is_none_is_told_so_at_once(apps):
    url = apps.add(Scripted(html())).replace("http:", "https:")
    with (
        lm.connect(url, max_retries=100) as remote,
        pytest.raises(BackendError, match="begin the address with http://"),
    ):
        remote.info()


def test_a_certificate_that_nobody_knows_is_told_as_such():
    reason = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"
    client = Client(
        "https://example.org", api_key=None, timeout=1, max_retries=0, max_concurrency=1,
        requests_per_minute=None,
    )  # fmt: skip
    found = client._unreachable(httpx.ConnectError(reason))
    assert "SSL_CERT_FILE" in str(found)
    assert not found.retryable


# ------------------------------------------------------------------ of lm.OpenAI


def part(text: str | None = None, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "1", "object": "x", "created": 1, "model": "m", "choices": [choice]}


def events(*parts: Any, end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + end for each in parts)


GOOD = (part("Par"), part("is"), part(None, "stop"))
DONE = b"data: [DONE]\n\n"


def asked(apps: Site, answer: Any) -> Output:
    prompt = Prompt.of(Turn("user"), Text("Hi"), EndTurn(), Turn("assistant"))
    url = f"{apps.add(Scripted(answer))}/v1"
    with lm.OpenAI("m", base_url=url, max_retries=0) as backend:
        request = Request(prompt, SamplingParams(max_tokens=8))
        return backend.generate(request).result(timeout=SECONDS)


@pytest.mark.parametrize(
    "sent",
    [
        events(*GOOD, end=b"\r\n\r\n") + DONE,
        b": hello\n\n" + events(GOOD[0]) + b": still here\n\nid: 3\n" + events(*GOOD[1:]) + DONE,
        events(*GOOD),
        events(*GOOD).replace(b', "model"', b',\ndata:  "model"') + DONE,
        events({"id": "1"}, {"choices": None}, {"choices": [{"delta": None}]}, *GOOD) + DONE,
        events(GOOD[0], part("another", index=1), *GOOD[1:]) + DONE,
        events(*GOOD, {"choices": [], "usage": {"prompt_tokens": None}}) + DONE,
        events(*GOOD, {"choices": [], "usage": {"prompt_tokens": 3.0}}) + DONE,
    ],
    ids=["crlf", "comments", "no end", "lines", "holes", "others", "null usage", "float usage"],
)
def test_streams_of_odd_servers_are_read(apps, sent):
    pytest.importorskip("openai")
    output = asked(apps, Sent(sent))
    assert (output.text, output.finish.reason) == ("Paris", "eos")


@pytest.mark.parametrize(
    "usage",
    ["x", [1], {"prompt_tokens": "x"}, {"completion_tokens": -1}, {"prompt_tokens_details": [1]}],
)
def test_a_usage_that_is_none_is_a_typed_error(apps, usage):
    pytest.importorskip("openai")
    with pytest.raises(BackendError, match="not OpenAI's interface"):
        asked(apps, Sent(events(*GOOD, {"choices": [], "usage": usage})))


@pytest.mark.parametrize(
    "logprobs",
    [
        {"tokens": [0], "token_logprobs": [-1.0]},
        {"tokens": ["a"], "token_logprobs": ["x"]},
        {"tokens": ["a"], "token_logprobs": [-1.0, -1.0]},
        {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [[["a", -1.0]]]},
        [{"token": "a"}],
    ],
)
def test_tokens_that_are_none_are_a_typed_error(apps, logprobs):
    pytest.importorskip("openai")
    choice = {"index": 0, "text": "a", "logprobs": logprobs, "finish_reason": "stop"}
    sent = {"id": "1", "object": "x", "created": 1, "model": "m", "choices": [choice]}
    select = ScoreRequest(Prompt.of(Text("Hi")), (" a", " b"))
    app = Scripted(Sent(events(sent)), plain(200, {**sent, "choices": [choice, choice]}))
    url = f"{apps.add(app)}/v1"
    with lm.OpenAI("m", False, base_url=url, max_retries=0, num_api_spec_tokens=8) as backend:
        request = Request(Prompt.of(Text("Hi")), tag=Tag(run_id="r"))
        with pytest.raises(BackendError, match="not OpenAI's interface"):
            backend.generate(request).result(timeout=SECONDS)
        with pytest.raises(BackendError, match="log-probabilities"):
            backend.score(select).result(timeout=SECONDS)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (html(), "answered with 'text/html' and no stream"),
        (plain(200, {"choices": []}), "answered with 'application/json' and no stream"),
        (html(403), "the proxy of this company"),
        (plain(400, {"error": "no such thing"}), "no such thing"),
        (plain(404, {"detail": "Not Found"}), "Not Found"),
        (plain(422, {"detail": [{"msg": "a"}, {"msg": "b"}]}), "'a; b'"),
        (plain(401, {"error": {"message": "none of the keys"}}), "none of the keys"),
        (plain(400, {"error": {"code": 5}}), "does not say why"),
    ],
)
def test_what_an_odd_server_says_is_told(apps, answer, message):
    pytest.importorskip("openai")
    with pytest.raises(BackendError) as caught:
        asked(apps, answer)
    assert message in str(caught.value)
    assert not caught.value.retryable


# ------------------------------------------------------------------ of both


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_proxy_of_the_environment_stands_before_this_machine(apps, host, monkeypatch):
    pytest.importorskip("openai")
    nobody = "http://127.0.0.1:9"
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, nobody)
    info = plain(200, {"v": 1, "model": "m"})
    url = apps.add(Scripted(info)).replace("127.0.0.1", host)
    with lm.connect(url, max_retries=0) as remote:
        assert remote.info().model == "m"
    assert asked(apps, Sent(events(*GOOD))).text == "Paris"


def test_addresses_of_the_other_interface_are_known(apps):
    pytest.importorskip("openai")
    url = apps.add(Scripted(plain(404, {"detail": "Not Found"})))
    with (
        lm.connect(f"{url}/v1/", max_retries=0) as remote,
        pytest.raises(BackendError, match="leave out the /v1"),
    ):
        remote.info()
    with (
        lm.OpenAI("m", False, base_url=url, max_retries=0) as backend,
        pytest.raises(BackendError, match="mostly ends with /v1"),
    ):
        generate(backend)


def test_other_addresses_are_not_of_this_machine():
    urls = ("http://10.0.0.1", "https://example.org/v1", "http://localhost.example", "http://[::2]")
    assert not any(map(is_local, urls))
    urls = ("http://127.1.2.3:5", "http://[::1]:80/v1", "http://a.localhost", "https://LOCALHOST")
    assert all(map(is_local, urls))


@pytest.mark.parametrize(
    "url", ["example.org/v1", "http://[", "http://x:99999", "", "http://a:b@c"]
)
def test_an_address_that_is_none_is_refused_at_once(url):
    pytest.importorskip("openai")
    for make in (lm.connect, lambda url: lm.OpenAI("m", base_url=url)):
        with pytest.raises(ProgramError, match="address"):
            make(url)
