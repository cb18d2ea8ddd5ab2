"""What a body raises arrives as itself, or as an error that names it, whoever reads it."""

import asyncio
import dataclasses
import threading

import pytest

import lmlang as lm
from lmlang.testing import ScriptedBackend
from tests.frontend.by_hand import ByHand, bounded


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


@dataclasses.dataclass(frozen=True)
class FrozenOfOurs(lm.LMLangError):
    code: int


@dataclasses.dataclass(frozen=True)
class FrozenType(TypeError):
    code: int

    def __str__(self):
        return "sequence item 0: expected str instance, Expression found"


class Sealed(Exception):
    def __setattr__(self, name, value):
        raise ValueError(f"{name} cannot be set")


ERRORS = [Frozen(3), FrozenOfOurs(3), FrozenType(3), Sealed("sealed")]


@lm.function
def raising(s, error):
    s += lm.gen("x")
    s.sync()
    raise error


@lm.function
async def raising_async(s, error):
    s += lm.gen("x")
    await s.adone()
    raise error


async def arun(program, error):
    await program.arun(error, backend=ScriptedBackend())


async def last_async(program, error):
    async for _ in program.astream(error, backend=ScriptedBackend()):
        pass


READS = {
    "run": lambda f, e: f(e, backend=ScriptedBackend()),
    "arun": lambda f, e: asyncio.run(arun(f, e)),
    "state": lambda f, e: f.run(e, backend=ScriptedBackend(), stream=True).sync(),
    "text_iter": lambda f, e: list(f.run(e, backend=ScriptedBackend(), stream=True).text_iter()),
    "stream": lambda f, e: list(f.stream(e, backend=ScriptedBackend())),
    "astream": lambda f, e: asyncio.run(last_async(f, e)),
    "batch": lambda f, e: f.run_batch([(e,)], backend=ScriptedBackend()),
    "row": lambda f, e: f.run_batch([(e,)], backend=ScriptedBackend(), on_error="return")[0].sync(),
    "lazy": lambda f, e: list(f.run_batch([(e,)], backend=ScriptedBackend(), generator_style=True)),
}
reads = pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
programs = pytest.mark.parametrize("program", [raising, raising_async], ids=["plain", "async"])


@reads
@programs
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_that_cannot_be_changed_arrives_as_itself(error, program, read):
    with pytest.raises(type(error)) as caught:
        bounded(lambda: read(program, error))
    assert caught.value.args == error.args
    assert getattr(caught.value, "code", 3) == 3


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_backends_exception_that_cannot_be_changed_arrives_as_itself(error):
    def answer(prompt):
        raise error

    @lm.function
    def program(s):
        with s.user():
            s += lm.gen("x")
        s.fork(2).join()

    with pytest.raises(type(error)):
        program(backend=ScriptedBackend(answer))


@reads
@programs
@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_the_end_of_an_iteration_is_never_taken_for_that_of_the_readers(kind, program, read):
    with pytest.raises((kind, lm.ProgramError)) as caught:
        bounded(lambda: read(program, kind("over")))
    if not isinstance(caught.value, kind):
        assert f"the program raised {kind.__name__}" in str(caught.value)
        assert isinstance(caught.value.__cause__, kind)


def test_the_end_of_an_iteration_arrives_at_a_plain_call_as_itself():
    for read in ("run", "batch"):
        with pytest.raises(StopIteration, match="over"):
            READS[read](raising, StopIteration("over"))


def test_a_script_that_is_an_iterator_may_end():
    answers = iter(["one"])

    @lm.function
    def program(s):
        s += lm.gen("x") + lm.gen("y")

    with pytest.raises(lm.ProgramError, match="StopIteration"):
        program(backend=ScriptedBackend(lambda prompt: next(answers)))


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, GeneratorExit])
def test_readers_hear_what_ended_a_body_that_streams(kind):
    state = raising.run(kind("why"), backend=ScriptedBackend(), stream=True)
    for read in (state.sync, lambda: state["y"], lambda: list(state.text_iter())):
        with pytest.raises(lm.Cancelled, match=f"its body was ended by {kind.__name__}") as caught:
            bounded(read)
        assert isinstance(caught.value.__cause__, kind)
    assert state["x"]


@pytest.mark.parametrize("completes", ["at once", "on a thread"])
def test_readers_hear_what_interrupted_a_backend(completes):
    def answer(prompt):
        raise SystemExit("why")

    @lm.function
    def program(s):
        s += lm.gen("x")
        s.sync()

    with ScriptedBackend(answer, completes=completes) as backend:
        state = program.run(backend=backend, stream=True)
        with pytest.raises((SystemExit, lm.Cancelled), match=r"why|SystemExit") as caught:
            bounded(state.sync)
        found = caught.value
        assert isinstance(found, SystemExit) or isinstance(found.__cause__, SystemExit)


# ---------------------------------------------------------------- an async body and its end


@lm.function
async def idle(s):
    s += lm.gen("x")
    await asyncio.sleep(600)


async def awaited(program):
    await program.arun(backend=ScriptedBackend(), deadline=0.05)


@pytest.mark.parametrize(
    "run",
    [
        lambda: idle(backend=ScriptedBackend(), deadline=0.05),
        lambda: asyncio.run(awaited(idle)),
        lambda: idle.run(backend=ScriptedBackend(), deadline=0.05, stream=True).sync(),
        lambda: idle.run_batch([()], backend=ScriptedBackend(), deadline=0.05),
    ],
    ids=["run", "arun", "stream", "batch"],
)
def test_a_deadline_ends_an_async_body_whatever_it_awaits(run):
    with pytest.raises(lm.DeadlineExceeded, match=r"deadline=0.05 s") as caught:
        bounded(run)
    assert caught.value.context.program == "idle"


def test_a_deadline_leads_to_the_line_that_was_awaited():
    with pytest.raises(lm.DeadlineExceeded) as caught:
        idle(backend=ScriptedBackend(), deadline=0.05)
    assert caught.value.context.source.startswith(__file__)


def test_a_task_goes_on_after_a_deadline_ended_its_program():
    async def main():
        with pytest.raises(lm.DeadlineExceeded):
            await awaited(idle)
        await asyncio.sleep(0)
        cancelling = getattr(asyncio.current_task(), "cancelling", lambda: 0)
        return cancelling()

    assert bounded(lambda: asyncio.run(main())) == 0


def test_cancelling_a_task_while_its_program_is_being_ended_cancels_the_task():
    async def main():
        task = asyncio.create_task(idle.arun(backend=ScriptedBackend()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    bounded(lambda: asyncio.run(main()))


def test_leaving_the_stream_of_an_async_body_ends_it():
    ended = threading.Event()

    @lm.function
    async def program(s):
        s += lm.gen("x")
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    with program.stream(backend=ScriptedBackend()) as stream:
        assert next(stream).variable == "x"
    with pytest.raises(lm.Cancelled):
        bounded(stream.state.sync)
    assert ended.wait(60)


def test_an_async_body_whose_run_ended_before_it_began_is_ended_too():
    ended = threading.Event()

    @lm.function
    async def program(s):
        s.cancel()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    with pytest.raises(lm.Cancelled):
        bounded(lambda: program(backend=ScriptedBackend()))
    assert ended.is_set()


def test_an_async_body_hears_of_the_end_at_the_read_that_waits():
    heard = []

    @lm.function
    async def program(s):
        s += lm.gen("x")
        try:
            await asyncio.gather(s.aget("x"), s.aget("x"))
        except lm.DeadlineExceeded as error:
            heard.append(error)
            raise

    for deadline in (0.05, 0.5, 5.0):  # a busy machine may not come to the read within the first
        with pytest.raises(lm.DeadlineExceeded):
            bounded(lambda d=deadline: program(backend=ByHand(), deadline=d))
        if heard:
            break
    assert heard


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("generator_style", [False, True])
def test_a_batch_in_an_async_body_raises_with_the_async_form(generator_style):
    @lm.function
    async def program(s):
        raising.run_batch([], generator_style=generator_style)

    with pytest.raises(lm.ProgramError, match=r"await asyncio.to_thread\(f.run_batch, rows\)"):
        program(backend=ScriptedBackend())


def test_a_lazy_batch_cannot_be_waited_for_in_an_async_body():
    @lm.function
    def plain(s, i):
        s += lm.gen("x")

    rows = plain.run_batch([(1,)], generator_style=True, backend=ScriptedBackend())

    @lm.function
    async def program(s):
        next(rows)

    with pytest.raises(lm.ProgramError, match="async def"):
        program(backend=ScriptedBackend())


@pytest.mark.parametrize("generator_style", [False, True])
def test_a_wrong_key_is_named(generator_style):
    with pytest.raises(lm.ProgramError, match=r"key='x' must be a function of a row, as in"):
        raising.run_batch([(1,)], key="x", generator_style=generator_style)
    with pytest.raises(ZeroDivisionError) as caught:
        list(
            raising.run_batch(
                [(1,)],
                key=lambda row: 1 / 0,
                backend=ScriptedBackend(),
                generator_style=generator_style,
            )
        )
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__ == ["raised by key(row) of row 0"]


def test_a_key_that_raises_the_end_of_an_iteration_does_not_end_the_rows():
    with pytest.raises(lm.ProgramError, match="StopIteration"):
        raising.run_batch([(1,)], key=lambda row: next(iter(())), backend=ScriptedBackend())


@pytest.mark.parametrize("how", ["expression", "method"])
def test_none_is_no_empty_turn(how):
    @lm.function
    def program(s, text):
        if how == "method":
            s.user(text)
        else:
            s += lm.user(text)
        s += lm.assistant(lm.gen("x"))

    with pytest.raises(lm.ProgramTypeError, match="None of type NoneType cannot be appended"):
        program(None, backend=ScriptedBackend(["x"]))
    assert program("", backend=ScriptedBackend(["x"])).messages()[0]["role"] == "user"
