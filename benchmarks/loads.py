"""Loads as token ids: who asks for what, and when. No text, no model and no torch.

    Run      yields Turn(asks side by side) ──> is sent their outputs ──> yields the next one
    Load     runs, each with the step at which it arrives

Tokens of texts come from a seeded generator, so a load is the same every time; those that a model
would make are whatever the machine that runs the load answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

Ids = list[int]
TEXT = 50_000
"""Tokens of texts are below it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One generation: a prompt and how many tokens are to follow.

    Args:
        prompt: Not empty.
        tokens: At least 1.
        state: The state of the run that asks; forks of it are below it, as in ``"0/2"``.
    """

    prompt: Ids
    tokens: int
    state: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """Generations that a run asks for side by side.

    Args:
        asks: At least one.
        after: Steps that pass before: a person reads, a tool works.
    """

    asks: tuple[Ask, ...]
    after: int = 0


Run = Generator[Turn, list[Ids], None]
"""One run of one program; it is sent the outputs of each turn."""


@dataclass(frozen=True, slots=True)
class Load:
    """Runs and the steps at which they arrive; ``start`` makes a run anew.

    Args:
        name: In tables.
        runs: Arrival and start of each, by arrival.
        static: Whether every prompt is known at the beginning.
    """

    name: str
    runs: tuple[tuple[int, Callable[[], Run]], ...]
    static: bool = False


class Trie:
    """The union of token sequences, as counts of what each of them adds."""

    def __init__(self) -> None:
        self._root: dict[int, Any] = {}  # of dicts of its own kind
        self.size = 0

    def add(self, tokens: Sequence[int]) -> int:
        """Add all beginnings of a sequence; how many of them are new."""
        node, new = self._root, 0
        for token in tokens:
            if token not in node:
                node[token] = {}
                new += 1
            node = node[token]
        self.size += new
        return new


def optimum(asked: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[int, int]:
    """The fewest prompt tokens that any order computes, and the tokens that a tree then holds.

    That is every token of the union trie once, plus one for each prompt cached to its end. It is
    what depth-first order reaches with any cache that holds the longest prompt (Zheng et al.,
    SGLang, 2024, theorem 3.1), where every prompt is known at the beginning; else a bound.

    Args:
        asked: Prompts and outputs in the order of asking.
    """
    trie, fewest = Trie(), 0
    for prompt, output in asked:
        fewest += trie.add(prompt) or 1
        trie.add([*prompt, *output[:-1]])  # the last token is never computed
    return fewest, trie.size


# ------------------------------------------------------------------ runs


def text(chance: random.Random, length: int) -> Ids:
    """So many tokens that nothing else begins with."""
    return [chance.randrange(TEXT) for _ in range(length)]


def ask_once(prompt: Ids, tokens: int) -> Run:
    """One generation."""
    yield Turn((Ask(prompt, tokens),))


def chat(system: Ids, said: list[Ids], tokens: int, thinks: int) -> Run:
    """Turns of a conversation, each behind all before it."""
    history = system
    for number, words in enumerate(said):
        history = [*history, *words]
        (answer,) = yield Turn((Ask(history, tokens),), after=thinks if number else 0)
        history = [*history, *answer]


def react(instructions: Ids, task: Ids, observations: list[Ids], tool: int) -> Run:
    """Think, act, observe: two short generations a turn, and a tool that takes some steps."""
    history = [*instructions, *task]
    for number, observation in enumerate(observations):
        (thought,) = yield Turn((Ask(history, 12),), after=tool if number else 0)
        history = [*history, *thought, 1]
        (action,) = yield Turn((Ask(history, 4),))
        history = [*history, *action, *observation]
    yield Turn((Ask(history, 16),), after=tool)


def fork(prompt: Ids, endings: list[Ids], tokens: int) -> Run:
    """One prompt, continued in several ways at once."""
    yield Turn(
        tuple(Ask([*prompt, *ending], tokens, str(number)) for number, ending in enumerate(endings))
    )


def tree(prompt: Ids, width: int, depth: int, tokens: int) -> Run:
    """A tree of thought, level by level; each node extends its parent's text."""
    level = [("", prompt)]
    for _ in range(depth):
        asked = tuple(
            Ask([*parent, number, 2], tokens, f"{state}/{number}")
            for state, parent in level
            for number in range(width)
        )
        outputs = yield Turn(asked)
        level = [
            (ask.state, [*ask.prompt, *output, 3])
            for ask, output in zip(asked, outputs, strict=True)
        ]


# ------------------------------------------------------------------ loads


def few_shot(seed: int = 0, groups: int = 6, rows: int = 10) -> Load:
    """A static batch: questions behind the examples of their group, all groups shuffled."""
    chance = random.Random(seed)
    shots = [text(chance, 80) for _ in range(groups)]
    prompts = [[*shot, *text(chance, 10)] for shot in shots for _ in range(rows)]
    chance.shuffle(prompts)
    runs = tuple((0, _once(prompt, 8)) for prompt in prompts)
    return Load("few-shot", runs, static=True)


def forks(seed: int = 0, count: int = 6, width: int = 8) -> Load:
    """Prompts that fork, all at once."""
    chance = random.Random(seed)
    made = [(text(chance, 80), [text(chance, 4) for _ in range(width)]) for _ in range(count)]
    runs = tuple((0, _bind(fork, prompt, endings, 12)) for prompt, endings in made)
    return Load("fork", runs, static=True)


def chats(seed: int = 0, count: int = 16, turns: int = 5) -> Load:
    """Conversations behind one system text, which pause between turns."""
    chance = random.Random(seed)
    system = text(chance, 40)
    runs = tuple(
        (0, _bind(chat, system, [text(chance, 10) for _ in range(turns)], 12, 2 + number % 5))
        for number in range(count)
    )
    return Load("chats", runs)


def trees(seed: int = 0, count: int = 4) -> Load:
    """Trees of thought, all at once."""
    chance = random.Random(seed)
    prompts = [text(chance, 60) for _ in range(count)]
    return Load("trees", tuple((0, _bind(tree, prompt, 3, 3, 8)) for prompt in prompts))


def reacts(seed: int = 0, count: int = 12, others: int = 24) -> Load:
    """Agents that wait for tools, and runs of other programs in between."""
    chance = random.Random(seed)
    instructions = text(chance, 60)
    runs: list[tuple[int, Callable[[], Run]]] = []
    for number in range(count):
        seen = [text(chance, 12) for _ in range(5)]
        arrival = 3 * (number // 3)
        runs.append((arrival, _bind(react, instructions, text(chance, 12), seen, 4 + number % 4)))
    for _ in range(others):
        runs.append((chance.randrange(120), _once(text(chance, 60), 6)))
    return Load("react", _by_arrival(runs))


def mixed(seed: int = 0) -> Load:
    """Some of everything, arriving while others run."""
    parts = (
        few_shot(seed + 1, 3, 8), forks(seed + 2, 3, 6), chats(seed + 3, 16, 4),
        trees(seed + 4, 1), reacts(seed + 5, 12, 20),
    )  # fmt: skip
    chance = random.Random(seed)
    runs = [
        (arrival + chance.randrange(20), start) for part in parts for arrival, start in part.runs
    ]
    return Load("mixed", _by_arrival(runs))


def staggered(seed: int = 0, groups: int = 5, rows: int = 12) -> Load:
    """The rows of few-shot batches, as they come."""
    runs = [(2 * step, start) for step, (_, start) in enumerate(few_shot(seed, groups, rows).runs)]
    return Load("staggered", _by_arrival(runs))


def hot_and_cold(seed: int = 0, rows: int = 90, each_step: int = 2) -> Load:
    """One prefix asked for more often than can be served, and a few prompts of their own."""
    chance = random.Random(seed)
    shot = text(chance, 80)
    runs = [(row // each_step, _once([*shot, *text(chance, 6)], 24)) for row in range(rows)]
    runs += [(arrival, _once(text(chance, 86), 8)) for arrival in (4, 12, 20)]
    return Load("hot and cold", _by_arrival(runs))


LOADS: tuple[Callable[[int], Load], ...] = (
    few_shot, forks, chats, trees, reacts, mixed, staggered, hot_and_cold,
)  # fmt: skip


def _once(prompt: Ids, tokens: int) -> Callable[[], Run]:
    return _bind(ask_once, prompt, tokens)


def _bind(run: Callable[..., Run], *args: object) -> Callable[[], Run]:
    return lambda: run(*args)


def _by_arrival(
    runs: list[tuple[int, Callable[[], Run]]],
) -> tuple[tuple[int, Callable[[], Run]], ...]:
    return tuple(sorted(runs, key=lambda run: run[0]))
