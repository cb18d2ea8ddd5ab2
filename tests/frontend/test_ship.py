"""Programs that a server runs whole: the same as here and step by step, in fewer round trips."""

import asyncio
import contextlib
import logging
import re
import threading
from pathlib import Path

import pytest

import lmlang as lm
from lmlang.backends import retries
from lmlang.testing import ScriptedBackend
from tests.backends import test_remote_programs as given
from tests.backends.served import SECONDS, served
from tests.frontend.by_hand import deadlines_pass
from tests.server.test_programs import Seen
from tests.tiny import tiny_model

pytest.importorskip("fastapi")

ROOMY = {"kv_tokens": 8_192, "deterministic": True}


class Counted:
    """An app that counts the requests of each path."""

    def __init__(self, app):
        self._app = app
        self.paths = []

    async def __call__(self, scope, receive, send):
        self.paths.append(scope.get("path"))
        await self._app(scope, receive, send)

    def count(self, path):
        return self.paths.count(path)


class Sides:
    """A runtime here, and one of the same model behind a server that counts."""

    def __init__(self, here, there, app):
        self.here = here
        self.there = there
        self.app = app

    def shipped(self, program, **arguments):
        """A shipped run, and how many round trips it took; nothing was asked for by itself."""
        before = self.app.count("/lm/programs")
        alone = self.app.count("/lm/generate") + self.app.count("/lm/score")
        state = program.run(**arguments, backend=self.there, ship=True)
        state.sync()
        assert self.app.count("/lm/generate") + self.app.count("/lm/score") == alone
        return state, self.app.count("/lm/programs") - before


@pytest.fixture(scope="module")
def runtimes():
    with (
        lm.Runtime.over(*tiny_model(), **ROOMY) as here,
        lm.Runtime.over(*tiny_model(), **ROOMY) as behind,
    ):
        yield here, behind


@pytest.fixture(scope="module")
def sides(runtimes):
    from lmlang.server.app import make_app

    here, behind = runtimes
    app = Counted(make_app(behind))
    with served(app) as url, lm.connect(url) as there:
        yield Sides(here, there, app)


TRIPS = {"chat": 1, "sampled": 1, "selected": 1, "forked": 3, "constrained": 1}


@given.each(given.PROGRAMS)
def test_programs_come_to_the_same_in_process_stepped_and_shipped(sides, program, arguments, names):
    keywords = {**arguments, "seed": 5, "max_new_tokens": 16}
    own = [name for name in names if name != "tip"]
    here = program.run(**keywords, backend=sides.here)
    stepped = program.run(**keywords, backend=sides.there)
    shipped, trips = sides.shipped(program, **keywords)
    found = given.found_in(here, *own)
    assert given.found_in(stepped, *own) == found
    assert given.found_in(shipped, *own) == found
    assert trips == TRIPS[program.__name__]


@lm.function
def tips(s):
    s += lm.system("Be brief.")
    with s.user():
        s += "Two tips on sleep."
    s += lm.assistant(lm.gen("plan", max_tokens=8))
    forks = s.fork(4)
    for index, child in enumerate(forks):
        child += lm.user(f"Tip {index}")
        child += lm.assistant(lm.gen("tip", max_tokens=6) + lm.select("kind", ["hello", "world"]))
    with s.var_scope("tail"):
        s += lm.user("And?") + lm.assistant(lm.gen("last", max_tokens=4, n=3, temperature=1.5))
    s["left"] = 7
    helper(s, "hello")


@lm.function
def helper(s, word):
    s += word + lm.gen("x", max_tokens=4, think=3)


def test_a_program_that_reads_nothing_takes_one_round_trip(sides):
    here = tips.run(backend=sides.here, seed=3)
    shipped, trips = sides.shipped(tips, seed=3)
    assert trips == 1
    names = ("plan", "last", "left", "x", "tail")
    assert [shipped[name] for name in names] == [here[name] for name in names]
    assert shipped.text() == here.text()
    assert shipped.token_ids() == here.token_ids()
    assert given.log_of(shipped) == given.log_of(here)
    assert shipped.usage().generated_tokens == here.usage().generated_tokens


@lm.function
def labels(s, text):
    s += "Text: " + text + "\n"
    forks = s.fork(12)
    for index, child in enumerate(forks):
        child += f"Is it about {index}? " + lm.select("label", ["yes", "no"])


@lm.function
def talk(s):
    s += lm.system("Be kind.")
    for turn in range(5):
        s += lm.user(f"Turn {turn}") + lm.assistant(lm.gen(f"answer{turn}", max_tokens=5))


@lm.function
def record(s):
    s += '{"name": ' + lm.gen("name", type=str, max_tokens=12)
    s += ', "age": ' + lm.gen("age", type=int, max_tokens=5) + ', "top_songs": ['
    s += lm.gen("first", type=str, max_tokens=12) + ", "
    s += lm.gen("second", type=str, max_tokens=12) + "]}"


@lm.function
def votes(s):
    s += "1 + 1 = "
    forks = s.fork(16)
    forks += lm.gen("why", max_tokens=4, temperature=0.8) + lm.gen("n", type=int, max_tokens=4)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [(labels, {"text": "hello world"}), (talk, {}), (record, {}), (votes, {})],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_people_write_is_one_round_trip_where_it_reads_nothing(sides, program, arguments):
    here = program.run(**arguments, backend=sides.here, seed=9)
    stepped = program.run(**arguments, backend=sides.there, seed=9)
    shipped, trips = sides.shipped(program, **arguments, seed=9)
    assert trips == 1
    assert given.log_of(shipped) == given.log_of(stepped) == given.log_of(here)
    assert shipped.text() == here.text()
    assert shipped.token_ids() == here.token_ids()
    assert shipped.messages() == here.messages()


@pytest.mark.parametrize("reads", [0, 1, 3])
def test_each_value_that_is_read_takes_one_round_trip_more(sides, reads):
    @lm.function
    def program(s):
        for number in range(4):
            s += f"{number}: " + lm.gen(f"x{number}", max_tokens=3)
            if number < reads:
                s += s[f"x{number}"]

    here = program.run(backend=sides.here, seed=1)
    state, trips = sides.shipped(program, seed=1)
    assert trips == reads + 1
    assert state.text() == here.text()


@pytest.mark.parametrize("mode", ["gather_variable", "concate_and_append"])
def test_a_join_is_a_read(sides, mode):
    @lm.function
    def program(s):
        s += "hello "
        forks = s.fork(3)
        forks += lambda i: f"{i} " + lm.gen("a", max_tokens=3) + lm.gen("b", max_tokens=2)
        forks.join(mode)
        inner = s.fork(2)
        inner += "the" + lm.gen("a", max_tokens=2)
        s += lm.gen("end", max_tokens=4)

    here = program.run(backend=sides.here, seed=1)
    state, trips = sides.shipped(program, seed=1)
    assert trips == 2
    assert (state.text(), state.token_ids()) == (here.text(), here.token_ids())
    assert given.log_of(state) == given.log_of(here)


def test_nothing_that_was_told_is_computed_again(sides, runtimes):
    @lm.function
    def program(s):
        s += "once " + lm.gen("a", max_tokens=7)
        s += str(len(s["a"])) + lm.gen("b", max_tokens=5, ignore_eos=True)
        s += str(len(s["b"])) + lm.gen("c", max_tokens=3, ignore_eos=True)

    from lmlang.server.app import make_app

    seen = Seen(runtimes[1])
    with served(make_app(seen)) as url, lm.connect(url) as there:
        text = program.run(backend=there, seed=2, ship=True).text()
    assert text == program.run(backend=sides.here, seed=2).text()
    assert [request.tag.op_path for request in seen.requests] == ["0", "1", "2"]


def test_batches_and_streams_are_shipped_too(sides):
    rows = [{"topic": topic} for topic in ("a", "b", "a")]
    here = given.chat.run_batch(rows, backend=sides.here, seed=3)
    there = given.chat.run_batch(rows, backend=sides.there, seed=3, ship=True)
    assert [state.text() for state in there] == [state.text() for state in here]
    state = given.sampled.run(backend=sides.there, seed=6, stream=True, ship=True)
    whole = given.sampled.run(backend=sides.here, seed=6)
    assert "".join(state.text_iter("a")) == whole["a"]
    assert "".join(state.text_iter()) == whole.text()
    events = given.streamed(given.sampled.stream(backend=sides.there, seed=6, ship=True))
    assert events == given.streamed(given.sampled.stream(backend=sides.here, seed=6))


def test_async_programs_are_shipped_too(sides):
    @lm.function
    async def program(s):
        s += "hello " + lm.gen("a", max_tokens=4)
        s += (await s.aget("a"))[:1] + lm.gen("b", max_tokens=4)
        return await s.aget("b")

    async def both():
        first = await program.arun(backend=sides.here, seed=4)
        second = await program.arun(backend=sides.there, seed=4, ship=True)
        return first.ret_value, second.ret_value

    first, second = asyncio.run(both())
    assert first == second


def test_a_state_can_be_appended_to_when_its_run_is_over(sides):
    def ask(backend, **more):
        state = helper.run(word="hello", backend=backend, seed=1, **more)
        state += " more " + lm.gen("y", max_tokens=4)
        return state["x"], state["y"], state.text()

    assert ask(sides.there, ship=True) == ask(sides.here)


def test_errors_have_their_op_path_and_line(sides):
    @lm.function
    def program(s):
        s += "hello " + lm.gen("a", max_tokens=3)
        s += lm.gen("b", stop_token_ids=[5_000])
        s += lm.gen("c", max_tokens=3)

    def ask(backend, **more):
        with pytest.raises(lm.ProgramError) as caught:
            program.run(backend=backend, seed=1, **more)
        return type(caught.value), caught.value.args, caught.value.context, str(caught.value)

    found = ask(sides.there, ship=True)
    assert found == ask(sides.here)
    assert found[2].op_path == "1"
    assert "test_ship.py" in found[2].source


def test_an_error_that_is_handled_stays_where_it_was(sides):
    @lm.function
    def program(s):
        s += "hello "
        forks = s.fork(2)
        forks[0].__iadd__(lm.gen("a", regex="[a-z]{99}", max_tokens=2) + lm.gen("b"))
        forks[1].__iadd__(lm.gen("a", max_tokens=2))
        with pytest.raises(lm.BudgetExceeded):
            forks.join()
        s += lm.gen("end", max_tokens=4)
        return s["end"]

    here = program.run(backend=sides.here, seed=1)
    state, trips = sides.shipped(program, seed=1)
    assert trips == 2
    assert state.ret_value == here.ret_value
    assert given.log_of(state) == given.log_of(here)


def test_a_value_that_cannot_be_read_fails_as_here(sides):
    @lm.function
    def program(s):
        s += "hello " + lm.gen("a", max_tokens=3)
        raise ZeroDivisionError(s["a"])

    for more in ({"backend": sides.here}, {"backend": sides.there, "ship": True}):
        with pytest.raises(ZeroDivisionError):
            program.run(seed=1, **more)


def test_budgets_of_programs_hold(sides):
    @lm.function
    def program(s):
        for _ in range(3):
            s += "hello " + lm.gen(max_tokens=8, ignore_eos=True)

    def ask(backend, **more):
        with pytest.raises(lm.BudgetExceeded) as caught:
            program.run(backend=backend, seed=1, max_program_tokens=20, **more)
        return caught.value.args

    assert ask(sides.there, ship=True) == ask(sides.here)


def test_a_deadline_ends_the_program_here_and_there(sides, runtimes):
    @lm.function
    def program(s):
        s += "hello " + lm.gen("a", max_tokens=400, ignore_eos=True)

    with stopped(runtimes[1]) as there:

        def too_late():
            assert there.wait(SECONDS)
            deadlines_pass()

        hand = threading.Thread(target=too_late)
        hand.start()
        with pytest.raises(lm.DeadlineExceeded):
            program.run(backend=sides.there, ship=True, deadline=600)
        hand.join(SECONDS)
    until_idle(runtimes[1])


def test_a_run_that_is_cancelled_is_cancelled_there(sides, runtimes):
    @lm.function
    def program(s):
        forks = s.fork(3)
        forks += "hello " + lm.gen("a", max_tokens=400, ignore_eos=True)

    with stopped(runtimes[1]) as there:
        state = program.run(backend=sides.there, ship=True, stream=True)
        assert there.wait(SECONDS)
        state.cancel()
        with pytest.raises(lm.Cancelled):
            state.sync()
    until_idle(runtimes[1])


@contextlib.contextmanager
def stopped(runtime):
    """Has an engine stand behind its next step, for the length of a block; tells when it does."""
    there, go_on = threading.Event(), threading.Event()

    def stop(loop):
        step = loop.step

        def stopping(planned):
            step(planned)
            there.set()
            assert go_on.wait(SECONDS)

        loop.step = stopping

    runtime._engine.call(stop)
    try:
        yield there
    finally:
        go_on.set()
        runtime._engine.call(lambda loop: delattr(loop, "step"))


def until_idle(runtime):
    waiting = threading.Event()
    for _ in range(SECONDS * 1000):
        stats = runtime.stats()
        if not stats.running and not stats.waiting:
            return
        waiting.wait(0.001)
    raise AssertionError("the server still runs something")


def own_method(*, choices, **_):
    return lm.ChoicesDecision(decision=choices[-1])


def test_what_cannot_be_sent_is_run_step_by_step_and_the_log_says_where(sides, caplog):
    @lm.function
    def program(s):
        s += "hello " + lm.gen("a", max_tokens=3)
        s += lm.select("b", ["yes", "no"], choices_method=own_method)
        s += lm.gen("c", max_tokens=3, logits_processor=None)

    caplog.set_level(logging.INFO, "lmlang")
    here = program.run(backend=sides.here, seed=1)
    before = sides.app.count("/lm/programs")
    state = program.run(backend=sides.there, seed=1, ship=True)
    assert sides.app.count("/lm/programs") == before
    assert (state["a"], state["b"], state["c"]) == (here["a"], "no", here["c"])
    assert re.search(r"a choices method of the program's own, at .*test_ship.py:\d+", caplog.text)


def test_a_method_of_ones_own_with_the_name_of_a_built_in_is_ones_own(sides):
    def joint(*, choices, **_):
        return lm.ChoicesDecision(decision=choices[-1])

    @lm.function
    def program(s):
        s += "hello " + lm.select("b", ["yes", "no", "world"], choices_method=joint)

    assert program.run(backend=sides.there, seed=1, ship=True)["b"] == "world"


def test_a_program_that_is_too_large_is_run_step_by_step(sides, runtimes, caplog):
    @lm.function
    def program(s):
        s += "hello "
        forks = s.fork(4)
        forks += lm.gen("a", max_tokens=2, n=64)

    from lmlang.server.app import make_app
    from lmlang.server.config import ServerConfig

    caplog.set_level(logging.INFO, "lmlang")
    with pytest.raises(lm.ProgramError, match="n=64 is out of range"):  # as every way of asking
        program.run(backend=sides.there, seed=1, ship=True)

    @lm.function
    def wide(s):
        s += "hello "
        forks = s.fork(3)
        for child in forks:
            for _ in range(2):
                child += lm.gen("a", max_tokens=1)
        s += lm.gen("end", max_tokens=2)

    here = wide.run(backend=sides.here, seed=1)
    small = make_app(runtimes[1], ServerConfig(max_program_states=2))
    with served(small) as url, lm.connect(url) as there:
        state = wide.run(backend=there, seed=1, ship=True)
    assert state["end"] == here["end"]
    assert "the server does not take it: " in caplog.text


def test_the_log_says_where_values_were_needed(sides, caplog):
    caplog.set_level(logging.INFO, "lmlang")
    given.chat.run(topic="x", backend=sides.there, seed=5, ship=True)
    assert re.search(
        r"round trip 1, since a value is needed at .*test_remote_programs", caplog.text
    )
    assert "Say something" not in caplog.text


def test_a_round_trip_that_follows_another_is_needed_in_the_program_too(sides, caplog):
    caplog.set_level(logging.INFO, "lmlang")

    @lm.function
    def two(s):
        s += "a" + lm.gen("x", max_tokens=40)
        stream = s.text_iter("x")
        next(stream)  # the first is under way
        s += lm.gen("y", max_tokens=2)
        return s["y"]

    two.run(backend=sides.there, seed=1, ship=True)
    places = re.findall(r"round trip \d, since a value is needed at (.*):", caplog.text)
    assert len(places) == 2
    assert {Path(place).name for place in places} == {Path(__file__).name}


def test_values_that_the_server_need_not_know_are_not_sent(sides):
    sent = []

    class Listening:
        def __init__(self, backend):
            self._backend = backend

        def __getattr__(self, name):
            return getattr(self._backend, name)

        def run_program(self, trip):
            sent.append(trip.asked().program)
            return self._backend.run_program(trip)

    @lm.function
    def program(s, secret):
        s["kept"] = secret
        helper(s, "hello")
        return secret

    program.run("swordfish", backend=Listening(sides.there), ship=True)
    assert sent
    assert "swordfish" not in "".join(sent)


def test_a_backend_without_a_server_says_so():
    with pytest.raises(lm.ProgramError, match="ship=True: ScriptedBackend runs each generation"):
        helper.run(word="x", backend=ScriptedBackend([]), ship=True)
    with pytest.raises(lm.ProgramError, match="ship="):
        helper.run(word="x", backend=ScriptedBackend([]), ship=1)


class Breaking(Counted):
    """An app behind a line on which every stream but each third breaks after two events."""

    def __init__(self, app):
        super().__init__(app)
        self.broken = 0

    async def __call__(self, scope, receive, send):
        if scope["path"] != "/lm/programs" or len(self.paths) % 3 == 2:
            await super().__call__(scope, receive, send)
            return
        sent, gone = 0, asyncio.Event()

        async def sending(message):
            nonlocal sent
            sent += message["type"] == "http.response.body"
            if sent > 2:
                gone.set()
            if not gone.is_set():
                await send(message)

        async def receiving():
            asked = asyncio.ensure_future(receive())
            ended = asyncio.ensure_future(gone.wait())
            await asyncio.wait([asked, ended], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if asked.done():
                return asked.result()
            asked.cancel()
            return {"type": "http.disconnect"}

        await super().__call__(scope, receiving, sending)
        if gone.is_set():
            self.broken += 1
            raise ConnectionAbortedError  # uvicorn closes the connection


def test_programs_come_to_the_same_over_a_line_that_breaks(sides, runtimes, monkeypatch):
    from lmlang.server.app import make_app

    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.001)
    app = Breaking(make_app(runtimes[1]))
    with served(app) as url, lm.connect(url, max_retries=9) as there:
        for program in (tips, given.sampled, given.forked):
            here = program.run(backend=sides.here, seed=8)
            state = program.run(backend=there, seed=8, ship=True)
            assert state.text() == here.text()
            assert given.log_of(state) == given.log_of(here)
    assert app.broken > 2


def test_a_server_that_goes_away_ends_every_wait(runtimes):
    from lmlang.server.app import make_app

    with served(make_app(runtimes[1])) as url:
        pass
    with lm.connect(url, max_retries=0) as there, pytest.raises(lm.BackendError):
        tips.run(backend=there, ship=True)
