"""Back-pressure: few wait in the engine, the rest at its door, and nobody for ever."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from lmlang.errors import QueueFull
from lmlang.protocol import Generation, ScoreRequest
from lmlang.runtime.waiting_room import WaitingRoom
from tests.runtime.test_engine import MODEL, StepCounter, expected, request
from tests.runtime.test_robust import Held, failure, in_thread, runtime, until


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.go_on.set()


def test_few_may_wait_and_all_are_served_in_the_order_of_their_thread() -> None:
    model = StepCounter(MODEL)
    with runtime(model, max_queued=4) as rt:
        loop, most, arrived = rt._engine._loop, [0], list[int]()
        add, forward = loop.add, model.forward

        def noting(sequence: object) -> None:
            arrived.append(sequence.task.request.draw_key)  # type: ignore[attr-defined]
            add(sequence)  # type: ignore[arg-type]

        def counting(*arguments: object) -> torch.Tensor:
            most.append(len(loop.scheduler.waiting))
            return forward(*arguments)  # type: ignore[arg-type]

        rt._engine.call(lambda loop: setattr(loop, "add", noting))
        model.forward = counting  # type: ignore[method-assign]

        def ask(thread: int) -> list[Generation]:
            return [rt.generate(request("the ", n, max_tokens=2, ignore_eos=True))
                    for n in range(thread, 300, 8)]  # fmt: skip

        for wait in [in_thread(partial(ask, thread)) for thread in range(8)]:
            generations = wait()
            assert isinstance(generations, list)
            for generation in generations:
                assert len(generation.result(timeout=60).ids) == 2
        assert max(most) <= 4
        assert sorted(arrived) == list(range(300))
        for thread in range(8):
            assert [n for n in arrived if n % 8 == thread] == list(range(thread, 300, 8))


def test_whoever_waits_for_a_place_gets_it_from_a_cancelled_one(held: Held) -> None:
    model = StepCounter(MODEL)
    with runtime(model, max_queued=1) as rt:
        rt._engine.call(lambda loop: setattr(loop.scheduler, "max_running", 1))
        model.at(0, held)
        running = rt.generate(request("hello", max_tokens=300, ignore_eos=True))
        assert held.inside.wait(60)
        taken_in = threading.Event()
        model.at(9, lambda: taken_in.wait(60))  # it still runs when the place is free
        queued = rt.generate(request("and", 1))
        last = in_thread(lambda: rt.generate(request("the ", 2, max_tokens=3)))
        until(lambda: rt._engine._room._turns)
        queued.cancel()
        held.go_on.set()
        taken = last()
        assert isinstance(taken, Generation)
        assert not running.done()
        running.cancel()
        taken_in.set()
        assert list(taken.result(timeout=60).ids) == expected(request("the ", 2, max_tokens=3))


def test_the_engines_own_thread_never_waits_for_a_place(held: Held) -> None:
    model = StepCounter(MODEL)
    with runtime(model, max_queued=1) as rt:
        rt._engine.call(lambda loop: setattr(loop.scheduler, "max_running", 1))
        model.at(0, held)
        first = rt.generate(request("hello", max_tokens=1))
        assert held.inside.wait(60)
        more: list[Generation] = []
        ask = lambda n: more.append(rt.generate(request("the ", n, max_tokens=2)))  # noqa: E731
        first.add_done_callback(lambda _: [ask(n) for n in range(3)])
        queued = rt.generate(request("and", max_tokens=1))
        held.go_on.set()
        for generation in (first, queued):
            generation.result(timeout=60)
        assert len(more) == 3  # asked for as the first one ended, before the queued one ran
        for generation in more:
            generation.result(timeout=60)


def test_a_full_engine_refuses_whom_does_not_wait_with_both_numbers(held: Held) -> None:
    model = StepCounter(MODEL)
    with runtime(model, max_queued=2) as rt:
        model.at(0, held)
        running = [rt.generate(request("hello", max_tokens=1))]
        assert held.inside.wait(60)
        running += [rt.generate(request("hello", n, max_tokens=1)) for n in range(2)]
        error = failure(rt.offer(request("and")))
        assert isinstance(error, QueueFull)
        assert "2 requests wait to run, and max_queued is 2" in str(error)
        scores = rt.offer_score(ScoreRequest(request("and").prompt, ("a", "b")))
        assert isinstance(scores.exception(timeout=60), QueueFull)
        held.go_on.set()
        for generation in running:
            generation.result(timeout=60)
        rt.stats()
        assert rt.generate(request("and", max_tokens=1)).result(timeout=60).ids


def test_the_end_of_the_engine_reaches_those_at_the_door(held: Held) -> None:
    model = StepCounter(MODEL)
    rt = runtime(model, max_queued=1)
    model.at(0, held)
    rt.generate(request("hello"))
    assert held.inside.wait(60)
    rt.generate(request("hello", 1))
    at_the_door = [in_thread(lambda: rt.generate(request("hello", 2))) for _ in range(3)]
    until(lambda: len(rt._engine._room._turns) == 3)
    closing = in_thread(rt.close)
    until(lambda: rt._engine._closed)
    held.go_on.set()
    closing()
    for wait in at_the_door:
        generation = wait()
        assert isinstance(generation, Generation)
        assert "closed" in str(failure(generation))


def test_places_go_to_the_first_to_come() -> None:
    room, order = WaitingRoom(1), list[int]()
    assert room.enter() is None
    room.arrive()

    def enter(number: int) -> None:
        assert room.enter() is None
        order.append(number)

    waits = []
    for number in range(5):
        waits.append(in_thread(partial(enter, number)))
        until(lambda number=number: len(room._turns) == number + 1)
    refused = room.enter(wait=False)
    assert isinstance(refused, QueueFull)
    for number, wait in enumerate(waits):
        room.update(0)
        assert wait() is None
        assert order == list(range(number + 1))
        room.arrive()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_ctrl_c_ends_the_wait_for_a_place() -> None:
    room = WaitingRoom(1)
    assert room.enter() is None
    room.arrive()
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: room._turns)
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        room.enter()
    assert interrupting() is None
    assert not room._turns
    room.update(0)
    assert room.enter(wait=False) is None


def test_after_a_fork_nobody_waits_at_the_door() -> None:
    rt = runtime(StepCounter(MODEL))
    rt._engine._process += 1
    assert "os.fork" in str(failure(rt.generate(request("hello"))))
    rt._engine._process -= 1
    rt.close()
