"""What a schema's automaton keeps is bounded, however many different keys its outputs have."""

from __future__ import annotations

import gc
import json
from itertools import product
from typing import Any

import pytest

from lmlang.grammar import automaton as automata
from lmlang.grammar.automaton import State
from lmlang.grammar.schema import array_plan, levels, object_plan, rules, ways
from lmlang.grammar.schema.levels import Level
from lmlang.grammar.schema.spots import Spot
from lmlang.grammar.tables import TextTable
from tests.grammar.suites import compiled

KEPT = 60
INNER = {"oneOf": [{"type": "integer"}, {"type": "boolean"}]}
COUNTED: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 3,
    "patternProperties": {"^[a-i]+$": INNER},
    "additionalProperties": False,
}
UNIQUE: dict[str, Any] = {
    "type": "array",
    "uniqueItems": True,
    "items": {"type": "object", "additionalProperties": INNER},
}


def alive(cls: type) -> int:
    gc.collect()
    return sum(type(each) is cls for each in gc.get_objects())


@pytest.mark.parametrize(("schema", "around"), [(COUNTED, "%s"), (UNIQUE, "[%s, {}]")])
def test_outputs_of_ever_new_keys_leave_no_more_behind(
    schema: dict[str, Any], around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (automata, array_plan, levels, object_plan, rules, ways):
        monkeypatch.setattr(module, "MAX_KEPT", KEPT)
    monkeypatch.setattr(object_plan, "MAX_ABOVE", KEPT)
    limits = {State: 2 * KEPT, Spot: 6 * KEPT, Level: 2 * KEPT, TextTable: 256 + KEPT}
    before = {cls: alive(cls) for cls in limits}
    automaton = compiled(json.dumps(schema))
    for letters in product("abcdefgh", repeat=3):
        text = around % f'{{"{"".join(letters)}": 1, "hi": true}}'
        state = automaton.run(automaton.start, text.encode())
        assert state is not None
        assert state.accepting
    for cls, most in limits.items():
        assert alive(cls) - before[cls] <= most, cls
