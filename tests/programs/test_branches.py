"""Programs of plain Python: P16 a router, P18 a form, P21 a template with holes, P22 a branch."""

from __future__ import annotations

import datetime
import itertools
import json

from lmlang.demo import form as forms
from lmlang.demo.branch import branch
from lmlang.demo.router import ROUTES, WISHES, Weather, router
from lmlang.demo.template import HOLES, template
from tests.programs.properties import ran, same_alone, silent

TYPES = {"alarm": datetime.time, "calculation": int, "shopping": list, "weather": Weather}


def test_a_router_runs_one_sub_program_with_its_own_type(runtime, untrained, capfd):
    rows = [{"wish": wish} for wish in WISHES]
    states = ran(router, rows, runtime, temperature=0)
    for state in states:
        assert isinstance(state.ret_value, TYPES[state["route"]])
        log = state.run_log()
        calls = [each.name for each in log.operations if each.kind == "call"]
        assert calls == [ROUTES[state["route"]].__name__]
        assert sum(each.kind == "gen" for each in log.operations) == 1  # the others cost nothing
    if runtime is untrained:
        same_alone(router.options(temperature=0), rows, states, runtime)
    silent(capfd)


def test_a_form_asks_at_most_eight_questions_and_check_tells_of_its_loop(runtime, capfd):
    (state,) = ran(forms.form, [{"story": forms.STORY}], runtime)
    answers = state.ret_value
    assert 4 <= len(answers) <= forms.MOST
    assert all(type(answers[name]) is int for name in answers if name.startswith("child"))
    assert isinstance(answers["car"], bool)
    assert answers["home"] in ("rent", "own")
    told = [each for each in forms.form.check() if each.code == "LM109"]
    assert len(told) == 1
    assert "is data-dependent" in told[0].message
    assert "the loop of line" in told[0].message
    silent(capfd)


def test_only_the_holes_of_a_template_are_decoded(runtime, capfd):
    (state,) = ran(template, [{"person": "a singer"}], runtime)
    record = json.loads(state["record"])
    assert list(record) == ["name", "age", "top_songs"]
    assert (record["name"], record["age"]) == (state["name"], state["age"])
    assert record["top_songs"] == [state["song 1"], state["song 2"]]
    assert 0 <= record["age"] <= 120
    sampled = sum(state.meta(hole).sampled_tokens for hole in HOLES)
    forced = sum(state.meta(hole).forced_tokens for hole in HOLES)
    stats = runtime.stats()
    assert stats.sampled_tokens == sampled
    # One step for each sampled token, and one where a hole's first comes with the text before it.
    assert stats.steps <= sampled + forced + len(HOLES)
    metas = [state.meta(hole) for hole in HOLES]
    for before, after in itertools.pairwise(metas):
        assert after.cached_tokens >= before.prompt_tokens  # the text between is all that is new
    silent(capfd)


def test_the_branch_not_taken_costs_nothing_and_the_other_has_the_prefix(runtime, untrained, capfd):
    rows = [{"question": "What is 17 + 25?"}, {"question": "Who wrote Hamlet?"}]
    states = ran(branch, rows, runtime, temperature=0)
    for state in states:
        taken = {"calculator": "expression", "encyclopedia": "article"}[state["tool"]]
        log = state.run_log()
        asked = [each.name for each in log.operations if each.kind in ("gen", "select")]
        assert asked == ["tool", taken]
        first, second = [each.usage for each in log.operations if each.kind in ("gen", "select")]
        assert second.cached_tokens >= first.prompt_tokens - 1
    if runtime is untrained:
        same_alone(branch.options(temperature=0), rows, states, runtime)
    silent(capfd)
