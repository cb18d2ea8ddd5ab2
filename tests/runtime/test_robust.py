"""A stalled, dying, full or starved engine: everybody who waits is told, in time and by what."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from lmlang.errors import BackendError, LMLangError, ModelError
from lmlang.protocol import Generation, Prompt, ScoreRequest, Text
from lmlang.runtime.engine import Engine
from lmlang.runtime.local import Runtime
from lmlang.runtime.loop import EngineLoop
from tests.runtime.test_engine import MODEL, TEMPLATE, TOKENIZER, StepCounter, expected, request


class Held:
    """What a model does at one of its steps: it waits until it is let go on."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.inside.set()
        self.go_on.wait(60)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.go_on.set()


def runtime(model: StepCounter, **options: object) -> Runtime:
    return Runtime.over(model, TOKENIZER, TEMPLATE, **({"kv_tokens": 900} | options))  # type: ignore[arg-type]


def stall(rt: Runtime) -> None:
    """Let the heartbeat of an engine that is held be over soon."""
    with rt._engine._door:
        rt._engine._heartbeat = 0.05
        rt._engine._door.notify_all()


def in_thread(work: Callable[[], object]) -> Callable[[], object]:
    """Start work on a thread of its own; what comes back waits for what it returned or raised."""
    got: list[object] = []

    def run() -> None:
        try:
            got.append(work())
        except BaseException as error:
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> object:
        thread.join(60)
        assert got, "it waits for ever"
        return got[0]

    return wait


def failure(generation: Generation) -> LMLangError:
    with pytest.raises(LMLangError) as caught:
        generation.result(timeout=60)
    return caught.value


def until(true: Callable[[], object]) -> None:
    """Wait for another thread to get somewhere."""
    pause = threading.Event()
    for _ in range(60_000):
        if true():
            return
        pause.wait(0.001)
    raise AssertionError("it never came true")


def test_a_stall_fails_every_waiter_within_the_heartbeat_and_late_answers_are_ignored(
    held: Held,
) -> None:
    model = StepCounter(MODEL)
    rt = runtime(model, max_queued=3)
    engine = rt._engine
    model.at(2, held)
    running = rt.generate(request("hello", max_tokens=4, ignore_eos=True))
    assert held.inside.wait(60)
    waiting = [rt.generate(request("and", n, max_tokens=9)) for n in range(2)]
    scores = rt.score(ScoreRequest(Prompt.of(Text("the ")), ("hello and", "and the")))
    called = in_thread(rt.stats)
    until(lambda: len(engine._answers) == 5)
    at_the_door = in_thread(lambda: failure(rt.generate(request("the "))))
    until(lambda: engine._room._turns)
    closed = in_thread(rt.close)
    until(lambda: engine._closed)
    stall(rt)
    told = [failure(generation) for generation in (running, *waiting)]
    told += [scores.exception(60), called()]  # type: ignore[list-item]
    for error in told:
        assert isinstance(error, BackendError)
        assert "no sign of life for 0.05 s (heartbeat=0.05)" in str(error)
    assert isinstance(at_the_door(), BackendError)
    assert closed() is None  # while the thread is still stuck
    thread = engine._thread
    assert thread.is_alive()
    for late in (failure(rt.generate(request("hello"))), in_thread(rt.stats)()):
        assert isinstance(late, BackendError)
    events = running.events_from(0)
    held.go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert running.events_from(0) == events
    assert "no sign of life" in str(failure(running))
    rt.close()


def test_a_stall_is_named_to_those_who_come_later(held: Held) -> None:
    model = StepCounter(MODEL)
    rt = runtime(model)
    model.at(0, held)
    generation = rt.generate(request("hello"))
    assert held.inside.wait(60)
    stall(rt)
    assert "no sign of life" in str(failure(generation))
    for _ in range(2):
        assert "no sign of life" in str(failure(rt.generate(request("hello"))))
    with pytest.raises(BackendError, match="no sign of life"):
        rt.flush_cache()
    rt.close()
    rt.close()


def test_every_step_is_a_sign_of_life_and_an_idle_engine_owes_none() -> None:
    model = StepCounter(MODEL)
    with runtime(model, heartbeat=60) as rt:
        since: list[float | None] = []
        for step in range(12):
            model.at(step, lambda: since.append(rt._engine._owing_since))
        rt.generate(request("hello", max_tokens=12, ignore_eos=True)).result(timeout=60)
        assert None not in since
        assert since == sorted(set(since))  # type: ignore[type-var]
        assert len(since) == 12
        until(lambda: rt._engine._owing_since is None)


def dies(how: BaseException) -> Callable[..., None]:
    def die(*_: object) -> None:
        raise how

    return die


@pytest.mark.parametrize("how", [SystemExit(3), KeyboardInterrupt(), GeneratorExit("x")], ids=repr)
def test_a_thread_that_dies_in_a_step_tells_every_waiter(how: BaseException) -> None:
    model = StepCounter(MODEL)
    rt = runtime(model, max_queued=1)
    model.at(1, dies(how))
    generations = [rt.generate(request("hello", n, max_tokens=40)) for n in range(5)]
    for generation in generations:
        assert f"engine died: {type(how).__name__}" in str(failure(generation))
    with pytest.raises(BackendError, match="engine died"):
        rt.flush_cache()
    rt.close()


def test_a_thread_that_dies_between_steps_tells_every_waiter(held: Held) -> None:
    model = StepCounter(MODEL)
    rt = runtime(model)
    model.at(0, held)
    running = rt.generate(request("hello", max_tokens=40))
    assert held.inside.wait(60)
    dying = in_thread(lambda: rt._engine.call(dies(SystemExit())))
    until(lambda: not rt._engine._inbox.empty())
    held.go_on.set()
    for error in (dying(), failure(running)):
        assert isinstance(error, BackendError)
        assert "engine died: SystemExit" in str(error)
    rt.close()


def test_memory_that_runs_out_between_steps_is_told() -> None:
    model = StepCounter(MODEL)
    rt = runtime(model)

    def starve(loop: EngineLoop) -> None:
        loop.cache.check = dies(MemoryError("no memory for the plan"))  # type: ignore[method-assign]
        loop.step = dies(MemoryError("no memory for the plan"))  # type: ignore[method-assign]

    rt._engine.call(starve)
    error = failure(rt.generate(request("hello")))
    assert "engine died: MemoryError: no memory for the plan" in str(error)
    rt.close()


def test_an_exception_set_from_outside_is_told(held: Held) -> None:
    model = StepCounter(MODEL)
    rt = runtime(model)
    model.at(0, held)
    generation = rt.generate(request("hello", max_tokens=40))
    assert held.inside.wait(60)
    thread = ctypes.c_ulong(rt._engine._thread.ident or 0)
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert set_error(thread, ctypes.py_object(SystemExit)) == 1
    held.go_on.set()
    assert "engine died: SystemExit" in str(failure(generation))
    rt.close()


class Gone(Engine):
    """An engine whose thread ends without a word."""

    def _run(self) -> None:
        pass


def test_a_thread_that_is_gone_without_a_word_is_noticed() -> None:
    rt = runtime(StepCounter(MODEL))
    rt._engine.stop()
    rt._engine = Gone(rt._engine._loop, heartbeat=0.05)
    rt._engine._thread.join(60)
    assert "stuck or gone" in str(failure(rt.generate(request("hello"))))
    with pytest.raises(BackendError, match="stuck or gone"):
        rt.stats()
    rt.close()


def test_a_callback_that_ends_its_thread_keeps_nobody_from_being_told(held: Held) -> None:
    model = StepCounter(MODEL)
    rt = runtime(model)
    model.at(0, held)
    generations = [rt.generate(request("hello", n)) for n in range(3)]
    generations[0].add_done_callback(dies(SystemExit()))
    assert held.inside.wait(60)
    stall(rt)
    for generation in generations:
        assert isinstance(failure(generation), BackendError)
    rt.close()


def starved(kind: str) -> Callable[[], None]:
    def starve() -> None:
        if kind == "torch":
            torch.empty(2**50, dtype=torch.uint8)
        if kind == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0")
        raise MemoryError

    return starve


@pytest.mark.parametrize(
    ("kind", "asked"),
    [("torch", "asked for 1,125,899,906,842,624 bytes"), ("cuda", "asked for 1,610,612,736 bytes"),
     ("python", "ran out of memory, and")],
)  # fmt: skip
def test_memory_that_runs_out_in_a_step_fails_its_rows_with_numbers(kind: str, asked: str) -> None:
    model = StepCounter(MODEL)
    with runtime(model) as rt:
        model.at(0, starved(kind))
        error = failure(rt.generate(request("hello world", max_tokens=4)))
        tokens = len(TOKENIZER.encode("hello world"))
        assert isinstance(error, ModelError)
        assert f"pass of {tokens} tokens ran out of memory" in str(error)
        assert asked in str(error)
        assert "bytes are free now: lower max_batch_tokens, or kv_tokens" in str(error)
        one = request("hello world", max_tokens=4)
        assert list(rt.generate(one).result(timeout=60).ids) == expected(one)
        rt.check()


def test_another_failure_of_a_step_is_not_called_a_shortage() -> None:
    model = StepCounter(MODEL)
    with runtime(model) as rt:
        model.at(0, dies(ValueError("a bad shape")))
        assert "failed: ValueError: a bad shape" in str(failure(rt.generate(request("hello"))))
