"""Tokens that a constraint holds open, computed with what is forced before them: guesses only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.grammar.compiler import compile_spec
from lmlang.grammar.spec import JsonSchema, Regex
from lmlang.grammar.vocabulary import Vocabulary
from lmlang.protocol import Generation, Request
from lmlang.runtime.constraints import Constrained
from tests.runtime.test_constraints import SPECS, asking, begin, checked, grammar, one_at_a_time
from tests.runtime.test_engine import TOKENIZER
from tests.runtime.test_pressure import Stepped

RECORD = JsonSchema(
    '{"type": "object", "properties": {"the": {"type": "string", "maxLength": 9},'
    ' "user": {"type": "string", "maxLength": 9}}, "required": ["the", "user"],'
    ' "additionalProperties": false}',
    "compact",
)


def guessing(monkeypatch: pytest.MonkeyPatch, guess: Callable[[Constrained], int | None]) -> None:
    monkeypatch.setattr(
        Constrained, "held", property(lambda self: None if self.finish is not None else guess(self))
    )


def at(ids: list[int], constraint: Constrained) -> int | None:
    """What an output has behind what is known of it."""
    return ids[constraint.known] if constraint.known < len(ids) else None


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([7, 48]), st.sampled_from([120, 400]))
def test_whatever_is_guessed_the_tokens_are_the_same(seed: int, budget: int, slots: int) -> None:
    rng = np.random.default_rng(seed)
    asked: list[Request] = []
    for key in range(5):
        spec = (*SPECS, RECORD)[rng.integers(len(SPECS) + 1)]
        most = grammar(spec).min_tokens() + int(rng.integers(1, 12))
        heat = float(key % 2)
        asked.append(asking(spec, "the user ", key, max_tokens=most, temperature=heat))
    coming = [one_at_a_time(one)[0] for one in asked]
    by_constraint: dict[int, list[int]] = {}

    def guess(constraint: Constrained) -> int | None:
        if rng.random() < 0.5:
            return at(by_constraint[id(constraint)], constraint)
        return None if rng.random() < 0.3 else int(rng.integers(TOKENIZER.vocab_size))

    engine = Stepped(slots, budget, policy="fcfs")
    generations: list[Generation] = []
    with pytest.MonkeyPatch.context() as patch:
        guessing(patch, guess)
        for one, ids in zip(asked, coming, strict=True):
            generations.append(begin(engine, one))
            task = engine.loop.scheduler.sequences()[-1].task
            by_constraint[id(task.output.constraint)] = ids  # type: ignore[union-attr]
        engine.run(lambda step: engine.retract(step) if step % 6 == 5 else None)
    for one, generation in zip(asked, generations, strict=True):
        checked(one, generation.result(timeout=0))
        events = list(generation.events())
        assert [i for event in events for i in event.ids] == list(generation.result(0).ids)
    stats = engine.loop.stats()
    assert stats.accepted_tokens <= stats.drafted_tokens
    outputs = [generation.result(timeout=0) for generation in generations]
    assert stats.generated_tokens == sum(len(output.ids) for output in outputs)
    assert stats.sampled_tokens + stats.forced_tokens == stats.generated_tokens


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_guess_that_is_right_costs_no_step(temperature: float) -> None:
    one = asking(RECORD, max_tokens=60, temperature=temperature)
    ids = one_at_a_time(one)[0]
    steps, counted = {}, {}
    for right in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            shown = ids if right else []
            guessing(patch, partial(at, shown))
            engine = Stepped(400)
            generation = begin(engine, one)
            steps[right] = engine.run()
        checked(one, generation.result(timeout=0))
        counted[right] = engine.loop.stats()
    taken = counted[True].accepted_tokens
    assert taken >= 4
    assert steps[True] == steps[False] - taken
    assert counted[True].sampled_tokens == counted[False].sampled_tokens


def test_what_the_grammar_holds_open_by_itself_is_drawn_in_the_pass_before_it() -> None:
    one = asking(Regex(r"the user and the world, .{3,12}!"), max_tokens=40)
    engine = Stepped(400)
    generation = begin(engine, one)
    engine.run()
    checked(one, generation.result(timeout=0))
    stats = engine.loop.stats()
    assert stats.drafted_tokens == stats.accepted_tokens == 1


def test_steps_of_decode_rows_alone_stay_so_where_they_are_much_faster() -> None:
    one = asking(RECORD, max_tokens=60)
    ids = one_at_a_time(one)[0]
    with pytest.MonkeyPatch.context() as patch:
        guessing(patch, partial(at, ids))
        engine = Stepped(400)
        engine.loop.scheduler._even = True
        generation = begin(engine, one)
        plans = []
        while engine.loop.has_work():
            plan = engine.loop.scheduler.plan()
            plans += [(row.decoding, len(row.draft)) for row in plan.rows]
            engine.loop.step()
    checked(one, generation.result(timeout=0))
    assert (True, 1) not in plans
    assert (False, 1) in plans


def test_a_guess_behind_which_nothing_can_be_drawn_is_none() -> None:
    vocabulary = Vocabulary([b"a", b"c", b"d"], encode=lambda text: ["acd".index(c) for c in text])
    spec = Regex("(ab|cd|c)")
    constraint = Constrained(compile_spec(spec, vocabulary), asking(spec))
    assert constraint.masks_behind((0,)) == []
    assert [m is None for m in constraint.masks_behind((1, 2, 2))] == [True, True]
    (mask,) = Constrained(compile_spec(Regex("cd"), vocabulary), asking(spec)).masks_behind((1,))
    assert mask is not None
    assert mask.ids().tolist() == [2]
    assert constraint.known == 0


def test_only_a_row_that_computes_all_that_is_known_has_a_guess_behind_it() -> None:
    engine, drafts = Stepped(400, budget=5), 0
    with pytest.MonkeyPatch.context() as patch:
        guessing(patch, lambda constraint: 1)
        generation = begin(engine, asking(RECORD, "the user and the world ", max_tokens=40))
        while engine.loop.has_work():
            for row in engine.loop.scheduler.plan().rows:
                drafts += len(row.draft)
                assert not row.draft or row.count - len(row.draft) == row.sequence.pending
            engine.loop.step()
    assert drafts
    assert generation.result(timeout=0)
