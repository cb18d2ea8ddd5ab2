"""Programs with tools: P5 an agent whose history is never computed again, P17 calls that fit."""

from __future__ import annotations

import datetime
import inspect
from typing import Annotated, Literal

from pydantic import Field

import lmlang as lm
from lmlang.demo.agent import MOST, QUESTION, agent, calculate, population
from tests.programs.properties import ran, same_alone, silent


def test_an_agent_s_calls_bind_errors_are_observed_and_history_is_cached(runtime, untrained, capfd):
    rows = [{"question": QUESTION}]
    many = runtime is untrained
    states = ran(agent, rows, runtime, temperature=1.0 if many else 0.0)
    (state,) = states
    assert 1 <= len(state.ret_value) <= MOST
    before = 0
    for turn, seen in enumerate(state.ret_value):
        call = state[f"call {turn}"]
        function = {"calculate": calculate, "population": population}[call.name]
        inspect.signature(function).bind(**call.arguments)
        expected = call.observe()
        if expected.error is None:
            assert seen == str(function(**call.arguments))
        else:
            assert isinstance(expected.error, (KeyError, ZeroDivisionError))
            assert type(expected.error).__name__ in seen
        for name in (f"thought {turn}", f"call {turn}"):
            meta = state.meta(name)
            assert meta.cached_tokens >= before - 8  # an end of turn, and text that was cut
            before = meta.prompt_tokens
    if many:
        same_alone(agent.options(temperature=1.0), rows, states, runtime)
    silent(capfd)


def pay(amount: Annotated[int, Field(ge=0, le=999)], currency: Literal["EUR", "USD"]) -> None:
    """Pay an amount."""


def book(day: datetime.date, seats: Annotated[int, Field(ge=1, le=9)] = 1) -> None:
    """Book a table."""


def play(song: Annotated[str, Field(max_length=8)], loud: bool) -> None:
    """Play a song."""


def light(room: Literal["hall", "kitchen"], level: Annotated[int, Field(ge=0, le=10)]) -> None:
    """Set a light."""


def heat(room: Literal["hall", "kitchen"], degrees: Annotated[int, Field(ge=5, le=30)]) -> None:
    """Set a room's heating."""


def timer(minutes: Annotated[int, Field(ge=1, le=600)]) -> None:
    """Set a timer."""


def say(words: Annotated[list[Literal["hello", "bye"]], Field(max_length=2)]) -> None:
    """Say something."""


def stop() -> None:
    """Stop everything."""


TOOLS = (pay, book, play, light, heat, timer, say, stop)


@lm.function
def called(s, wish: str):
    s += lm.user(wish)
    s += lm.assistant(lm.gen("call", type=lm.ToolCall[TOOLS], max_tokens=60))
    return s["call"].name, dict(s["call"].arguments)


def test_a_call_fits_the_function_that_it_names(runtime, untrained, capfd):
    wishes = ["Light in the hall, please.", "A table for two on 3 May 2024.", "Stop!"]
    count = 60 if runtime is untrained else 3
    rows = [{"wish": f"{wishes[number % 3]} ({number})"} for number in range(count)]
    states = ran(called, rows, runtime)
    named = set()
    for state in states:
        name, arguments = state.ret_value
        (function,) = [tool for tool in TOOLS if tool.__name__ == name]
        bound = inspect.signature(function).bind(**arguments)
        assert state["call"].run() is None
        for parameter, value in bound.arguments.items():
            if parameter == "day":
                assert isinstance(value, datetime.date)
            if parameter == "amount":
                assert 0 <= value <= 999
        named.add(name)
    if runtime is untrained:
        assert len(named) > 4
        same_alone(called, rows[:3], states[:3], runtime)
    silent(capfd)
