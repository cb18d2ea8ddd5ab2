"""P16: a wish is classified, and one of four sub-programs answers it with a type of its own."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

import lmlang as lm
from lmlang.demo.say import Say

WISHES = (
    "Wake me at seven tomorrow.",
    "How much is three times fourteen?",
    "Put milk and bread on my list.",
    "Is it going to rain in Oslo?",
)


class Weather(BaseModel):
    """What a question about the weather is about."""

    place: Annotated[str, Field(max_length=20)]
    day: Literal["today", "tomorrow"]


@lm.function
def alarm(s: lm.ProgramState) -> datetime.time:
    """The time of an alarm."""
    s += lm.assistant("Alarm at " + lm.gen("time", type=datetime.time, max_tokens=16))
    time: datetime.time = s["time"]
    return time


@lm.function
def sum_up(s: lm.ProgramState) -> int:
    """A number."""
    s += lm.assistant("The result is " + lm.gen("number", type=int, max_tokens=6))
    number: int = s["number"]
    return number


@lm.function
def shopping(s: lm.ProgramState) -> list[str]:
    """What to buy."""
    Item = Annotated[str, Field(max_length=12)]  # noqa: N806 - a type
    Items = Annotated[list[Item], Field(min_length=1, max_length=3)]  # noqa: N806
    s += lm.assistant("The list: " + lm.gen("items", type=Items, max_tokens=40))
    items: list[str] = s["items"]
    return items


@lm.function
def weather(s: lm.ProgramState) -> Weather:
    """A place and a day."""
    s += lm.assistant(lm.gen("asked", type=Weather, max_tokens=40))
    asked: Weather = s["asked"]
    return asked


ROUTES: dict[str, Any] = {
    "alarm": alarm, "calculation": sum_up, "shopping": shopping, "weather": weather,
}  # fmt: skip


@lm.function
def router(s: lm.ProgramState, wish: str) -> Any:
    """What the right sub-program makes of a wish."""
    s += lm.system(f"Wishes are about one of these: {', '.join(ROUTES)}.")
    s += lm.user(wish)
    with s.copy() as aside:
        aside += lm.assistant("This is about: " + lm.select("route", list(ROUTES)))
    s["route"] = aside["route"]
    return s.call(ROUTES[s["route"]])


def run(runtime: lm.Runtime, say: Say) -> None:
    """Four wishes."""
    states = router.run_batch([(wish,) for wish in WISHES], backend=runtime, temperature=0)
    for wish, state in zip(WISHES, states, strict=True):
        say(f"{wish:<36} {state['route']:<12} {state.ret_value!r}")
