"""What the language itself costs: programs on a backend that answers at once, in round trips.

The unit is an empty round trip through a `concurrent.futures` executor with as many callers at
once as there are rows, measured in the same run; so the ratios depend little on the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lmlang as lm
from lmlang.testing import RandomBackend

ROWS = 64
"""In flight."""


@lm.function
def appended(s: lm.ProgramState, row: int, count: int) -> None:
    """Generations one after another, which nobody waits for before the end."""
    s += f"Row {row}.\n"
    for _ in range(count):
        s += "Q: why?\nA:" + lm.gen("answer", max_tokens=8, stop="\n")


@lm.function
def read(s: lm.ProgramState, row: int, count: int) -> None:
    """Generations each of which is read before the next."""
    s += f"Row {row}.\n"
    for _ in range(count):
        s += "Q: why?\nA:" + lm.gen("answer", max_tokens=8, stop="\n")
        s += s["answer"]


@lm.function
def forked(s: lm.ProgramState, row: int, count: int) -> None:
    """Forks that do nothing, joined."""
    s += f"Row {row}.\n"
    s.fork(count).join()


def round_trips(count: int) -> float:
    """Seconds of one empty round trip, with ROWS callers at once."""
    with ThreadPoolExecutor(1) as backend, ThreadPoolExecutor(ROWS) as rows:

        def row() -> None:
            for _ in range(count):
                backend.submit(int).result()

        ready = threading.Barrier(ROWS)
        list(rows.map(lambda _: ready.wait(), range(ROWS)))  # all threads are there
        started = time.perf_counter()
        for future in [rows.submit(row) for _ in range(ROWS)]:
            future.result()
        return (time.perf_counter() - started) / (ROWS * count)


def programs(program: Any, completes: Any, count: int) -> float:
    """Seconds of one of the ``count`` things that each of ROWS rows of a program does."""
    with RandomBackend(completes=completes) as backend:
        rows = [{"row": row, "count": count} for row in range(ROWS)]
        started = time.perf_counter()
        program.run_batch(rows, backend=backend, seed=1, num_threads=ROWS)
        return (time.perf_counter() - started) / (ROWS * count)


def main() -> None:
    """Measure in turns, print a table of medians and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="repetitions (default: 5)")
    parser.add_argument("--small", action="store_true", help="tiny sizes; times mean nothing")
    given = parser.parse_args()
    count = 4 if given.small else 100
    subjects: dict[str, tuple[Callable[[], float], float | None]] = {
        "empty round trip": (lambda: round_trips(count), None),
        "generation, read at the end": (lambda: programs(appended, "on a thread", count), 12.0),
        "generation, read at once": (lambda: programs(read, "on a thread", count), 12.0),
        "generation answered at once": (lambda: programs(appended, "at once", count), 12.0),
        "fork": (lambda: programs(forked, "on a thread", count), 2.0),
    }
    for measure, _ in subjects.values():
        measure()  # warm-up
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(given.repeat):
        for name, (measure, _) in subjects.items():
            seconds[name].append(measure())
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    unit = medians["empty round trip"]
    print(f"{ROWS} rows in flight, {count} each; Python {platform.python_version()}\n")
    print(f"{'':32}{'µs':>10}{'ratio':>10}{'at most':>10}")
    for name, median in medians.items():
        bound = subjects[name][1]
        told = "" if bound is None else f"{bound:g}"
        print(f"{name:32}{median * 1e6:>10.1f}{median / unit:>10.2f}{told:>10}")
    results = [
        {
            "workload": name,
            "seconds": seconds[name],
            "ratio": median / unit,
            "target": subjects[name][1],
        }
        for name, median in medians.items()
    ]
    line = {"benchmark": "frontend", "small": given.small, "rows": ROWS, "results": results}
    print()
    print(json.dumps(line))


if __name__ == "__main__":
    main()
