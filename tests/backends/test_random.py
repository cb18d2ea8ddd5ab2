"""RandomBackend: seeded, honours what a model would, and leaves no thread behind."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmlang as lm
from lmlang.backends.characters import END
from lmlang.protocol import (
    EndTurn,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Text,
    Turn,
)
from lmlang.testing import RandomBackend
from tests.backends.served import SECONDS

HI = Prompt.of(Turn("user"), Text("Hi"), EndTurn(), Turn("assistant"))


def output(backend=None, prompt=HI, key=0, top=0, inputs=None, **params):
    request = Request(prompt, SamplingParams(**params), key, top, inputs)
    return (backend or RandomBackend()).generate(request).result(0)


def test_an_answer_depends_on_seed_prompt_and_draw_key_alone():
    assert output() == output(RandomBackend(0))
    texts = {
        output().text,
        output(RandomBackend(1)).text,
        output(key=1).text,
        output(prompt=Prompt.of(Text("Ho"))).text,
    }
    assert len(texts) == 4
    assert output(key=1, temperature=0).text == output(key=2, temperature=0).text


@given(st.lists(st.text(max_size=3), max_size=6), st.integers(0, 2**64 - 1))
def test_how_a_prompt_was_put_together_does_not_matter(parts, key):
    backend = RandomBackend()
    whole, pieces = Prompt.of(Text("".join(parts))), Prompt.of(*map(Text, parts))
    assert backend.render(whole) == backend.render(pieces)
    assert output(prompt=whole, key=key) == output(prompt=pieces, key=key)
    assert output(prompt=whole).usage.prompt_tokens == len(backend.encode(whole))


def test_deep_prompts_need_no_recursion():
    prompt = HI
    for _ in range(50_000):
        prompt = prompt.append(Text("a"))
    assert output(prompt=prompt).usage.prompt_tokens == len(RandomBackend().render(prompt))


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 2**64 - 1), st.booleans())
def test_lengths_are_honoured(most, least, key, ignore):
    least = min(least, most)
    found = output(key=key, max_tokens=most, min_tokens=least, ignore_eos=ignore)
    assert least <= len(found.ids) <= most
    assert (found.finish.reason == "length") == (END not in found.ids)
    assert not (ignore and found.finish.reason == "eos")
    assert len(found.text) >= least
    assert found.usage.generated_tokens == len(found.ids) == len(found.logprobs)
    assert all(logprob <= 0 for logprob in found.logprobs)


@given(st.integers(0, 2**64 - 1), st.sampled_from(["e", "t", "a ", "\n"]), st.booleans())
def test_stops_are_honoured(key, stop, include):
    free = output(key=key).text
    found = output(key=key, stop=(stop,), include_stop=include)
    if stop in free:
        expected = free[: free.index(stop)] + (stop if include else "")
        assert (found.text, found.finish.stop) == (expected, stop)
        assert found.ids == tuple(map(ord, free[: free.index(stop) + len(stop)]))
    else:
        assert found.text == free


def test_stop_tokens_are_honoured_and_no_text():
    free = output().text
    found = output(stop_token_ids=(ord(free[3]),))
    assert found.text == free[: free.index(free[3])]
    assert (found.finish.reason, found.finish.stop) == ("stop", ord(free[3]))
    assert found.ids[-1] == ord(free[3])


def test_the_end_can_be_a_stop_token():
    assert output(stop_token_ids=(END,)).finish.stop == END


def test_logprobs_of_prompt_and_likeliest_are_told_where_asked_for():
    found = output(prompt=Prompt.of(Text("abc")), top=2, inputs=1, max_tokens=4)
    assert [len(place) for place in found.top_logprobs] == [2] * len(found.ids)
    assert [place[0][0] for place in found.top_logprobs] == list(found.ids)
    assert found.input_logprobs.start == 1
    assert found.input_logprobs.ids == (ord("b"), ord("c"))
    assert None not in found.input_logprobs.logprobs
    assert output(prompt=Prompt.of(Text("abc")), inputs=0).input_logprobs.logprobs[0] is None
    assert (output().top_logprobs, output().input_logprobs) == ((), None)


@given(st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_events_joined_are_the_output(key, top):
    generation = RandomBackend().generate(Request(HI, SamplingParams(), key, top))
    found, events = generation.result(0), list(generation.events())
    assert "".join(event.text for event in events) == found.text
    assert sum((event.ids for event in events), ()) == found.ids
    assert sum((event.logprobs for event in events), ()) == found.logprobs
    assert sum((event.top_logprobs for event in events), ()) == found.top_logprobs
    assert [event.finish for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish == found.finish
    assert [event.index for event in events] == [16 * i for i in range(len(events))]


def test_choices_have_scores_of_their_own():
    request = ScoreRequest(HI, ("ab", "c"), end_turn=True, unconditional=True)
    found = RandomBackend().score(request).result(0)
    assert found == RandomBackend().score(request).result(0)
    assert [choice.ids for choice in found.choices] == [(97, 98, END), (99, END)]
    for choice in found.choices:
        assert len(choice.logprobs) == len(choice.unconditional) == len(choice.ids)
        assert choice.unconditional[0] is None
    other = RandomBackend().score(ScoreRequest(Prompt(), ("ab", "c"))).result(0)
    assert other.choices[0].logprobs != found.choices[0].logprobs[:2]
    assert other.choices[0].unconditional == ()


def test_selects_take_every_member_sooner_or_later():
    @lm.function
    def program(s, number):
        s += f"{number}" + lm.select("x", ["a", "b", "c"])

    found = {program(number, backend=RandomBackend())["x"] for number in range(40)}
    assert found == {"a", "b", "c"}


def test_its_thread_lives_only_while_there_is_work():
    before = set(threading.enumerate())
    with RandomBackend(completes="on a thread") as backend:
        assert set(threading.enumerate()) <= before
        generations = [backend.generate(Request(HI, draw_key=key)) for key in range(100)]
        scores = backend.score(ScoreRequest(HI, ("a", "b")))
        found = [generation.result(SECONDS).text for generation in generations]
        assert scores.result(SECONDS).choices
    assert set(threading.enumerate()) <= before
    assert found == [output(key=key).text for key in range(100)]


def test_closing_waits_for_a_thread_that_is_about_to_end():
    """It has found no more work, and still has its last lines to run."""
    ending, go_on = threading.Event(), threading.Event()
    backend = RandomBackend(completes="on a thread")
    loop, threads = backend._loop, []

    def lingering(before):
        threads.append(threading.current_thread())
        loop(before)
        ending.set()
        assert go_on.wait(SECONDS)

    backend._loop = lingering
    assert backend.generate(Request(HI)).result(SECONDS)
    assert ending.wait(SECONDS)
    later = threading.Timer(0.05, go_on.set)
    later.start()
    backend.close()
    assert not threads[0].is_alive()
    later.join()


def test_closing_fails_what_is_pending_and_what_comes():
    started, go_on = threading.Event(), threading.Event()
    backend = RandomBackend(completes="on a thread")
    answer = backend._output

    def held(request):
        started.set()
        assert go_on.wait(SECONDS)
        return answer(request)

    backend._output = held
    first = backend.generate(Request(HI))
    assert started.wait(SECONDS)
    pending = [backend.generate(Request(HI)), backend.score(ScoreRequest(HI, ("a", "b")))]
    closing = threading.Thread(target=backend.close)
    closing.start()
    for call in pending:
        with pytest.raises(lm.BackendError, match="closed before it answered"):
            call.result(SECONDS)
    assert closing.is_alive()  # it waits for the thread
    go_on.set()
    closing.join(SECONDS)
    assert first.result(0)
    with pytest.raises(lm.BackendError, match="the backend is closed"):
        backend.generate(Request(HI)).result(0)
    backend.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed=-1 is out of range"),
        ({"completes": "when released"}, "completes='when released' must be 'at once' or"),
    ],
)
def test_wrong_arguments_raise(arguments, message):
    with pytest.raises(lm.ProgramError, match=message):
        RandomBackend(**arguments)


def test_whatever_is_raised_fails_its_call_and_the_thread_goes_on(monkeypatch):
    with RandomBackend(completes="on a thread") as backend:
        output = backend._output

        def ended(request):
            monkeypatch.setattr(backend, "_output", output)
            raise SystemExit("why")

        monkeypatch.setattr(backend, "_output", ended)
        with pytest.raises(SystemExit, match="why"):
            backend.generate(Request(HI)).result(SECONDS)
        assert backend.generate(Request(HI)).result(SECONDS)
