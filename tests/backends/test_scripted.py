import asyncio
import threading

import pytest

from lmlang.backends.scripted import END
from lmlang.errors import BackendError, Cancelled, ProgramError
from lmlang.protocol import (
    EndTurn,
    Finish,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Text,
    Tokens,
    Turn,
)
from lmlang.testing import ScriptedBackend

HI = Prompt.of(Turn("user"), Text("Hi"), EndTurn(), Turn("assistant"))


def output(answer, **params):
    backend = ScriptedBackend([answer])
    return backend.generate(Request(HI, SamplingParams(**params))).result(0)


def test_turns_are_rendered_as_tags_and_tokens_are_characters():
    backend = ScriptedBackend()
    assert backend.render(HI) == "<user>Hi</user><assistant>"
    assert backend.encode(HI) == [ord(c) for c in "<user>Hi</user><assistant>"]


@pytest.mark.parametrize(
    ("params", "text", "ids", "finish"),
    [
        ({}, "abcab", (*map(ord, "abcab"), END), Finish("eos")),
        ({"max_tokens": 5}, "abcab", tuple(map(ord, "abcab")), Finish("length")),
        ({"max_tokens": 2}, "ab", (97, 98), Finish("length")),
        ({"max_tokens": 0}, "", (), Finish("length")),
        ({"stop": ("bc",)}, "a", (97, 98, 99), Finish("stop", "bc")),
        ({"stop": ("ca", "bc")}, "a", (97, 98, 99), Finish("stop", "bc")),
        ({"stop": ("bc",), "max_tokens": 2}, "ab", (97, 98), Finish("length")),
        ({"ignore_eos": True, "max_tokens": 7}, "abcabab", None, Finish("length")),
        ({"ignore_eos": True, "stop": ("aba",)}, "abc", None, Finish("stop", "aba")),
    ],
)
def test_answers_are_cut_as_a_models_output_is(params, text, ids, finish):
    found = output("abcab", **params)
    assert (found.text, found.finish) == (text, finish)
    assert ids is None or found.ids == ids
    assert len(found.logprobs) == len(found.ids) == found.usage.generated_tokens
    assert found.history == ((Tokens(tuple(map(ord, text)), text),) if text else ())


def test_an_ignored_end_of_nothing_goes_on_in_spaces():
    assert output("", ignore_eos=True, max_tokens=3).text == "   "


def test_an_output_is_streamed_as_an_event_first():
    generation = ScriptedBackend(["yes"]).generate(Request(HI))
    (event,) = generation.events()
    assert (event.text, event.finish) == ("yes", Finish("eos"))


def test_without_a_script_answers_depend_on_prompt_and_draw_key_alone():
    def answer(prompt=HI, key=0, temperature=1.0):
        request = Request(prompt, SamplingParams(temperature=temperature), key)
        return ScriptedBackend().generate(request).result(0).text

    assert answer() == answer()
    assert len({answer(), answer(key=1), answer(Prompt()), answer(temperature=0.0)}) == 4
    assert answer(key=1, temperature=0.0) == answer(key=2, temperature=0.0)


def test_a_callable_sees_the_rendered_prompt():
    assert ScriptedBackend(str.upper).generate(Request(HI)).result(0).text.startswith("<USER>HI")


@pytest.mark.parametrize("scores", [{"a": -1.0, "b": -2.0}, lambda prompt, c: -float(ord(c) - 96)])
def test_scores_are_the_scripts(scores):
    backend = ScriptedBackend(scores=scores)
    found = backend.score(ScoreRequest(HI, ("b", "a"), end_turn=True)).result(0)
    assert [sum(choice.logprobs) for choice in found.choices] == [-2.0, -1.0]
    assert [choice.ids for choice in found.choices] == [(98, END), (97, END)]
    assert found.usage.scored_tokens == 4


def test_unscripted_scores_are_the_same_every_time():
    one, two = (ScriptedBackend().score(ScoreRequest(HI, ("ab", "c"))).result(0) for _ in "12")
    assert one == two


def test_a_script_that_has_run_out_says_so():
    backend = ScriptedBackend([])
    with pytest.raises(BackendError, match=r"no answer left for call 1: .*<assistant>'"):
        backend.generate(Request(HI)).result(0)
    with pytest.raises(BackendError, match="no score for the choice 'a'"):
        ScriptedBackend(scores={}).score(ScoreRequest(HI, ("a",))).result(0)


def test_the_call_that_is_to_fail_fails():
    mine = ValueError("mine")
    backend = ScriptedBackend(fail_at=1, error=mine)
    backend.generate(Request(HI)).result(0)
    with pytest.raises(ValueError, match="mine"):
        backend.score(ScoreRequest(HI, ("a", "b"))).result(0)
    backend.generate(Request(HI)).result(0)
    assert [type(r).__name__ for r in backend.requests] == ["Request", "ScoreRequest", "Request"]


def test_calls_wait_for_their_release_in_any_order():
    with ScriptedBackend(["a", "b"], completes="when released") as backend:
        first, second = (backend.generate(Request(HI, draw_key=i)) for i in range(2))
        assert [request.draw_key for request in backend.pending()] == [0, 1]
        backend.release(1)
        assert second.result(0).text == "a"
        assert not first.done()
        backend.release()
        assert first.result(0).text == "b"
        with pytest.raises(TimeoutError, match="0 calls are pending after 0 s, not 1"):
            backend.wait_for(1, timeout=0)


def test_a_cancelled_call_is_pending_no_more():
    with ScriptedBackend(completes="when released") as backend:
        generation = backend.generate(Request(HI))
        scoring = backend.score(ScoreRequest(HI, ("a", "b")))
        generation.cancel()
        scoring.cancel()
        assert backend.pending() == []
        with pytest.raises(Cancelled):
            generation.result(0)


def test_a_thread_of_its_own_answers_and_ends_with_the_backend():
    before = set(threading.enumerate())
    seen = []
    with ScriptedBackend(["a"], completes="on a thread") as backend:
        generation = backend.generate(Request(HI))
        generation.add_done_callback(lambda g: seen.append(threading.current_thread()))
        assert generation.result(60).text == "a"
        assert len(set(threading.enumerate()) - before) == 1
    assert set(threading.enumerate()) <= before
    backend.close()


def test_closing_fails_what_is_pending():
    backend = ScriptedBackend(completes="when released")
    calls = [backend.generate(Request(HI)), backend.score(ScoreRequest(HI, ("a", "b")))]
    backend.close()
    for call in calls:
        with pytest.raises(BackendError, match="closed before it answered"):
            call.result(0)
    with pytest.raises(BackendError, match="the backend is closed"):
        backend.generate(Request(HI)).result(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"answers": "yes"}, "answers is one string: give a list"),
        ({"answers": {}}, "answers is a dict: give a list of strings, in the order"),
        ({"answers": 3}, "answers is an int: give a list of strings"),
        ({"answers": ["a", 3]}, r"answers\[1\] is an int: an answer is a string"),
        ({"scores": [1]}, "scores is a list: give a dict"),
        ({"error": "str", "fail_at": 0}, "error is a str: give an exception"),
        ({"chunk": 0}, "chunk=0 is out of range"),
        ({"chunk": -1}, "chunk=-1 is out of range"),
        ({"chunk": "x"}, "chunk='x' must be an integer"),
        ({"fail_at": "x"}, "fail_at='x' must be an integer"),
        ({"completes": "soon"}, "completes='soon' must be 'at once'"),
    ],
)
def test_wrong_scripts_raise(arguments, message):
    with pytest.raises(ProgramError, match=message):
        ScriptedBackend(**arguments)


@pytest.mark.parametrize(
    ("params", "text", "length"),
    [
        ({"min_tokens": 7}, "abcabab", 8),
        ({"min_tokens": 7, "max_tokens": 7}, "abcabab", 7),
        ({"stop": ("b",), "min_tokens": 2}, "abca", 5),
        ({"stop": ("b",), "include_stop": True}, "ab", 2),
        ({"stop_token_ids": (99,)}, "ab", 3),
        ({"stop_token_ids": (99,), "min_tokens": 3}, "abcab", 6),
    ],
)
def test_answers_are_cut_by_the_newer_parameters_too(params, text, length):
    found = output("abcab", **params)
    assert (found.text, len(found.ids)) == (text, length)


def test_a_stream_can_come_in_chunks():
    generation = ScriptedBackend(["abcde"], chunk=2).generate(Request(HI))
    assert [event.text for event in generation.events()] == ["ab", "cd", "e"]


def test_a_fixture_makes_a_backend_for_each_test(pytester):
    pytester.makeconftest("import lmlang.testing\nbackend = lmlang.testing.backend_fixture()\n")
    pytester.makepyfile(
        """
        import lmlang as lm

        @lm.function
        def program(s):
            s += lm.gen("x")

        def test_one(backend):
            assert program()["x"]
            assert len(backend.requests) == 1

        def test_two(backend):
            assert backend.requests == []
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_functions_of_a_script_that_return_nonsense_are_named():
    backend = ScriptedBackend(lambda prompt: 3, scores=lambda prompt, choice: None)
    with pytest.raises(ProgramError, match=r"answers\(prompt\) returned an int: an answer is"):
        backend.generate(Request(HI)).result(0)
    with pytest.raises(ProgramError, match="score of the choice 'a' is a NoneType"):
        backend.score(ScoreRequest(HI, ("a", "b"))).result(0)


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, KeyboardInterrupt])
def test_whatever_a_script_raises_fails_its_call_and_the_thread_goes_on(kind):
    answers = [kind("why"), "there"]

    def answer(prompt):
        found = answers.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    with ScriptedBackend(answer, completes="on a thread") as backend:
        with pytest.raises(kind, match="why"):
            backend.generate(Request(HI)).result(60)
        assert backend.generate(Request(HI)).result(60).text == "there"


def test_whatever_a_script_raises_at_its_release_is_heard_by_both():
    def answer(prompt):
        raise SystemExit("why")

    with ScriptedBackend(answer, completes="when released") as backend:
        call = backend.generate(Request(HI))
        with pytest.raises(SystemExit):
            backend.release()
        with pytest.raises(SystemExit, match="why"):
            call.result(0)
