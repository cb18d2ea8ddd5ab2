"""P21: a record written as program text with typed holes; only the holes are decoded."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

import lmlang as lm
from lmlang.demo.say import Say

TEXT = r'[^"\\\x00-\x1f]{1,30}'
"""A string of JSON, between its quotes."""
HOLES = ("name", "age", "song 1", "song 2")


@lm.function
def template(s: lm.ProgramState, person: str) -> dict[str, Any]:
    """A record about a person."""
    s += f"Facts about {person}, as JSON:\n"
    with s.var_scope("record"):
        s += '{"name": "' + lm.gen("name", regex=TEXT, max_tokens=16) + '", "age": '
        s += lm.gen("age", type=Annotated[int, Field(ge=0, le=120)], max_tokens=4)
        s += ', "top_songs": ["' + lm.gen("song 1", regex=TEXT, max_tokens=16) + '", "'
        s += lm.gen("song 2", regex=TEXT, max_tokens=16) + '"]}'
    record: dict[str, Any] = json.loads(s["record"])
    return record


def run(runtime: lm.Runtime, say: Say) -> None:
    """One record, and how few steps it took."""
    runtime.reset_stats()
    state = template.run(person="a singer", backend=runtime, temperature=0)
    say(state["record"])
    sampled = sum(state.meta(hole).sampled_tokens for hole in HOLES)
    stats = runtime.stats()
    say(f"{sampled} tokens sampled, {stats.steps} steps; the rest of the record is the program's")
