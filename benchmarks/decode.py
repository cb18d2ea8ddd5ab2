"""Greedy decoding at batch 1 and 8, beside transformers' generate on the same weights.

    decode        seconds from every row's first token to its last, by step
    outside       the share of our time that is not the forward pass: planning, sampling, events
    speculation   our own with and without drafts from n-grams, prefill included: on a text that is
                  copied, and on one that is not

A ratio above 1 says how many times as fast ours was, as it comes and in bfloat16. Run nothing else
meanwhile.
"""

from __future__ import annotations

import report

# isort: split
from functools import partial
from typing import Any

import torch
from by_hand import Peer
from reviews import reviews
from rows import (
    Ids,
    Subject,
    compare,
    our_decode,
    our_prefill,
    prompts_of,
    their_decode,
)

import lmlang as lm
from lmlang.runtime.models.loader import load_gguf

DRAFTING = "lmlang, n-grams"
FORMS = (report.OURS, report.OURS_FLOAT32, report.OURS_BFLOAT16)
OUTSIDE = 0.08
"""Of a step at batch 8 is at most to be spent outside of the forward pass."""


def outside(runtime: lm.Runtime, prompts: Ids, count: int) -> float:
    """The share of decoding's time that is spent outside of the forward pass, pauses included."""

    def spent(tokens: int) -> tuple[float, float]:
        runtime.reset_stats()
        seconds, _ = our_prefill(runtime, prompts, tokens)
        return seconds, runtime.stats().forward_seconds

    (whole, forward), (prefill, its_forward) = spent(count), spent(1)
    return 1 - (forward - its_forward) / (whole - prefill)


def texts(runtime: lm.Runtime, length: int) -> dict[str, list[int]]:
    """One text to go on by copying, and one to go on freely, of about so many tokens."""
    encode = runtime.tokenizer.encode
    text = reviews(8, lambda text: len(encode(text)) <= length)
    again = [*encode(f"{text}\nThe same again:\n"), *encode(text)[: length // 4]]
    return {"copied text": again, "ordinary text": encode(f"{text}\nAdvice for the innkeeper:")}


def main() -> None:
    """Run, compare, print."""
    options = report.options(__doc__)
    runtimes = {
        report.OURS: lm.Runtime(options.model),
        report.OURS_FLOAT32: lm.Runtime(options.model, quantize=None),
        report.OURS_BFLOAT16: lm.Runtime(options.model, dtype="bfloat16"),
        DRAFTING: lm.Runtime(options.model, speculative="ngram"),
    }
    runtime = runtimes[report.OURS]
    loaded = load_gguf(options.model)
    peers = [Peer(loaded, torch.float32), Peer(loaded, torch.bfloat16)]
    batches, context, count = ((1, 2), 16, 8) if options.small else ((1, 8), 32, 65)
    facts = report.setup(runtime.info().model)
    report.print_setup(facts, options.repeat)

    results: list[dict[str, Any]] = []
    for rows in batches:
        subjects: dict[str, Subject] = {name: partial(our_decode, runtimes[name]) for name in FORMS}
        subjects |= {peer.name: partial(their_decode, peer) for peer in peers}
        prompts = prompts_of(runtime, rows, context)
        result = compare("decode", subjects, prompts, count, peers[0], options.repeat)
        shares = {name: round(outside(runtimes[name], prompts, count), 4) for name in FORMS}
        told = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        print(f"  outside of the forward: {told}; at most {OUTSIDE:.0%} is wanted at batch 8")
        results.append(result | {"outside": shares})
    length = 120 if options.small else 160
    for name, prompt in texts(runtime, length).items():
        results.append(drafted(name, runtimes, prompt, count, peers[0], options.repeat))
    report.print_json({"benchmark": "decode", "small": options.small, **facts, "results": results})
    for each in runtimes.values():
        each.close()


def drafted(
    name: str,
    runtimes: dict[str, lm.Runtime],
    prompt: list[int],
    count: int,
    judge: Peer,
    repeat: int,
) -> dict[str, Any]:
    """Measure one text with and without drafts."""
    subjects: dict[str, Subject] = {
        subject: partial(our_prefill, runtimes[subject]) for subject in (report.OURS, DRAFTING)
    }
    result = compare(f"speculation, {name}", subjects, [prompt], count, judge, repeat)
    runtimes[DRAFTING].reset_stats()
    our_prefill(runtimes[DRAFTING], [prompt], count)
    stats = runtimes[DRAFTING].stats()
    steps, drafted, accepted = stats.steps, stats.drafted_tokens, stats.accepted_tokens
    print(f"  {steps} steps, {drafted} tokens drafted, {accepted} accepted")
    return result | {"our_steps": steps, "drafted": drafted, "accepted": accepted}


if __name__ == "__main__":
    main()
