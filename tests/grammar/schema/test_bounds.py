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
from lmlang.grammar.schema.object_plan import Spot
from tests.grammar.suites import compiled

KEPT = 60
SCHEMA: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 3,
    "patternProperties": {"^[a-h]+$": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]}},
    "additionalProperties": False,
}


def alive(cls: type) -> int:
    gc.collect()
    return sum(type(each) is cls for each in gc.get_objects())


def test_outputs_of_ever_new_keys_leave_no_more_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (automata, array_plan, levels, object_plan, rules, ways):
        monkeypatch.setattr(module, "MAX_KEPT", KEPT)
    before = alive(State), alive(Spot)
    automaton = compiled(json.dumps(SCHEMA))
    for letters in product("abcdefgh", repeat=3):
        text = f'{{"{"".join(letters)}": 1, "b{letters[0]}": true}}'
        state = automaton.run(automaton.start, text.encode())
        assert state is not None
        assert state.accepting
    after = alive(State), alive(Spot)
    assert after[0] - before[0] <= 2 * KEPT
    assert after[1] - before[1] <= 6 * KEPT
