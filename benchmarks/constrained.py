"""What constraints take of a decode step: a batch of outputs of one schema after another.

    first     outputs of a grammar that nobody has had before; it was compiled while prompts waited
    again     the same number of outputs of the same grammar

Every schema is asked for by 8 rows at once, greedily and at a temperature of 1. What the engine's
own thread spends in masks, in taking tokens and in what is forced is a share of its whole steps.
Collections of garbage that fall into it are a part of that, and told apart: they look at all that
the process holds. Run nothing else meanwhile.
"""

from __future__ import annotations

import report

# isort: split
import gc
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

from constraints import cases
from tables import print_json, print_table

import lmlang as lm
from lmlang.runtime.constraints import Constrained
from lmlang.runtime.loop import EngineLoop

WANTED = 0.03
"""Of a step, at most."""
ABOUT = ("Ada", "Bob", "Carl", "Dora", "Emil", "Fay", "Gus", "Hal")
"""A row each."""
SCHEMAS, TOKENS = 40, 128
LEAST = 50
"""Draws of a batch below which little is to be measured."""
PARTS = (
    "__init__", "mask", "made_mask", "is_legal", "masks_behind", "held", "take", "run", "allows",
    "complete",
)  # fmt: skip


class Clock:
    """Nanoseconds of the engine thread: in steps, and in constraints within them."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inside: int | None = None  # which thread is in a constraint: the engine's or none
        for name in PARTS:
            member = vars(Constrained)[name]
            if isinstance(member, property):
                assert member.fget is not None
                setattr(Constrained, name, property(self._timed("constraints", member.fget)))
            else:
                setattr(Constrained, name, self._timed("constraints", member))
        step = EngineLoop.step

        @wraps(step)
        def timed(*given: Any) -> None:
            started = time.perf_counter_ns()
            step(*given)
            self.spent["steps"] += time.perf_counter_ns() - started
            self.spent["count"] += 1

        EngineLoop.step = timed  # type: ignore[method-assign]
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        if self._inside == threading.get_ident():
            now = time.perf_counter_ns()
            self.spent["garbage"] += now if phase == "stop" else -now

    def _timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def timed(*given: Any) -> Any:
            if self._inside is not None:
                return work(*given)
            self._inside, started = threading.get_ident(), time.perf_counter_ns()
            try:
                return work(*given)
            finally:
                self.spent[name] += time.perf_counter_ns() - started
                self.spent["draws"] += work.__name__ == "take"
                self._inside = None

        return timed


@lm.function
def document(s: lm.ProgramState, about: str, schema: str, temperature: float) -> None:
    """One document of a schema."""
    s += f"An example document about {about} as JSON:\n"
    s += lm.gen("document", json_schema=schema, max_tokens=TOKENS, temperature=temperature)


def batch(
    runtime: lm.Runtime, clock: Clock, schema: str, temperature: float, seed: int
) -> Counter[str]:
    """What a row each for everybody has cost."""
    clock.spent.clear()
    rows = [{"about": about, "schema": schema, "temperature": temperature} for about in ABOUT]
    document.run_batch(rows, backend=runtime, seed=seed)
    return Counter(clock.spent)


def measured(
    model: Any, clock: Clock, schemas: list[tuple[str, str]], temperature: float, count: int
) -> list[dict[str, Any]]:
    """First and later outputs of some schemas, in a runtime that knows none of them."""
    found: dict[str, list[tuple[str, Counter[str]]]] = {"first": [], "again": []}
    with lm.Runtime(model) as runtime:
        batch(runtime, clock, '{"type": "integer"}', temperature, 0)
        for name, schema in schemas:
            if len(found["first"]) == count:
                break
            try:
                spent = [batch(runtime, clock, schema, temperature, seed) for seed in (1, 2)]
            except lm.ConstraintError:  # counted where schemas are compiled
                continue
            if min(each["draws"] for each in spent) >= LEAST:
                for kind, each in zip(found, spent, strict=True):
                    found[kind].append((name, each))
    return [summed(kind, temperature, each) for kind, each in found.items()]


def summed(kind: str, temperature: float, found: list[tuple[str, Counter[str]]]) -> dict[str, Any]:
    """All batches of a kind together, and the worst of them."""
    shares = {name: spent["constraints"] / spent["steps"] for name, spent in found}
    whole = sum((spent for _, spent in found), Counter[str]())
    worst = max(shares, key=shares.__getitem__, default="")
    return {
        "outputs": kind,
        "temperature": temperature,
        "schemas": len(found),
        "step_ms": round(whole["steps"] / max(1, whole["count"]) / 1e6, 2),
        "micros_a_draw": round(whole["constraints"] / max(1, whole["draws"]) / 1e3, 1),
        "share": round(whole["constraints"] / max(1, whole["steps"]), 4),
        "garbage_share": round(whole["garbage"] / max(1, whole["steps"]), 4),
        "median_share": round(statistics.median(shares.values()), 4) if shares else None,
        "worst": worst,
        "worst_share": round(shares.get(worst, 0.0), 4),
    }


def main() -> None:
    """Measure, print a table and a line of JSON."""
    options = report.options(__doc__)
    clock = Clock()
    given = cases(options.small)
    if not options.small:
        random.Random(0).shuffle(given)
    schemas = [(case.name, case.schema) for case in given]
    facts = report.setup(str(options.model))
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    results = [
        result
        for temperature in (0.0, 1.0)
        for result in measured(options.model, clock, schemas, temperature, SCHEMAS)
    ]
    names = ("schemas", "step_ms", "micros_a_draw", "share", "garbage_share", "median_share")
    print_table(
        f"{len(ABOUT)} rows; of a step at most {WANTED:.0%} is wanted",
        ["", *names, "worst_share", "worst"],
        [
            [
                f"{result['outputs']}, temperature {result['temperature']:g}",
                *(str(result[name]) for name in (*names, "worst_share", "worst")),
            ]
            for result in results
        ],
    )
    print_json({"benchmark": "constrained", "small": options.small, **facts, "results": results})


if __name__ == "__main__":
    main()
