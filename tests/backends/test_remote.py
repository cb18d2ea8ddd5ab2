"""RuntimeEndpoint against servers that misbehave: what is tried again, and what it fails with."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import CancelledError
from queue import Queue

import pytest

import lmlang as lm
from lmlang.backends import retries
from lmlang.backends.connection import Connection
from lmlang.errors import BackendError
from lmlang.protocol import (
    BackendInfo,
    ChoiceScore,
    Event,
    Finish,
    Image,
    Output,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Scores,
    Text,
    Tokens,
    Usage,
)
from tests.backends.served import (
    SECONDS,
    Held,
    Scripted,
    error,
    pass_time,
    plain,
    served,
    site,
    stream,
    streamed,
)
from tests.frontend.by_hand import deadlines_pass

PROMPT = Prompt.of(Text("Hi"))
REQUEST = Request(PROMPT, SamplingParams(max_tokens=8))
SCORING = ScoreRequest(PROMPT, ("a", "b"))
TEXTS = ("Th", "e", " en", "d")
EVENTS = tuple(
    Event(i, (i + 10,), text, (-0.5,), Finish("eos") if i == 3 else None)
    for i, text in enumerate(TEXTS)
)
OUTPUT = Output(
    "The end",
    (10, 11, 12, 13),
    (-0.5,) * 4,
    Finish("eos"),
    Usage(2, 0, 4),
    (Tokens((10, 11, 12), "The end"),),
)
GOOD = stream(*EVENTS, OUTPUT)
SCORES = Scores((ChoiceScore((1,), (-1.0,)), ChoiceScore((2,), (-2.0,))), Usage(2, 0, 0, 2))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.001)


@pytest.fixture(scope="module")
def at():
    """Has an app served for these tests; gives its address."""
    with site() as found:
        yield found.add


@pytest.fixture
def generated(at):
    """A server's answer to a request: its output, or the error, and the events before."""

    def answer(app, request=REQUEST, **parameters):
        with lm.RuntimeEndpoint(at(app), **parameters) as remote:
            return told(remote.generate(request))

    return answer


def told(generation):
    try:
        output = generation.result(SECONDS)
        assert list(generation.events()) == generation.events_from(0)
        return output, generation.events_from(0)
    except lm.LMLangError as raised:
        return raised, generation.events_from(0)


# ------------------------------------------------------------------ what goes well


def test_a_generation_is_streamed(generated):
    app = Scripted(GOOD)
    assert generated(app) == (OUTPUT, list(EVENTS))
    (asked,) = app.asked
    assert asked.path == "/lm/generate"
    assert asked.message == {"v": 1, "prompt": [{"text": "Hi"}], "params": {"max_tokens": 8}}
    assert asked.headers["content-type"] == "application/json"
    assert "authorization" not in asked.headers


def test_an_output_without_tokens(generated):
    empty = Output("", (), (), Finish("length"), Usage(1), ())
    end = Event(0, (), "", (), Finish("length"))
    assert generated(Scripted(stream(end, empty))) == (empty, [end])


def test_the_other_questions(at):
    app = Scripted(
        plain(200, {"v": 1, "choices": [{"ids": [1], "logprobs": [-1]}], "usage": {}}),
        plain(200, {"v": 1, "text": "Hi!"}),
        plain(200, {"v": 1, "ids": [4, 2]}),
        plain(200, {"v": 1, "text": "yes"}),
        plain(200, {"v": 1, "text": "y"}),
        plain(200, {"v": 1, "model": "m", "context_length": 9}),
        error(400, lm.ModelError("not now")),
        plain(200, {"v": 1, "model": "n", "fingerprint": "f"}),
        plain(200, {"done": True}),
    )
    with lm.connect(at(app)) as remote:
        scores = remote.score(ScoreRequest(PROMPT, ("a",))).result(SECONDS)
        assert scores == Scores((ChoiceScore((1,), (-1.0,)),), Usage())
        assert remote.render(PROMPT) == "Hi!"
        assert remote.encode(PROMPT) == [4, 2]
        assert remote.decode([4, 2]) == "yes"
        assert remote.decode([4]) == remote.decode([4]) == "y"
        assert remote.info() == BackendInfo("m", 9) == remote.info()
        with pytest.raises(lm.ModelError, match="not now"):
            remote.info_now()
        assert remote.info() == BackendInfo("m", 9)
        assert remote.info_now() == BackendInfo("n", fingerprint="f") == remote.info()
        remote.flush_cache()
    assert [asked.path for asked in app.asked] == [
        *("/lm/score", "/lm/render", "/lm/encode", "/lm/decode", "/lm/decode"),
        *("/lm/info", "/lm/info", "/lm/info", "/flush_cache"),
    ]
    assert len({asked.client for asked in app.asked}) == 1  # the connection was kept
    assert app.asked[3].message == {"v": 1, "ids": [4, 2]}


def test_the_end_of_a_run_is_told_and_not_waited_for(at):
    held = Held(plain(404, "no"))
    app = Scripted(held)
    with lm.RuntimeEndpoint(at(app)) as remote:
        remote.end_run("r1")  # a hint: a server that does not know it says so to nobody
        assert held.here.acquire(timeout=SECONDS)
        held.release()
        with pytest.raises(lm.BackendError, match="status 404"):
            remote.info()
    assert [asked.path for asked in app.asked] == ["/lm/end_run", "/lm/info"]
    assert app.asked[0].message == {"v": 1, "run_id": "r1"}


def test_the_key_is_sent_and_shown_nowhere(at):
    app = Scripted(plain(401, {"detail": "no"}))
    with lm.RuntimeEndpoint(at(app), api_key="sesame") as remote:
        with pytest.raises(lm.BackendError) as caught:
            remote.render(PROMPT)
        shown = [repr(remote), repr(vars(remote)), str(caught.value), repr(caught.value)]
        assert repr(remote) == f"RuntimeEndpoint({remote._url!r})"
    assert app.asked[0].headers["authorization"] == "Bearer sesame"
    assert caught.value.status == 401
    assert not any("sesame" in text for text in shown)


def test_no_redirect_is_followed(generated):
    app = Scripted(plain(307, "", location="http://127.0.0.1:9/"))
    found, _ = generated(app)
    assert (type(found), found.status, len(app.asked)) == (lm.BackendError, 307, 1)


# ------------------------------------------------------------------ busy servers


@pytest.mark.parametrize(
    "busy",
    [
        plain(429, {"error": "slow down"}, retry_after="0"),
        plain(503, "<html>", content_type="text/html"),
        error(503, lm.QueueFull("no place")),
        plain(502, ""),
        stream(lm.QueueFull("no place")),
        stream(lm.BackendError("later", retryable=True)),
    ],
)
def test_a_busy_server_is_asked_again(busy, generated):
    app = Scripted(busy, busy, GOOD)
    assert generated(app, max_retries=2) == (OUTPUT, list(EVENTS))
    assert len(app.asked) == 3


def test_a_server_that_stays_busy_is_given_up_with_what_it_says(generated):
    app = Scripted(error(503, lm.QueueFull("1,024 wait already.")))
    found, _ = generated(app, max_retries=2)
    assert (type(found), str(found)) == (lm.QueueFull, "1,024 wait already.")
    assert len(app.asked) == 3
    app = Scripted(plain(429, "slow down", retry_after="0"))
    found, _ = generated(app, max_retries=1)
    assert (type(found), found.status, found.retryable) == (lm.BackendError, 429, True)
    assert "/lm/generate answered with the status 429" in str(found)


def test_whoever_asks_for_more_time_than_there_is_is_not_waited_for(generated):
    app = Scripted(plain(503, "", retry_after="3600"))
    found, _ = generated(app, timeout=20)
    assert (found.status, found.retryable, len(app.asked)) == (503, True, 1)


def test_scores_and_questions_are_asked_again_too(at):
    good = plain(200, {"v": 1, "text": "Hi!"})
    app = Scripted(plain(503, ""), good, plain(503, ""), plain(400, "no"))
    with lm.RuntimeEndpoint(at(app)) as remote:
        assert remote.render(PROMPT) == "Hi!"
        raised = remote.score(SCORING).exception(SECONDS)
        assert (type(raised), raised.status) == (lm.BackendError, 400)


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (400, lm.ProgramError("the prompt is empty: append some text.")),
        (400, lm.ContextOverflow("the prompt has 9 tokens, and the context holds 8.")),
        (400, lm.SchemaUnsupported("not that", keyword="not", pointer="/a/not")),
        (400, lm.Unsatisfiable("nothing fits.")),
        (500, lm.ModelError("the logits are no numbers.")),
        (500, lm.BackendError("the engine died.")),
        (504, lm.DeadlineExceeded("600 s are over.")),
    ],
)
def test_refusals_arrive_as_themselves_and_are_not_asked_again(status, raised, at, generated):
    for answer in (error(status, raised), stream(EVENTS[0], raised)):
        app = Scripted(answer)
        found, _ = generated(app)
        assert (type(found), str(found), len(app.asked)) == (type(raised), str(raised), 1)
        for name in ("keyword", "pointer"):
            assert getattr(found, name, None) == getattr(raised, name, None)
    app = Scripted(error(status, raised))
    with lm.RuntimeEndpoint(at(app)) as remote:
        found = remote.score(SCORING).exception(SECONDS)
        assert (type(found), str(found)) == (type(raised), str(raised))
        with pytest.raises(type(raised)) as caught:
            remote.encode(PROMPT)
        assert str(caught.value) == str(raised)


@pytest.mark.parametrize("status", [400, 404, 500, 501])
def test_what_is_no_refusal_of_ours_is_a_backend_error_of_its_status(status, generated):
    app = Scripted(plain(status, {"detail": "Traceback: the password is secret"}))
    found, _ = generated(app)
    assert (type(found), found.status, found.retryable) == (lm.BackendError, status, False)
    assert "secret" not in str(found)
    assert len(app.asked) == 1


def test_what_cannot_be_sent_is_refused_before_anything_is(at):
    app = Scripted(GOOD)
    with lm.RuntimeEndpoint(at(app)) as remote:
        picture = Prompt.of(Image("0" * 64, "x.png", b""))
        with pytest.raises(lm.ProgramError, match="a picture cannot be sent"):
            remote.generate(Request(picture)).result(0)
        with pytest.raises(lm.ProgramError, match="a picture cannot be sent"):
            remote.score(ScoreRequest(picture, ("a",))).result(0)
        with pytest.raises(lm.ProgramError, match="logits_processor is a function"):
            remote.generate(Request(PROMPT, processor=lambda ids, row: row)).result(0)
    assert app.asked == []


# ------------------------------------------------------------------ lost connections


@pytest.mark.parametrize("count", range(5))
def test_a_stream_that_breaks_goes_on_behind_what_has_come(count, generated):
    def rest(asked):
        start = len(asked.message.get("resumed", ()))
        return *EVENTS[start:], OUTPUT

    app = Scripted(stream(*EVENTS[:count], done=False), streamed(rest))
    assert generated(app) == (OUTPUT, list(EVENTS))
    resumed = [asked.message.get("resumed") for asked in app.asked]
    # Behind the last token nothing is left: it is asked for again, and told once.
    assert resumed == [None, [10, 11, 12][:count] or None]


def test_a_connection_that_breaks_at_every_token_comes_to_the_end(generated):
    def one(asked):
        start = len(asked.message.get("resumed", ()))
        return (EVENTS[start],)

    piece = streamed(one, done=False)
    app = Scripted(*[piece] * 4, GOOD)
    assert generated(app, max_retries=1) == (OUTPUT, list(EVENTS))
    assert [len(asked.message.get("resumed", ())) for asked in app.asked] == [0, 1, 2, 3, 3]


def test_a_connection_that_breaks_without_a_token_is_given_up(generated):
    app = Scripted(stream(EVENTS[0], done=False), stream(done=False))
    found, events = generated(app, max_retries=2)
    assert (type(found), found.retryable, found.status) == (lm.BackendError, True, None)
    assert "was lost" in str(found)
    assert (events, len(app.asked)) == ([EVENTS[0]], 3)


def test_what_must_be_drawn_anew_is_asked_for_whole_and_told_once(generated):
    app = Scripted(stream(*EVENTS[:2], done=False), stream(*EVENTS[:3], done=False), GOOD)
    request = Request(PROMPT, SamplingParams(max_tokens=8), probs=True)
    assert generated(app, request, max_retries=1) == (OUTPUT, list(EVENTS))
    assert [asked.message for asked in app.asked] == [app.asked[0].message] * 3


def test_a_resumed_request_goes_on_behind_its_own_tokens(generated):
    request = Request(PROMPT, SamplingParams(max_tokens=8), resumed=(10, 11))
    app = Scripted(stream(EVENTS[2], done=False), stream(EVENTS[3], OUTPUT))
    assert generated(app, request) == (OUTPUT, list(EVENTS[2:]))
    assert [asked.message["resumed"] for asked in app.asked] == [[10, 11], [10, 11, 12]]


def test_what_comes_behind_the_output_is_not_waited_for_or_believed(generated):
    app = Scripted(stream(*EVENTS, OUTPUT, done=False))
    assert generated(app) == (OUTPUT, list(EVENTS))
    assert len(app.asked) == 1
    app = Scripted(stream(*EVENTS, OUTPUT, "nonsense", OUTPUT))
    assert generated(app) == (OUTPUT, list(EVENTS))


def test_a_server_that_is_not_there():
    with served(Scripted(GOOD)) as url:
        pass  # nobody listens there any more
    with lm.RuntimeEndpoint(url, max_retries=1) as remote:
        found = remote.score(SCORING).exception(SECONDS)
        assert (type(found), found.retryable) == (lm.BackendError, True)
        assert f"{url} cannot be reached" in str(found)


@pytest.mark.parametrize("count", [0, 2])
def test_a_server_that_hangs_is_given_up_after_the_timeout(count, at):
    held = Held(None, *EVENTS[:count])
    app = Scripted(held)
    with lm.RuntimeEndpoint(at(app), timeout=20) as remote:
        generation = remote.generate(REQUEST)
        assert held.here.acquire(timeout=SECONDS)
        events = generation.events()
        assert [next(events) for _ in range(count)] == list(EVENTS[:count])
        pause = threading.Event()
        while not generation.done():  # it may begin to wait for more after this, and again
            pass_time(remote._connection._loop, 20)
            pause.wait(0.01)
        found, told_before = told(generation)
    assert (type(found), found.retryable) == (lm.BackendError, True)
    assert "sent nothing for 20 s (timeout=20)" in str(found)
    assert told_before == list(EVENTS[:count])
    assert held.gone.acquire(timeout=SECONDS)  # its connection was closed
    assert len(app.asked) == 1


# ------------------------------------------------------------------ nonsense


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (stream(EVENTS[0], "{nonsense"), "not JSON at line 1, column 2"),
        (stream("[" * 100_000), "nested too deep"),
        (stream('{"v":1,"event":{"index":NaN}}'), "NaN is no number of JSON"),
        (stream('{"v":2,"event":{}}'), "has version 2, and this lmlang reads version 1"),
        (stream('{"v":1,"event":{"index":0}}'), "$.event: expected the field ids"),
        (stream(EVENTS[0]), "ended without an output or an error"),
        (stream(), "ended without an output or an error"),
        (stream(EVENTS[0], EVENTS[2]), "tokens from number 2 on, and those from number 1"),
        (stream(EVENTS[1]), "tokens from number 1 on, and those from number 0"),
        (stream(*EVENTS[:3], OUTPUT), "is not what it streamed"),
        (stream(OUTPUT), "is not what it streamed"),
        (stream(OUTPUT, media="application/json"), "'application/json', which is no stream"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_streams_of_nonsense_are_wire_errors_and_not_asked_again(answer, message, generated):
    app = Scripted(answer)
    found, _ = generated(app)
    assert type(found) is lm.WireError
    assert message in str(found)
    assert len(app.asked) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>", "not JSON at line 1"),
        ({"v": 7, "choices": [], "usage": {}}, "has version 7"),
        ({"v": 1, "choices": [{}], "usage": {}}, "$.choices[0]: expected the field ids"),
        ("9" * 100, "an integer of 100 digits"),
    ],
)
def test_answers_of_nonsense_are_wire_errors(body, message, at):
    app = Scripted(plain(200, body))
    with lm.RuntimeEndpoint(at(app)) as remote:
        with pytest.raises(lm.WireError) as caught:
            remote.score(SCORING).result(SECONDS)
        assert message in str(caught.value)
        with pytest.raises(lm.WireError):
            remote.encode(PROMPT)
    assert len(app.asked) == 2


# ------------------------------------------------------------------ ends


def test_cancelling_closes_the_stream(at):
    held = Held(None, *EVENTS[:2])
    with lm.RuntimeEndpoint(at(Scripted(held))) as remote:
        generation = remote.generate(REQUEST)
        stream = generation.events()
        assert [next(stream), next(stream)] == list(EVENTS[:2])
        generation.cancel()
        with pytest.raises(lm.Cancelled, match=r"^the generation was cancelled\.$"):
            generation.result(SECONDS)
        assert held.gone.acquire(timeout=SECONDS)


def test_cancelling_before_it_has_begun(at):
    held = Held(GOOD)
    app = Scripted(held)
    with lm.RuntimeEndpoint(at(app), max_concurrency=1) as remote:
        first, second = remote.generate(REQUEST), remote.generate(REQUEST)
        assert held.here.acquire(timeout=SECONDS)
        second.cancel()
        with pytest.raises(lm.Cancelled):
            second.result(SECONDS)
        third = remote.generate(REQUEST)
        third.cancel()
        with pytest.raises(lm.Cancelled):
            third.result(SECONDS)
        held.release()
        assert first.result(SECONDS) == OUTPUT
    assert len(app.asked) == 1


def test_cancelled_scores_close_their_connection(at):
    held = Held()
    with lm.RuntimeEndpoint(at(Scripted(held))) as remote:
        future = remote.score(SCORING)
        assert held.here.acquire(timeout=SECONDS)
        assert future.cancel()
        assert held.gone.acquire(timeout=SECONDS)
        with pytest.raises(CancelledError):
            future.result(0)


def test_a_deadline_of_a_program_ends_what_the_server_does(at):
    @lm.function
    def program(s):
        s += "Hi" + lm.gen("x", max_tokens=8)

    held = Held(None, *EVENTS[:1])

    def too_late():
        assert held.here.acquire(timeout=SECONDS)
        deadlines_pass()

    hand = threading.Thread(target=too_late)
    hand.start()
    with lm.RuntimeEndpoint(at(Scripted(held))) as remote:
        with pytest.raises(lm.DeadlineExceeded):
            program.run(backend=remote, deadline=600)
        assert held.gone.acquire(timeout=SECONDS)
    hand.join(SECONDS)


def test_closing_fails_what_is_under_way_and_all_that_comes(at):
    held = Held()
    with served(Scripted(held)) as url:
        remote = lm.RuntimeEndpoint(url)
        generation, future = remote.generate(REQUEST), remote.score(SCORING)
        for _ in range(2):
            assert held.here.acquire(timeout=SECONDS)
        remote.close()
        remote.close()
        ended = f"the connection to {url} was closed before this had ended."
        closed = f"the connection to {url} is closed: make a new one."
        for raised in (
            pytest.raises(lm.BackendError, match=ended),
            pytest.raises(lm.BackendError, match=closed),
        ):
            with raised:
                generation.result(SECONDS)
            with raised:
                future.result(SECONDS)
            generation, future = remote.generate(REQUEST), remote.score(SCORING)
        with pytest.raises(lm.BackendError, match=closed):
            remote.render(PROMPT)
        remote.end_run("r")
        assert "lmlang-remote" not in {thread.name for thread in threading.enumerate()}


def test_what_nothing_refers_to_any_more_closes_by_itself(at):
    held = Held()
    with served(Scripted(held)) as url:
        remote = lm.RuntimeEndpoint(url)
        generation = remote.generate(REQUEST)
        assert held.here.acquire(timeout=SECONDS)
        alive = weakref.ref(remote)
        del remote
        gc.collect()
        assert alive() is None
        with pytest.raises(lm.BackendError, match="was closed before this had ended"):
            generation.result(SECONDS)


def test_a_closed_one_that_was_never_used_has_no_thread():
    before = set(threading.enumerate())
    with lm.RuntimeEndpoint("http://localhost:1"):
        assert set(threading.enumerate()) <= before


def test_a_callback_may_not_wait_for_the_server(at):
    caught = []
    told = threading.Event()
    held = Held(GOOD)  # so that it has not ended before it has its callback
    with lm.RuntimeEndpoint(at(Scripted(held))) as remote:

        def ask(generation):
            with pytest.raises(lm.ProgramError, match="hand the work to another thread") as found:
                remote.render(PROMPT)
            caught.append(found)
            told.set()

        remote.generate(REQUEST).add_done_callback(ask)
        held.release()
        assert told.wait(SECONDS)
    assert len(caught) == 1


def test_so_many_at_a_time(at):
    held = Held(GOOD)
    with lm.RuntimeEndpoint(at(Scripted(held)), max_concurrency=2) as remote:
        generations = [remote.generate(REQUEST) for _ in range(5)]
        for _ in range(2):
            assert held.here.acquire(timeout=SECONDS)
        held.release()
        assert [each.result(SECONDS) for each in generations] == [OUTPUT] * 5
    assert held.most == 2


def run_script(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_of_os_fork_is_refused(at):
    script = """
import os, sys, lmlang as lm
from lmlang.protocol import Prompt, Request, Text
remote = lm.RuntimeEndpoint(sys.argv[1])
assert remote.render(Prompt()) == "Hi!"
if not os.fork():
    try:
        remote.generate(Request(Prompt())).result(60)
    except lm.BackendError as error:
        remote.close()
        os._exit(7 if "os.fork" in str(error) else 8)
    os._exit(9)
_, status = os.wait()
assert remote.render(Prompt()) == "Hi!"
sys.exit(os.waitstatus_to_exitcode(status))
"""
    with served(Scripted(plain(200, {"v": 1, "text": "Hi!"}))) as url:
        done = run_script(script, url)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_a_process_ends_without_a_word_while_the_server_is_at_work(at):
    script = """
import sys, lmlang as lm
from lmlang.protocol import Prompt, Request, Text
remote = lm.RuntimeEndpoint(sys.argv[1])
generation = remote.generate(Request(Prompt.of(Text("Hi"))))
next(generation.events())
"""
    held = Held(None, EVENTS[0])
    with served(Scripted(held)) as url:
        done = run_script(script, url)
        assert held.gone.acquire(timeout=SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_httpx_it_says_what_to_install():
    script = """
import sys
sys.modules["httpx"] = None
import lmlang as lm
try:
    lm.connect("http://localhost:1")
except lm.ProgramError as error:
    print(error)
"""
    done = run_script(script)
    assert "pip install 'lmlang[remote]'" in done.stdout
    assert done.stderr == ""


def test_the_language_loads_no_httpx():
    done = run_script("import sys, lmlang; lmlang.RuntimeEndpoint; print('httpx' in sys.modules)")
    assert done.stdout == "False\n"


# ------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:30000", "'localhost:30000' is no address of a server"),
        ("ftp://localhost", "is no address of a server"),
        ("http://", "is no address of a server"),
        ("http://localhost:99999", "is no address of a server"),
        ("http://localhost/?a=1", "is no address of a server"),
        ("http://local host\n", "is no address of a server"),
        ("http://me:sesame@localhost", "holds a password: give it as api_key"),
        (8000, "is a text such as 'http://localhost:30000', not an int"),
    ],
)
def test_addresses_that_are_none(url, message):
    with pytest.raises(lm.ProgramError) as caught:
        lm.RuntimeEndpoint(url)
    assert message in str(caught.value)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"api_key": ""}, "api_key is empty"),
        ({"api_key": "sesame\n"}, "characters that no HTTP header carries"),
        ({"api_key": "sésame"}, "characters that no HTTP header carries"),
        ({"api_key": 5}, "api_key must be a text, not an int"),
        ({"timeout": 0}, "timeout=0 is out of range"),
        ({"timeout": float("inf")}, "timeout=inf is out of range"),
        ({"max_retries": -1}, "max_retries=-1 is out of range"),
        ({"max_concurrency": 0}, "max_concurrency=0 is out of range"),
        ({"requests_per_minute": 0}, "requests_per_minute=0 is out of range"),
        ({"requests_per_minute": 1.5}, "requests_per_minute=1.5 must be an integer"),
    ],
)
def test_parameters_that_are_none(parameters, message):
    with pytest.raises(lm.ProgramError) as caught:
        lm.RuntimeEndpoint("http://localhost:1", **parameters)
    assert message in str(caught.value)
    assert "same" not in str(caught.value)


def test_an_address_may_have_a_path(at):
    app = Scripted(plain(200, {"v": 1, "text": "Hi!"}))
    with lm.RuntimeEndpoint(f"{at(app)}/models/one/") as remote:
        assert remote.render(PROMPT) == "Hi!"
    assert app.asked[0].path == "/models/one/lm/render"
    assert json.dumps(app.asked[0].message) == '{"v": 1, "prompt": [{"text": "Hi"}]}'


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_on_the_thread_of_a_connection_leaves_nobody_waiting(kind):
    class Exits:
        url = "http://localhost"

        async def wait(self):
            await asyncio.sleep(3_600)

        async def exit(self):
            raise kind

        async def close(self):
            pass

    connection = Connection(Exits())
    told: Queue[object] = Queue()

    def ask(work):
        try:
            told.put(connection.wait_for(work))
        except BaseException as error:
            told.put(error)

    for work in (Exits.wait, Exits.exit):
        threading.Thread(target=ask, args=(work,), daemon=True).start()
    assert {type(told.get(timeout=60)) for _ in range(2)} == {kind, BackendError}
    with pytest.raises(BackendError, match="is closed: make a new one"):
        connection.wait_for(Exits.wait)
    connection.stop()
