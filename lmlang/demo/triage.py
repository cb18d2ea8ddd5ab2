"""P3: mail to a priority and a department, with exact probabilities; close calls go to a human."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import lmlang as lm
from lmlang.demo.say import Say

PRIORITIES = {
    "low": "It needs no answer.",
    "normal": "It needs an answer this week.",
    "high": "It needs an answer today.",
    "urgent": "It needs an answer now.",
}
CLOSE = 0.2
"""Margin between the two likeliest below which a human looks."""
MAILS = (
    "Where is my parcel? It was to come on Monday.",
    "I was charged twice for order 1182, please send one payment back.",
    "Your login page shows an error since this morning and nobody here can work!",
    "Do you have the blue lamp in a larger size?",
    "I would like to apply for the job in your warehouse.",
    "Thank you for the quick help yesterday.",
    "The invoice of May has the wrong address on it.",
    "We want to order 400 chairs, who can make us an offer?",
)


class Department(enum.Enum):
    """Who answers."""

    BILLING = "billing"
    SHIPPING = "shipping"
    SUPPORT = "technical support"
    SALES = "sales"
    JOBS = "jobs"
    OTHER = "other"


ABOUT = {
    Department.BILLING: "It is about a payment.",
    Department.SHIPPING: "It is about a delivery.",
    Department.SUPPORT: "It is about a technical problem.",
    Department.SALES: "It is about a product.",
    Department.JOBS: "It is about a job.",
    Department.OTHER: "It is about something else.",
}
"""What a mail for each of them is about: whole sentences tell a small model more than names."""


@dataclass(frozen=True)
class Triage:
    """What a mail is."""

    priority: str
    department: Department
    human: bool


@lm.function
def triage(s: lm.ProgramState, mail: str) -> Triage:
    """Two choices about one mail."""
    s += lm.system("You sort the mail of a shop.")
    s += lm.user(f"{mail}\n\nWhat is it about?")
    s += lm.assistant(lm.select("department", ABOUT))
    s += lm.user("Is it urgent?")
    s += lm.assistant(lm.select("priority", PRIORITIES))
    margins = [s.meta(name).margin or 0.0 for name in ("department", "priority")]
    return Triage(s["priority"], s["department"], min(margins) < CLOSE)


def run(runtime: lm.Runtime, say: Say) -> None:
    """Eight mails."""
    rows = [{"mail": mail} for mail in MAILS]
    for row, state in zip(rows, triage.run_batch(rows, backend=runtime), strict=True):
        found = state.ret_value
        chance = state.meta("department").probs[found.department]
        human = "  <- a human looks" if found.human else ""
        department = f"{found.department.value:<17} {chance:4.0%}"
        say(f"{row['mail'][:46]:<46}  {department} {found.priority}{human}")
