"""P5: an agent with two tools; what a tool raises is an observation, and history stays cached."""

from __future__ import annotations

from typing import Annotated, Literal

import lmlang as lm
from lmlang.demo.say import Say

MOST = 6
"""Calls at most."""
POPULATIONS = {"Norway": 5, "Sweden": 10, "Denmark": 6}
"""In millions."""
QUESTION = "How many million people live in Norway and Sweden together?"


def calculate(left: int, sign: Literal["+", "-", "*", "/"], right: int) -> float:
    """Compute with two whole numbers.

    Args:
        left: The first number.
        sign: What to do with them.
        right: The second number.
    """
    results = {"+": left + right, "-": left - right, "*": left * right}
    return left / right if sign == "/" else results[sign]


def population(country: Annotated[Literal["Norway", "Sweden", "Finland"], "its name"]) -> int:
    """How many million people live in a country."""
    return POPULATIONS[country]


@lm.function
def agent(s: lm.ProgramState, question: str) -> list[str]:
    """What the tools said; the answer is the variable of that name."""
    box = s.tools([calculate, population])
    s += lm.user(question)
    seen: list[str] = []
    for turn in range(MOST):
        s += lm.assistant(
            lm.gen(f"thought {turn}", max_tokens=16, stop="\n")
            + "\n"
            + box.call(f"call {turn}", max_tokens=60)
        )
        observation = s[f"call {turn}"].observe()
        seen.append(observation.text)
        s += box.result(observation)
        with s.copy() as aside:
            aside += lm.assistant(
                "Do I know the answer now?" + lm.select("done", [" Yes.", " No."])
            )
        if aside["done"] == " Yes.":
            break
    s += lm.assistant(lm.gen("answer", max_tokens=24, stop="\n"))
    return seen


def run(runtime: lm.Runtime, say: Say) -> None:
    """One question."""
    say(QUESTION)
    runtime.reset_stats()
    state = agent.run(question=QUESTION, backend=runtime, temperature=0)
    for turn, seen in enumerate(state.ret_value):
        call = state[f"call {turn}"]
        told = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        say(f"  {call.name}({told})  ->  {seen}")
    say(str(state["answer"]).strip())
    stats = runtime.stats()
    say(f"{stats.prompt_tokens:,} prompt tokens, {stats.cached_tokens:,} of them cached")
