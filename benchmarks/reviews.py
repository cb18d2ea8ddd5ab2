"""Made-up reviews of an inn, each with questions whose answers are known; the same every time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MEALS = ("breakfast", "lunch", "dinner")
PLACES = ("in the garden", "by the window", "on the terrace", "at the bar")
DISHES = ("soup", "bread", "fish", "omelette", "stew", "cake", "coffee", "salad")
PRAISE = ("fresh and warm", "the best in town", "worth the long walk", "simply perfect")
BLAME = ("cold and salty", "the worst in town", "not worth the money", "two hours late")


@dataclass(frozen=True, slots=True)
class Question:
    """A review and what is asked about it.

    Args:
        text: All that stands before the answer.
        choices: Each begins with the space behind "Answer:".
        answer: One of the choices, by how the review was made.
    """

    text: str
    choices: tuple[str, ...]
    answer: str


def review(chance: random.Random) -> tuple[str, tuple[Question, ...]]:
    """A review, and the questions about it: two, three and four choices."""
    content = chance.random() < 0.5
    day, meal, place = chance.choice(DAYS), chance.choice(MEALS), chance.choice(PLACES)
    verdict = chance.choice(PRAISE if content else BLAME)
    text = f"On {day} we came for {meal} and sat {place}. The {chance.choice(DISHES)} was {verdict}"
    asked = (
        ("Were the guests content?", ("yes", "no"), "yes" if content else "no"),
        ("Which meal was it?", MEALS, meal),
        ("Where did they sit?", PLACES, place),
    )
    return f"Review: {text}.\n", tuple(
        Question(
            f"Review: {text}.\nQuestion: {question}\nAnswer:",
            tuple(f" {choice}" for choice in choices),
            f" {answer}",
        )
        for question, choices, answer in asked
    )


def questions(seed: int, count: int) -> list[Question]:
    """So many questions about different reviews, with 2, 3 and 4 choices in turn."""
    chance = random.Random(seed)
    return [review(chance)[1][number % 3] for number in range(count)]


def records(seed: int, count: int) -> list[tuple[str, dict[str, str]]]:
    """So many different reviews, and what each says as a record."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        day, meal, place = chance.choice(DAYS), chance.choice(MEALS), chance.choice(PLACES)
        dish, verdict = chance.choice(DISHES), chance.choice(PRAISE + BLAME)
        text = f"On {day} we came for {meal} and sat {place}. The {dish} was {verdict}."
        made.append((text, {"day": day, "meal": meal, "place": place, "dish": dish}))
    return made


def examples(seed: int, fits: Callable[[str], bool]) -> str:
    """Answered questions, as many as fit."""
    parts = (f"{q.text}{q.answer}\n\n" for q in questions(seed, 1_000))
    return _filled(parts, fits)


def reviews(seed: int, fits: Callable[[str], bool]) -> str:
    """Reviews without questions, as many as fit."""
    chance = random.Random(seed)
    return _filled((review(chance)[0] for _ in range(1_000)), fits)


def _filled(parts: Iterable[str], fits: Callable[[str], bool]) -> str:
    text = ""
    for part in parts:
        if not fits(text + part):
            break
        text += part
    return text
