"""`gen`: its keywords, what they do, and what they refuse."""

import pytest

import lmlang as lm
from lmlang.frontend.dsl import gen

Later = [
    {"stop_regex": "a"},
    {"dtype": int},
    {"regex": "a+"},
    {"regex": ""},
    {"json_schema": {}},
    {"type": int},
    {"ebnf": "root ::= a"},
    {"think": 5},
    {"heal": True},
]


@pytest.mark.parametrize("keyword", Later, ids=lambda k: next(iter(k)))
def test_what_gen_cannot_do_yet_it_refuses_by_name(keyword):
    (name,) = keyword
    with pytest.raises(lm.ProgramError, match=rf"gen: {name}=.* is not available in this version"):
        lm.gen("x", **keyword)


def test_what_asks_for_nothing_more_is_accepted():
    assert lm.gen("x", heal=False, think=0, dtype=None) == lm.gen("x")
    with pytest.raises(lm.ProgramError, match="n=True must be an integer, not bool"):
        lm.gen("x", n=True)


def test_gen_has_the_fields_argument_order():
    names = gen.__code__.co_varnames[: gen.__code__.co_argcount]
    assert " ".join(names) == (
        "name max_tokens min_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p "
        "frequency_penalty presence_penalty ignore_eos return_logprob logprob_start_len "
        "top_logprobs_num return_text_in_logprobs dtype choices choices_method regex json_schema"
    )
    assert lm.gen("x", 5) == lm.gen(name="x", max_tokens=5)


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"max_tokens": -1}, r"max_tokens=-1 is out of range: it must be from 0 to 1,000,000"),
        ({"max_tokens": 1.5}, "max_tokens=1.5 must be an integer, not float"),
        ({"max_tokens": True}, "max_tokens=True must be an integer, not bool"),
        ({"temperature": -0.1}, "temperature=-0.1 is out of range"),
        ({"temperature": float("nan")}, "temperature=nan is out of range"),
        ({"temperature": "hot"}, "temperature='hot' must be a number, not str"),
        ({"top_p": 0.0}, "top_p=0.0 is out of range: it must be above 0"),
        ({"top_k": -2}, "top_k=-2 is out of range"),
        ({"min_p": 1.1}, "min_p=1.1 is out of range"),
        ({"stop": ""}, "stop='' would end every output at once"),
        ({"stop": 3}, "stop=3 must be a string or a list of strings"),
        ({"stop": ["a", None]}, "must hold strings only, and holds NoneType"),
        ({"ignore_eos": 1}, "ignore_eos=1 must be True or False"),
        ({"seed": -1}, "seed=-1 is out of range"),
        ({"seed": 10**5000}, "seed=a number of thousands of digits is out of range"),
        ({"name": 3}, r"gen: the first argument is the variable's name, a string, and not int"),
        ({"name": ""}, "gen: name='' is empty"),
        ({"choices_method": lm.joint}, "choices_method needs choices"),
        ({"choices": []}, r"choices=\[\]: there is nothing to choose from"),
        ({"choices": ["a"], "max_tokens": 4}, "max_tokens cannot act beside choices"),
    ],
)
def test_wrong_values_raise_where_they_are_written(keyword, message):
    with pytest.raises(lm.ProgramError, match=message):
        lm.gen(**keyword)
