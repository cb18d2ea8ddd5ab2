"""A request that goes on behind tokens that were received: the same output, nothing told twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lmlang.backends.scripted import ScriptedBackend
from lmlang.errors import ProgramError
from lmlang.grammar.spec import Choice, JsonSchema, Regex
from lmlang.protocol import Event, Generation, Output, Prompt, Request, SamplingParams, Text, Tokens
from lmlang.runtime.local import Runtime
from tests.tiny import tiny_model

PROMPT = Prompt.of(Text("hello world and the user"))
SCHEMA = JsonSchema(
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, '
    '"ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}}, '
    '"required": ["name", "ages"]}'
)
REQUESTS = {
    "drawn": {"params": SamplingParams(max_tokens=40, ignore_eos=True)},
    "greedy": {"params": SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)},
    "penalised": {
        "params": SamplingParams(max_tokens=30, repetition_penalty=1.3, frequency_penalty=0.5),
        "top_logprobs": 3,
    },
    "late stop": {
        "params": SamplingParams(max_tokens=40, min_tokens=12, stop=("e", "a", "\u00e9"), top_k=40)
    },
    "healed": {"params": SamplingParams(max_tokens=20, heal=True, ignore_eos=True)},
    "schema": {"params": SamplingParams(max_tokens=60), "constraint": SCHEMA, "provenance": True},
    "squeezed": {"params": SamplingParams(max_tokens=27), "constraint": SCHEMA},
    "forced": {
        "params": SamplingParams(max_tokens=40),
        "constraint": Choice(("the world and the user", "the world hello")),
    },
    "pattern": {
        "params": SamplingParams(max_tokens=12),
        "constraint": Regex("[a-z]{9}[a-z]*( [a-z]+)*"),
    },
}


@pytest.fixture(scope="module")
def rt() -> Iterator[Runtime]:
    with Runtime.over(*tiny_model(), kv_tokens=4_000) as rt:
        yield rt
        rt.check()


def request(name: str, **changes: Any) -> Request:
    return replace(Request(PROMPT, draw_key=7, **REQUESTS[name]), **changes)


def told(generation: Generation) -> tuple[Output, list[Event]]:
    return generation.result(60), generation.events_from(0)


def close(one: Output, other: Output) -> None:
    """The same but for the last bits of what was computed beside other things."""
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    same = {"logprobs": (), "top_logprobs": (), "usage": None, "provenance": ()}
    assert replace(one, **same) == replace(other, **same)  # type: ignore[arg-type]
    assert replace(one.usage, cached_tokens=0) == replace(other.usage, cached_tokens=0)
    assert [p.legal for p in one.provenance] == [p.legal for p in other.provenance]
    assert [p.forced for p in one.provenance] == [p.forced for p in other.provenance]


@pytest.mark.parametrize("name", REQUESTS)
def test_behind_any_number_of_received_tokens_the_output_is_the_same(
    rt: Runtime, name: str
) -> None:
    whole, events = told(rt.generate(request(name)))
    assert len(whole.ids) > 3
    for count in {1, 2, len(whole.ids) // 2, len(whole.ids) - 1, len(whole.ids)}:
        output, rest = told(rt.generate(request(name, resumed=whole.ids[:count])))
        close(output, whole)
        assert [event.ids for event in rest if event.ids] == [e.ids for e in events[count:]]
        assert "".join(e.text for e in rest) == "".join(e.text for e in events[count:])
        assert [event.index for event in rest if event.ids] == list(range(count, len(events)))
        assert rest[-1].finish == whole.finish


def test_what_was_received_is_computed_in_few_steps(rt: Runtime) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    whole = rt.generate(request("drawn", params=params)).result(60)
    rt.reset_stats()
    rt.generate(request("drawn", params=params, resumed=whole.ids[:55])).result(60)
    assert rt.stats().steps <= 10


def test_what_was_received_stands_though_another_token_would_be_drawn(rt: Runtime) -> None:
    whole = rt.generate(request("greedy")).result(60)
    other = (whole.ids[3] + 1) % 200 + 60
    given = (*whole.ids[:3], other)
    output, events = told(rt.generate(request("greedy", resumed=given)))
    assert output.ids[:4] == given
    assert events[0].index == 4
    # as a prompt with these tokens at its end would go on
    ids = (*rt.encode(PROMPT), *given)
    again = Request(
        Prompt.of(Tokens(ids, rt.decode(ids))),
        SamplingParams(max_tokens=10, temperature=0, ignore_eos=True),
    )
    assert output.ids[4:14] == rt.generate(again).result(60).ids


def test_tokens_that_the_constraint_forbids_are_refused(rt: Runtime) -> None:
    whole = rt.generate(request("forced")).result(60)
    with pytest.raises(ProgramError, match="differs at token 1"):
        rt.generate(request("forced", resumed=(whole.ids[0], 5))).result(60)


def test_a_token_that_the_constraint_forbids_is_refused_where_it_stands(rt: Runtime) -> None:
    digits = Request(PROMPT, constraint=Regex("[0-9]{3}"), resumed=(rt.encode(PROMPT)[0],))
    with pytest.raises(ProgramError, match="differs at token 0"):
        rt.generate(digits).result(60)


def test_refused_tokens_in_a_forced_run_fail_their_own_request_alone(rt: Runtime) -> None:
    other = rt.generate(Request(PROMPT, SamplingParams(max_tokens=300, ignore_eos=True)))
    only = Request(PROMPT, constraint=Choice(("the world and the user",)), resumed=(5,))
    with pytest.raises(ProgramError, match="differs at token 0"):
        rt.generate(only).result(60)
    assert len(other.result(60).ids) == 300


def test_tokens_behind_the_end_are_refused(rt: Runtime) -> None:
    whole = rt.generate(request("forced")).result(60)
    with pytest.raises(ProgramError, match="differs at token"):
        rt.generate(request("forced", resumed=(*whole.ids, 70))).result(60)


def test_what_cannot_be_gone_on_with_is_refused_before_it_runs(rt: Runtime) -> None:
    with pytest.raises(ProgramError, match="resumed has 41 tokens and max_tokens is 40"):
        request("drawn", resumed=(1,) * 41)
    with pytest.raises(ProgramError, match="probs cannot be had"):
        request("drawn", resumed=(1,), probs=True)
    with pytest.raises(ProgramError, match="resumed: token id=9999"):
        rt.generate(request("drawn", resumed=(9_999,))).result(60)


def test_a_script_goes_on_too() -> None:
    backend = ScriptedBackend(lambda _: "hello world", chunk=4)
    whole, _ = told(backend.generate(Request(PROMPT)))
    output, rest = told(backend.generate(Request(PROMPT, resumed=whole.ids[:5])))
    assert output == whole
    assert "".join(event.text for event in rest) == " world"
    assert [event.index for event in rest] == [5, 9]
    _, rest = told(backend.generate(Request(PROMPT, resumed=whole.ids)))
    assert [(event.ids, event.finish) for event in rest] == [((), whole.finish)]
    with pytest.raises(ProgramError, match="does not begin"):
        backend.generate(Request(PROMPT, resumed=(5,))).result(60)
