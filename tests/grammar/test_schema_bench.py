"""Schemas of the real world: nearly all exactly right, few refused, none too loose."""

from __future__ import annotations

from tests.grammar.real import real_vocabulary
from tests.grammar.suites import bench, judged, walks

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
