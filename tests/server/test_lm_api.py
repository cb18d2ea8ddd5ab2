"""Our own routes: they answer what the backend itself would, and name the field that is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from lmlang import wire
from lmlang.grammar.spec import JsonSchema, Regex
from lmlang.protocol import EndTurn, Prompt, Request, SamplingParams, ScoreRequest, Tag, Text, Turn
from lmlang.runtime.local import Runtime
from lmlang.testing import ScriptedBackend
from tests.server.harness import running, text, values
from tests.tiny import tiny_model

PROMPT = Prompt.of(Turn("user"), Text("hello world"), EndTurn(), Turn("assistant"))


@pytest.fixture(scope="module")
def rt() -> Iterator[Runtime]:
    with Runtime.over(*tiny_model(), kv_tokens=4_000) as rt:
        yield rt
        rt.check()


@pytest.mark.parametrize(
    "request_",
    [
        Request(PROMPT, SamplingParams(max_tokens=8), draw_key=2**64 - 1, top_logprobs=2),
        Request(PROMPT, SamplingParams(max_tokens=40), constraint=Regex("[a-z]{3} [0-9]{2}")),
        Request(PROMPT, SamplingParams(max_tokens=5, temperature=0), input_logprobs_from=0),
        Request(PROMPT, SamplingParams(max_tokens=6), probs=True, provenance=True),
        Request(PROMPT, SamplingParams(max_tokens=0)),
    ],
    ids=range(5),
)
def test_a_stream_has_the_events_and_the_output_of_the_backend(
    rt: Runtime, client: httpx.Client, request_: Request
) -> None:
    answer = client.post("/lm/generate", json=wire.to_wire(request_))
    told = [wire.item_from_wire(value) for value in values(answer.text)[:-1]]
    rt.flush_cache()
    own = rt.generate(request_)
    output = own.result(60)
    assert [event.ids for event in told[:-1]] == [e.ids for e in own.events_from(0)]  # type: ignore[union-attr]
    served = told[-1]
    assert served.ids == output.ids  # type: ignore[union-attr]
    assert served.text == output.text  # type: ignore[union-attr]
    assert served.logprobs == pytest.approx(output.logprobs, abs=1e-4)  # type: ignore[union-attr]
    assert served.finish == output.finish  # type: ignore[union-attr]
    assert served.history == output.history  # type: ignore[union-attr]


def test_scores_text_ids_and_prefill_are_those_of_the_backend(
    rt: Runtime, client: httpx.Client
) -> None:
    asked = ScoreRequest(PROMPT, ("yes", "no", "perhaps"), unconditional=True)
    scores = wire.scores_from_wire(client.post("/lm/score", json=wire.to_wire(asked)).json())
    own = rt.score(asked).result(60)
    assert [choice.ids for choice in scores.choices] == [choice.ids for choice in own.choices]
    for one, other in zip(scores.choices, own.choices, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)

    prompt = wire.to_wire(PROMPT)
    rendered = client.post("/lm/render", json=prompt).json()
    assert wire.text_from_wire(rendered) == rt.render(PROMPT)
    ids = client.post("/lm/encode", json=prompt).json()
    assert wire.ids_from_wire(ids) == rt.encode(PROMPT)
    assert client.post("/lm/decode", json=ids).json()["text"] == rt.decode(rt.encode(PROMPT))
    rt.flush_cache()
    prefilled = client.post("/lm/prefill", json=prompt).json()
    assert wire.count_from_wire(prefilled) == len(rt.encode(PROMPT))
    assert rt.generate(Request(PROMPT)).result(60).usage.cached_tokens == len(rt.encode(PROMPT)) - 1
    assert wire.info_from_wire(client.get("/lm/info").json()) == rt.info()


def test_a_constraint_is_explained_or_refused_with_its_reason(client: httpx.Client) -> None:
    found = client.post("/lm/inspect", json=wire.to_wire(JsonSchema('{"enum": [1, 22]}'))).json()
    assert found["min_tokens"] == 1
    assert "number of 1, 22" in found["explain"]
    schema = JsonSchema('{"type": "object", "properties": {"a": {"$dynamicRef": "#x"}}}')
    refused = client.post("/lm/inspect", json=wire.to_wire(schema))
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "SchemaUnsupported"
    assert refused.json()["error"]["pointer"] == "/properties/a"
    pattern = client.post("/lm/inspect", json=wire.to_wire(Regex(r"(a)\1")))
    assert pattern.json()["error"]["type"] == "GrammarSyntaxError"
    with ScriptedBackend() as backend, running(backend) as other, other.client() as client:
        unknown = client.post("/lm/inspect", json=wire.to_wire(Regex("a")))
        assert unknown.status_code == 400
        assert "no vocabulary" in unknown.json()["error"]["message"]


def test_a_run_ends_for_its_own_tenant(rt: Runtime) -> None:
    with (
        running(rt, keys=("key-a", "key-b")) as server,
        server.client("key-a") as one,
        server.client("key-b") as other,
    ):
        body = wire.to_wire(Request(PROMPT, SamplingParams(max_tokens=1), tag=Tag("run", "0/0")))
        assert one.post("/lm/generate", json=body).is_success
        runs = rt._engine.call(lambda loop: set(loop.scheduler.runs._runs))
        assert len(runs) == 1
        assert other.post("/lm/end_run", json=wire.run_to_wire("run")).is_success
        assert rt._engine.call(lambda loop: set(loop.scheduler.runs._runs)) == runs
        assert one.post("/lm/end_run", json=wire.run_to_wire("run")).is_success
        assert not rt._engine.call(lambda loop: set(loop.scheduler.runs._runs))


def test_the_servers_own_limits_are_named_with_both_numbers(client: httpx.Client) -> None:
    for fields, told in (
        ({"top_logprobs": 21}, "top_logprobs=21 is out of range: it must be from 0 to 20"),
        ({"params": {"stop": [f"{n}x" for n in range(17)]}}, "stop has 17 strings: .* allows 16"),
        ({"params": {"stop": ["é" * 129]}}, "stop has a string of 129 characters: .* 256 bytes"),
        ({"constraint": {"regex": "a" * 65_537}}, "has 65,537 characters: .* allows 65,536"),
        ({"params": {"max_tokens": 600}}, "the model's context holds 512"),
    ):
        answer = client.post("/lm/generate", json=text("hello", **fields))
        assert answer.status_code == 400
        assert re.search(told, answer.json()["error"]["message"])
    many = client.post("/lm/score", json=text("a", choices=[str(n) for n in range(1_025)]))
    assert "choices has 1,025 texts: this server allows 1,024" in many.text


FIELDS = {
    "params": dict.fromkeys(SamplingParams.__dataclass_fields__),
    **dict.fromkeys(("top_logprobs", "input_logprobs_from", "draw_key", "probs", "provenance")),
    **dict.fromkeys(("namespace", "constraint", "on_budget", "processor", "resumed", "tag", "v")),
}
ODD = ("-1", "0", "2147483648", "1000000000", "1e400", "NaN", '"5"', "true", "null", "[]", "{}")


def _cases() -> list[tuple[str, str, str]]:
    base = '{{"v": 1, "prompt": [{{"text": "hello"}}], {}}}'
    cases = []
    for odd in ODD:
        for name in FIELDS:
            few = "" if name == "params" else '"params": {"max_tokens": 2}, '
            cases.append((name, odd, base.format(f'{few}"{name}": {odd}')))
        for name in FIELDS["params"] or ():
            cases.append(
                (name, odd, base.format(f'"params": {{"max_tokens": 2, "{name}": {odd}}}'))
            )
        cases.append(("prompt", odd, f'{{"v": 1, "prompt": {odd}}}'))
        cases.append(("text", odd, f'{{"v": 1, "prompt": [{{"text": {odd}}}]}}'))
        cases.append(("ids", odd, f'{{"v": 1, "prompt": [{{"ids": [{odd}], "text": "a"}}]}}'))
    return cases


def test_odd_values_in_every_field_are_taken_or_refused_by_name(
    rt: Runtime, client: httpx.Client
) -> None:
    cases = _cases()
    assert len(cases) > 300
    for name, odd, body in cases:
        answer = client.post(
            "/lm/generate", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (200, 400), (name, odd, answer.text)
        if answer.status_code == 400:
            assert len(answer.content) < 1_024
            message = answer.json()["error"]["message"]
            known = name in message or "prompt" in message or "version" in message
            assert known, (name, odd, message)
    stats = rt.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert client.post("/lm/generate", json=text("hello")).status_code == 200


def test_lone_surrogates_and_odd_texts_are_no_faults(client: httpx.Client) -> None:
    for words in ("\ud800", "a\udfffb", "\x00", "\ufffe", "<|im_end|>", "\u202e", "a" * 400):
        for path in ("/lm/generate", "/lm/encode", "/lm/render"):
            body = json.dumps(text(words)).encode()
            answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (200, 400), (words, path, answer.text)
            assert (
                answer.status_code == 200 or "surrogate" in answer.text or "context" in answer.text
            )


def test_unknown_fields_and_functions_are_refused(client: httpx.Client) -> None:
    for fields in ({"temperature": 1}, {"params": {"chat_template": "x"}}, {"processor": "abs"}):
        answer = client.post("/lm/generate", json=text("hello", **fields))
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "WireError"
    picture = {"v": 1, "prompt": [{"image": "http://169.254.169.254/"}]}
    refused = client.post("/lm/generate", json=picture)
    assert refused.status_code == 400
