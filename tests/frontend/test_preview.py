from __future__ import annotations

import inspect
from dataclasses import replace
from datetime import date
from typing import Literal
from uuid import UUID

import pydantic
import pytest

import lmlang as lm
from lmlang.frontend.outline import LONGEST, outline
from lmlang.frontend.preview import preview
from lmlang.frontend.printer import parse_program, print_node, print_program
from lmlang.frontend.trace import trace
from lmlang.grammar.spec import JsonSchema
from lmlang.grammar.types import spec_of
from lmlang.testing import ScriptedBackend


def previewed(body, backend=None, **known):
    parameters = list(inspect.signature(body).parameters.values())[1:]
    return preview(trace(body.__name__, body, inspect.Signature(parameters), known), backend)


def body(s, topic):
    s += lm.system("Be brief.")
    with s.user():
        s += "On " + topic + "!"
        forks = s.fork(2)
        forks += "side"
    s += lm.assistant(lm.gen("answer", max_tokens=8))
    s += s["answer"] + topic


def test_the_prompt_is_exact_up_to_the_first_generation():
    backend = ScriptedBackend()
    seen = previewed(body, backend, topic="tea")
    lm.function(body)("tea", backend=backend)
    request = backend.requests[0]
    assert seen.prompt == backend.render(request.prompt)
    assert seen.token_ids == tuple(backend.encode(request.prompt))
    assert seen.complete
    assert seen.rest == (
        "%6, %7 = fork %5 2",
        '%8 = text %6 "side"',
        '%9 = text %7 "side"',
        "%12 = gen %11 -> answer [max_tokens=8]",
        "%13 = end_role %12 assistant",
        "%14 = ref %13 answer",
        '%15 = text %14 "tea"',
        "return %15",
    )


def test_nothing_is_run():
    backend = ScriptedBackend()
    previewed(body, backend, topic="tea")
    assert backend.requests == []


def test_holes_end_the_prompt_and_are_shown():
    seen = previewed(body, ScriptedBackend())
    assert seen.prompt == "<system>Be brief.</system><user>On "
    assert not seen.complete
    assert seen.rest[0] == "%6 = arg %5 topic"
    assert seen.rest[-2:] == ("%17 = arg %16 topic", "return %17")


def test_without_a_backend_there_is_a_plain_text_and_no_tokens():
    seen = previewed(body, topic="tea")
    assert seen.prompt == "<system>Be brief.</system><user>On tea!</user><assistant>"
    assert seen.token_ids is None
    assert seen.complete


@pytest.mark.parametrize("has_tokens", [False, True])
def test_a_service_whose_tokens_nobody_knows_shows_the_prompt_all_the_same(has_tokens):
    class Service(ScriptedBackend):
        def info(self):
            return replace(super().info(), has_tokens=has_tokens)

        def encode(self, prompt):
            raise lm.ProgramError("which encoding is it?")

    if has_tokens:
        with pytest.raises(lm.ProgramError, match="which encoding"):
            previewed(body, Service(), topic="tea")
        return
    seen = previewed(body, Service(), topic="tea")
    assert seen.token_ids is None
    assert str(seen).startswith("prompt:\n<system>Be brief.")
    assert "<pre" in seen._repr_mimebundle_()["text/html"]


def test_where_the_static_part_ends_before_a_generation_the_prompt_is_not_complete():
    def dependent(s, topic):
        s += "a"
        if topic:
            s += lm.gen("x")

    seen = previewed(dependent, ScriptedBackend())
    assert (seen.prompt, seen.complete, seen.rest) == ("a", False, ())
    assert seen.program.stopped.reason in str(seen)


def test_programs_that_generate_nothing_or_only_in_forks_are_complete():
    def plain(s):
        s += "a"

    def forked(s):
        s += "a"
        forks = s.fork(2)
        forks += "b" + lm.gen("x")
        forks.join()
        s += "c" + lm.select("y", ["a", "b"])

    assert previewed(plain).complete
    assert previewed(plain).rest == ("return %1",)
    seen = previewed(forked, ScriptedBackend())
    assert (seen.prompt, seen.complete) == ("ac", True)
    assert seen.rest[-2] == '%10 = select %9 -> y ["a", "b"]'


def test_it_prints_as_a_whole():
    shown = str(previewed(body, ScriptedBackend(), topic="tea"))
    assert shown.startswith("prompt (57 tokens):\n<system>Be brief.</system><user>On tea!</user>")
    assert "gen" in shown


class Line(pydantic.BaseModel):
    text: str
    price: float
    day: date | None = None


class Invoice(pydantic.BaseModel):
    vendor: str
    currency: Literal["EUR", "USD"]
    lines: list[Line]


class Tree(pydantic.BaseModel):
    value: int
    below: list[Tree] = []


class Wide(pydantic.BaseModel):
    invoices: dict[str, Invoice]
    pair: tuple[int, Invoice, Invoice, Invoice]


@pytest.mark.parametrize(
    ("tp", "shown"),
    [
        (
            Invoice,
            'json {vendor: string, currency: "EUR" | "USD", '
            "lines: [{text: string, price: number, day?: date | null}]}",
        ),
        (Tree, "json {value: integer, below?: [Tree]}"),
        (Wide, "json {invoices: {…: Invoice}, pair: [integer, Invoice, Invoice, Invoice]}"),
        (list[Line | Literal[1, 2]], None),
        (int, "integer"),
        (UUID, "uuid"),
        (int | str, "integer | json string"),
        (Literal["a", "b"], 'choice("a", "b")'),
        (lm.Quote("some text"), "json quote"),
    ],
)
def test_constraints_are_shown_in_short(tp, shown):
    def typed(s):
        s += "a" + lm.gen("x", type=tp, max_tokens=80) + "b"

    seen = previewed(typed)
    found = outline(spec_of(tp))
    assert shown in (None, found)
    assert len(found) <= LONGEST
    assert f"  %2 = gen %1 -> x [max_tokens=80, constraint={found}]\n" in str(seen)
    if shown and shown.startswith("json {"):
        assert "json_schema(" not in str(seen)
    assert parse_program(print_program(seen.program)) == seen.program
    assert seen.rest == tuple(map(print_node, seen.program.nodes[2:]))  # all of it


@pytest.mark.parametrize(
    "text", ["true", "{}", "no JSON", '{"$ref": "#/nowhere"}', '{"type": "object"}', "[" * 3_000]
)
def test_a_schema_of_any_kind_has_an_outline(text):
    assert 0 < len(outline(JsonSchema(text))) <= LONGEST + 40


def test_an_outline_of_much_is_short():
    deep = {"type": "object", "properties": {"inner": {"type": "string"}}}
    for _ in range(10):
        deep = {"type": "object", "properties": {"a" * 20: deep, "b": deep}}
    wide = {"type": "object", "properties": {f"key{i}": {"type": "string"} for i in range(500)}}
    for schema in (deep, wide):
        found = outline(JsonSchema.of(schema))
        assert len(found) <= LONGEST + 40
        assert found.startswith("json {")


def test_programs_preview_themselves_on_the_backend_in_use():
    program = lm.function(body).options(temperature=0)
    with ScriptedBackend() as backend, lm.use(backend):
        assert program.preview(topic="tea") == previewed(body, backend, topic="tea")
        other = program.preview(backend=ScriptedBackend(), topic="tea")
        assert other == program.bind(topic="tea").preview()
        assert backend.requests == []
