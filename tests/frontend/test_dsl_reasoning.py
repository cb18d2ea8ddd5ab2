"""separate_reasoning: the answer apart from what led to it."""

import pytest

import lmlang as lm
from lmlang.frontend.reasoning import split
from lmlang.protocol import Tokens
from lmlang.testing import ScriptedBackend


@pytest.mark.parametrize(
    ("text", "model_type", "expected"),
    [
        ("<think> so </think>\n42 ", "qwen3", (" so ".strip() + " ", "42")),
        ("<think>so</think>42", "qwen3", ("so", "42")),
        ("so</think>42", "qwen3", ("", "so</think>42")),
        (" plain \n", "qwen3", ("", " plain \n")),
        ("so</think>42", "deepseek-r1", ("so", "42")),
        ("<think>so</think>42", "deepseek-r1", ("so", "42")),
        ("never ends ", "deepseek-r1", ("never ends", "")),
        ("<think>never ends", "qwen3", ("never ends", "")),
        ("so</think>a</think>b", "qwen3-thinking", ("so", "a</think>b")),
        ("◁think▷hm◁/think▷yes", "kimi", ("hm", "yes")),
        ("", "step3", ("", "")),
        ("", "glm45", ("", "")),
    ],
)
def test_outputs_split_at_their_markers(text, model_type, expected):
    assert split(text, model_type) == expected


@lm.function
def think(s, model_type="qwen3"):
    s += lm.user("6 x 7?")
    s += lm.assistant("Well: " + lm.separate_reasoning(lm.gen("x"), model_type=model_type) + ".")


def test_the_reasoning_has_a_variable_and_leaves_the_prompt():
    backend = ScriptedBackend(["<think>six sevens</think>42"])
    state = think(backend=backend)
    assert state["x"] == state.text_of("x") == "42"
    assert state["x_reasoning_content"] == "six sevens"
    assert "x_reasoning_content" in state
    assert state.text().endswith("<assistant>Well: 42.</assistant>")
    assert state.meta("x").generated_tokens == len("<think>six sevens</think>42") + 1


def test_an_output_without_reasoning_keeps_its_tokens():
    state = think(backend=ScriptedBackend([" 42 "]))
    assert (state["x"], state["x_reasoning_content"]) == (" 42 ", "")
    backend = ScriptedBackend([" 42 ", "more"])

    @lm.function
    def twice(s):
        s += lm.separate_reasoning(lm.gen("x"), model_type="QWEN3") + lm.gen("y")

    twice(backend=backend)
    assert any(isinstance(s, Tokens) for s in backend.requests[1].prompt.segments())


def test_every_sample_is_split():
    @lm.function
    def program(s):
        s += lm.separate_reasoning(lm.gen("x", n=2), model_type="deepseek-r1")

    state = program(backend=ScriptedBackend(["a</think>1", "b</think>2"]))
    assert state["x"] == ["1", "2"]
    assert state["x_reasoning_content"] == ["a", "b"]
    assert state.text() == "1"


def test_selects_stay_as_they_are():
    @lm.function
    def program(s):
        expr = lm.gen("x") + lm.select("y", ["a", "b"])
        s += lm.separate_reasoning(expr, model_type="deepseek-r1")

    state = program(backend=ScriptedBackend(["so</think>1"], scores={"a": -1, "b": -2}))
    assert (state["x"], state["y"], "y_reasoning_content" in state) == ("1", "a", False)


def test_a_failure_reaches_the_reasoning_too():
    @lm.function
    def program(s):
        s += lm.separate_reasoning(lm.gen("x"), model_type="qwen3")
        return s["x_reasoning_content"]

    with pytest.raises(lm.BackendError, match="call 0 was scripted to fail"):
        program(backend=ScriptedBackend(fail_at=0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((lm.gen("x"), "gpt"), "model_type='gpt' is unknown: give one of 'deepseek-r1', "),
        ((lm.gen("x"),), "give model_type=…, one of 'deepseek-r1', "),
        ((None, "qwen3"), "nothing in it generates"),
        (("text", "qwen3"), "nothing in it generates"),
        ((lm.gen(), "qwen3"), "a generation has no name"),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else None,
)
def test_what_cannot_be_separated_raises(arguments, message):
    with pytest.raises(lm.ProgramError, match=message):
        lm.separate_reasoning(*arguments)
