"""Example programs by their names, each in a module of its own with ``run(runtime, say)``."""

from __future__ import annotations

import difflib
import importlib

from lmlang.demo.say import Say
from lmlang.errors import ProgramError, quote

NAMES = {
    "invoices": "scanned invoices to typed records, and what that was forecast to cost",
    "triage": "mail sorted by exact choices; close calls go to a human",
    "tags": "twelve questions about one text, which is computed once",
    "vote": "sixteen ways to an answer; the vote stops when it is decided",
    "agent": "two tools with typed arguments; errors are observations",
    "twentyfour": "the game of 24 as a tree of thoughts",
    "router": "one of four sub-programs, each with its own type",
    "form": "questions that depend on answers, in plain Python",
    "template": "a record with typed holes, of which only the holes are decoded",
    "branch": "an if on a choice; the branch not taken costs nothing",
}
"""Each example and what it shows; the module of the same name runs it."""


def run(name: str, say: Say) -> None:
    """Run one example on the embedded model.

    Raises:
        ProgramError: There is none of this name.
    """
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ProgramError(f"there is no demo {quote(name)}{hint}: one of {', '.join(NAMES)}.")
    import lmlang as lm

    with lm.Runtime() as runtime:
        importlib.import_module(f"lmlang.demo.{name}").run(runtime, say)
