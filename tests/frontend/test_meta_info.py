"""s.get_meta_info: SGLang's keys and forms."""

import pytest

import lmlang as lm
from lmlang.backends.characters import END
from lmlang.testing import ScriptedBackend


def info_of(expression, answers=("ab",), **options):
    @lm.function
    def program(s):
        s += "Hi" + expression

    return program.options(**options).run(backend=ScriptedBackend(answers)).get_meta_info("x")


def test_without_logprobs_there_are_five_keys():
    info = info_of(lm.gen("x"))
    assert info.pop("id").endswith("/0")
    assert info == {
        "finish_reason": {"type": "stop", "matched": END},
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "cached_tokens": 0,
    }


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({}, {"type": "stop", "matched": END}),
        ({"max_tokens": 1}, {"type": "length", "length": 1}),
        ({"max_tokens": 0}, {"type": "length", "length": 0}),
        ({"stop": "b"}, {"type": "stop", "matched": "b"}),
        ({"stop_token_ids": [98]}, {"type": "stop", "matched": 98}),
    ],
)
def test_the_reason_is_a_dict(keywords, reason):
    assert info_of(lm.gen("x", **keywords))["finish_reason"] == reason


def test_logprobs_are_triples():
    info = info_of(lm.gen("x", return_logprob=True, max_tokens=2))
    assert info["output_token_logprobs"] == [(-1.0, 97, None), (-1.0, 98, None)]
    assert info["input_token_logprobs"] == []
    assert "output_top_logprobs" not in info


def test_logprobs_with_texts_of_the_prompt_and_of_the_likeliest():
    info = info_of(
        lm.gen("x", max_tokens=1, logprob_start_len=0, top_logprobs_num=2),
        return_text_in_logprobs=True,
    )
    assert info["input_token_logprobs"] == [(None, 72, "H"), (-1.0, 105, "i")]
    assert info["input_top_logprobs"] == [None, [(-1.0, 105, "i"), (-2.0, 106, "j")]]
    assert info["output_token_logprobs"] == [(-1.0, 97, "a")]
    assert info["output_top_logprobs"] == [[(-1.0, 97, "a"), (-2.0, 98, "b")]]


def test_the_run_may_ask_for_them():
    assert "output_token_logprobs" in info_of(lm.gen("x"), return_logprob=True)
    assert "output_token_logprobs" not in info_of(
        lm.gen("x", return_logprob=False), top_logprobs_num=2
    )


def test_a_select_tells_what_its_method_decided_by():
    info = info_of(lm.select("x", ["a", "bb"], choices_method=lm.token_length_normalized))
    assert info["finish_reason"] is None
    assert set(info) >= {"id", "prompt_tokens", "completion_tokens", "cached_tokens"}
    assert [len(tokens) for tokens in info["input_token_logprobs"]] == [1, 2]
    means = [sum(t[0] for t in tokens) / len(tokens) for tokens in info["input_token_logprobs"]]
    assert info["normalized_prompt_logprobs"] == means
    assert info["output_token_logprobs"] == [[], []]


def test_a_select_among_one_choice_has_nothing_to_tell():
    assert info_of(lm.select("x", ["a"]))["completion_tokens"] == 0


def test_a_variable_that_was_set_has_no_metadata():
    @lm.function
    def program(s):
        s["x"] = 3
        return s.get_meta_info("x")

    with pytest.raises(lm.CaptureError, match="'x' was set by the program"):
        program(backend=ScriptedBackend())


def test_metadata_shows_what_there_is_to_say():
    @lm.function
    def program(s):
        s += "A" + lm.gen("x", max_tokens=1) + lm.select("y", ["b", "c"])

    state = program(seed=1, backend=ScriptedBackend(["z"], scores={"b": -1.0, "c": -2.0}))
    generated, chosen = state.meta("x"), state.meta("y")
    assert repr(generated) == (
        f"Meta(id={generated.id!r}, prompt_tokens=1, cached_tokens=0, generated_tokens=1, "
        f"forced_tokens=0, scored_tokens=0, seed={generated.seed}, finish='length', "
        f"logprob={generated.logprob}, tokens=(122,), logprobs={generated.logprobs})"
    )
    assert f"probs={chosen.probs}" in repr(chosen)
    assert chosen.choices
    assert "ChoiceScore" not in repr(chosen)
