"""What programs share: prompt tokens cached and computed, beside the fewest that must be.

    few-shot   rows behind the same examples, as one batch
    chats      conversations in the model's template, turn by turn, side by side
    forks      one text, continued in several ways
    tree       a tree of thought, whose nodes fork again
    react      agents that think, choose a tool and read what it says; other runs in between
    mixed      all of these at once

The optimum is the union trie of all prompts: every token once, plus one for each prompt cached to
its end. Outputs enter the trie as well, choices do not. Seconds are ours, and the ratio is to ours
without the cache, in turns. Run nothing else meanwhile.
"""

from __future__ import annotations

import report

# isort: split
import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from by_hand import common_tokens
from loads import Trie
from reviews import examples, questions, reviews

import lmlang as lm
from lmlang.protocol import Prompt, Request, ScoreRequest, Scores, Text

KV_TOKENS = 16_384
NO_CACHE = "lmlang, no cache"
TOOLS = {"price": " It costs 12 crowns.", "menu": " There are soup, fish and cake today."}


class Watched(lm.Runtime):
    """A runtime that remembers what it was asked."""

    def __init__(self, **parameters: Any) -> None:
        self.asked: list[tuple[Request, lm.Generation] | tuple[ScoreRequest, None]] = []
        super().__init__(**parameters)

    def generate(self, request: Request) -> lm.Generation:
        """Note it and go on."""
        generation = super().generate(request)
        self.asked.append((request, generation))
        return generation

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """Note it and go on."""
        self.asked.append((request, None))
        return super().score(request)

    def optimum(self) -> int:
        """The fewest prompt tokens that must be computed for all that was asked."""
        trie, fewest = Trie(), 0
        for request, generation in self.asked:
            if generation is not None:
                prompt = self.encode(request.prompt)
                fewest += trie.add(prompt) or 1
                trie.add([*prompt, *generation.result().ids[:-1]])
                continue
            assert isinstance(request, ScoreRequest)
            whole = [self.encode(request.prompt.append(Text(c))) for c in request.choices]
            fewest += trie.add(whole[0][: common_tokens(whole)]) or 1
        return fewest


# ------------------------------------------------------------------ programs


def written(name: str, tokens: int) -> Any:
    """Greedy text of exactly so many tokens."""
    return lm.gen(name, max_tokens=tokens, temperature=0, ignore_eos=True)


@lm.function
def shot(s: lm.ProgramState, shots: str, question: str, tokens: int) -> None:
    """One question behind the examples."""
    s += shots + question + written("answer", tokens)


@lm.function
def chat(s: lm.ProgramState, dish: str, turns: int, tokens: int) -> None:
    """One conversation."""
    s += lm.system("You are the innkeeper, short of words and proud of the kitchen.")
    for turn in range(turns):
        s += lm.user(f"Tell me, {turn + 1}: how is the {dish}?")
        s += lm.assistant(written(f"answer{turn}", tokens))


@lm.function
def forked(s: lm.ProgramState, text: str, width: int, tokens: int) -> None:
    """One text, continued in several ways."""
    s += text
    for number, child in enumerate(s.fork(width)):
        child += f"\nAdvice {number}:" + written("advice", tokens)


@lm.function
def tree(s: lm.ProgramState, text: str, depth: int, tokens: int) -> None:
    """A tree of thought of width 3."""
    s += text
    level = [s]
    for _ in range(depth):
        level = [child for parent in level for child in parent.fork(3)]
        for number, child in enumerate(level):
            child += f"\nThought {number % 3}:" + written("thought", tokens)


@lm.function
def agent(s: lm.ProgramState, dish: str, turns: int, tokens: int) -> None:
    """Thinks, chooses a tool and reads what it says, turn by turn."""
    s += f"Answer with the help of two tools: price and menu.\nQuestion: What about the {dish}?\n"
    for turn in range(turns):
        s += "Thought:" + written(f"thought{turn}", tokens)
        s += "\nTool:" + lm.select(f"tool{turn}", [f" {tool}" for tool in TOOLS])
        s += "\nResult:" + TOOLS[s[f"tool{turn}"].strip()] + "\n"
    s += "Answer:" + written("answer", tokens)


# ------------------------------------------------------------------ loads


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    rows: int = 12
    shots: int = 300
    turns: int = 3
    depth: int = 3
    tokens: int = 8

    def few_shot(self, rt: lm.Runtime) -> None:
        """A batch."""
        count = rt.tokenizer.encode
        shots = examples(1, lambda text: len(count(text)) <= self.shots)
        rows = [
            {"shots": shots, "question": question.text, "tokens": self.tokens}
            for question in questions(9, self.rows)
        ]
        shot.run_batch(rows, backend=rt)

    def chats(self, rt: lm.Runtime) -> None:
        """A batch."""
        rows = [{"dish": dish, "turns": self.turns, "tokens": self.tokens} for dish in self._dishes]
        chat.run_batch(rows, backend=rt)

    def forks(self, rt: lm.Runtime) -> None:
        """One run."""
        forked.run(self._text(rt), self.rows, self.tokens, backend=rt)

    def trees(self, rt: lm.Runtime) -> None:
        """One run."""
        tree.run(self._text(rt), self.depth, self.tokens, backend=rt)

    def react(self, rt: lm.Runtime) -> None:
        """Agents as a batch, and one text after another beside them."""
        with ThreadPoolExecutor(1) as beside:
            others = beside.submit(self._others, rt)
            rows = [
                {"dish": dish, "turns": self.turns, "tokens": self.tokens} for dish in self._dishes
            ]
            agent.run_batch(rows, backend=rt)
            others.result()

    def mixed(self, rt: lm.Runtime) -> None:
        """All at once."""
        parts = [self.few_shot, self.chats, self.forks, self.trees, self.react]
        with ThreadPoolExecutor(len(parts)) as pool:
            for done in [pool.submit(part, rt) for part in parts]:
                done.result()

    @property
    def _dishes(self) -> tuple[str, ...]:
        return ("soup", "bread", "fish", "cake", "stew")[: self.turns + 1]

    def _text(self, rt: lm.Runtime) -> str:
        return reviews(3, lambda text: len(rt.tokenizer.encode(text)) <= self.shots // 2)

    def _others(self, rt: lm.Runtime) -> None:
        for seed in range(self.turns):
            text = reviews(20 + seed, lambda text: len(text) <= self.shots)
            forked.run(f"{seed}. {text}", 1, self.tokens, backend=rt)


def measured_run(runtime: Watched, load: Callable[[lm.Runtime], None]) -> tuple[float, Watched]:
    """One run with nothing cached."""
    runtime.flush_cache()
    runtime.reset_stats()
    runtime.asked = []
    seconds, _ = report.timed(lambda: load(runtime))
    return seconds, runtime


def main() -> None:
    """Run, count, print."""
    options = report.options(__doc__)
    runtimes = {
        report.OURS: Watched(model=options.model, kv_tokens=KV_TOKENS),
        NO_CACHE: Watched(model=options.model, kv_tokens=KV_TOKENS, radix_cache=False),
    }
    sizes = Sizes(rows=3, shots=150, turns=1, depth=2, tokens=2) if options.small else Sizes()
    facts = report.setup(runtimes[report.OURS].info().model)
    report.print_setup(facts, options.repeat)
    for runtime in runtimes.values():
        runtime.generate(Request(Prompt.of(Text("Warm up.")))).result()
    loads = {
        "few-shot": sizes.few_shot, "chats": sizes.chats, "forks": sizes.forks,
        "tree": sizes.trees, "react": sizes.react, "mixed": sizes.mixed,
    }  # fmt: skip
    results = [compare(name, load, runtimes, options.repeat) for name, load in loads.items()]
    report.print_table(
        "prompt tokens",
        ("", "prompt", "cached", "hit rate", "computed", "optimum", "no cache", "s", "ratio"),
        [
            (
                result["workload"],
                *(f"{result[name]:,}" for name in ("prompt_tokens", "cached_tokens")),
                f"{result['cached_tokens'] / result['prompt_tokens']:.1%}",
                *(f"{result[name]:,}" for name in ("prefill_tokens", "optimum", "no_cache")),
                f"{result['median']:.2f}",
                f"{result['ratio'][NO_CACHE]:.2f}",
            )
            for result in results
        ],
    )
    line = {"benchmark": "prefix_reuse", "small": options.small}
    report.print_json(line | facts | {"results": results})
    for runtime in runtimes.values():
        runtime.close()


def compare(
    name: str,
    load: Callable[[lm.Runtime], None],
    runtimes: dict[str, Watched],
    repeat: int,
) -> dict[str, Any]:
    """Measure one load with and without cache; the counts are those of the last run."""
    measured = report.interleaved(
        {subject: partial(measured_run, runtime, load) for subject, runtime in runtimes.items()},
        repeat,
    )
    ours, without = (dataclasses.asdict(runtime.stats()) for runtime in runtimes.values())
    fewest = runtimes[report.OURS].optimum()
    same = ours["prompt_tokens"] == without["prompt_tokens"]
    report.require(same, f"{name}: prompt tokens with and without cache")
    computed = ours["prefill_tokens"]
    report.require(computed >= fewest, f"{name}: fewer tokens are computed than there are")
    ratios = report.ratios(measured)
    counts = {key: ours[key] for key in ("prompt_tokens", "cached_tokens", "prefill_tokens")}
    return {
        "workload": name,
        "equal": True,
        **counts,
        "optimum": fewest,
        "no_cache": without["prefill_tokens"],
        "median": measured[report.OURS].median,
        "seconds": {subject: found.seconds for subject, found in measured.items()},
        "ratio": {subject: round(ratio, 3) for subject, ratio in ratios.items()},
    }


if __name__ == "__main__":
    main()
