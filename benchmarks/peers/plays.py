"""The programs of the comparison over any engine that completes rows of token ids: no lmlang here.

    fork     one text, continued behind several endings      json   records behind one instruction
    chat     conversations, turn by turn                     tree   nodes that extend their parents
    choose   questions with choices behind one text          typed  records by a JSON schema
    raw      rows that share nothing

What rows share is computed first, by itself, as whoever knows of it would; an engine keeps what it
can from one call to the next. An answer is whole rows of ids, the index of each choice, or the text
of each record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Ids = list[list[int]]
Work = dict[str, Any]


class Engine(Protocol):
    """A peer."""

    def fresh(self) -> None:
        """Forget what is cached."""
        ...

    def complete(self, rows: Ids, tokens: int, ends: Sequence[int] = ()) -> Ids:
        """The ids that come greedily behind each row: so many, or up to one of the ends."""
        ...

    def choose(self, prefix: list[int], questions: list[Work]) -> list[int]:
        """The index of the chosen one of each question's choices.

        Args:
            prefix: Ids that all questions begin with.
            questions: "ids": of question and choice, for each choice; "choices": their texts.
        """
        ...

    def written(self, rows: Ids, schema: str, tokens: int) -> list[str]:
        """The JSON that comes greedily behind each row, of a schema and at most so many tokens."""
        ...


def common(rows: Sequence[Sequence[int]]) -> int:
    """How many ids all rows begin with."""
    count = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def continued(engine: Engine, rows: Ids, tokens: int, ends: Sequence[int] = ()) -> Ids:
    """The rows with what comes behind them."""
    more = engine.complete(rows, tokens, ends)
    return [[*row, *new] for row, new in zip(rows, more, strict=True)]


def shared(engine: Engine, rows: Ids) -> None:
    """Have the engine compute what rows begin with; not the last id, which a row may need."""
    engine.complete([rows[0][: common(rows)]], 1)


def fork(engine: Engine, work: Work) -> Ids:
    """Forks: the text once, then all of them."""
    shared(engine, work["ids"])
    return continued(engine, work["ids"], work["tokens"])


def records(engine: Engine, work: Work) -> Ids:
    """Records: the instruction once, then all of them, each up to its line's end."""
    shared(engine, work["ids"])
    return continued(engine, work["ids"], work["tokens"], work["ends"])


def chat(engine: Engine, work: Work) -> Ids:
    """Chats: all of them, turn by turn."""
    first = [turns[0] for turns in work["turns"]]
    shared(engine, first)
    rows: Ids = [[] for _ in first]
    for turn in zip(*work["turns"], strict=True):
        asked = [[*row, *words] for row, words in zip(rows, turn, strict=True)]
        rows = continued(engine, asked, work["tokens"])
    return [[*row, *work["close"]] for row in rows]


def tree(engine: Engine, work: Work) -> Ids:
    """A tree: the text once, then level by level."""
    engine.complete([work["root"]], 1)
    level = [work["root"]]
    for _ in range(work["depth"]):
        children = [[*parent, *step] for parent in level for step in work["steps"]]
        level = continued(engine, children, work["tokens"])
    return level


def choose(engine: Engine, work: Work) -> list[int]:
    """Questions: what they share once, then all of them."""
    asked = [
        {"ids": ids, "choices": question["choices"]}
        for ids, question in zip(work["ids"], work["questions"], strict=True)
    ]
    return engine.choose(work["prefix"], asked)


def typed(engine: Engine, work: Work) -> list[str]:
    """Typed records: the instruction once, then all of them, each bound to the schema."""
    shared(engine, work["ids"])
    return engine.written(work["ids"], work["schema"], work["tokens"])


def raw(engine: Engine, work: Work) -> Ids:
    """Rows that share nothing."""
    return continued(engine, work["ids"], work["tokens"])


PLAYS: dict[str, Callable[[Engine, Work], Any]] = {
    "choose": choose, "fork": fork, "json": records, "typed": typed, "chat": chat, "tree": tree,
    "raw": raw,
}  # fmt: skip


def play(engine: Engine, name: str, work: Work) -> tuple[float, Any]:
    """Seconds of a program with nothing cached, and its answer."""
    engine.fresh()
    began = time.perf_counter()
    answer = PLAYS[name](engine, work)
    return time.perf_counter() - began, answer
