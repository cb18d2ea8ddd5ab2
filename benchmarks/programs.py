"""Two programs that share prompts, beside transformers on the same weights.

    choices   one long few-shot prefix, and many questions with 2 to 4 choices, all scored exactly
    forks     one long prompt, continued greedily in several ways side by side

transformers runs each twice: plain, where nothing is shared between calls (a choice's prompt is
still computed only once for all its choices), and with the prefix in a DynamicCache that the
caller keeps. Its prompts are tokenised beforehand; ours within the time, and nothing is cached
when it starts. Ratios above 1 say how many times as fast ours was. Run nothing else meanwhile.
The plain choices take minutes and are run once, all others as often as asked for.
"""

from __future__ import annotations

import report

# isort: split
import dataclasses
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from peers import Peer, common_tokens
from reviews import Question, examples, questions, reviews

import lmlang as lm
from lmlang.runtime.models.fetch import find_embedded_model
from lmlang.runtime.models.loader import load_gguf

Ids = list[list[int]]
A = TypeVar("A")
"""What a subject answers."""
W = TypeVar("W")
"""What it works on."""
CLOSE = 1e-3
"""Joint log-probabilities (nats) this close decide nothing: float additions in another order."""
COUNTERS = (
    "requests", "prompt_tokens", "cached_tokens", "prefill_tokens", "decode_tokens",
    "computed_tokens", "generated_tokens", "scored_tokens", "steps",
)  # fmt: skip


@lm.function
def answer(s: lm.ProgramState, shots: str, question: str, choices: tuple[str, ...]) -> None:
    """One question behind the examples that all of them share."""
    s += shots
    s += question
    s += lm.select("answer", choices, choices_method=lm.joint)


@lm.function
def advise(s: lm.ProgramState, text: str, endings: tuple[str, ...], tokens: int) -> lm.Forks:
    """One text, continued behind several endings."""
    s += text
    forks = s.fork(len(endings))
    for branch, ending in zip(forks, endings, strict=True):
        branch += ending
        branch += lm.gen("advice", max_tokens=tokens, temperature=0, ignore_eos=True)
    forks.join()
    return forks


# ------------------------------------------------------------------ choices


@dataclass(frozen=True, slots=True)
class Choices:
    """The first program's input, as text for us and as ids for transformers.

    Args:
        shots: The examples.
        questions: All with the same shots.
        prefix: The ids that all prompts begin with: the shots', and what questions share.
        ids: Of shots, question and choice, for each question and choice.
    """

    shots: str
    questions: list[Question]
    prefix: list[int]
    ids: list[Ids]

    def first(self, count: int) -> Choices:
        """The same with fewer questions."""
        return dataclasses.replace(self, questions=self.questions[:count], ids=self.ids[:count])


@dataclass(frozen=True, slots=True)
class Answers:
    """Log-probability of each choice, and how many tokens prompts and choices had."""

    logprobs: list[list[float]]
    prompt_tokens: int
    ids: list[list[int]] | None = None

    @property
    def chosen(self) -> list[int]:
        """Index of the likeliest choice of each question."""
        return [row.index(max(row)) for row in self.logprobs]


def choices_of(runtime: lm.Runtime, tokens: int, count: int) -> Choices:
    """Examples of about so many tokens, and so many other questions."""
    encode = runtime.tokenizer.encode
    shots = examples(1, lambda text: len(encode(text)) <= tokens)
    asked = questions(2, count)
    ids = [[encode(shots + q.text + choice) for choice in q.choices] for q in asked]
    shared = common_tokens([row for rows in ids for row in rows])
    return Choices(shots, asked, ids[0][0][:shared], ids)


def our_choices(runtime: lm.Runtime, work: Choices) -> tuple[float, Answers]:
    """All questions as one batch of runs."""
    runtime.flush_cache()
    runtime.reset_stats()
    rows = [{"shots": work.shots, "question": q.text, "choices": q.choices} for q in work.questions]
    started = time.perf_counter()
    states = answer.run_batch(rows, backend=runtime)
    seconds = time.perf_counter() - started
    metas = [state.meta("answer") for state in states]
    return seconds, Answers(
        [
            [meta.logprobs[choice] for choice in question.choices]
            for meta, question in zip(metas, work.questions, strict=True)
        ],
        sum(meta.prompt_tokens for meta in metas),
        [state.token_ids() for state in states],
    )


def plain_choices(peer: Peer, work: Choices) -> tuple[float, Answers]:
    """Each question from the start."""
    started = time.perf_counter()
    logprobs = [peer.score(rows) for rows in work.ids]
    return time.perf_counter() - started, Answers(logprobs, prompt_tokens(work))


def kept_choices(peer: Peer, work: Choices) -> tuple[float, Answers]:
    """The examples once, each question behind them."""
    started = time.perf_counter()
    cache = peer.prefix(work.prefix)
    logprobs = [peer.score(rows, len(work.prefix), cache) for rows in work.ids]
    return time.perf_counter() - started, Answers(logprobs, prompt_tokens(work))


def prompt_tokens(work: Choices) -> int:
    """Tokens before the first one that tells choices apart, of all questions."""
    return sum(common_tokens(rows) for rows in work.ids)


def check_choices(work: Choices, ours: Answers, theirs: Answers) -> float:
    """Require equal tokens and equal answers; returns how far log-probabilities are apart."""
    report.require(ours.prompt_tokens == theirs.prompt_tokens, "choices: prompt tokens")
    apart = 0.0
    for number, (mine, other) in enumerate(zip(ours.logprobs, theirs.logprobs, strict=True)):
        apart = max(apart, *(abs(a - b) for a, b in zip(mine, other, strict=True)))
        chosen, wanted = ours.chosen[number], theirs.chosen[number]
        tied = abs(other[chosen] - other[wanted]) <= CLOSE
        report.require(chosen == wanted or tied, f"choices: the label of question {number}")
        assert ours.ids is not None
        report.require(ours.ids[number] == work.ids[number][chosen], "choices: token ids")
    return apart


# ------------------------------------------------------------------ forks


@dataclass(frozen=True, slots=True)
class Forks:
    """The second program's input, as text for us and as ids for transformers.

    Args:
        text: The shared prompt.
        endings: What each fork adds; all have the same number of tokens.
        tokens: To generate in each fork.
        prefix: The ids that all forks begin with: the text's, and what endings share.
        ids: Of text and ending, for each fork.
    """

    text: str
    endings: tuple[str, ...]
    tokens: int
    prefix: list[int]
    ids: Ids


def forks_of(runtime: lm.Runtime, length: int, count: int, tokens: int) -> Forks:
    """A text of about ``length`` tokens, to be forked ``count`` times."""
    encode = runtime.tokenizer.encode
    text = reviews(3, lambda text: len(encode(text)) <= length)
    endings = tuple(f"\nAdvice {number} for the innkeeper:" for number in range(1, count + 1))
    ids = [encode(text + ending) for ending in endings]
    assert len(set(map(len, ids))) == 1, "unequal endings would need padding"
    return Forks(text, endings, tokens, ids[0][: common_tokens(ids)], ids)


def our_forks(runtime: lm.Runtime, work: Forks) -> tuple[float, Ids]:
    """One run that forks."""
    runtime.flush_cache()
    runtime.reset_stats()
    started = time.perf_counter()
    state = advise.run(work.text, work.endings, work.tokens, backend=runtime)
    seconds = time.perf_counter() - started
    return seconds, [branch.token_ids() for branch in state.ret_value]


def plain_forks(peer: Peer, work: Forks) -> tuple[float, Ids]:
    """One batch of whole prompts."""
    started = time.perf_counter()
    tokens = peer.generate(work.ids, work.tokens).tokens
    seconds = time.perf_counter() - started
    return seconds, [[*ids, *more] for ids, more in zip(work.ids, tokens, strict=True)]


def kept_forks(peer: Peer, work: Forks) -> tuple[float, Ids]:
    """The prompt once, its cache repeated for every fork."""
    started = time.perf_counter()
    cache = peer.prefix(work.prefix, len(work.ids))
    tokens = peer.generate(work.ids, work.tokens, cache).tokens
    seconds = time.perf_counter() - started
    return seconds, [[*ids, *more] for ids, more in zip(work.ids, tokens, strict=True)]


def check_forks(work: Forks, judge: Peer, ours: Ids, theirs: Ids) -> None:
    """Require equal prompts, and equal outputs up to ties."""
    for prompt, mine, other in zip(work.ids, ours, theirs, strict=True):
        start = len(prompt)
        report.require(mine[:start] == prompt, "forks: the prompt's tokens")
        same = judge.same_up_to_ties(prompt, mine[start:], other[start:])
        report.require(same, "forks: the generated tokens")


# ------------------------------------------------------------------ both


def main() -> None:
    """Run, compare, print."""
    options = report.options(__doc__)
    runtime = lm.Runtime()
    model = runtime.info().model
    loaded = load_gguf(find_embedded_model())
    peers = [Peer(loaded, torch.float32), Peer(loaded, torch.bfloat16)]
    facts = report.setup(model)
    report.print_setup(facts, options.repeat)
    if options.small:
        choices, forks = choices_of(runtime, 200, 4), forks_of(runtime, 60, 3, 8)
    else:
        choices, forks = choices_of(runtime, 2_000, 40), forks_of(runtime, 600, 8, 64)
    results = [
        compare_choices(runtime, peers, choices, options.repeat),
        compare_forks(runtime, peers, forks, options.repeat),
    ]
    report.print_json(
        {"benchmark": "programs", "small": options.small, **facts, "results": results}
    )
    runtime.close()


def compare_choices(
    runtime: lm.Runtime, peers: list[Peer], work: Choices, repeat: int
) -> dict[str, object]:
    """Measure the first program and print its table."""
    subjects = by_name(runtime, peers, our_choices, plain_choices, kept_choices)
    once = [f"{peer.name}, plain" for peer in peers]
    measured = measure(subjects, work, work.first(2), repeat, once)
    ours = measured[report.OURS].answer
    exact = [subject for name, subject in measured.items() if name.startswith(peers[0].name)]
    apart = max(check_choices(work, ours, subject.answer) for subject in exact)
    same = {
        name: sum(a == b for a, b in zip(subject.answer.chosen, ours.chosen, strict=True))
        for name, subject in measured.items()
    }
    right = sum(
        question.choices[chosen] == question.answer
        for question, chosen in zip(work.questions, ours.chosen, strict=True)
    )
    title = (
        f"choices: {len(work.prefix):,} tokens of examples, {len(work.questions)} questions, "
        f"{ours.prompt_tokens:,} prompt tokens; {right} answered right; "
        f"float32 log-probabilities at most {apart:.1e} apart"
    )
    facts = {"workload": "choices", "prefix_tokens": len(work.prefix)}
    facts |= {"questions": len(work.questions), "right": right, "apart": apart}
    return facts | printed(title, measured, same, counters(runtime))


def compare_forks(
    runtime: lm.Runtime, peers: list[Peer], work: Forks, repeat: int
) -> dict[str, object]:
    """Measure the second program and print its table."""
    subjects = by_name(runtime, peers, our_forks, plain_forks, kept_forks)
    measured = measure(subjects, work, dataclasses.replace(work, tokens=2), repeat)
    ours = measured[report.OURS].answer
    for name, subject in measured.items():
        if name.startswith(peers[0].name):
            check_forks(work, peers[0], ours, subject.answer)
    same = {
        name: sum(a == b for a, b in zip(subject.answer, ours, strict=True))
        for name, subject in measured.items()
    }
    title = (
        f"forks: {len(work.prefix):,} tokens shared, {len(work.ids)} forks, "
        f"{work.tokens} tokens each"
    )
    facts = {"workload": "forks", "prefix_tokens": len(work.prefix)}
    facts |= {"forks": len(work.ids), "tokens": work.tokens}
    return facts | printed(title, measured, same, counters(runtime))


def by_name(
    runtime: lm.Runtime,
    peers: list[Peer],
    ours: Callable[[lm.Runtime, W], tuple[float, A]],
    plain: Callable[[Peer, W], tuple[float, A]],
    kept: Callable[[Peer, W], tuple[float, A]],
) -> dict[str, Callable[[W], tuple[float, A]]]:
    """Ours, and each transformers model in both usages."""
    subjects: dict[str, Callable[[W], tuple[float, A]]] = {report.OURS: partial(ours, runtime)}
    for peer in peers:
        subjects[f"{peer.name}, plain"] = partial(plain, peer)
        subjects[f"{peer.name}, cache by hand"] = partial(kept, peer)
    return subjects


def measure(
    subjects: dict[str, Callable[[W], tuple[float, A]]],
    work: W,
    warm_up: W,
    repeat: int,
    once: Collection[str] = (),
) -> dict[str, report.Measured[A]]:
    """Warm all subjects up with less, then measure them in turns (see `report.interleaved`)."""
    for subject in subjects.values():
        subject(warm_up)
    timed = {name: partial(subject, work) for name, subject in subjects.items()}
    return report.interleaved(timed, repeat, once)


def counters(runtime: lm.Runtime) -> dict[str, int]:
    """What the runtime did in its last measured run."""
    found = dataclasses.asdict(runtime.stats())
    return {name: found[name] for name in COUNTERS}


def printed(
    title: str,
    measured: dict[str, report.Measured[A]],
    same: dict[str, int],
    counted: dict[str, int],
) -> dict[str, object]:
    """Print one program's table and counters; returns its part of the JSON line."""
    ratios = report.ratios(measured)
    report.print_table(
        title,
        ("", "seconds", "runs", "ratio", "answers as ours"),
        [
            (
                name,
                f"{subject.median:.2f}",
                str(len(subject.seconds)),
                f"{ratios[name]:.2f}",
                str(same[name]),
            )
            for name, subject in measured.items()
        ],
    )
    print("  lmlang: " + ", ".join(f"{value:,} {name}" for name, value in counted.items()))
    return {
        "equal": True,
        "seconds": {name: subject.seconds for name, subject in measured.items()},
        "ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "same_answers": same,
        "counters": counted,
    }


if __name__ == "__main__":
    main()
