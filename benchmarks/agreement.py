"""Items for selects that are to come out as in float32: questions about reviews, words of a text.

An item is decided where float32 has one choice ahead of all others by more than `MARGIN` nats.
"""

from __future__ import annotations

import report

# isort: split
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from choices import MARGIN, Choices
from quality import prose
from reviews import Question, examples, questions

import lmlang as lm

SHOTS, SETS, WORDS = 400, 4, 3
"""Tokens of a set's examples; sets of questions; words of other places beside the right one."""
BEFORE = 60
"""Words in front of the one to choose."""


def items(runtime: lm.Runtime, count: int) -> list[Choices]:
    """So many items: half of them questions, in sets with examples of their own, half words."""
    encode = runtime.tokenizer.encode
    made = []
    for seed in range(SETS):
        shots = examples(20 + seed, lambda text: len(encode(text)) <= SHOTS)
        made.append(Choices(shots, questions(40 + seed, count // 2 // SETS), [], []))
    rest = count - sum(len(each.questions) for each in made)
    return [*made, Choices("", list(gaps(prose(), rest)), [], [])]


def gaps(text: str, count: int) -> Iterator[Question]:
    """Places spread over a text, each with the word that stands there and some that do not."""
    words = re.findall(r"\S+", text)
    chance = random.Random(3)
    apart = (len(words) - BEFORE) // count
    for at in range(BEFORE, BEFORE + apart * count, apart):
        choices = {words[at]}
        while len(choices) <= WORDS:
            choices.add(chance.choice(words))
        texts = tuple(f" {word}" for word in sorted(choices))
        yield Question(" ".join(words[at - BEFORE : at]), texts, f" {words[at]}")


def told(found: Sequence[Any], exact: Sequence[Any], works: Sequence[Any]) -> dict[str, Any]:
    """How many choices are float32's, by how much those that are not lead there; right ones.

    Args:
        found: Of each work the log-probabilities of all choices, question by question.
        exact: The same in float32.
        works: The items as JSON.
    """
    margins, apart, right, total = [], 0.0, 0, 0
    for mine, other, work in zip(found, exact, works, strict=True):
        for row, wanted, question in zip(mine, other, work["questions"], strict=True):
            chosen = row.index(max(row))
            total += 1
            right += question["choices"][chosen] == question["answer"]
            apart = max(apart, *(abs(a - b) for a, b in zip(row, wanted, strict=True)))
            if chosen != wanted.index(max(wanted)):
                first, second, *_ = sorted(wanted, reverse=True)
                margins.append(round(first - second, 4))
    return {
        "items": total,
        "equal": total - len(margins),
        "margins": sorted(margins),
        "beyond": sum(margin > MARGIN for margin in margins),
        "right": right,
        "apart": round(apart, 4),
    }


assert report  # which sets OpenMP up before torch is loaded
