"""The choices methods on inputs whose results SGLang 0.4.10.post2 gave; 20,000 more agreed."""

import math

import pytest

import lmlang as lm

UNEVEN = (
    (-3.76, -0.13, -1.368, -1.278, -3.109),
    (-0.058, -1.134, -2.915, -1.179),
)
UNEVEN_ALONE = ((None, -2.0, -1.5, -1.0, -1.5), (None, -0.2, -0.8, -1.16))
TIED = (
    (-0.5, -0.5),
    (-0.5, -1.0, -1.0, -2.0),
    (-1.0, -0.5, -1.0),
    (-2.0,),
    (-1.0, -1.0, -1.0, -1.0),
)
TIED_ALONE = (
    (None, -0.5),
    (None, -1.0, -0.5, -2.0),
    (None, -2.0, -0.5),
    (None,),
    (None, -1.0, -2.0, -1.0),
)


def asked(rows, alone=None):
    return {
        "choices": [f"c{i}" for i in range(len(rows))],
        "normalized_prompt_logprobs": [sum(row) / len(row) for row in rows],
        "input_token_logprobs": [[(p, i, None) for i, p in enumerate(row)] for row in rows],
        "output_token_logprobs": [[] for _ in rows],
        "unconditional_token_logprobs": alone
        and [[(p, i, None) for i, p in enumerate(row)] for row in alone],
    }


COMMON = {"normalized_prompt_logprobs", "input_token_logprobs", "output_token_logprobs"}


@pytest.mark.parametrize(("rows", "decision"), [(UNEVEN, "c1"), (TIED, "c0")])
def test_token_length_normalized(rows, decision):
    given = asked(rows)
    found = lm.token_length_normalized(**given)
    assert found.decision == decision
    assert found.meta_info == {name: given[name] for name in COMMON}


@pytest.mark.parametrize(
    ("rows", "decision", "matrix"),
    [
        (UNEVEN, "c1", [[*UNEVEN[0]], [*UNEVEN[1], -1.3215000000000001]]),
        (
            TIED,
            "c0",
            [
                [-0.5, -0.5, -0.5, -0.5],
                [-0.5, -1.0, -1.0, -2.0],
                [-1.0, -0.5, -1.0, -0.8333333333333334],
                [-2.0, -2.0, -2.0, -2.0],
                [-1.0, -1.0, -1.0, -1.0],
            ],
        ),
    ],
)
def test_greedy_token_selection(rows, decision, matrix):
    found = lm.greedy_token_selection(**asked(rows))
    assert found.decision == decision
    assert set(found.meta_info) == COMMON | {"greedy_logprob_matrix"}
    for row, expected in zip(found.meta_info["greedy_logprob_matrix"], matrix, strict=True):
        assert row == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("rows", "alone", "decision", "gains"),
    [
        (UNEVEN, UNEVEN_ALONE, "c0", [-0.729, -0.7815]),
        (TIED, TIED_ALONE, "c2", [-0.25, -0.25, 0.0, -2.0, 0.0]),
    ],
)
def test_unconditional_likelihood_normalized(rows, alone, decision, gains):
    found = lm.unconditional_likelihood_normalized(**asked(rows, alone))
    assert found.decision == decision
    assert set(found.meta_info) == COMMON | {
        "unconditional_token_logprobs",
        "normalized_unconditional_prompt_logprobs",
    }
    assert found.meta_info["normalized_unconditional_prompt_logprobs"] == pytest.approx(gains)


def test_joint_is_ours_and_has_the_same_form():
    found = lm.joint(**asked(UNEVEN))
    assert found.decision == "c1"
    assert found.meta_info["joint_logprobs"] == [math.fsum(row) for row in UNEVEN]


def test_only_one_method_asks_for_the_logprobs_without_the_prompt():
    methods = (
        lm.joint,
        lm.token_length_normalized,
        lm.greedy_token_selection,
        lm.unconditional_likelihood_normalized,
    )
    assert [m.requires_unconditional_logprobs for m in methods] == [False, False, False, True]
    assert [repr(m) for m in methods] == [m.name for m in methods]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unconditional_token_logprobs": None}, "needs unconditional_token_logprobs"),
        (
            {"unconditional_token_logprobs": [[(None, 0, None)], [(None, 0, None)]]},
            "a choice has 5 tokens, and 1 without the prompt",
        ),
        ({"normalized_prompt_logprobs": [-1.0]}, "1 normalized_prompt_logprobs for 2 choices"),
        ({"input_token_logprobs": []}, "0 input_token_logprobs for 2 choices"),
        ({"unconditional_token_logprobs": [[]]}, "1 unconditional_token_logprobs for 2 choices"),
    ],
)
def test_numbers_that_do_not_fit_together_raise(change, message):
    with pytest.raises(lm.ProgramError, match=message):
        lm.unconditional_likelihood_normalized(**(asked(UNEVEN, UNEVEN_ALONE) | change))


def test_keywords_alone_are_taken():
    with pytest.raises(TypeError, match="positional"):
        lm.joint(["a"], [-1.0], [[]], [[]])


@pytest.mark.parametrize("method", ["joint", "token_length_normalized", "greedy_token_selection"])
def test_nan_is_an_error_of_the_model(method):
    with pytest.raises(lm.ModelError, match="NaN as a log-probability"):
        getattr(lm, method)(**asked([(math.nan,), (-1.0,)]))
