"""What more work costs: more forks of one prompt, more rows behind one prefix, more requests.

    forks      milliseconds an output token, from 8 to 64 forks of one prompt; they are not to rise
    rows       milliseconds a question, from 10 to 1,000 behind the same examples; not to rise
    requests   megabytes of the process after 500 and after 5,000 requests, beside what weights and
               pool take: 600 MB more at most, and no growth

Each is measured with nothing cached before. Run nothing else meanwhile.
"""

from __future__ import annotations

import report

# isort: split
import dataclasses
import gc
import statistics
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from choices import Choices
from tables import print_json, print_table
from writings import Forks

import lmlang as lm
from lmlang.protocol import Prompt, Request, SamplingParams, Text

KV_TOKENS = 16_384
FEW_TOKENS = 4_096
"""A pool that 500 requests have filled, so that its pages are no growth from then on."""
SPARE = 600
"""Megabytes beside weights and pool."""
RISE = 1.1
"""How many times as much the largest may cost for each, which is noise."""
MEGABYTE = 1 << 20


def fresh(runtime: lm.Runtime, work: Any) -> float:
    """Seconds of a program with nothing cached."""
    runtime.flush_cache()
    return float(work.ours(runtime)[0])


def forks(runtime: lm.Runtime, counts: tuple[int, ...], options: report.Options) -> dict[str, Any]:
    """Milliseconds an output token, behind the first of each fork."""
    length, tokens = (100, 4) if options.small else (600, 33)
    found = {}
    for count in counts:
        whole = Forks.of(runtime, length, count, tokens)
        one = dataclasses.replace(whole, tokens=1)
        fresh(runtime, whole.less())
        taken = [fresh(runtime, whole) - fresh(runtime, one) for _ in range(options.repeat)]
        found[count] = 1e3 * statistics.median(taken) / (count * (tokens - 1))
    return told("forks", "ms/token", found)


def rows(runtime: lm.Runtime, counts: tuple[int, ...], options: report.Options) -> dict[str, Any]:
    """Milliseconds a question, beyond those of the prefix, which is computed once."""
    length = 150 if options.small else 1_000
    found = {}
    for count in counts:
        work = Choices.of(runtime, length, count)
        fresh(runtime, work.less())
        prefix = min(fresh(runtime, work.less()) for _ in range(2))
        taken = [fresh(runtime, work) - prefix for _ in range(1 if count > 500 else options.repeat)]
        found[count] = 1e3 * statistics.median(taken) / (count - 2)
    return told("rows", "ms/question", found)


def told(name: str, unit: str, found: dict[int, float]) -> dict[str, Any]:
    """Print the costs of each size, and whether they rise."""
    least, most = min(found), max(found)
    rise = found[most] / found[least]
    table = [(f"{count:,}", f"{cost:.3f}") for count, cost in found.items()]
    print_table(f"{name}: {rise:.2f} times as much for each of {most:,}", ("", unit), table)
    return {
        "part": name, unit: {count: round(cost, 4) for count, cost in found.items()},
        "rise": round(rise, 3), "met": rise <= RISE,
    }  # fmt: skip


def requests(runtime: lm.Runtime, counts: tuple[int, ...]) -> dict[str, Any]:
    """Megabytes of the process after so many requests, each of a prompt of its own."""
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    own = tensors() / MEGABYTE
    found, done = {}, 0
    for count in counts:
        while done < count:
            size = min(64, count - done)
            asked = [Prompt.of(Text(f"{done + i}. The guest said")) for i in range(size)]
            for each in [runtime.generate(Request(prompt, params)) for prompt in asked]:
                each.result()
            done += size
        gc.collect()
        found[count] = resident() / MEGABYTE
    first, last = found[min(found)], found[max(found)]
    table = [(f"{count:,} requests", f"{size:,.0f}") for count, size in found.items()]
    table += [("weights and pool", f"{own:,.0f}"), ("beside them", f"{last - own:,.0f}")]
    print_table(f"requests: {SPARE} MB beside them at most", ("", "MB"), table)
    return {
        "part": "requests", "MB": {count: round(size, 1) for count, size in found.items()},
        "weights_and_pool_MB": round(own, 1), "grown_MB": round(last - first, 1),
        "met": last - own <= SPARE and last - first <= 0.02 * first,
    }  # fmt: skip


def resident() -> int:
    """Bytes of this process in memory; Linux alone says."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def tensors() -> int:
    """Bytes of all tensors that live: once a runtime is there, its weights and its pool.

    Those that oneDNN has packed are not among them; so the bound is never too wide.
    """
    storages: dict[int, int] = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):
            with suppress(NotImplementedError):  # one packed for oneDNN hides its bytes
                held = each.untyped_storage()
                storages[held.data_ptr()] = held.nbytes()
    return sum(storages.values())


def main() -> None:
    """Measure, print."""
    options = report.options(__doc__, ("forks", "rows", "requests"))
    facts = report.setup(str(options.model))
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    small, results = options.small, []
    if options.only in (None, "requests"):  # first, before others have used memory
        with lm.Runtime(options.model, kv_tokens=FEW_TOKENS) as runtime:
            results.append(requests(runtime, (20, 60) if small else (500, 5_000)))
    with lm.Runtime(options.model, kv_tokens=KV_TOKENS) as runtime:
        if options.only in (None, "forks"):
            results.append(forks(runtime, (2, 4) if small else (8, 16, 32, 64), options))
        if options.only in (None, "rows"):
            results.append(rows(runtime, (4, 8) if small else (10, 100, 1_000), options))
    print_json({"benchmark": "growth", "small": small, **facts, "results": results})


if __name__ == "__main__":
    main()
