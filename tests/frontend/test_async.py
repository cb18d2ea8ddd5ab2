import asyncio
import contextvars
import functools
import threading

import pytest

import lmlang as lm
from lmlang.testing import ScriptedBackend
from tests.frontend.by_hand import ByHand, bounded

COUNTED = pytest.mark.parametrize("completes", ["at once", "on a thread"])


@lm.function
async def ask(s, question="Q", times=1):
    for number in range(times):
        s += f"{question}{number} " + lm.gen(f"a{number}")
        await asyncio.sleep(0)
    return [await s.aget(f"a{number}") for number in range(times)]


@lm.function
def plain(s, question="Q"):
    s += question + lm.gen("a")
    return s["a"]


@COUNTED
def test_async_bodies_run_from_everywhere(completes):
    async def awaited(backend):
        return await ask.arun("Z", times=2, seed=1, backend=backend)

    async def many(backend):
        runs = [ask.arun("Z", times=2, seed=1, backend=backend) for _ in range(20)]
        return await asyncio.gather(*runs)

    async def in_a_running_loop(backend):  # as in Jupyter, where nobody wrote await
        return ask("Z", times=2, seed=1, backend=backend)

    with ScriptedBackend(completes=completes) as backend:
        states = [
            ask("Z", times=2, seed=1, backend=backend),
            ask.run("Z", times=2, seed=1, backend=backend),
            ask.run("Z", times=2, seed=1, backend=backend, stream=True),
            asyncio.run(awaited(backend)),
            *asyncio.run(many(backend)),
            asyncio.run(in_a_running_loop(backend)),
            *ask.run_batch([("Z", 2)], seed=1, backend=backend),
        ]
        values = [state.ret_value for state in states]
    assert values == [values[0]] * 26
    assert len(set(values[0])) == 2
    assert [state.text() for state in states] == [states[0].text()] * 26


@COUNTED
def test_plain_bodies_can_be_awaited_without_stopping_the_loop(completes):
    ticks = []

    async def main(backend):
        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        states = await asyncio.gather(*(plain.arun("q", backend=backend) for _ in range(5)))
        ticking.cancel()
        return [state.ret_value for state in states]

    with ScriptedBackend(completes=completes) as backend:
        assert len(asyncio.run(main(backend))) == 5
    assert ticks


def test_context_variables_reach_an_awaited_plain_body():
    variable = contextvars.ContextVar("variable", default="unset")

    @lm.function
    def read(s):
        return variable.get()

    async def main():
        variable.set("set")
        return (await read.arun(backend=ScriptedBackend())).ret_value

    assert asyncio.run(main()) == "set"


def test_what_is_made_of_async_functions_is_async_too():
    class Bot:
        @lm.function
        async def say(self, s, text):
            s += text + lm.gen("x")
            return await s.aget("x")

    assert Bot().say("a", backend=ScriptedBackend(["b"])).ret_value == "b"
    state = asyncio.run(Bot().say.bind(text="a").arun(backend=ScriptedBackend(["b"])))
    assert state.ret_value == "b"
    assert lm.function(functools.partial(_partial, mark="!"))(backend=ScriptedBackend()).text()


async def _partial(s, mark):
    s += mark


def test_async_programs_run_inline_and_on_children():
    @lm.function
    async def inner(s, text):
        s += text + lm.gen("x")
        return await s.aget("x")

    @lm.function
    async def outer(s):
        inline = await inner(s, "a")
        called = await s.call(inner, "b")
        return inline, called

    state = outer(backend=ScriptedBackend(["1", "2"]))
    assert (state.ret_value, state.text()) == (("1", "2"), "a1")


def test_the_async_forms_of_waiting():
    @lm.function
    async def program(s):
        forks = s.fork(3)
        forks += lambda i: f"{i}" + lm.gen("x")
        await forks.ajoin()
        s += lm.gen("y")
        await s.adone()
        return s["x"], s["y"], s.text(), s.meta("y").finish  # nothing of it waits any more

    with ScriptedBackend(lambda prompt: prompt + "!", completes="on a thread") as backend:
        state = program(backend=backend)
    assert state.ret_value == (["0!", "1!", "2!"], "!", "!", "eos")


READS = {
    "item": lambda s: s["x"],
    "text": lambda s: s.text(),
    "meta": lambda s: s.meta("x"),
    "sync": lambda s: s.sync(),
    "error": lambda s: s.error(),
    "join": lambda s: s.fork(2).join(),
    "text_iter": lambda s: list(s.text_iter("x")),
    "another program": lambda s: plain(backend=ByHand()),
    "another async program": lambda s: ask(backend=ByHand()),
    "inside a function": lambda s: (lambda: s["x"])(),
}


@pytest.mark.parametrize("read", READS)
def test_a_blocking_read_in_an_async_body_raises_with_the_async_form(read):
    async def body(s, hand):
        s += lm.gen("x")
        with pytest.raises(lm.ProgramError, match=r'write await s\.aget\("name"\) for s\["name"\]'):
            READS[read](s)
        hand.end("late")
        return await s.aget("x")

    program, one, other = lm.function(body), ByHand(), ByHand()
    assert bounded(lambda: program(one, backend=one)).ret_value == "late"
    assert asyncio.run(program.arun(other, backend=other)).ret_value == "late"


def test_a_blocking_read_on_another_thread_of_an_async_body_works():
    @lm.function
    async def program(s):
        s += lm.gen("x")
        return await asyncio.to_thread(lambda: s["x"])

    with ScriptedBackend(["ok"], completes="on a thread") as backend:
        assert bounded(lambda: program(backend=backend)).ret_value == "ok"


def test_a_running_loop_alone_is_no_reason_to_refuse():
    async def cell(backend):  # as in Jupyter
        state = plain(backend=backend)
        streamed = plain.run(backend=backend, stream=True)
        return (
            state["a"],
            streamed["a"],
            "".join(streamed.text_iter("a")),
            ask(backend=backend)["a0"],
        )

    async def after_a_body(backend):
        await ask.arun(backend=backend)
        return plain(backend=backend)["a"]

    with ScriptedBackend(lambda prompt: "ok", completes="on a thread") as backend:
        assert bounded(lambda: asyncio.run(cell(backend))) == ("ok",) * 4
        assert bounded(lambda: asyncio.run(after_a_body(backend))) == "ok"


def test_any_thread_may_read_at_any_time():
    seen = []

    @lm.function
    def program(s):
        s += lm.gen("x")
        threads = [threading.Thread(target=lambda: seen.append(s["x"])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    with ScriptedBackend(["ok"], completes="on a thread") as backend:
        bounded(lambda: program(backend=backend))
    assert seen == ["ok"] * 4


@pytest.mark.parametrize("read", [lambda s: s["x"], lambda s: list(s.text_iter("x"))])
@pytest.mark.parametrize("operation", [lm.gen("x"), lm.select("x", ["a", "b"])])
def test_a_function_on_a_backends_own_thread_may_read_no_state_that_it_keeps_waiting(
    read, operation
):
    kept, met = [], threading.Event()

    @lm.function
    def other(s):
        s += lm.gen("x")

    def answer(*_):
        assert met.wait(60)
        assert other(backend=ScriptedBackend(["fine"], completes="on a thread"))["x"] == "fine"
        return read(kept[0])

    @lm.function
    def program(s):
        kept.append(s)
        s += operation
        met.set()

    with (
        ScriptedBackend(answer, scores=answer, completes="on a thread") as backend,
        pytest.raises(lm.ProgramError, match="a function of a backend cannot read the state"),
    ):
        bounded(lambda: program(backend=backend))


def test_a_backends_function_that_reads_the_state_that_asks_it_raises():
    kept = []

    @lm.function
    def program(s):
        kept.append(s)
        s += lm.gen("x") + lm.gen("y")

    with pytest.raises(lm.ProgramError, match="a function of a backend cannot read the state"):
        bounded(lambda: program(backend=ScriptedBackend(lambda prompt: kept[0]["y"])))


def test_a_backends_function_may_run_another_program():
    inner = ScriptedBackend(lambda prompt: "inner", completes="on a thread")
    outer = ScriptedBackend(lambda prompt: plain(backend=inner)["a"] + "!")
    with inner:
        assert bounded(lambda: plain(backend=outer))["a"] == "inner!"


# ------------------------------------------------------------------------------- cancelling


@pytest.mark.parametrize("program", [ask, plain])
def test_cancelling_the_task_cancels_the_run(program):
    async def main(backend):
        task = asyncio.ensure_future(program.arun(backend=backend))
        while not backend.generations:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.cancels()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(program.arun(backend=backend), 0.01)
        assert all(backend.cancels(index) for index in range(len(backend.generations)))

    with ByHand() as backend:
        asyncio.run(main(backend))


def test_an_error_in_an_async_body_is_its_own_and_ends_the_run():
    @lm.function
    async def program(s):
        s += lm.gen("x")
        await asyncio.sleep(0)
        raise KeyError("mine")

    async def main(backend):
        return await program.arun(backend=backend)

    for run in (lambda b: asyncio.run(main(b)), lambda b: program(backend=b)):
        with ByHand() as backend:
            with pytest.raises(KeyError, match="mine"):
                run(backend)
            assert backend.generations[0].cancelled


@pytest.mark.parametrize("program", [ask, plain])
def test_a_backends_error_is_raised_at_the_await(program):
    async def main():
        await program.arun(backend=ScriptedBackend(fail_at=0))

    with pytest.raises(lm.BackendError, match="scripted to fail") as caught:
        asyncio.run(main())
    assert caught.value.context.program == program.__name__


def test_arun_does_not_stream():
    async def main():
        await ask.arun(stream=True, backend=ScriptedBackend())

    with pytest.raises(lm.ProgramError, match=r"async for event in ask\.astream\(…\)"):
        asyncio.run(main())


def test_no_thread_is_left_by_async_runs():
    before = set(threading.enumerate())

    async def main(backend):
        await asyncio.gather(*(ask.arun(backend=backend) for _ in range(10)))
        await asyncio.gather(*(plain.arun(backend=backend) for _ in range(10)))

    with ScriptedBackend(completes="on a thread") as backend:
        asyncio.run(main(backend))
    for thread in threading.enumerate():
        if thread.name == "lmlang-run":
            thread.join(60)
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"lmlang-dispatcher"}
