"""P18: a form whose questions depend on the answers: plain Python over typed values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

import lmlang as lm
from lmlang.demo.say import Say

MOST = 8
STORY = (
    "Hello, my name is Ines. I am 34 years old and have two children, Tom who is 4 and Lea who is "
    "7. I rent a flat and I have a car."
)


@lm.function
def form(s: lm.ProgramState, story: str) -> dict[str, Any]:
    """At most eight questions about a story."""
    answers: dict[str, Any] = {}

    def ask(question: str, name: str, kind: Any) -> Any:
        nonlocal s
        s += f"Question: {question}\nAnswer: " + lm.gen(name, type=kind, max_tokens=24) + "\n"
        answers[name] = s[name]
        return answers[name]

    s += story + "\n\n"
    ask("How old are you?", "age", Annotated[int, Field(ge=0, le=120)])
    ask("Do you rent or own your home?", "home", Literal["rent", "own"])
    children = ask("How many children do you have?", "children", Annotated[int, Field(ge=0, le=9)])
    asked = 0
    while asked < children and len(answers) < MOST - 1:
        asked += 1
        ask(f"How old is child {asked}?", f"child {asked}", Annotated[int, Field(ge=0, le=30)])
    if ask("Do you have a car?", "car", bool) and len(answers) < MOST:
        ask(
            "How many kilometres do you drive in a year?", "kilometres", Annotated[int, Field(ge=0)]
        )
    return answers


def run(runtime: lm.Runtime, say: Say) -> None:
    """One story, and what `check` says of the program."""
    say(STORY)
    for name, answer in form.run(story=STORY, backend=runtime, temperature=0).ret_value.items():
        say(f"  {name:<12} {answer!r}")
    for finding in form.check():
        say(str(finding))
