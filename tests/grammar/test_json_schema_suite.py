"""The JSON Schema Test Suite: what is valid is accepted, what is not never, or it is refused."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from lmlang.errors import SchemaUnsupported
from lmlang.grammar.compiler import compile_spec
from lmlang.grammar.spec import JsonSchema
from tests.grammar.real import real_vocabulary
from tests.grammar.suites import Group, Verdict, exactly, judge, judged, oracle, suite, walks

REQUIRED = 510
"""Of the 565 required groups, so many at least are exactly right."""
WALKED = 6
"""Every so many groups are walked here; `python -m tests.grammar.suites` walks them all."""


def told(wrong: list[tuple[Group, Verdict]], *kinds: str) -> list[str]:
    return [
        f"{group.name}: {verdict.kind}: {verdict.why[:200]}"
        for group, verdict in wrong
        if verdict.kind in kinds
    ]


@pytest.mark.parametrize(
    ("schema", "instance", "valid"),
    [
        ('{"type": "integer"}', 1, True),
        ('{"type": "integer"}', Decimal("1.5"), False),
        ('{"type": "string", "maxLength": 1}', "/", True),
        ('{"properties": {"b": true, "a": {"type": "null"}}}', {"a": None, "x": 1, "b": 2}, True),
        ('{"properties": {"b": true, "a": {"type": "null"}}}', {"a": 0, "x": 1, "b": 2}, False),
        ('{"items": {"enum": [1, [2]]}}', [1, [2], 1], True),
        ('{"items": {"enum": [1, [2]]}}', [1, [2], 2], False),
        ('{"not": {}}', None, False),
    ],
)
def test_the_judge_tells_right_from_wrong(schema: str, instance: object, valid: bool) -> None:
    assert judge(Group("", "", schema, ((instance, valid),))).kind == "right"
    wrong = judge(Group("", "", schema, ((instance, not valid),))).kind
    assert wrong == ("invalid accepted" if valid else "valid rejected")
    text = json.dumps(instance, default=float)
    assert oracle(schema).is_valid(exactly(text)) == valid


def test_required_groups() -> None:
    kinds, wrong = judged("required")
    assert not told(wrong, "invalid accepted")
    assert kinds["right"] >= REQUIRED, (kinds, told(wrong, "refused", "valid rejected"))


def test_formats_are_never_too_loose() -> None:
    kinds, wrong = judged("optional-format")
    assert not told(wrong, "invalid accepted", "refused")
    assert kinds["right"] >= 20, (kinds, told(wrong, "valid rejected"))


def test_schemas_with_types_are_never_too_loose() -> None:
    kinds, wrong = judged("typed")
    assert not told(wrong, "invalid accepted")
    assert kinds["right"] >= 0.9 * sum(kinds.values()), (kinds, told(wrong, "valid rejected"))


@pytest.mark.parametrize("kind", ["required", "optional-format", "typed"])
def test_refusals_say_which_keyword_and_where(kind: str) -> None:
    _, wrong = judged(kind)
    for group, verdict in wrong:
        if verdict.kind == "refused":
            assert isinstance(verdict.error, SchemaUnsupported), group.name
            assert verdict.error.keyword, group.name
            assert len(str(verdict.error)) < 1_000


def test_random_outputs_end_and_are_valid() -> None:
    vocabulary = real_vocabulary()
    refused = {group.name for group, _ in judged("required")[1]}
    for group in suite("required")[::WALKED]:
        if group.name not in refused and any(valid for _, valid in group.tests):
            assert not walks(group.schema, vocabulary, 4), group.name


@pytest.mark.parametrize(
    ("pattern", "agreed", "not_agreed"),
    [
        ("^.*$", "a", "a\r"),
        ("^a$", "a", "a\n"),
        ("^\\w+$", "az_", "é"),
        ("^\\d$", "7", "٧"),
        ("^(.|\\n)*$", "a\n", "\r"),
    ],
)
def test_keys_that_python_reads_otherwise_are_not_written(
    pattern: str, agreed: str, not_agreed: str
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = {"type": "object", "patternProperties": {pattern: {"type": "integer"}}}
    grammar = compile_spec(JsonSchema.of(schema), real_vocabulary())
    plain = jsonschema.Draft202012Validator(schema)
    assert not plain.is_valid({not_agreed: "x"})  # as ECMA-262 has it, no pattern would match
    assert grammar.match(json.dumps({agreed: 1}, ensure_ascii=False))
    for value in ("x", 1):
        assert not grammar.match(json.dumps({not_agreed: value}, ensure_ascii=False))
    for seed in range(10):
        text = grammar.sample(seed, budget=grammar.min_tokens() + 30)
        plain.validate(json.loads(text))
