"""Prefill and greedy decoding at batch 1 and 8, beside transformers' generate on the same weights.

    prefill   seconds until every prompt has its first token, from nothing cached
    decode    seconds from every row's first token to its last, by step

A ratio above 1 says how many times as fast ours was. Run nothing else meanwhile.
"""

from __future__ import annotations

import report

# isort: split
import time
from collections.abc import Callable
from functools import partial

import torch
from peers import Peer
from reviews import reviews

import lmlang as lm
from lmlang.protocol import Prompt, Request, SamplingParams, Tokens
from lmlang.runtime.models.fetch import find_embedded_model
from lmlang.runtime.models.loader import load_gguf

Ids = list[list[int]]
Subject = Callable[[Ids, int], tuple[float, Ids]]
"""Runs prompts to so many tokens each; returns seconds and the tokens."""


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
    for generation in generations:
        next(generation.events())
    started = time.perf_counter()
    outputs = [generation.result() for generation in generations]
    return time.perf_counter() - started, [list(output.ids) for output in outputs]


def their_prefill(peer: Peer, prompts: Ids, count: int) -> tuple[float, Ids]:
    """As `our_prefill`."""
    started = time.perf_counter()
    generated = peer.generate(prompts, count)
    return time.perf_counter() - started, generated.tokens


def their_decode(peer: Peer, prompts: Ids, count: int) -> tuple[float, Ids]:
    """As `our_decode`."""
    generated = peer.generate(prompts, count)
    return generated.stamps[-1] - generated.stamps[0], generated.tokens


def prompts_of(runtime: lm.Runtime, rows: int, length: int) -> Ids:
    """Prompts of exactly so many tokens that differ from their first token on."""
    prompts = []
    for row in range(rows):
        text = f"{row}. " + reviews(row, lambda text: len(text) < 8 * length)
        prompts.append(runtime.tokenizer.encode(text)[:length])
        assert len(prompts[-1]) == length
    return prompts


def main() -> None:
    """Run, compare, print."""
    options = report.options(__doc__)
    runtime = lm.Runtime()
    model = runtime.info().model
    loaded = load_gguf(find_embedded_model())
    peers = [Peer(loaded, torch.float32), Peer(loaded, torch.bfloat16)]
    batches, prefill, context, count = (1, 2), 48, 16, 8
    if not options.small:
        batches, prefill, context, count = (1, 8), 512, 32, 65
    facts = report.setup(model)
    report.print_setup(facts, options.repeat)

    results = []
    for workload, rows, length, tokens in (
        *(("prefill", rows, prefill, 1) for rows in batches),
        *(("decode", rows, context, count) for rows in batches),
    ):
        ours, theirs = (
            (our_prefill, their_prefill) if workload == "prefill" else (our_decode, their_decode)
        )
        subjects: dict[str, Subject] = {report.OURS: partial(ours, runtime)}
        subjects |= {peer.name: partial(theirs, peer) for peer in peers}
        results.append(
            compare(
                workload, subjects, prompts_of(runtime, rows, length), tokens, peers[0], options
            )
        )
    report.print_json({"benchmark": "decode", "small": options.small, **facts, "results": results})
    runtime.close()


def compare(
    workload: str,
    subjects: dict[str, Subject],
    prompts: Ids,
    count: int,
    judge: Peer,
    options: report.Options,
) -> dict[str, object]:
    """Measure one workload and print its table."""
    rows, length = len(prompts), len(prompts[0])
    warm = {name: subject(prompts, count)[1] for name, subject in subjects.items()}
    for prompt, ours, theirs in zip(prompts, warm[report.OURS], warm[judge.name], strict=True):
        report.require(judge.same_up_to_ties(prompt, ours, theirs), f"{workload}, batch {rows}")
    measured = report.interleaved(
        {name: partial(subject, prompts, count) for name, subject in subjects.items()},
        options.repeat,
    )
    steps = 1 if workload == "prefill" else count - 1
    tokens = rows * (length if workload == "prefill" else steps)
    ratios = report.ratios(measured)
    same = {
        name: sum(a == b for a, b in zip(answer, warm[report.OURS], strict=True))
        for name, answer in warm.items()
    }
    what = f"{length} tokens" if workload == "prefill" else f"{steps} steps behind {length} tokens"
    report.print_table(
        f"{workload}, batch {rows}, {what}",
        ("", "tokens/s", "ms" if workload == "prefill" else "ms/step", "ratio", "rows equal"),
        [
            (
                name,
                f"{tokens / subject.median:,.0f}",
                f"{subject.median / steps * 1e3:,.1f}",
                f"{ratios[name]:.2f}",
                f"{same[name]} of {rows}",
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
        "rows_equal": same,
    }


if __name__ == "__main__":
    main()
