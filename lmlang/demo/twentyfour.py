"""P7: the game of 24 as a tree of thoughts: moves by a pattern, judged by a choice, two kept."""

from __future__ import annotations

import lmlang as lm
from lmlang.demo.say import Say

MOVE = r"[0-9]{1,2} [-+*/] [0-9]{1,2} = [0-9]{1,3}"
WORTH = {"sure": 1.0, "maybe": 0.5, "impossible": 0.0}
DEPTH, TRIED, KEPT = 3, 3, 2


@lm.function
def twentyfour(s: lm.ProgramState, numbers: str) -> list[str]:
    """The moves of the most promising branch."""
    s += "Make 24 from four numbers, one step a line. Each step joins two of the numbers left.\n"
    s += "Numbers: 2 3 4 6\n2 * 3 = 6\n4 * 6 = 24\n24 + 6 = 30\nThis is impossible.\n"
    s += "Numbers: 1 2 4 6\n4 * 6 = 24\n2 - 1 = 1\n24 * 1 = 24\nThis is sure.\n"
    s += "Numbers: " + numbers + "\n"
    branches: list[tuple[lm.ProgramState, list[str]]] = [(s, [])]
    for depth in range(DEPTH):
        tried = []
        for branch, moves in branches:
            for child in branch.fork(TRIED):
                child += lm.gen(f"move{depth}", regex=MOVE, max_tokens=12)
                tried.append((child, moves))
        judged = []
        for child, moves in tried:
            with child.copy() as judge:
                judge += "\nThis is"
                judge += lm.select("worth", {name: f" {name}." for name in WORTH})
            judged.append((judge, child, moves))
        scored = []
        for number, (judge, child, moves) in enumerate(judged):
            probs = judge.meta("worth").probs
            worth = sum(probs[name] * value for name, value in WORTH.items())
            scored.append((-worth, number, child, moves))
        scored.sort(key=lambda each: each[:2])
        for _, _, child, _ in scored[KEPT:]:
            child.cancel()  # what it holds of the cache may go
        branches = [
            (child, [*moves, child[f"move{depth}"]]) for _, _, child, moves in scored[:KEPT]
        ]
        for child, _ in branches:
            child += "\n"
    return branches[0][1]


def run(runtime: lm.Runtime, say: Say) -> None:
    """One game."""
    runtime.reset_stats()
    state = twentyfour.run(numbers="3 4 6 8", backend=runtime, temperature=0.8, seed=24)
    for move in state.ret_value:
        say(f"  {move}")
    stats = runtime.stats()
    say(f"{stats.prompt_tokens:,} prompt tokens, {stats.cached_tokens:,} of them shared")
