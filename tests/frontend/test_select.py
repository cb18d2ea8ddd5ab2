"""`select`: members, methods, draws, and what is known of a choice."""

import itertools
from enum import Enum
from typing import Literal

import pytest

import lmlang as lm
from lmlang.noise import gumbel
from lmlang.testing import ScriptedBackend


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
        (("x", {"a", "b"}), r"must be a list or.*not set: write sorted\(choices\)"),
        (("x", [1.5]), "the choice 1.5 of type float has no text of its own"),
        (("x", {"a": 1}), "the choice 'a' has an int as its text"),
        (("x", ["\ud800"]), "lone surrogate"),
        (("x", [1, True]), "the choices 1 and True are equal in Python"),
        (("x", ["a"], -1.0), "temperature=-1.0 is out of range"),
        (("x", ["a"], 0.0, "joint"), "choices_method is a str: give a choices method"),
        (("x", ["a"], 0.7, len), "temperature=0.7 cannot act with len, which gives no scores"),
        (("x", ["a"], 1, lm.greedy_token_selection), "cannot act with greedy_token_selection"),
        (("x", [str(i) for i in range(100_002)]), "100,002 choices: at most 100,000"),
        (("x", range(100_002)), "100,002 choices: at most 100,000"),
        (("x", itertools.count()), "more choices: at most 100,000"),
        (("x", b"ab"), "must be a list or.*not bytes"),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else None,
)
def test_choices_that_are_none_raise(arguments, message):
    with pytest.raises(lm.ProgramError, match=message):
        lm.select(*arguments)


@pytest.mark.parametrize(
    "choices",
    [
        range(3),
        (i for i in range(3)),
        {0: "x", 1: "y", 2: "z"}.keys(),
        map(int, "012"),
    ],
)
def test_choices_may_be_whatever_gives_them_in_an_order(choices):
    assert lm.select("x", choices) == lm.select("x", [0, 1, 2])


def test_select_meta_has_probabilities_of_the_joint_scores():
    meta = choose(["a", "bb"], "bb").meta("x")
    assert meta.logprobs == {"a": -5.0, "bb": 0.0}
    assert sum(meta.probs.values()) == pytest.approx(1.0)
    assert meta.probs["bb"] == pytest.approx(1 / (1 + 2.718281828459045**-5))
    assert meta.margin == pytest.approx(meta.probs["bb"] - meta.probs["a"])
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
    assert state.meta("x").probs == {7: 1.0}
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


def pick(expression, backend=None, **options):
    @lm.function
    def program(s):
        s += expression

    return program.options(**options).run(backend=backend or ScriptedBackend())


def test_metadata_is_looked_up_by_the_member():
    state = choose({Mood.GOOD: "fine", Mood.BAD: "awful"}, "awful")
    meta = state.meta("x")
    assert meta.probs[state["x"]] == max(meta.probs.values())
    assert meta.logprobs == {Mood.GOOD: -5.0, Mood.BAD: 0.0}
    assert list(meta.choices) == list(meta.scores) == [Mood.GOOD, Mood.BAD]
    assert meta.method == "joint"


SCORES = {"yes indeed": -4.0, "no": -2.0}


@pytest.mark.parametrize(
    ("method", "chosen", "scores"),
    [
        (lm.joint, "no", {"yes indeed": -4.0, "no": -2.0}),
        (lm.token_length_normalized, "yes indeed", {"yes indeed": -0.4, "no": -1.0}),
        (lm.greedy_token_selection, "no", {}),
        (
            lm.unconditional_likelihood_normalized,
            "yes indeed",
            {"yes indeed": 0.5, "no": -0.5},
        ),
    ],
    ids=repr,
)
def test_the_method_decides_and_the_probabilities_stay_the_joint_ones(method, chosen, scores):
    backend = ScriptedBackend(scores=SCORES)
    state = pick(lm.select("x", list(SCORES), choices_method=method), backend)
    meta = state.meta("x")
    assert state["x"] == chosen
    assert meta.scores == pytest.approx(scores)
    assert meta.logprobs == SCORES
    assert meta.probs["no"] == pytest.approx(1 / (1 + 2.718281828459045**-2))
    assert meta.logprob == SCORES[chosen]
    assert (meta.method, state.get_meta_info("x")["output_token_logprobs"]) == (
        repr(method),
        [[], []],
    )
    assert backend.requests[0].unconditional == (method is lm.unconditional_likelihood_normalized)


def test_a_method_of_the_programs_own_gets_sglangs_keywords():
    seen = {}

    class Shortest:
        requires_unconditional_logprobs = True

        def __call__(self, **evidence):
            seen.update(evidence)
            shortest = min(evidence["choices"], key=len)
            return lm.ChoicesDecision(decision=shortest, meta_info={"by": "length"})

    backend = ScriptedBackend(scores={"aaa": -1.0, "b": -9.0})
    state = pick(lm.gen("x", choices=["aaa", "b"], choices_method=Shortest()), backend)
    assert state["x"] == "b"
    assert seen["normalized_prompt_logprobs"] == pytest.approx([-1 / 3, -9.0])
    assert seen["input_token_logprobs"][1] == [(-9.0, ord("b"), None)]
    assert seen["unconditional_token_logprobs"][0][0] == (None, ord("a"), None)
    assert state.meta("x").scores == {}
    assert state.get_meta_info("x")["by"] == "length"
    assert [node.method for node in state.program().nodes if hasattr(node, "method")] == [
        "Shortest"
    ]


def test_a_method_that_decides_for_none_of_them_raises():
    def nobody(**evidence):
        return lm.ChoicesDecision("c")

    with pytest.raises(lm.ProgramError, match="decided for 'c', which is no decision for one of"):
        pick(lm.select("x", ["a", "b"], choices_method=nobody))
    with pytest.raises(lm.ProgramError, match=r"decided for 'a', .* return lm.ChoicesDecision"):
        pick(lm.select("x", ["a", "b"], choices_method=lambda **_: "a"))


def test_above_zero_the_choice_is_drawn_with_the_seed():
    scores = {"a": -0.5, "b": -1.0, "c": -30.0}

    def drawn(seed, temperature=1.0):
        expression = lm.select("x", list(scores), temperature)
        return pick(expression, ScriptedBackend(scores=scores), seed=seed)["x"]

    found = [drawn(seed) for seed in range(200)]
    assert found == [drawn(seed) for seed in range(200)]
    share = found.count("a") / 200
    assert 0.5 < share < 0.75  # softmax gives 0.62
    assert "c" not in found
    assert "c" in [drawn(seed, 1000.0) for seed in range(20)]
    assert {drawn(seed, 1e-6) for seed in range(20)} == {"a"}


def test_the_draw_is_the_argmax_of_scores_and_keyed_noise():
    scores = {"a": -0.5, "b": -1.0}
    for seed in range(30):
        keyed = ScriptedBackend()
        pick(lm.gen("x"), keyed, seed=seed)  # stands where the select will: the same draw key
        state = pick(lm.select("x", ["a", "b"], 0.7), ScriptedBackend(scores=scores), seed=seed)
        draw = keyed.requests[0].draw_key
        noisy = {c: p / 0.7 + gumbel(draw, 0, i) for i, (c, p) in enumerate(scores.items())}
        assert state["x"] == max(noisy, key=noisy.get)


def test_the_runs_temperature_is_not_the_selects():
    backend = ScriptedBackend(scores={"a": 0.0, "b": -0.1})
    assert {pick(lm.select("x", ["a", "b"]), backend, seed=i)["x"] for i in range(20)} == {"a"}


def test_drawing_from_other_methods_scores():
    scores = {"a" * 10: -10.0, "b": -1.0}
    found = {
        pick(
            lm.select("x", list(scores), 1.0, lm.token_length_normalized),
            ScriptedBackend(scores=scores),
            seed=seed,
        )["x"]
        for seed in range(20)
    }
    assert found == set(scores)
