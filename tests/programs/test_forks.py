"""Programs that fork: P4 many labels, P6 a vote, P7 a tree of thoughts."""

from __future__ import annotations

import re

from lmlang.demo import vote as votes
from lmlang.demo.tags import TAGS, TEXT, tags
from lmlang.demo.twentyfour import DEPTH, MOVE, twentyfour
from tests.programs.properties import ran, same_alone, silent


def test_labels_take_one_prefill_few_steps_and_no_order(runtime, untrained, capfd):
    (state,) = ran(tags, [{"text": TEXT}], runtime)
    found = state.ret_value
    assert list(found) == list(TAGS)
    assert all(0 <= chance <= 1 for chance in found.values())
    assert len(state["answer"]) == len(TAGS)
    stats = runtime.stats()
    text = len(runtime.encode(_prompt(f"Text: {TEXT}\n\n")))
    assert stats.prompt_tokens - stats.cached_tokens < text + 20 * len(TAGS)  # the text once
    assert stats.cached_tokens >= (len(TAGS) - 1) * (text - 2)
    assert stats.steps <= 12
    for other in (TAGS[::-1], TAGS[3:] + TAGS[:3]):
        runtime.flush_cache()
        again = tags.run(text=TEXT, about=other, backend=runtime).ret_value
        apart = max(abs(again[name] - found[name]) for name in TAGS)
        assert apart < (1e-4 if runtime is untrained else 0.05)  # a quantised one rounds by batches
    silent(capfd)


def _prompt(text):
    from lmlang.protocol import Prompt, Text

    return Prompt.of(Text(text))


def test_a_vote_that_stops_early_gives_the_winner_of_the_full_one(
    runtime, untrained, capfd, monkeypatch
):
    (early,) = ran(votes.vote, [{"question": votes.QUESTION}], runtime)
    monkeypatch.setattr(votes, "EARLY", False)
    (full,) = ran(votes.vote, [{"question": votes.QUESTION}], runtime)
    assert early["voted"] <= full["voted"] == sum(full["counts"].values()) == 16
    for state in (early, full):
        assert state["counts"][f" {state.ret_value}"] == max(state["counts"].values())
    if runtime is untrained:  # a quantised model rounds by batches, and so may draw otherwise
        assert early.ret_value == full.ret_value
    silent(capfd)


def test_a_tree_of_thoughts_keeps_moves_and_frees_what_it_prunes(runtime, untrained, capfd):
    rows = [{"numbers": "3 4 6 8"}]
    states = ran(twentyfour, rows, runtime, temperature=0.8)
    moves = states[0].ret_value
    assert len(moves) == DEPTH
    assert all(re.fullmatch(MOVE, move) for move in moves)
    stats = runtime.stats()
    assert stats.kv_tokens_used == stats.kv_tokens_tree  # nobody holds anything any more
    assert stats.cached_tokens > stats.prompt_tokens / 2
    runtime.flush_cache()
    assert runtime.stats().kv_tokens_used == 0
    if runtime is untrained:
        same_alone(twentyfour.options(temperature=0.8), rows, states, runtime)
    silent(capfd)
