"""Tokens that are drawn of all and then judged: those that a mask would have left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.grammar.compiler import compile_spec
from lmlang.grammar.spec import Regex
from lmlang.protocol import Output, Request
from lmlang.runtime import drawing
from tests.runtime import test_constraints
from tests.runtime.test_constraints import SPECS, VOCABULARY, asking, begin, checked, grammar
from tests.runtime.test_held import RECORD
from tests.runtime.test_pressure import Stepped

HOW = st.sampled_from(
    [{}, {"top_p": 0.8}, {"top_k": 3}, {"min_p": 0.1}, {"frequency_penalty": 1.0}]
)


def outputs(asked: list[Request]) -> list[Output]:
    engine = Stepped(400)
    generations = [begin(engine, one) for one in asked]
    engine.run()
    return [generation.result(timeout=0) for generation in generations]


@settings(max_examples=20)
@given(st.integers(0, 2**32), HOW, st.sampled_from([0.0, 0.7, 1.5]))
def test_they_are_the_same_with_every_mask(
    seed: int, how: dict[str, float], temperature: float
) -> None:
    rng, asked = np.random.default_rng(seed), []
    for key in range(4):
        spec = (*SPECS, RECORD)[rng.integers(len(SPECS) + 1)]
        most = grammar(spec).min_tokens() + int(rng.integers(1, 12))
        bias = {int(i): 30.0 for i in rng.integers(0, VOCABULARY.size, 2)} if key == 3 else {}
        own = {"max_tokens": most, "temperature": temperature, "logit_bias": bias, **how}
        asked.append(asking(spec, "the user ", seed + key, **own))
    found = []
    for masks_first in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(test_constraints, "grammar", lambda spec: compile_spec(spec, VOCABULARY))
            if masks_first:
                patch.setattr(drawing, "is_drawn_first", lambda task: False)
            found.append(outputs(asked))
    lazy, eager = found
    assert [output.ids for output in lazy] == [output.ids for output in eager]
    assert [output.finish for output in lazy] == [output.finish for output in eager]
    assert [output.logprobs for output in lazy] == [output.logprobs for output in eager]


def test_a_mask_is_made_only_where_the_draw_is_not_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    free = compile_spec(Regex(r"(.|\n){30,}"), VOCABULARY)
    monkeypatch.setattr(test_constraints, "grammar", lambda spec: free)
    one = asking(Regex(r"(.|\n){30,}"), temperature=1, max_tokens=40)
    (output,) = outputs([one])
    checked(one, output)
    assert len(free.automaton.masked) < len(output.ids) / 2
    strict = compile_spec(Regex(r"\d{9}"), VOCABULARY)
    monkeypatch.setattr(test_constraints, "grammar", lambda spec: strict)
    one = asking(Regex(r"\d{9}"), temperature=1, max_tokens=40)
    checked(one, outputs([one])[0])
    assert strict.automaton.masked


@pytest.mark.parametrize("how", [{"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.3}])
def test_what_is_cut_away_is_cut_from_what_is_legal(
    how: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Regex(r"[a-z ]{0,3}(.|\n){30,}")
    asked = [asking(spec, key=key, temperature=1.5, max_tokens=40, **how) for key in range(6)]
    made = compile_spec(spec, VOCABULARY)
    monkeypatch.setattr(test_constraints, "grammar", lambda spec: made)
    for one, output in zip(asked, outputs(asked), strict=True):
        checked(one, output)


@pytest.mark.parametrize(
    "how", [{"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.3}, {"probs": True}, {"provenance": True}]
)
def test_masks_come_first_where_others_are_cut_away_or_counted(
    how: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = compile_spec(Regex(r"(.|\n){30,}"), VOCABULARY)
    monkeypatch.setattr(test_constraints, "grammar", lambda spec: fresh)
    one = asking(Regex(r"(.|\n){30,}"), temperature=1, max_tokens=40, **how)
    (output,) = outputs([one])
    assert len(fresh.automaton.masked) > 0.8 * len(output.ids)
