"""Shapes judge the instances of JSON-Schema-Test-Suite and JSONSchemaBench as they are marked."""

from __future__ import annotations

from lmlang.errors import ConstraintError, Unsatisfiable
from lmlang.grammar.schema.graph import compile_schema
from lmlang.grammar.spec import JsonSchema
from tests.grammar.schema.verdicts import accepts
from tests.grammar.suites import Group, bench, suite

RIGHT, REFUSED, REJECTED, ACCEPTED = "right", "refused", "valid rejected", "invalid accepted"


def judged(group: Group) -> str:
    try:
        graph = compile_schema(JsonSchema(group.schema))
    except Unsatisfiable:
        return REJECTED if any(valid for _, valid in group.tests) else RIGHT
    except ConstraintError:
        return REFUSED
    found = [(accepts(graph, instance), valid) for instance, valid in group.tests]
    if (True, False) in found:
        return ACCEPTED
    return REJECTED if (False, True) in found else RIGHT


def test_every_required_group_of_the_suite_is_right() -> None:
    groups = suite("required")
    wrong = [(g.name, verdict) for g in groups if (verdict := judged(g)) != RIGHT]
    assert len(groups) == 565
    assert wrong == []


def test_formats_accept_nothing_invalid() -> None:
    groups = [
        group
        for group in suite("optional-format")
        if group.keyword not in ("json-pointer", "regex", "uri-reference")  # annotations
    ]
    verdicts = [judged(group) for group in groups]
    assert verdicts.count(ACCEPTED) == 0
    assert verdicts.count(REFUSED) == 0


def test_real_schemas_are_right() -> None:
    verdicts = [judged(group) for group in bench()]
    assert verdicts.count(ACCEPTED) == 0
    assert verdicts.count(RIGHT) >= 0.94 * len(verdicts)
    assert verdicts.count(REFUSED) <= 0.02 * len(verdicts)
