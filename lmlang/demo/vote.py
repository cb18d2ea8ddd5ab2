"""P6: sixteen ways to an answer side by side; the vote stops when it is decided."""

from __future__ import annotations

import lmlang as lm
from lmlang.demo.say import Say

QUESTION = "Tom has 3 bags with 4 apples each and eats 2 apples. How many apples are left?"
EARLY = True
"""Whether the vote stops when it is decided; no argument, on which draws would depend."""


@lm.function
def vote(s: lm.ProgramState, question: str) -> int:
    """The number that most branches come to."""
    s += lm.user(question)
    forks = s.fork(16)
    for branch in forks:
        with branch.assistant():
            branch += lm.gen("thought", max_tokens=24, temperature=0.8, stop="\n\n")
            branch += "\nSo the number is" + lm.gen("number", regex=r" [0-9]{1,3}", max_tokens=5)
    result = forks.vote("number", stop_when_decided=EARLY)
    s["voted"] = len(result.voted)
    s["counts"] = dict(result.counts)
    return int(result.value)


def run(runtime: lm.Runtime, say: Say) -> None:
    """One question."""
    say(QUESTION)
    state = vote.run(question=QUESTION, backend=runtime, seed=1)
    for value, count in sorted(state["counts"].items(), key=lambda pair: -pair[1]):
        say(f"  {value:>4}  {'#' * count}")
    say(f"{state.ret_value}, after {state['voted']} of 16 had spoken")
