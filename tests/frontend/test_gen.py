"""`gen`: its keywords, what they do, and what they refuse."""

import inspect

import pytest

import lmlang as lm
from lmlang.frontend.dsl import gen
from lmlang.testing import ScriptedBackend


def test_what_asks_for_nothing_more_is_accepted():
    assert lm.gen("x", think=0, dtype=None) == lm.gen("x")
    with pytest.raises(lm.ProgramError, match="n=True must be an integer, not bool"):
        lm.gen("x", n=True)


def test_gen_has_the_fields_argument_order():
    by_position = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = inspect.signature(gen).parameters.values()
    assert " ".join([each.name for each in parameters if each.kind is by_position]) == (
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
        ({"stop_regex": ""}, "stop_regex='' would end every output at once"),
        ({"stop_regex": 3}, "stop_regex=3 must be a string or a list of strings"),
        ({"stop_regex": ["a"] * 65}, "stop_regex has 65 strings: at most 64"),
        ({"stop_regex": "a" * 1025}, "stop_regex has a string of 1,025 characters"),
        ({"stop_regex": "a*"}, "may match no character at all"),
        ({"heal": 1}, "heal=1 must be True or False"),
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


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("a(", lm.GrammarSyntaxError, "unterminated subpattern at character 1"),
        (r"(a)\1", lm.GrammarSyntaxError, "at character 3: a back-reference"),
        ("a$", lm.GrammarSyntaxError, r"at character 1: \$ at its end looks at what comes behind"),
        ("(a{1,500}){1,500}", lm.GrammarTooLarge, "more than 10,000 nodes"),
    ],
)
def test_patterns_that_cannot_be_searched_for_are_refused_where_they_are_written(
    pattern, error, message
):
    for make in (lm.gen, lambda **given: run(**given)):
        with pytest.raises(error, match=message):
            make(stop_regex=[pattern])


def test_a_stop_pattern_ends_an_answer_as_a_stop_text_does():
    answers = ["One. Two", "ab12cd", "xaab", "none"]
    texts = [
        lm.gen("dot", stop_regex=r"[.!]\s"),
        lm.gen("digits", stop_regex=[r"b\d", r"\d\d"], include_stop=True),
        lm.gen("longest", stop="b", stop_regex="a+b"),
        lm.gen("content", stop_regex="n", min_tokens=3),
    ]
    state = run(*texts, backend=ScriptedBackend(answers))
    assert [state[name] for name in ("dot", "digits", "longest", "content")] == [
        "One", "ab1", "x", "none",
    ]  # fmt: skip
    assert [state.meta(name).stop for name in ("dot", "digits", "longest")] == [". ", "b1", "aab"]


def test_probabilities_are_told_where_they_were_asked_for():
    state = run(lm.gen("x", return_logprob=True), lm.gen("y"), backend=ScriptedBackend(["ab", "c"]))
    assert len(state.meta("x").probs) == len(state.meta("x").tokens) == 3
    assert all(0 < prob <= 1 for prob in state.meta("x").probs)
    assert state.meta("y").probs == ()


def run(*expressions, backend=None, **options):
    """The state of a program that appends these, on a scripted backend."""

    @lm.function
    def program(s):
        for expression in expressions:
            s += expression

    return program.options(seed=1, **options).run(backend=backend or ScriptedBackend())


def request_of(*expressions, **options):
    backend = ScriptedBackend(vision=True)
    run(*expressions, backend=backend, **options)
    return backend.requests[0]


PARAMETERS = {
    "max_tokens": 7,
    "min_tokens": 3,
    "stop": ("a", "b"),
    "stop_token_ids": (5, 6),
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "frequency_penalty": 0.1,
    "presence_penalty": -0.2,
    "repetition_penalty": 1.1,
    "ignore_eos": True,
    "include_stop": True,
    "logit_bias": ((3, -100.0), (7, 2.5)),
    "stop_regex": ("a+", r"\d"),
    "heal": True,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_sampling_keyword_reaches_the_backend_from_gen_and_from_run(name):
    value = PARAMETERS[name]
    as_run = "max_new_tokens" if name == "max_tokens" else name
    plain = getattr(request_of(lm.gen("x")).params, name)
    assert plain != value
    assert getattr(request_of(lm.gen("x", **{name: value})).params, name) == value
    assert getattr(request_of(lm.gen("x"), **{as_run: value}).params, name) == value
    unlike = {name: plain}
    assert getattr(request_of(lm.gen("x", **unlike), **{as_run: value}).params, name) == plain


def test_the_forms_that_keywords_take():
    params = request_of(
        lm.gen("x", stop="a", stop_token_ids=[5, 5], logit_bias={7: 2, 3: -1}, top_k=0)
    ).params
    assert (params.stop, params.stop_token_ids) == (("a",), (5,))
    assert params.logit_bias == ((3, -1.0), (7, 2.0))
    assert params.top_k == -1


def test_min_tokens_is_compared_with_the_maximum_that_holds():
    assert request_of(lm.gen("x", min_tokens=200), max_new_tokens=300).params.min_tokens == 200
    with pytest.raises(lm.ProgramError, match="min_tokens=5 is more than max_tokens=4"):
        lm.gen("x", min_tokens=5, max_tokens=4)
    with pytest.raises(lm.ProgramError, match="min_tokens=200 is more than max_tokens=128"):
        run(lm.gen("x", min_tokens=200))


def test_samples_are_a_list_and_the_state_goes_on_with_the_first():
    backend = ScriptedBackend(["red", "green", "blue", "end"])
    state = run("A colour: " + lm.gen("x", n=3), lm.gen("y"), backend=backend)
    assert state["x"] == ["red", "green", "blue"]
    assert state.text_of("x") == "red"
    assert state.text() == "A colour: redend"
    assert backend.render(backend.requests[3].prompt) == "A colour: red"


def test_samples_share_everything_but_their_draws():
    backend = ScriptedBackend()
    state = run(lm.gen("x", n=3), backend=backend)
    keys = [request.draw_key for request in backend.requests]
    assert len(set(keys)) == 3
    assert len({(request.prompt, request.params) for request in backend.requests}) == 1
    assert len(set(state["x"])) == 3
    alone = ScriptedBackend()
    assert run(lm.gen("x"), backend=alone)["x"] == state["x"][0]


def test_samples_can_be_asked_for_by_the_run():
    assert len(run(lm.gen("x"), n=2)["x"]) == 2
    assert isinstance(run(lm.gen("x", n=1), n=2)["x"], str)


def test_the_metadata_of_samples_is_the_firsts_with_that_of_each():
    state = run(lm.gen("x", n=2), backend=ScriptedBackend(["a", "bcd"]))
    meta = state.meta("x")
    assert [sample.generated_tokens for sample in meta.samples] == [2, 4]
    assert [(sample.sampled_tokens, sample.forced_tokens) for sample in meta.samples] == [
        (2, 0),
        (4, 0),
    ]
    assert meta.tokens == meta.samples[0].tokens
    assert len({meta.id for meta in meta.samples}) == 2
    assert state.usage().generated_tokens == 6
    assert [info["completion_tokens"] for info in state.get_meta_info("x")] == [2, 4]


def test_an_error_of_one_sample_is_the_generations_and_cancels_the_others():
    backend = ScriptedBackend(completes="when released", fail_at=1)
    with pytest.raises(lm.BackendError, match="call 1 was scripted to fail"):
        run(lm.gen("x", n=3), backend=backend)
    assert backend.pending() == []


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"n": 0}, "n=0 is out of range: it must be from 1 to 1,024"),
        ({"n": 1.5}, "n=1.5 must be an integer"),
        ({"min_tokens": -1}, "min_tokens=-1 is out of range"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids='a' must be an integer"),
        ({"stop_token_ids": [-1]}, "stop_token_ids=-1 is out of range"),
        ({"frequency_penalty": 2.1}, "frequency_penalty=2.1 is out of range"),
        ({"presence_penalty": -3}, "presence_penalty=-3 is out of range"),
        ({"repetition_penalty": 0}, "repetition_penalty=0 is out of range: .* above 0"),
        ({"include_stop": "no"}, "include_stop='no' must be True or False"),
        ({"logit_bias": {1: 101}}, "logit_bias=101 is out of range"),
        ({"logit_bias": [1]}, r"logit_bias=.* must map token ids to numbers"),
        ({"return_logprob": 1}, "return_logprob=1 must be True or False"),
        ({"return_text_in_logprobs": 0}, "return_text_in_logprobs=0 must be True or False"),
        ({"logprob_start_len": -2}, "logprob_start_len=-2 is out of range"),
        ({"top_logprobs_num": 101}, "top_logprobs_num=101 is out of range"),
        (
            {"return_logprob": False, "top_logprobs_num": 2},
            "top_logprobs_num=2 cannot act beside return_logprob=False",
        ),
        (
            {"return_logprob": False, "return_text_in_logprobs": True},
            "return_text_in_logprobs=True cannot act beside return_logprob=False",
        ),
        ({"choices": ["a"], "n": 2}, "n cannot act beside choices"),
        ({"choices": ["a"], "stop_token_ids": [3]}, "stop_token_ids cannot act beside choices"),
        ({"choices": ["a"], "return_logprob": True}, "return_logprob cannot act beside choices"),
        ({"choices": ["a"], "regex": "a"}, "gen: regex cannot act beside choices"),
        ({"choices": ["a"], "type": int}, "gen: type cannot act beside choices"),
        ({"choices": ["a"], "think": 5}, "gen: think cannot act beside choices"),
        ({"choices": ["a"], "on_budget": "close"}, "gen: on_budget cannot act beside choices"),
    ],
)
def test_more_wrong_values_raise_where_they_are_written(keyword, message):
    with pytest.raises(lm.ProgramError, match=message):
        lm.gen("x", **keyword)


def test_what_was_right_before_does_not_make_its_equals_right():
    assert lm.gen("x", max_tokens=1, ignore_eos=True, temperature=1) == lm.gen(
        "x", max_tokens=1, ignore_eos=True, temperature=1.0
    )
    for wrong in ({"max_tokens": True}, {"ignore_eos": 1}, {"temperature": True}):
        with pytest.raises(lm.ProgramTypeError, match="must be"):
            lm.gen("x", **({"max_tokens": 1, "ignore_eos": True, "temperature": 1} | wrong))


def test_what_is_reported_is_what_was_asked_for():
    def asked(run_keywords=None, **keywords):
        request = request_of(lm.gen("x", **keywords), **(run_keywords or {}))
        return request.top_logprobs, request.input_logprobs_from

    assert asked() == (0, None)
    assert asked(return_logprob=True) == (0, None)
    assert asked(top_logprobs_num=3) == (3, None)
    assert asked(logprob_start_len=0) == (0, 0)
    assert asked(logprob_start_len=-1) == (0, None)
    assert asked({"top_logprobs_num": 2, "logprob_start_len": 4}) == (2, 4)
    assert asked({"top_logprobs_num": 2}, logprob_start_len=1) == (2, 1)
    assert asked({"top_logprobs_num": 2}, return_logprob=False) == (0, None)
