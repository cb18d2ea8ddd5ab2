"""P22: plain Python goes on from a choice; the branch not taken costs nothing."""

from __future__ import annotations

import lmlang as lm
from lmlang.demo.say import Say

QUESTIONS = ("What is 17 + 25?", "Who wrote the play Hamlet?")


@lm.function
def branch(s: lm.ProgramState, question: str) -> str:
    """An answer by one of two tools."""
    s += "Question: " + question + "\nTool (calculator or encyclopedia):"
    s += lm.select("tool", {"calculator": " calculator", "encyclopedia": " encyclopedia"})
    if s["tool"] == "calculator":
        s += "\nExpression: " + lm.gen(
            "expression", regex=r"[0-9]{1,3} [-+*] [0-9]{1,3}", max_tokens=12
        )
        left, sign, right = s["expression"].split(" ")
        a, b = int(left), int(right)
        return str({"+": a + b, "-": a - b, "*": a * b}[sign])
    s += "\nArticle: " + lm.gen(
        "article", regex=r"[A-Z][a-z]{2,12}( [A-Z][a-z]{2,12})?", max_tokens=10
    )
    article: str = s["article"]
    return f"see {article}"


def run(runtime: lm.Runtime, say: Say) -> None:
    """Two questions."""
    for question in QUESTIONS:
        state = branch.run(question=question, backend=runtime, temperature=0)
        say(f"{question:<30} {state['tool']:<13} {state.ret_value}")
