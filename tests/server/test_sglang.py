"""SGLang's native routes over a tiny model: what they take, what they tell, what they refuse."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lmlang.errors import ModelError
from lmlang.protocol import Event, Generation, Prompt, Request, SamplingParams, Text
from lmlang.runtime.local import Runtime
from lmlang.server.app import make_app
from lmlang.server.config import ServerConfig
from lmlang.server.sglang_answer import FINISHES
from lmlang.server.sglang_request import BODY, CONSTRAINTS, MENDS, OTHERS, SAMPLING, asked_for
from lmlang.testing import ScriptedBackend
from tests import pages
from tests.backends.served import served
from tests.tiny import tiny_model, tiny_tokenizer

GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
SECONDS = 120


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime.over(*tiny_model(max_positions=100_000), kv_tokens=100_000) as made:
        yield made


@pytest.fixture(scope="module")
def client(runtime: Runtime) -> Iterator[httpx.Client]:
    with served(make_app(runtime)) as url, httpx.Client(base_url=url, timeout=SECONDS) as made:
        yield made


def generated(client: httpx.Client, sampling: dict[str, Any] | None = None, **body: Any) -> Any:
    body.setdefault("text", "hello world")
    answer = client.post(
        "/generate", json={**body, "sampling_params": {**GREEDY, **(sampling or {})}}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def lines(client: httpx.Client, body: dict[str, Any]) -> list[str]:
    """The data of a stream's events."""
    answer = client.post("/generate", json={"text": "hello world", "stream": True, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = answer.text.split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [frame.removeprefix("data: ") for frame in frames]


def chunks(client: httpx.Client, sampling: dict[str, Any] | None = None, **body: Any) -> list[Any]:
    found = lines(client, {**body, "sampling_params": {**GREEDY, **(sampling or {})}})
    assert found.pop() == "[DONE]"
    return [json.loads(line) for line in found]


def own(runtime: Runtime, text: str, **params: Any) -> Any:
    """What the runtime itself gives."""
    params = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, **params}
    return runtime.generate(Request(Prompt.of(Text(text)), SamplingParams(**params))).result(
        SECONDS
    )


# ---------------------------------------------------------------- what an answer is


def test_an_answer_is_the_runtime_s_own(client, runtime):
    found, expected = generated(client), own(runtime, "hello world")
    assert (found["text"], tuple(found["output_ids"])) == (expected.text, expected.ids)
    meta = found["meta_info"]
    assert meta["prompt_tokens"] == expected.usage.prompt_tokens
    assert meta["completion_tokens"] == 8
    assert 0 <= meta["cached_tokens"] <= meta["prompt_tokens"]
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["e2e_latency"] > 0
    assert "output_token_logprobs" not in meta


def test_put_does_as_post(client):
    answer = client.put("/generate", json={"text": "hello", "sampling_params": GREEDY})
    assert answer.json()["text"] == generated(client, text="hello")["text"]


def test_nulls_and_defaults_say_nothing(client):
    nulls = dict.fromkeys(
        [
            *("min_new_tokens", "stop", "stop_token_ids", "stop_regex", "regex", "json_schema"),
            *("ebnf", "min_p", "n", "logit_bias", "structural_tag", "custom_params", "top_k"),
        ]
    )
    others = dict.fromkeys(["rid", "logprob_start_len", "image_data", "lora_path", "input_ids"])
    found = generated(client, nulls, **others, return_logprob=None, top_logprobs_num=[None])
    assert found["text"] == generated(client)["text"]
    plain = generated(client, modalities=[], return_hidden_states=False, log_metrics=True)
    assert plain["text"] == found["text"]


def test_without_sampling_params_there_are_128_tokens_at_most(client):
    for sampling in (None, {}, {"max_new_tokens": None}):
        answer = client.post("/generate", json={"text": "hello", "sampling_params": sampling})
        assert 1 <= answer.json()["meta_info"]["completion_tokens"] <= 128


def test_spelled_control_tokens_in_text_are_control_tokens(client, runtime):
    text = "<|im_start|>user\nhello<|im_end|>\n"
    ids = runtime.template_ids(text)
    assert 1 in ids
    assert 2 in ids
    found = generated(client, text=text)
    assert found["meta_info"]["prompt_tokens"] == len(ids)
    assert found["text"] == generated(client, text=None, input_ids=ids)["text"]
    assert len(runtime.encode(Prompt.of(Text(text)))) > len(ids)


def test_lists_are_answered_in_order(client):
    texts = ["hello", "the world", "and"]
    singles = [generated(client, text=text)["text"] for text in texts]
    found = generated(client, text=texts)
    assert [one["text"] for one in found] == singles
    assert [one["meta_info"]["id"].rsplit("_", 1)[1] for one in found] == ["0", "1", "2"]
    assert generated(client, text=["hello"])[0]["text"] == singles[0]


def test_lists_of_ids_are_answered_in_order(client, runtime):
    lists = [runtime.template_ids(text) for text in ("hello", "the world")]
    found = generated(client, text=None, input_ids=lists)
    assert [one["text"] for one in found] == [
        generated(client, text=text)["text"] for text in ("hello", "the world")
    ]


def test_each_prompt_may_have_parameters_of_its_own(client):
    body = {
        "text": ["hello", "hello"],
        "sampling_params": [{**GREEDY, "max_new_tokens": 3}, {**GREEDY, "max_new_tokens": 5}],
        "return_logprob": [False, True],
    }
    first, second = client.post("/generate", json=body).json()
    assert [len(one["output_ids"]) for one in (first, second)] == [3, 5]
    assert "output_token_logprobs" not in first["meta_info"]
    assert len(second["meta_info"]["output_token_logprobs"]) == 5


def test_samples_of_a_prompt_stand_next_to_each_other(client):
    hot = {"n": 3, "temperature": 1.0, "sampling_seed": 5}
    found = generated(client, hot, text=["hello", "the"])
    assert len(found) == 6
    texts = [one["text"] for one in found]
    assert len(set(texts[:3])) == 3
    assert [one["meta_info"]["prompt_tokens"] for one in found] == [1, 1, 1, 2, 2, 2]
    assert [one["text"] for one in generated(client, hot, text="hello")] == texts[:3]
    assert [one["text"] for one in generated(client, hot, text="the")] == texts[3:]


def test_without_a_seed_answers_differ(client):
    hot = {"temperature": 1.0}
    assert len({generated(client, hot)["text"] for _ in range(5)}) > 1
    seeded = {"temperature": 1.0, "sampling_seed": 7}
    assert len({generated(client, seeded)["text"] for _ in range(3)}) == 1


# ---------------------------------------------------------------- ends


def test_ends_are_told_in_sglang_s_words(client, runtime):
    text = own(runtime, "hello world", max_tokens=30).text
    stop = text[6:8]
    found = generated(client, {"max_new_tokens": 30, "stop": stop})
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert found["text"] == text[: text.index(stop)]
    kept = generated(client, {"max_new_tokens": 30, "stop": [stop], "no_stop_trim": True})
    assert kept["text"] == text[: text.index(stop)] + stop
    token = own(runtime, "hello world").ids[4]
    by_id = generated(client, {"stop_token_ids": [token]})
    assert by_id["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
    by_regex = generated(client, {"max_new_tokens": 30, "stop_regex": re.escape(stop)})
    assert by_regex["meta_info"]["finish_reason"]["type"] == "stop"


def test_the_model_s_own_end_is_the_token_that_matched(client, runtime):
    (eos,) = (token for token in runtime.tokenizer.stop_ids if token == 2)
    found = generated(client, {"ignore_eos": False, "logit_bias": {str(eos): 100}})
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": eos}
    assert found["text"] == ""
    longer = generated(
        client, {"ignore_eos": False, "logit_bias": {str(eos): 100}, "min_new_tokens": 4}
    )
    assert longer["meta_info"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ({"regex": "(yes|no), [a-c]{3}"}, lambda text: re.fullmatch("(yes|no), [a-c]{3}", text)),
        ({"json_schema": json.dumps({"type": "boolean"})}, lambda text: text in ("true", "false")),
        ({"json_schema": {"enum": [["a", 1]]}}, lambda text: json.loads(text) == ["a", 1]),
        ({"json_schema": "$$ANY$$"}, lambda text: [json.loads(text)]),
        ({"ebnf": 'root ::= "a" ("b" | "c")'}, lambda text: text in ("ab", "ac")),
    ],
)
def test_constraints_hold(client, constraint, fits):
    sampling = {**constraint, "max_new_tokens": 40, "ignore_eos": False, "temperature": 1.0}
    for _ in range(5):
        found = generated(client, sampling)
        assert fits(found["text"])
        assert found["meta_info"]["finish_reason"]["type"] in ("stop", "length")


def test_a_complete_output_is_a_stop_and_a_closed_one_a_length(client):
    constrained = {"ignore_eos": False, "regex": "[a-z]{3}!"}
    found = generated(client, {**constrained, "max_new_tokens": 20})
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}
    open_ended = {"ignore_eos": False, "regex": '"[a-z]{5,400}"', "max_new_tokens": 9}
    closed = generated(client, open_ended)
    assert closed["text"].endswith('"')
    assert closed["meta_info"]["finish_reason"]["type"] == "length"


def test_no_tokens_prefill_the_prompt(client):
    found = generated(client, {"max_new_tokens": 0}, text="hello the world and hello")
    assert found["text"] == ""
    assert found["output_ids"] == []
    meta = found["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert meta["completion_tokens"] == 0
    again = generated(client, {"max_new_tokens": 0}, text="hello the world and hello")
    assert again["meta_info"]["cached_tokens"] == meta["prompt_tokens"] - 1


# ---------------------------------------------------------------- log-probabilities

TEXT = "hello the world and hello"


def logprobs(client: httpx.Client, start: int | None, **sampling: Any) -> dict[str, Any]:
    found = generated(
        client,
        sampling,
        text=TEXT,
        return_logprob=True,
        return_text_in_logprobs=True,
        logprob_start_len=start,
    )
    meta: dict[str, Any] = found["meta_info"]
    return meta


def test_log_probabilities_of_the_prompt_begin_behind_the_start(client, runtime):
    ids = runtime.template_ids(TEXT)
    names = [runtime.token_name(token) for token in ids]
    whole = logprobs(client, 0)["input_token_logprobs"]
    assert [[token, name] for _, token, name in whole] == [
        list(p) for p in zip(ids, names, strict=True)
    ]
    assert whole[0][0] is None
    assert all(logprob < 0 for logprob, _, _ in whole[1:])
    for start in range(1, len(ids)):
        part = logprobs(client, start)["input_token_logprobs"]
        assert [token for _, token, _ in part] == ids[start + 1 :]
        assert [p for p, _, _ in part] == pytest.approx([p for p, _, _ in whole[start + 1 :]])


def test_without_a_start_only_the_output_s_are_told(client, runtime):
    for start in (-1, None):
        meta = logprobs(client, start)
        assert meta["input_token_logprobs"] == []
        assert "normalized_prompt_logprob" not in meta
    expected = own(runtime, TEXT)
    told = meta["output_token_logprobs"]
    assert [token for _, token, _ in told] == list(expected.ids)
    assert [p for p, _, _ in told] == pytest.approx(list(expected.logprobs), abs=1e-4)
    assert [name for *_, name in told] == [runtime.token_name(token) for token in expected.ids]
    assert meta["output_token_logprobs_length"] == 8


def test_no_tokens_with_log_probabilities_tell_all_of_the_prompt_and_one_more(client):
    meta = logprobs(client, None, max_new_tokens=0)
    assert meta["input_token_logprobs"] == logprobs(client, 0)["input_token_logprobs"]
    assert len(meta["output_token_logprobs"]) == 1
    assert meta["completion_tokens"] == 0
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    known = [p for p, _, _ in meta["input_token_logprobs"] if p is not None]
    assert meta["normalized_prompt_logprob"] == pytest.approx(sum(known) / len(known))


def test_the_likeliest_tokens_are_told_where_asked_for(client):
    found = generated(
        client, text=TEXT, return_logprob=True, logprob_start_len=0, top_logprobs_num=3
    )
    meta = found["meta_info"]
    assert meta["input_top_logprobs"][0] is None
    assert all(len(top) == 3 for top in meta["input_top_logprobs"][1:])
    assert len(meta["input_top_logprobs"]) == meta["prompt_tokens"]
    for (logprob, token, name), top in zip(
        meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True
    ):
        assert top[0][:2] == [pytest.approx(logprob), token]  # greedy
        assert name is None
        assert [p for p, *_ in top] == sorted((p for p, *_ in top), reverse=True)


# ---------------------------------------------------------------- streams


def test_a_stream_has_cumulative_text_and_new_log_probabilities(client):
    whole = generated(client, return_logprob=True, logprob_start_len=0, rid="mine")
    found = chunks(client, return_logprob=True, logprob_start_len=0, rid="mine")
    assert len(found) > 2
    before = ""
    told = []
    for chunk in found:
        assert chunk["text"].startswith(before)
        before = chunk["text"]
        meta = chunk["meta_info"]
        assert meta["id"] == "mine"
        told += meta["output_token_logprobs"]
        assert meta["output_token_logprobs_length"] == len(told)
        assert meta["completion_tokens"] == len(chunk["output_ids"]) == len(told)
        assert "index" not in chunk
    *others, last = found
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in others)
    assert last["text"] == whole["text"]
    assert last["output_ids"] == whole["output_ids"]
    assert [token for _, token, _ in told] == whole["output_ids"]
    for name in ("input_token_logprobs", "finish_reason", "prompt_tokens"):
        assert last["meta_info"][name] == whole["meta_info"][name]


def test_streams_of_several_prompts_are_numbered(client):
    texts = ["hello", "the world"]
    found = chunks(client, text=texts)
    last = {chunk["index"]: chunk for chunk in found}
    assert [last[index]["text"] for index in (0, 1)] == [
        generated(client, text=text)["text"] for text in texts
    ]


def test_a_stream_that_is_refused_has_a_status(client):
    answer = client.post(
        "/generate",
        json={"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 200_000}},
    )
    assert answer.status_code == 400
    assert "200,000" in answer.json()["error"]["message"]


def test_an_aborted_stream_says_so_and_ends(client):
    body = {
        "text": "hello",
        "rid": "long one",
        "stream": True,
        "sampling_params": {**GREEDY, "max_new_tokens": 90_000},
    }
    with client.stream("POST", "/generate", json=body) as answer:
        found = answer.iter_lines()
        first = json.loads(next(found).removeprefix("data: "))
        assert client.post("/abort_request", json={"rid": "long one"}).json() == {"aborted": 1}
        rest = [line.removeprefix("data: ") for line in found if line]
    assert rest.pop() == "[DONE]"
    last = json.loads(rest[-1])
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert "abort" in last["meta_info"]["finish_reason"]["message"]
    assert last["text"].startswith(first["text"])


def test_an_aborted_answer_says_so():
    backend = ScriptedBackend(completes="when released")
    with served(make_app(backend)) as url, httpx.Client(base_url=url, timeout=SECONDS) as client:
        answers: list[Any] = []

        def ask() -> None:
            body = {"text": ["hello", "the"], "rid": "mine"}
            answers.append(httpx.post(f"{url}/generate", json=body, timeout=SECONDS).json())

        thread = threading.Thread(target=ask)
        thread.start()
        aborts = (client.post("/abort_request", json={"rid": "mine"}) for _ in range(10_000))
        assert any(abort.json()["aborted"] for abort in aborts)
        thread.join(SECONDS)
        assert [one["meta_info"]["finish_reason"]["type"] for one in answers[0]] == ["abort"] * 2
        assert client.post("/abort_request", json={"rid": "mine"}).json() == {"aborted": 0}


class Endless(ScriptedBackend):
    """A backend that never comes to an end behind its first token."""

    def generate(self, request: Request) -> Generation:
        generation = Generation(request)
        generation.push(Event(0, (104,), "h", (-1.0,)))
        return generation


def test_a_stream_that_takes_too_long_is_aborted():
    config = ServerConfig(request_timeout=0.1)
    with (
        served(make_app(Endless(), config)) as url,
        httpx.Client(base_url=url, timeout=SECONDS) as client,
    ):
        first, last = chunks(client)
        assert (first["text"], first["meta_info"]["finish_reason"]) == ("h", None)
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
        assert "0.1 s" in last["meta_info"]["finish_reason"]["message"]
        answer = client.post("/generate", json={"text": "hello"})
        assert answer.status_code == 504


def test_a_server_that_ends_aborts_its_streams():
    app = make_app(Endless())
    desk = app.state.server.desk

    async def end_it() -> str:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as asker:
            asked = asker.post("/generate", json={"text": ["hello", "the"], "stream": True})
            answer = asyncio.ensure_future(asked)
            while not desk.under_way:
                await asyncio.sleep(0)
            desk.end_all()
            return (await answer).text

    frames = asyncio.run(asyncio.wait_for(end_it(), SECONDS)).split("\n\n")
    *told, done = [frame.removeprefix("data: ") for frame in frames if frame]
    assert done == "[DONE]"
    last = {chunk["index"]: chunk for chunk in map(json.loads, told)}
    assert last[0]["text"] == "h"
    for chunk in last.values():
        assert chunk["meta_info"]["finish_reason"]["type"] == "abort"
        assert "shut down" in chunk["meta_info"]["finish_reason"]["message"]
    assert sorted(last) == [0, 1]


class Failing(ScriptedBackend):
    """A backend that breaks down behind its first token."""

    def generate(self, request: Request) -> Generation:
        generation = Generation(request)
        generation.push(Event(0, (104,), "h", (-1.0,)))
        generation.fail(ModelError("the model has ended."))
        return generation


def test_a_failure_in_the_middle_of_a_stream_is_its_last_value():
    with served(make_app(Failing())) as url, httpx.Client(base_url=url, timeout=SECONDS) as client:
        first, second, done = lines(client, {})
        assert json.loads(first)["text"] == "h"
        assert json.loads(second)["error"]["message"] == "the model has ended."
        assert done == "[DONE]"
        assert client.post("/generate", json={"text": "hello"}).status_code == 500


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("named", "body"),
    [
        ("text", {}),
        ("text", {"text": 5}),
        ("text", {"text": []}),
        ("text", {"text": ""}),
        ("input_ids", {"input_ids": []}),
        ("text", {"text": ["a", 5]}),
        ("input_ids", {"text": "a", "input_ids": [1]}),
        ("input_ids", {"input_ids": ["a"]}),
        ("input_ids", {"input_ids": [True]}),
        ("input_ids", {"input_ids": "a"}),
        ("token id", {"input_ids": [100_000]}),
        ("input_embeds", {"text": "a", "input_embeds": [[0.5]]}),
        ("image_data", {"text": "a", "image_data": "data:image/png;base64,"}),
        ("lora_path", {"text": "a", "lora_path": 3}),
        ("lora_path", {"text": "a", "lora_path": ["one", "two"]}),
        ("lora='one': this runtime has no adapters", {"text": "a", "lora_path": ["one"]}),
        ("session_params", {"text": "a", "session_params": {"id": "1"}}),
        ("custom_logit_processor", {"text": "a", "custom_logit_processor": "80049"}),
        ("token_ids_logprob", {"text": "a", "token_ids_logprob": [1]}),
        ("return_hidden_states", {"text": "a", "return_hidden_states": True}),
        ("sampling_params", {"text": "a", "sampling_params": "hot"}),
        ("sampling_params", {"text": "a", "sampling_params": [{}, {}]}),
        ("return_logprob", {"text": "a", "return_logprob": 1}),
        ("logprob_start_len", {"text": "a", "return_logprob": True, "logprob_start_len": -2}),
        ("logprob_start_len", {"text": "a", "return_logprob": True, "logprob_start_len": 9}),
        ("top_logprobs_num", {"text": "a", "return_logprob": True, "top_logprobs_num": 21}),
        ("top_logprobs_num", {"text": "a", "return_logprob": True, "top_logprobs_num": "3"}),
        ("return_text_in_logprobs", {"text": "a", "return_text_in_logprobs": "yes"}),
        ("stream", {"text": "a", "stream": 1}),
        ("rid", {"text": "a", "rid": ["a"]}),
        ("rid", {"text": "a", "rid": ""}),
        ("extra_key", {"text": "a", "extra_key": 5}),
        ("priority", {"text": "a", "priority": 1.5}),
        ("prompts", {"text": ["a"] * 65}),
    ],
)
def test_bad_bodies_are_refused_by_the_name_of_the_field(client, named, body):
    answer = client.post("/generate", json=body)
    assert answer.status_code == 400, answer.text
    assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_new_tokens", bad) for bad in (-1, 1.5, "5", True, [], 10**9, 10**400)],
        *[("min_new_tokens", bad) for bad in (-1, 129, "5")],
        *[("temperature", bad) for bad in (-1, "hot", True, [], 10**400)],
        *[("top_p", bad) for bad in (0, 1.1, "1", [])],
        *[("top_k", bad) for bad in (-2, 1.5, "1", 2**31)],
        *[("min_p", bad) for bad in (-0.1, 1.1)],
        *[("stop", bad) for bad in ("", [""], 5, [5], list("abcdefghijklmnopq"), "x" * 257)],
        *[("stop_regex", bad) for bad in (5, [""])],
        *[("stop_token_ids", bad) for bad in ([-1], ["a"], [2**40])],
        *[("frequency_penalty", bad) for bad in (-3, 3)],
        *[("presence_penalty", bad) for bad in (-3, 3)],
        *[("repetition_penalty", bad) for bad in (0, 11)],
        *[("logit_bias", bad) for bad in ([1], {"a": 1}, {"1": 101}, {"-1": 1}, {"100000": 1})],
        *[("ignore_eos", bad) for bad in (1, "yes")],
        *[("n", bad) for bad in (0, 17, "2", True)],
        *[("skip_special_tokens", bad) for bad in (False, "no")],
        *[("spaces_between_special_tokens", bad) for bad in (0, "no")],
        *[("no_stop_trim", bad) for bad in (0, "no")],
        *[("regex", bad) for bad in ("", 5, [])],
        *[("json_schema", bad) for bad in ("", 5)],
        *[("ebnf", bad) for bad in ("", {})],
        *[("sampling_seed", bad) for bad in (1.5, "1", 2**63)],
        *[("structural_tag", bad) for bad in ("{}", {"a": 1})],
        *[("custom_params", bad) for bad in ({"a": 1},)],
        ("no_such_thing", 5),
        ("x" * 10_000, 5),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_bad_parameters_are_refused_by_the_name_of_the_field(client, field, value):
    body = json.dumps({"text": "a", "sampling_params": {field: value}})
    answer = client.post("/generate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert field[:100] in message
    assert len(message) < 600


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"regex": "a"}, {"ebnf": 'root ::= "a"'}),
        ({"regex": "a"}, {"min_new_tokens": 1}),
        ({"regex": "a"}, {"ignore_eos": True}),
        ({"json_schema": "{}"}, {"stop_regex": "a"}),
    ],
)
def test_what_cannot_act_together_is_refused(client, first, second):
    body = {"text": "a", "sampling_params": {**first, **second}}
    answer = client.post("/generate", json=body)
    assert answer.status_code == 400
    assert next(iter(second)) in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("regex", "(", "GrammarSyntaxError"),
        ("regex", "a(?!b)(?=c)", "Unsatisfiable"),
        ("json_schema", "{", "GrammarSyntaxError"),
        ("json_schema", {"type": "string", "pattern": "("}, ""),
        ("ebnf", "root = ", "GrammarSyntaxError"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_constraints_that_are_none_are_refused(client, field, value, why, stream):
    body = {"text": "a", "sampling_params": {field: value}, "stream": stream}
    answer = client.post("/generate", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == field
    assert error["message"].startswith(f"{field}: ")
    assert error["code"] == why or not why


def test_a_prompt_is_never_told_again_in_a_refusal(client):
    secret = "my secret " * 100
    answer = client.post("/generate", json={"text": secret, "sampling_params": {"top_p": 5}})
    assert answer.status_code == 400
    assert "my secret" not in answer.text


# ---------------------------------------------------------------- requests that it makes


def test_requests_carry_namespaces_and_priorities(runtime):
    body = {"text": ["a", "b"], "extra_key": ["one", None], "priority": 3}
    asked = asked_for(body, runtime, ServerConfig())
    assert [request.namespace for request in asked.requests] == ["one", ""]
    assert [request.tag.priority for request in asked.requests] == [3, 3]
    named = asked_for(body | {"lora_path": [None, "french"]}, runtime, ServerConfig())
    assert [request.lora for request in named.requests] == [None, "french"]
    assert asked.requests[0].draw_key != asked.requests[1].draw_key


def test_a_backend_without_control_tokens_reads_text_as_it_is():
    backend = ScriptedBackend()
    (request,) = asked_for({"text": "<|im_end|>"}, backend, ServerConfig()).requests
    assert request.prompt.segments() == [Text("<|im_end|>")]


# ---------------------------------------------------------------- the other routes


def test_what_is_served_is_told(client, runtime):
    for path in ("/get_model_info", "/model_info"):
        told = client.get(path).json()
        assert told["model_path"] == runtime.info().model
        assert told["is_generation"] is True
    for path in ("/get_server_info", "/server_info", "/get_server_args"):
        told = client.get(path).json()
        assert told["context_length"] == 100_000
    assert client.get("/get_server_info").json()["internal_states"][0]["kv_tokens_total"] == 100_000


def test_the_cache_is_flushed_by_both_methods(client):
    for method in ("GET", "POST"):
        generated(client, {"max_new_tokens": 0}, text="hello the world and and")
        assert client.request(method, "/flush_cache").status_code == 200
        again = generated(client, {"max_new_tokens": 0}, text="hello the world and and")
        assert again["meta_info"]["cached_tokens"] == 0


def test_a_healthy_server_generates_a_token(client):
    answer = client.get("/health_generate")
    assert (answer.status_code, answer.content) == (200, b"")


def test_appended_texts_need_nothing(client):
    body = {"src_rids": ["1", "2"], "dst_rid": "3"}
    answer = client.post("/concate_and_append_request", json=body)
    assert (answer.status_code, answer.json()) == (200, {})


def test_texts_become_tokens_and_texts_again(client, runtime):
    text = "<|im_start|>user\nhello é 😀<|im_end|>"
    ids = runtime.template_ids(text)
    told = client.post("/tokenize", json={"prompt": text}).json()
    assert told == {"tokens": ids, "count": len(ids), "max_model_len": 100_000}
    several = client.post("/tokenize", json={"prompt": [text, ""]}).json()
    assert several == {"tokens": [ids, []], "count": [len(ids), 0], "max_model_len": 100_000}
    plain = client.post("/detokenize", json={"tokens": ids}).json()
    assert plain == {"text": "user\nhello é 😀"}
    spelled = {"tokens": [ids, []], "skip_special_tokens": False}
    assert client.post("/detokenize", json=spelled).json() == {"text": [text, ""]}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"text": ""}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": []}),
        ("/tokenize", {"prompt": ["a", None]}),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {"tokens": [1, "a"]}),
        ("/detokenize", {"tokens": [[1], 2]}),
        ("/detokenize", {"tokens": [100_000]}),
        ("/detokenize", {"tokens": [1], "skip_special_tokens": "no"}),
    ],
)
def test_bad_texts_and_tokens_are_refused(client, path, body):
    assert client.post(path, json=body).status_code == 400


def test_a_prompt_begins_with_the_token_that_the_model_wants():
    model, _, template = tiny_model()
    with (
        Runtime.over(model, tiny_tokenizer(add_bos=True), template, kv_tokens=512) as runtime,
        served(make_app(runtime)) as url,
        httpx.Client(base_url=url, timeout=SECONDS) as client,
    ):
        for text in ("hello", "<|im_start|>hello"):
            told = client.post("/tokenize", json={"prompt": text}).json()
            assert told["tokens"] == runtime.encode(Prompt.of(Text("hello")))
            assert generated(client, text=text)["meta_info"]["prompt_tokens"] == told["count"]
        bare = client.post("/tokenize", json={"prompt": "hello", "add_special_tokens": False})
        assert bare.json()["tokens"] == runtime.tokenizer.encode("hello")


# ---------------------------------------------------------------- the reference


def test_the_reference_names_every_route_and_field(runtime):
    sections = {section.title: section for section in pages.sections("docs/reference/sglang.md")}

    def named(title: str, heading: str = "field") -> set[str]:
        rows = pages.table(sections[title], heading)
        return {name for first, *_ in rows for name in pages.coded(first)}

    app = make_app(runtime)
    served_here = {
        f"{method.upper()} {path}"
        for path, methods in app.openapi()["paths"].items()
        for method, about in methods.items()
        if about["tags"] == ["sglang"] or path in ("/health", "/flush_cache", "/abort_request")
    }
    assert named("Routes", "route") == served_here | {"GET /server_info"}
    assert named("Fields of /generate") == BODY
    assert named("sampling_params") == SAMPLING.keys() | CONSTRAINTS.keys() | OTHERS
    refused = sections["Fields that are refused"].text.split("Among them are")[1]
    assert set(pages.coded(refused)) == set(MENDS)
    words = named("Answers", "`finish_reason`")
    kinds = {json.loads(word.replace("…", "0").replace("N", "0"))["type"] for word in words}
    assert kinds == {*FINISHES.values(), "abort"}
