"""Types of programs, read by mypy and pyright and run by nobody: what must hold is asserted.

Lines that must be refused carry a `type: ignore`; a checker that accepts one says it is unused.
"""

from collections.abc import Coroutine, Generator
from typing import Any

from typing_extensions import assert_type

import lmlang as lm
from lmlang.frontend.ir import Program
from lmlang.frontend.preview import Preview
from lmlang.frontend.stream import AsyncStream, Stream
from lmlang.testing import RandomBackend


@lm.function
def rate(s: lm.ProgramState, topic: str, scale: int = 5) -> float:
    s += topic + lm.gen("rating", max_tokens=scale)
    return float(s["rating"])


@lm.function(temperature=0, max_new_tokens=8)
def configured(s: lm.ProgramState, topic: str) -> list[str]:
    return [topic]


class Judge:
    @lm.function
    def verdict(self, s: lm.ProgramState, text: str) -> bool:
        assert_type(rate(s, text), float)
        return s.call(configured, text) == [text]

    @lm.function(seed=1)
    async def later(self, s: lm.ProgramState, text: str) -> bytes:
        return (await waiting(s, 1)).encode()


@lm.function
async def waiting(s: lm.ProgramState, count: int) -> str:
    s += str(count) + lm.gen("x")
    assert_type(await s.call(waiting, count), str)
    return str(await s.aget("x"))


def calls() -> None:
    assert_type(rate("tea"), lm.ProgramState)
    assert_type(rate("tea", scale=3), lm.ProgramState)
    assert_type(rate("tea", temperature=0), lm.ProgramState)
    assert_type(rate("tea", 3, seed=1, top_p=0.5), lm.ProgramState)
    assert_type(rate("tea", backend=RandomBackend(), stop=["."]), lm.ProgramState)
    assert_type(rate("tea", stream=True, deadline=1.0), lm.ProgramState)
    assert_type(rate("tea", max_new_tokens=3), lm.ProgramState)
    assert_type(rate.run("tea", top_k=3), lm.ProgramState)
    assert_type(rate.stream("tea"), Stream[lm.ProgramState])
    assert_type(rate.astream("tea"), AsyncStream[lm.ProgramState])
    assert_type(configured("tea"), lm.ProgramState)
    assert_type(rate.trace(topic="tea"), Program)
    assert_type(rate.preview(), Preview)
    assert_type(rate.cache(), int)
    assert_type(rate.__name__, str)
    rate()  # type: ignore[call-overload]
    rate(3)  # type: ignore[call-overload]
    rate("tea", scales=3)  # type: ignore[call-overload]


def plain(s: lm.ProgramState, count: int, more: str = "") -> bytes:
    return f"{s.text()}{count}{more}".encode()


def inline(s: lm.ProgramState) -> None:
    assert_type(rate(s, "tea"), float)
    assert_type(rate(s, topic="tea", scale=2), float)
    assert_type(configured(s, "tea"), list[str])
    assert_type(s.call(rate, "tea"), float)
    assert_type(s.call(plain, 3, more="x"), bytes)
    s.call(rate, 3)  # type: ignore[arg-type]
    s.call(plain, "x")  # type: ignore[arg-type]
    s.call(3)  # type: ignore[arg-type]
    rate(s)  # type: ignore[call-overload]


def methods(s: lm.ProgramState) -> None:
    judge = Judge()
    assert_type(judge.verdict("tea"), lm.ProgramState)
    assert_type(judge.verdict(s, "tea"), bool)
    judge.verdict(3)  # type: ignore[call-overload]


async def asynchronous(s: lm.ProgramState) -> None:
    assert_type(await waiting.arun(3), lm.ProgramState)
    assert_type(await rate.arun("tea"), lm.ProgramState)
    assert_type(await waiting(s, 3), str)
    assert_type(await Judge().later(s, "tea"), bytes)
    later: Coroutine[Any, Any, str] = waiting(s, 3)
    await later
    async with rate.astream("tea") as events:
        assert_type(events.state, lm.ProgramState)
        async for event in events:
            assert_type(event, lm.StreamEvent)


def derived(s: lm.ProgramState) -> None:
    assert_type(rate.options(top_k=3)("tea"), lm.ProgramState)
    assert_type(rate.options(top_k=3)(s, "tea"), float)
    assert_type(rate.bind(topic="tea")(), lm.ProgramState)
    assert_type(rate.bind(topic="tea")(s), float)
    rate.options(top_k=3)(3)  # type: ignore[call-overload]


def batches() -> None:
    states = rate.run_batch([("tea",), {"topic": "tea", "scale": 1}], temperature=0)
    assert_type(states, lm.BatchResult)
    assert_type(states[0], lm.ProgramState)
    assert_type(states.indices, tuple[int, ...])
    lazy = rate.run_batch((("tea",) for _ in range(3)), generator_style=True)
    assert_type(lazy, Generator[lm.ProgramState, None, None])
    for state in states:
        assert_type(state, lm.ProgramState)
    rate.run_batch("tea")  # type: ignore[arg-type]
