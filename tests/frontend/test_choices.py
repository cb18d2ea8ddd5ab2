import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmlang.errors import ModelError, ProgramError, ProgramTypeError
from lmlang.frontend.choices import METHODS, argmax, entropy, joint_logprobs, margin, softmax

logprobs = st.lists(st.floats(-700, 0), min_size=1, max_size=30)


@given(logprobs)
def test_probabilities_sum_to_one_and_keep_the_order(values):
    probs = softmax(values)
    assert math.fsum(probs) == pytest.approx(1.0, abs=1e-12)
    assert all(0.0 <= p <= 1.0 for p in probs)
    for a, b in zip(range(len(values)), range(1, len(values)), strict=False):
        if values[a] > values[b]:
            assert probs[a] >= probs[b]


@given(logprobs)
def test_argmax_is_the_lowest_index_of_the_largest(values):
    chosen = argmax(values)
    assert values[chosen] == max(values)
    assert max(values) not in values[:chosen]


@given(logprobs)
def test_entropy_and_margin_are_bounded(values):
    probs = softmax(values)
    assert 0.0 <= entropy(probs) <= math.log(len(probs)) + 1e-9
    assert 0.0 <= margin(probs) <= 1.0


@given(logprobs, st.floats(-100, 100))
def test_a_common_factor_changes_no_probability(values, shift):
    moved = softmax([v + shift for v in values])
    assert moved == pytest.approx(softmax(values), abs=1e-9)


def test_joint_is_the_sum_of_token_logprobs():
    assert joint_logprobs([(-0.5, -0.25), (-1.0,)]) == (-0.75, -1.0)


def test_only_impossible_choices_are_all_alike():
    assert softmax([-math.inf, -math.inf]) == (0.5, 0.5)


def test_an_impossible_choice_has_no_probability():
    probs = softmax([-1.0, -math.inf])
    assert probs == (1.0, 0.0)
    assert entropy(probs) == 0.0


def test_nan_is_an_error_of_the_model():
    with pytest.raises(ModelError, match="NaN as a log-probability"):
        joint_logprobs([(math.nan,)])


@pytest.mark.parametrize("method", METHODS.values(), ids=repr)
def test_numbers_that_are_none_are_refused_by_name(method):
    good = {
        "choices": ["a", "b"],
        "normalized_prompt_logprobs": [-1.0, -2.0],
        "input_token_logprobs": [[(-1.0, 1, None)], [(-2.0, 2, None)]],
        "output_token_logprobs": [[], []],
        "unconditional_token_logprobs": [[(None, 1, None)], [(-1.0, 2, None)]],
    }
    assert method(**good).decision in ("a", "b")
    for wrong in (
        {"normalized_prompt_logprobs": None},
        {"input_token_logprobs": [[-1.0], [-2.0]]},
        {"input_token_logprobs": [[()], [()]]},
        {"normalized_prompt_logprobs": [None] * 2, "input_token_logprobs": [[(None, 1, None)]] * 2},
    ):
        with pytest.raises(ProgramTypeError, match=f"^{method.name} takes a text of each"):
            method(**good | wrong)
    nothing = {name: [] for name in good}
    with pytest.raises(ProgramError, match=f"^{method.name}: choices is empty"):
        method(**nothing)
