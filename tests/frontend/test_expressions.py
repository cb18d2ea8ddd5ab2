from enum import Enum
from typing import Literal

import pytest

import lmlang as lm
from lmlang.frontend.dsl import gen
from lmlang.testing import ScriptedBackend

Later = [
    {"min_tokens": 3},
    {"n": 2},
    {"stop_token_ids": [1]},
    {"stop_regex": "a"},
    {"frequency_penalty": 0.5},
    {"presence_penalty": 0.5},
    {"return_logprob": True},
    {"logprob_start_len": 0},
    {"top_logprobs_num": 2},
    {"return_text_in_logprobs": True},
    {"dtype": int},
    {"regex": "a+"},
    {"regex": ""},
    {"json_schema": {}},
    {"type": int},
    {"ebnf": "root ::= a"},
    {"think": 5},
    {"heal": True},
    {"include_stop": True},
    {"logit_bias": {1: 2.0}},
    {"repetition_penalty": 1.2},
]


@pytest.mark.parametrize("keyword", Later, ids=lambda k: next(iter(k)))
def test_what_gen_cannot_do_yet_it_refuses_by_name(keyword):
    (name,) = keyword
    with pytest.raises(lm.ProgramError, match=rf"gen: {name}=.* is not available in this version"):
        lm.gen("x", **keyword)


def test_what_asks_for_nothing_more_is_accepted():
    assert lm.gen("x", n=1, min_tokens=0, heal=False, repetition_penalty=1) == lm.gen("x")
    with pytest.raises(lm.ProgramError, match="n=True is not available"):
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


def test_gen_with_choices_is_select():
    assert lm.gen("x", choices=["a", "b"]) == lm.select("x", ["a", "b"])


@pytest.mark.parametrize("show", [str, lambda e: f"{e}", lambda e: f"{e:>10}", "%s".__mod__, print])
def test_a_gen_has_no_text_before_it_has_run(show):
    with pytest.raises(lm.ProgramError, match=r'write s \+= "text " \+ lm\.gen\("x"\)'):
        show(lm.gen("x"))


def test_expressions_add_from_both_sides_and_only_to_text():
    assert ("a" + lm.gen("x")) + "b" == "a" + (lm.gen("x") + "b")
    for wrong in (3, None, ["a"], b"a"):
        with pytest.raises(TypeError, match="only strings and expressions can"):
            lm.gen("x") + wrong
        with pytest.raises(TypeError, match=r"s\.text_of\(name\)"):
            wrong + lm.gen("x")


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Digit(Enum):
    ONE = 1
    TWO = 2


def choose(choices, winner, **kwargs):
    @lm.function
    def program(s):
        s += lm.select("x", choices, **kwargs)
        return s["x"]

    backend = ScriptedBackend(scores=lambda prompt, choice: 0.0 if choice == winner else -5.0)
    return program(backend=backend)


@pytest.mark.parametrize(
    ("choices", "winner", "value"),
    [
        (["a", "b"], "b", "b"),
        (("a", "b"), "a", "a"),
        ([Mood.GOOD, Mood.BAD], "bad", Mood.BAD),
        (Mood, "good", Mood.GOOD),
        (Digit, "2", Digit.TWO),
        ([1, 20], "20", 20),
        ([True, False], "False", False),
        ([None, "b"], "None", None),
        (Literal["a", 5], "5", 5),
        ({"pos": "👍", "neg": "👎"}, "👎", "neg"),
        ({Mood.BAD: "terrible", 3: "three"}, "terrible", Mood.BAD),
    ],
)
def test_the_value_is_the_chosen_member_itself(choices, winner, value):
    state = choose(choices, winner)
    assert state["x"] is value or (state["x"] == value and type(state["x"]) is type(value))
    assert state.text_of("x") == winner
    assert state.text() == winner


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a", "b"],), r'the first argument is the variable\'s name.*lm\.select\("name", \[...\]'),
        (("x", []), r"choices=\[\]: there is nothing"),
        (("x", {}), "there is nothing to choose from"),
        (("x", ["a", "a"]), "the choice 'a' stands twice"),
        (("x", [1, "1"]), "the choice '1' stands twice"),
        (("x", ["a", ""]), "a choice is the empty text"),
        (("x", "ab"), "choices='ab' must be a list"),
        (("x", None), "choices=None must be a list"),
        (("x", {"a", "b"}), "must be a list, a tuple, an Enum.*not set"),
        (("x", [1.5]), "the choice 1.5 of type float has no text of its own"),
        (("x", {"a": 1}), "the choice 'a' has a int as its text"),
        (("x", ["\ud800"]), "lone surrogate"),
        (("x", ["a"], 0.7), "select: temperature=0.7 is not available in this version"),
        (("x", ["a"], 0.0, len), "choices_method other than lm.joint is not available"),
        (("x", [str(i) for i in range(100_001)]), "100,001 choices: at most 100,000"),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else None,
)
def test_choices_that_are_none_raise(arguments, message):
    with pytest.raises(lm.ProgramError, match=message):
        lm.select(*arguments)


def test_select_meta_has_probabilities_of_the_joint_scores():
    meta = choose(["a", "bb"], "bb").meta("x")
    assert meta.logprobs == (-5.0, 0.0)
    assert sum(meta.probs) == pytest.approx(1.0)
    assert meta.probs[1] == pytest.approx(1 / (1 + 2.718281828459045**-5))
    assert meta.margin == pytest.approx(meta.probs[1] - meta.probs[0])
    assert meta.entropy > 0
    assert (meta.logprob, meta.finish, meta.tokens) == (0.0, None, ())
    assert meta.scored_tokens == 3


def test_ties_go_to_the_first():
    @lm.function
    def program(s):
        s += lm.select("x", ["b", "a"])

    assert program(backend=ScriptedBackend(scores={"a": -1.0, "b": -1.0}))["x"] == "b"


def test_one_choice_is_not_scored():
    @lm.function
    def program(s):
        s += lm.select("x", [7])

    backend = ScriptedBackend()
    state = program(backend=backend)
    assert backend.requests == []
    assert (state["x"], state.text()) == (7, "7")
    assert state.meta("x").probs == (1.0,)
    assert state.meta("x").entropy == 0.0


def ends_turn(append):
    backend = ScriptedBackend()

    @lm.function
    def program(s):
        append(s)

    program(backend=backend)
    return [request.end_turn for request in backend.requests]


def test_the_end_of_the_turn_is_scored_where_the_expression_ends_it():
    pick = lm.select("x", ["a", "b"])
    told = lm.select("x", ["a", "b"], ends_turn=True)
    never = lm.select("x", ["a", "b"], ends_turn=False)

    def in_block(s, what):
        with s.assistant():
            s += what

    cases = [
        (lambda s: s.assistant(pick), True),
        (lambda s: s.__iadd__(lm.assistant("It is " + pick)), True),
        (lambda s: s.__iadd__(lm.assistant(pick + "")), True),
        (lambda s: s.__iadd__(lm.assistant_begin() + pick + lm.assistant_end()), True),
        (lambda s: s.__iadd__(lm.assistant(pick + "!")), False),
        (lambda s: s.__iadd__(pick), False),
        (lambda s: in_block(s, pick), False),
        (lambda s: in_block(s, told), True),
        (lambda s: s.__iadd__(lm.assistant(never)), False),
    ]
    assert [ends_turn(append) for append, _ in cases] == [[expected] for _, expected in cases]
