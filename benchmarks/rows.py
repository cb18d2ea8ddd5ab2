"""What decode and prefill have in common: equally long prompts as ids, greedy, side by side.

Every row gets the same number of tokens from every subject; float32 answers must be the same.
"""

from __future__ import annotations

import report

# isort: split
import time
from collections.abc import Callable, Mapping
from functools import partial

from by_hand import Peer
from reviews import reviews

import lmlang as lm
from lmlang.protocol import Prompt, Request, SamplingParams, Tokens

Ids = list[list[int]]
Subject = Callable[[Ids, int], tuple[float, Ids]]
"""Runs prompts to so many tokens each; returns seconds and the tokens."""


def prompts_of(runtime: lm.Runtime, rows: int, length: int) -> Ids:
    """Prompts of exactly so many tokens that differ from their first token on."""
    prompts = []
    for row in range(rows):
        text = f"{row}. " + reviews(row, lambda text: len(text) < 8 * length)
        prompts.append(runtime.tokenizer.encode(text)[:length])
        assert len(prompts[-1]) == length
    return prompts


def our_generations(runtime: lm.Runtime, prompts: Ids, count: int) -> list[lm.Generation]:
    """Start all rows at once, with nothing cached."""
    params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
    runtime.flush_cache()
    return [runtime.generate(Request(Prompt.of(Tokens(tuple(ids), "")), params)) for ids in prompts]


def our_prefill(runtime: lm.Runtime, prompts: Ids, count: int) -> tuple[float, Ids]:
    """Seconds to ``count`` tokens of every row, from the start."""
    started = time.perf_counter()
    outputs = [generation.result() for generation in our_generations(runtime, prompts, count)]
    return time.perf_counter() - started, [list(output.ids) for output in outputs]


def our_decode(runtime: lm.Runtime, prompts: Ids, count: int) -> tuple[float, Ids]:
    """Seconds from when every row has its first token to the end of all."""
    generations = our_generations(runtime, prompts, count)
    clocks = [Clock(generation) for generation in generations]
    outputs = [generation.result() for generation in generations]
    begun = max(clock.stamps[0] for clock in clocks)
    ended = max(clock.stamps[-1] for clock in clocks)
    return ended - begun, [list(output.ids) for output in outputs]


class Clock:
    """Notes on the engine's thread when each event came; those that are there came just now."""

    def __init__(self, generation: lm.Generation) -> None:
        self.stamps: list[float] = []
        generation.watch(self._note)
        if generation.events_from(0) and not self.stamps:
            self._note()

    def _note(self) -> None:
        self.stamps.append(time.perf_counter())


def their_prefill(peer: Peer, prompts: Ids, count: int) -> tuple[float, Ids]:
    """As `our_prefill`."""
    started = time.perf_counter()
    generated = peer.generate(prompts, count)
    return time.perf_counter() - started, generated.tokens


def their_decode(peer: Peer, prompts: Ids, count: int) -> tuple[float, Ids]:
    """As `our_decode`."""
    generated = peer.generate(prompts, count)
    return generated.stamps[-1] - generated.stamps[0], generated.tokens


def compare(
    workload: str,
    subjects: Mapping[str, Subject],
    prompts: Ids,
    count: int,
    judge: Peer,
    repeat: int,
) -> dict[str, object]:
    """Warm up, require equal tokens in float32, measure in turns, print the table.

    A subject that makes no tokens at all is measured without being compared.
    """
    rows, length = len(prompts), len(prompts[0])
    warm = {name: subject(prompts, count)[1] for name, subject in subjects.items()}
    ours = warm[report.OURS]
    exact = warm.get(report.OURS_FLOAT32, ours)
    report.require(all(len(row) == count for row in ours), f"{workload}: our token count")
    for name, theirs in warm.items():
        if not theirs:
            continue
        report.require(all(len(row) == count for row in theirs), f"{workload}: tokens of {name}")
        if "bfloat16" in name or (name == report.OURS and exact is not ours):
            continue  # they round in another way
        for prompt, mine, other in zip(prompts, exact, theirs, strict=True):
            same = judge.same_up_to_ties(prompt, mine, other)
            report.require(same, f"{workload}, batch {rows}, {name}")
    measured = report.interleaved(
        {name: partial(subject, prompts, count) for name, subject in subjects.items()}, repeat
    )
    # Tokens that the seconds were spent on, and what the seconds are divided by.
    tokens, steps, unit = {
        "prefill": (rows * length, 1, "ms"),
        "decode": (rows * (count - 1), count - 1, "ms/step"),
    }.get(workload, (rows * count, count, "ms/token"))
    ratios = report.ratios(measured)
    halves = report.ratios(measured, report.OURS_BFLOAT16)
    same_rows = {
        name: sum(a == b for a, b in zip(answer, ours, strict=True))
        for name, answer in warm.items()
        if answer
    }
    report.print_table(
        f"{workload}, batch {rows}, {length:,} tokens, then {count}",
        ("", "tokens/s", unit, "ratio", "bfloat16's", "rows equal"),
        [
            (
                name,
                f"{tokens / subject.median:,.0f}",
                f"{subject.median / steps * 1e3:,.1f}",
                f"{ratios[name]:.2f}",
                f"{halves[name]:.2f}" if halves else "",
                f"{same_rows[name]} of {rows}" if name in same_rows else "",
            )
            for name, subject in measured.items()
        ],
    )
    return {
        "workload": workload,
        "batch": rows,
        "prompt_tokens": length,
        "steps": steps,
        "equal": True,
        "seconds": {name: subject.seconds for name, subject in measured.items()},
        "tokens_per_second": {
            name: round(tokens / subject.median, 1) for name, subject in measured.items()
        },
        "ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "ratio_bfloat16": {name: round(ratio, 3) for name, ratio in halves.items()},
        "rows_equal": same_rows,
    }
