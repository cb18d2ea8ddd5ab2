"""Generations under real-world schemas: every one is valid JSON of its schema, in any budget."""

from __future__ import annotations

import random

import pytest

from lmlang.errors import ConstraintError
from lmlang.grammar.compiler import compile_spec
from lmlang.grammar.spec import JsonSchema
from lmlang.grammar.vocabulary import Vocabulary
from lmlang.protocol import Prompt, Request, SamplingParams, Text
from lmlang.runtime.local import Runtime
from lmlang.runtime.models.opened import OpenedModel, open_model
from tests.grammar import suites
from tests.tiny import tiny_model

COUNT, EMBEDDED = 200, 60
MOST = 160
"""Tokens of the shortest output, of those that are generated here."""


@pytest.fixture(scope="module")
def opened() -> OpenedModel:
    return open_model(None)


@pytest.fixture(scope="module")
def asked(opened: OpenedModel) -> list[Request]:
    """Requests at temperature 1, in budgets from the shortest on."""
    schemas = [group.schema for group in suites.bench()]
    rng = random.Random(7)
    found: list[Request] = []
    vocabulary = Vocabulary.of(opened.tokenizer)
    least: dict[str, int] = {}
    while len(found) < COUNT:
        spec = JsonSchema(rng.choice(schemas))
        if spec.text not in least:
            try:
                least[spec.text] = compile_spec(spec, vocabulary).min_tokens()
            except ConstraintError:
                least[spec.text] = MOST + 1
        if least[spec.text] > MOST:
            continue
        params = SamplingParams(max_tokens=least[spec.text] + rng.randrange(24), temperature=1.0)
        prompt = Prompt.of(Text(f"An example, number {len(found)}:\n"))
        found.append(Request(prompt, params, draw_key=len(found), constraint=spec))
    return found


def generate(runtime: Runtime, asked: list[Request]) -> None:
    generations = [runtime.generate(request) for request in asked]
    for request, generation in zip(asked, generations, strict=True):
        output = generation.result(timeout=600)
        assert isinstance(request.constraint, JsonSchema)
        suites.oracle(request.constraint.text).validate(suites.exactly(output.text))
        assert len(output.ids) <= request.params.max_tokens
        assert output.finish.reason in ("complete", "forced_close")
    runtime.check()


def test_of_random_weights(opened: OpenedModel, asked: list[Request]) -> None:
    model = tiny_model(vocab=opened.tokenizer.vocab_size, max_positions=1024)[0]
    with Runtime.over(model, opened.tokenizer, opened.template, kv_tokens=40_000) as runtime:
        generate(runtime, asked)


def test_of_the_embedded_model(opened: OpenedModel, asked: list[Request]) -> None:
    model, tokenizer, template = opened.model, opened.tokenizer, opened.template
    with Runtime.over(model, tokenizer, template, kv_tokens=12_000) as runtime:
        generate(runtime, asked[:EMBEDDED])
