"""Schemas of the real world: nearly all exactly right, few refused, none too loose."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.constraints import Writer
from lmlang.errors import ConstraintError
from lmlang.grammar.compiler import compile_spec
from lmlang.grammar.spec import JsonSchema
from tests.grammar.real import real_vocabulary
from tests.grammar.suites import Group, bench, dumped, judged, number, oracle, walks

WALKED = 10
"""Every so many schemas are walked here; `python -m tests.grammar.suites` walks them all."""


def test_schemas_of_the_real_world() -> None:
    kinds, wrong = judged("bench")
    told = [f"{group.name}: {verdict.kind}: {verdict.why[:200]}" for group, verdict in wrong]
    assert not kinds["invalid accepted"], told
    assert kinds["right"] >= 0.94 * len(bench()), told
    assert kinds["refused"] <= 0.02 * len(bench()), told


def test_random_outputs_of_schemas_of_the_real_world_end_and_are_valid() -> None:
    vocabulary = real_vocabulary()
    refused = {group.name for group, verdict in judged("bench")[1] if verdict.kind == "refused"}
    for group in bench()[::WALKED]:
        if group.name not in refused:
            assert not walks(group.schema, vocabulary, 4), group.name


def test_a_budget_of_the_shortest_known_instance_is_enough() -> None:
    vocabulary, tried = real_vocabulary(), 0
    for group in bench()[:: WALKED // 2]:
        try:
            grammar = compile_spec(JsonSchema(group.schema, "compact"), vocabulary)
        except ConstraintError:
            continue  # counted above
        writer = Writer(grammar.automaton, group.schema)
        texts = [writer.written(instance) for instance in plain(group)]
        known = [len(vocabulary.encode(text)) for text in texts if text is not None]
        if known:
            tried += 1
            assert grammar.min_tokens() <= min(known), group.name
            for seed in range(3):
                validated = json.loads(grammar.sample(seed, budget=min(known)), parse_float=number)
                assert oracle(group.schema).is_valid(validated), group.name
    assert tried > 20


def plain(group: Group) -> list[Any]:
    """Its valid instances with numbers as Python has them."""
    return [json.loads(dumped(instance)) for instance, valid in group.tests if valid]
