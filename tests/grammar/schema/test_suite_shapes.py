"""Shapes judge the instances of JSON-Schema-Test-Suite and JSONSchemaBench as they are marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lmlang.errors import ConstraintError, Unsatisfiable
from lmlang.grammar.schema.graph import compile_schema
from lmlang.grammar.spec import JsonSchema
from tests.grammar.schema.verdicts import accepts

DATA = Path(__file__).parents[4] / "shared" / "data"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"

RIGHT, REFUSED, REJECTED, ACCEPTED = "right", "refused", "valid rejected", "invalid accepted"


def judged(schema: Any, tests: list[dict[str, Any]]) -> str:
    try:
        graph = compile_schema(JsonSchema.of(schema))
    except Unsatisfiable:
        return REJECTED if any(test["valid"] for test in tests) else RIGHT
    except ConstraintError:
        return REFUSED
    found = [(accepts(graph, test["data"]), test["valid"]) for test in tests]
    if (True, False) in found:
        return ACCEPTED
    return REJECTED if (False, True) in found else RIGHT


def loaded(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def stated(group: dict[str, Any]) -> Any:
    """The schema of a group with its draft, where it does not say so itself."""
    schema = group["schema"]
    if group["draft"] == "draft7" and isinstance(schema, dict):
        return {"$schema": DRAFT_7, **schema}
    return schema


def test_every_required_group_of_the_suite_is_right() -> None:
    groups = [
        group
        for group in loaded("json_schema_test_suite.json")
        if group["set"] == "required" and group["kw"] != "format"
    ]
    wrong = [
        (group["draft"], group["kw"], group["desc"], verdict)
        for group in groups
        if (verdict := judged(stated(group), group["tests"])) != RIGHT
    ]
    assert len(groups) == 565
    assert wrong == []


def test_formats_accept_nothing_invalid() -> None:
    groups = [
        group
        for group in loaded("json_schema_test_suite.json")
        if group["set"] == "optional-format"
        and group["kw"] not in ("json-pointer", "regex", "uri-reference")  # annotations
    ]
    verdicts = [judged(stated(group), group["tests"]) for group in groups]
    assert verdicts.count(ACCEPTED) == 0
    assert verdicts.count(REFUSED) == 0


def test_real_schemas_are_right() -> None:
    groups = loaded("jsonschemabench_sample.json")
    verdicts = [judged(group["schema"], group["tests"]) for group in groups]
    assert verdicts.count(ACCEPTED) == 0
    assert verdicts.count(RIGHT) >= 0.94 * len(groups)
    assert verdicts.count(REFUSED) <= 0.02 * len(groups)
