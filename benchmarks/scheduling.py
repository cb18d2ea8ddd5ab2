"""What policies and eviction make of loads and of pools that are too small, without a model.

    hit        prompt tokens found in the tree, of all
    optimum    the same, of what depth-first order finds (where runs go on: of what can be found)
    again      tokens computed once more, after a retraction
    mean, p99  steps from asking to being admitted

Pools are parts of the working set: of all tokens that the tree would hold if it never evicted. The
numbers are counted (see `machine.py`), the same every time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from loads import LOADS, Load, optimum
from machine import Machine
from tables import print_json, print_table

from lmlang.runtime.policy import POLICIES

EVICTIONS = ("program", "lru")
POOLS = (1.0, 0.5, 0.25)
BUDGET, MAX_RUNNING = 128, 16
MEASURES = ("hit", "optimum", "steps", "again", "mean", "p99")


def counted(load: Load, slots: int, policy: str, eviction: str) -> dict[str, Any]:
    """One load under one policy and one eviction in one pool."""
    machine = Machine(slots, policy, eviction, budget=BUDGET, max_running=MAX_RUNNING)
    machine.run(load)
    machine.cache.check()
    fewest, _ = optimum(machine.asked)
    return {
        "load": load.name,
        "policy": policy,
        "eviction": eviction,
        "slots": slots,
        "prompt_tokens": machine.prompt_tokens,
        "cached_tokens": machine.cached_tokens,
        "hit": round(machine.cached_tokens / machine.prompt_tokens, 4),
        "optimum": round(machine.cached_tokens / (machine.prompt_tokens - fewest), 4),
        "steps": machine.steps,
        "retractions": machine.scheduler.retractions,
        "again": machine.recomputed_tokens,
        "mean": round(statistics.fmean(machine.waits), 2),
        "p99": sorted(machine.waits)[int(0.99 * len(machine.waits))],
    }


def sizes(load: Load) -> tuple[int, int]:
    """The working set, and the slots that the longest request takes."""
    machine = Machine(1 << 20, "fcfs", "lru", budget=BUDGET, max_running=MAX_RUNNING)
    machine.run(load)
    longest = max(len(prompt) + len(output) for prompt, output in machine.asked)
    return optimum(machine.asked)[1], longest


def compare(load: Load) -> list[dict[str, Any]]:
    """Count one load in all pools and print its table."""
    working_set, longest = sizes(load)
    results: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    for policy in POLICIES:
        for eviction in EVICTIONS:
            cells = [policy, eviction]
            for part in POOLS:
                slots = max(longest, int(part * working_set))
                result = counted(load, slots, policy, eviction) | {"pool": part}
                results.append(result)
                cells += [
                    f"{result['hit']:.1%}", f"{result['optimum']:.1%}",
                    *(f"{result[name]:,}" for name in MEASURES[2:]),
                ]  # fmt: skip
            if rows and rows[-1][0] == policy and rows[-1][2:] == cells[2:]:
                rows[-1][1] = "any"
            else:
                rows.append(cells)
    headings = [
        f"{part:g}: {name}" if name == MEASURES[0] else name for part in POOLS for name in MEASURES
    ]
    print_table(
        f"{load.name}: working set {working_set:,}, longest request {longest:,}, "
        f"{results[0]['prompt_tokens']:,} prompt tokens",
        ["policy", "eviction", *headings],
        rows,
    )
    return results


def main() -> None:
    """Count, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the loads (default: 0)")
    parser.add_argument("--small", action="store_true", help="two loads only")
    given = parser.parse_args()
    started = time.perf_counter()
    loads = [make(given.seed) for make in (LOADS[:2] if given.small else LOADS)]
    print(f"{BUDGET} tokens a step, {MAX_RUNNING} sequences at a time")
    results = [result for load in loads for result in compare(load)]
    print(f"\n{len(results)} runs in {time.perf_counter() - started:.1f} s")
    line = {"benchmark": "scheduling", "small": given.small, "seed": given.seed}
    print_json(line | {"budget": BUDGET, "max_running": MAX_RUNNING, "results": results})


if __name__ == "__main__":
    main()
