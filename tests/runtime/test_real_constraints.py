"""The embedded model under constraints, against transformers in float32, token by token."""

from __future__ import annotations

import json
import re
from datetime import date

import jsonschema
import pytest
import torch
from transformers import LlamaForCausalLM

from lmlang.grammar.compiler import compile_spec
from lmlang.grammar.spec import JsonSchema, Regex, Spec
from lmlang.grammar.vocabulary import Vocabulary
from lmlang.protocol import EndTurn, Output, Prompt, Request, SamplingParams, Text, Turn
from lmlang.runtime.local import Runtime
from lmlang.runtime.models.fetch import find_embedded_model
from tests.reference import reference_logits, reference_model

TIE = 1e-3
INT, FLOAT = r"-?(0|[1-9]\d*)", r"-?(0|[1-9]\d*)(\.\d+)?"
DATE = r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
OPEN: list[tuple[str, str]] = [
    ("A spider has ", INT), ("There are ", INT), ("7 + 5 = ", INT), ("In a week there are ", INT),
    ("The year of the first moon landing is ", INT), ("Water boils at ", FLOAT),
    ("Pi is about ", FLOAT), ("The price is $", FLOAT), ("The temperature is ", FLOAT),
    ("The file was changed on ", DATE), ("He was born on ", DATE),
    ("The capital of France is", r" [A-Z][a-z]+( [A-Z][a-z]+)*"),
    ("My favourite colour is", r" [a-z]+"), ("Send it to ", r"[a-z]+@[a-z]+(\.[a-z]+)+"),
]  # fmt: skip
TURNS: list[tuple[str, str]] = [
    ("How many legs has a spider? Answer with a number.", INT),
    ("What is 12 times 9? Answer with the number only.", INT),
    ("What is half of 5? Answer with the number only.", FLOAT),
    ("When did the second world war end? Answer as YYYY-MM-DD.", DATE),
    ("Name one colour, one word only.", r"[A-Z][a-z]+"),
    ("What is the capital of Italy? One word.", r"[A-Z][a-z]+( [A-Z][a-z]+)?"),
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "born": {"type": "string", "format": "date"},
        "languages": {
            "type": "array",
            "items": {"enum": ["German", "English", "French", "日本語"]},
            "uniqueItems": True,
            "minItems": 1,
        },
        "address": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 30},
                "zip": {"pattern": "^\\d{5}$", "type": "string"},
            },
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "born", "languages", "address"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def rt():
    with Runtime(kv_tokens=6_000, quantize="blocks") as runtime:
        yield runtime
        runtime.check()


@pytest.fixture(scope="module")
def reference(rt: Runtime) -> LlamaForCausalLM:
    return reference_model(find_embedded_model(), rt._opened.model.shape)


def ask(rt: Runtime, prompt: Prompt, spec: Spec, **params: float) -> Output:
    given = {"max_tokens": 160, "temperature": 0, **params}
    request = Request(prompt, SamplingParams(**given), constraint=spec, provenance=True)  # type: ignore[arg-type]
    return rt.generate(request).result(timeout=600)


def agrees(
    rt: Runtime, reference: LlamaForCausalLM, prompt: Prompt, spec: Spec, output: Output
) -> None:
    """Each drawn token is the reference's likeliest legal one, each forced one the only way on."""
    ids = [*rt.encode(prompt), *output.ids]
    logits = reference_logits(reference, ids)[-len(output.ids) - 1 : -1]
    logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(output.ids)[:, None])[:, 0]
    assert torch.tensor(output.logprobs) == pytest.approx(logprobs, abs=5e-3)
    matcher = compile_spec(spec, Vocabulary.of(rt.tokenizer)).matcher()
    for token, row, told in zip(output.ids, logits, output.provenance, strict=True):
        if matcher.is_accepting():
            possible = row
        else:
            possible = torch.full_like(row, float("-inf"))
            legal = torch.from_numpy(matcher.mask().ids())
            possible[legal] = row[legal]
        if not told.forced:
            assert float(possible.max() - row[token]) <= TIE
        taken = matcher.accept_token(token)
        assert taken or matcher.is_accepting()
    assert matcher.is_accepting()


@pytest.mark.parametrize(("text", "pattern"), OPEN)
def test_in_mid_sentence_an_output_ends_where_the_model_leaves_the_pattern(
    rt: Runtime, reference: LlamaForCausalLM, text: str, pattern: str
) -> None:
    prompt = Prompt.of(Text(text))
    output = ask(rt, prompt, Regex(pattern), max_tokens=40)
    assert re.fullmatch(pattern, output.text)
    assert output.finish.reason == "complete"
    agrees(rt, reference, prompt, Regex(pattern), output)


@pytest.mark.parametrize(("text", "pattern"), TURNS)
def test_in_a_turn_too(rt: Runtime, reference: LlamaForCausalLM, text: str, pattern: str) -> None:
    prompt = Prompt.of(Turn("user"), Text(text), EndTurn(), Turn("assistant"))
    output = ask(rt, prompt, Regex(pattern), max_tokens=40)
    assert re.fullmatch(pattern, output.text)
    assert output.finish.reason == "complete"
    agrees(rt, reference, prompt, Regex(pattern), output)


def test_objects_are_written_in_fewer_passes_than_tokens(
    rt: Runtime, reference: LlamaForCausalLM
) -> None:
    spec = JsonSchema.of(PERSON)
    text = "Ada Lovelace, 36, of London 10115, was born on 10 December 1815. As JSON: "
    prompt = Prompt.of(Text(text))
    rt.reset_stats()
    output = ask(rt, prompt, spec)
    value = json.loads(output.text)
    jsonschema.validate(value, PERSON)
    date.fromisoformat(value["born"])
    assert json.dumps(value, ensure_ascii=False) == output.text
    agrees(rt, reference, prompt, spec, output)
    stats = rt.stats()
    assert output.usage.forced_tokens > 0.3 * len(output.ids)
    assert stats.steps <= 1 + len(output.ids) - output.usage.forced_tokens
    assert {told.pointer for told in output.provenance} >= {"", "/properties/name"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_budget_that_can_hold_an_object_holds_one(rt: Runtime, temperature: float) -> None:
    spec = JsonSchema.of(PERSON)
    least = compile_spec(spec, Vocabulary.of(rt.tokenizer)).min_tokens()
    prompt = Prompt.of(Text("A person: "))
    for more in (0, 1, 2, 5, 13, 40):
        output = ask(rt, prompt, spec, max_tokens=least + more, temperature=temperature)
        jsonschema.validate(json.loads(output.text), PERSON)
        assert len(output.ids) <= least + more
