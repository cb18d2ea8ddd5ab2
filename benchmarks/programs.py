"""Five programs that share prompts, beside transformers on the same weights and beside ourselves.

    choices       one long few-shot prefix, and many questions with 2 to 4 choices, scored exactly
    forks         one long prompt, continued greedily in several ways side by side
    extractions   short records behind one instruction, each up to a stop string
    chats         conversations side by side, turn by turn, in the model's own template
    tree          a tree of thought whose nodes extend their parents' texts

transformers runs each twice: plain, where nothing is shared between calls (a choice's prompt is
still computed only once for all its choices), and with what is shared in a DynamicCache that the
caller keeps, repeats and branches. Its prompts are tokenised beforehand; ours within the time, and
nothing is cached when it starts. Ours runs without cache, one row at a time, and both, too: cache
and batching together are to gain 0.6 times as much as they save in tokens. Ratios above 1 say how
many times as fast ours was, as it comes and in bfloat16. Run nothing else meanwhile. What takes
minutes is run once.
"""

from __future__ import annotations

import report

# isort: split
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from by_hand import Peer
from choices import Choices
from writings import Chats, Extractions, Forks, Tree

import lmlang as lm
from lmlang.runtime.models.loader import load_gguf

A = TypeVar("A")
"""What a subject answers."""
KV_TOKENS = 16_384
NO_CACHE = "lmlang, no cache"
ONE_ROW = "lmlang, one row at a time"
NEITHER = "lmlang, neither"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    report.OURS: {},
    NO_CACHE: {"radix_cache": False},
    ONE_ROW: {"max_running": 1},
    NEITHER: {"radix_cache": False, "max_running": 1},
    report.OURS_FLOAT32: {"quantize": None},
    report.OURS_BFLOAT16: {"dtype": "bfloat16"},
}
"""Ours, by what it is made with."""
SHARE = 0.6
"""Of the tokens that cache and batching save, how much is to be seen in the time."""
COUNTERS = (
    "requests", "prompt_tokens", "cached_tokens", "prefill_tokens", "decode_tokens",
    "computed_tokens", "generated_tokens", "scored_tokens", "steps",
)  # fmt: skip


PARTS: Mapping[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "choices": (Choices.of, (150, 2), (2_000, 40)),
    "forks": (Forks.of, (100, 2, 3), (600, 8, 64)),
    "extractions": (Extractions.of, (250, 2, 4), (300, 20, 48)),
    "chats": (Chats.of, (2, 2, 3), (4, 4, 48)),
    "tree": (Tree.of, (80, 2, 2), (200, 3, 32)),
}
"""Each workload: what makes it, its small sizes and its full ones."""


class Workload(Protocol[A]):
    """A program and its input. All subjects get the same work, and time themselves."""

    name: str

    def less(self) -> Workload[A]:
        """Less of it, to warm up."""
        ...

    def facts(self) -> dict[str, int]:
        """Its sizes."""
        ...

    def ours(self, runtime: lm.Runtime) -> tuple[float, A]:
        """Run the program."""
        ...

    def plain(self, peer: Peer) -> tuple[float, A]:
        """The same with nothing kept between calls."""
        ...

    def by_hand(self, peer: Peer) -> tuple[float, A]:
        """The same with a cache that the caller keeps."""
        ...

    def check(self, judge: Peer, ours: A, theirs: A) -> None:
        """End the benchmark where an answer in float32 is not the same."""
        ...

    def same(self, ours: A, theirs: A) -> int:
        """How many parts of the answers are equal."""
        ...

    def told(self, ours: A, theirs: A) -> dict[str, Any]:
        """What else is worth knowing."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome(Generic[A]):
    """A subject's answer; of ours, also what the runtime counted."""

    answer: A
    counters: dict[str, int]

    @property
    def computed(self) -> int:
        """All tokens that went through the model."""
        return self.counters["computed_tokens"] + self.counters["scored_tokens"]


Subject = Callable[[Workload[A]], tuple[float, Outcome[A]]]


def run_ours(runtime: lm.Runtime, work: Workload[A]) -> tuple[float, Outcome[A]]:
    """One run with nothing cached."""
    runtime.flush_cache()
    runtime.reset_stats()
    seconds, answer = work.ours(runtime)
    found = dataclasses.asdict(runtime.stats())
    return seconds, Outcome(answer, {name: found[name] for name in COUNTERS})


def run_theirs(peer: Peer, by_hand: bool, work: Workload[A]) -> tuple[float, Outcome[A]]:
    """One run of transformers, in one of its usages."""
    seconds, answer = work.by_hand(peer) if by_hand else work.plain(peer)
    return seconds, Outcome(answer, {})


def main() -> None:
    """Run, compare, print."""
    options = report.options(__doc__, PARTS)
    runtimes = {
        name: lm.Runtime(options.model, kv_tokens=KV_TOKENS, **parameters)
        for name, parameters in VARIANTS.items()
    }
    runtime = runtimes[report.OURS]
    loaded = load_gguf(options.model)
    peers = [Peer(loaded, torch.float32), Peer(loaded, torch.bfloat16)]
    facts = report.setup(runtime.info().model)
    report.print_setup(facts, options.repeat)
    results = [
        compare(runtimes, peers, make(runtime, *(small if options.small else full)), options)
        for name, (make, small, full) in PARTS.items()
        if options.only in (None, name)
    ]
    line = {"benchmark": "programs", "small": options.small}
    report.print_json(line | facts | {"results": results})
    for each in runtimes.values():
        each.close()


def compare(
    runtimes: Mapping[str, lm.Runtime],
    peers: list[Peer],
    work: Workload[A],
    options: report.Options,
) -> dict[str, object]:
    """Warm up, measure in turns, require the same answers, and print the table."""
    subjects: dict[str, Subject[A]] = {
        name: partial(run_ours, runtime) for name, runtime in runtimes.items()
    }
    for peer in peers:
        subjects[f"{peer.name}, plain"] = partial(run_theirs, peer, False)
        subjects[f"{peer.name}, cache by hand"] = partial(run_theirs, peer, True)
    if not options.small:
        for subject in subjects.values():
            subject(work.less())
    minutes = [name for name in subjects if name in (NO_CACHE, NEITHER) or name.endswith("plain")]
    measured = report.interleaved(
        {name: partial(subject, work) for name, subject in subjects.items()},
        options.repeat,
        minutes if isinstance(work, Choices) else (),
    )
    ours = measured[report.OURS].answer
    answers = {name: subject.answer.answer for name, subject in measured.items()}
    for name, answer in answers.items():
        if "bfloat16" not in name:
            work.check(peers[0], ours.answer, answer)
    same = {name: work.same(ours.answer, answer) for name, answer in answers.items()}
    told = work.facts() | work.told(ours.answer, answers[f"{peers[0].name}, cache by hand"])
    return {"workload": work.name, **told, **printed(work.name, told, measured, same)}


def printed(
    name: str,
    told: Mapping[str, Any],
    measured: Mapping[str, report.Measured[Outcome[A]]],
    same: Mapping[str, int],
) -> dict[str, object]:
    """Print one program's table and what was gained; returns its part of the JSON line."""
    ratios = report.ratios(measured)
    halves = report.ratios(measured, report.OURS_BFLOAT16)
    outcomes = {name: subject.answer for name, subject in measured.items()}
    report.print_table(
        f"{name}: " + ", ".join(f"{key} {value:,.6g}" for key, value in told.items()),
        ("", "seconds", "runs", "ratio", "bfloat16's", "answers as ours", "computed"),
        [
            (
                name,
                f"{subject.median:.2f}",
                str(len(subject.seconds)),
                f"{ratios[name]:.2f}",
                f"{halves[name]:.2f}",
                str(same[name]),
                f"{outcomes[name].computed:,}" if outcomes[name].counters else "",
            )
            for name, subject in measured.items()
        ],
    )
    counted = outcomes[report.OURS].counters
    print("  lmlang: " + ", ".join(f"{value:,} {name}" for name, value in counted.items()))
    saved = outcomes[NEITHER].computed / outcomes[report.OURS].computed
    print(
        f"  cache and batching: {saved:.2f} times fewer tokens, {ratios[NEITHER]:.2f} times as "
        f"fast; at least {SHARE * saved:.2f} is wanted"
    )
    return {
        "equal": True,
        "seconds": {name: subject.seconds for name, subject in measured.items()},
        "ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "ratio_bfloat16": {name: round(ratio, 3) for name, ratio in halves.items()},
        "same_answers": same,
        "counters": {name: found.counters for name, found in outcomes.items() if found.counters},
        "gain": {
            "tokens": round(saved, 3),
            "seconds": round(ratios[NEITHER], 3),
            "wanted": round(SHARE * saved, 3),
        },
    }


if __name__ == "__main__":
    main()
