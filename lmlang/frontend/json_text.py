r"""Where the values of JSON text stand in it, also while it is being written.

    {"a": [1, 23], "b": "no     object 0 …, "a" array 6 to 13, its numbers 7 to 8 and 10 to 12,
                                "b" a string from 20 on that has not ended

A number ends where something follows it, so that nothing here is complete that may yet change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Step: TypeAlias = str | int
"""A key of an object, or an index of an array."""
Path: TypeAlias = tuple[Step, ...]

_TOKEN = re.compile(
    r'[ \t\r\n]*(?:([\[\]{},:])|("(?:[^"\\]|\\.)*")|("(?:[^"\\]|\\.)*\\?)|([^\s\[\]{},:"]+))',
    re.DOTALL,
)
_PLAIN_KEY = re.compile(r"[^\W\d]\w*")
_WORDS = frozenset(("true", "false", "null"))


@dataclass(slots=True, eq=False)
class Node:
    """One value of JSON text, from character ``start`` to before ``end``.

    Attributes:
        kind: Of which type it is.
        start: Where it begins.
        end: Where it ended; None: it has not.
        members: Of an object, by their keys.
        items: Of an array.
    """

    kind: Literal["object", "array", "string", "other"]
    start: int
    end: int | None = None
    members: dict[str, Node] = field(default_factory=dict)
    items: list[Node] = field(default_factory=list)

    def children(self) -> Iterator[tuple[Step, Node]]:
        """The values in it, each with the step that leads to it."""
        yield from self.members.items()
        yield from enumerate(self.items)

    def child(self, step: object) -> Node | None:
        """The value that a step leads to."""
        if self.kind == "object" and isinstance(step, str):
            return self.members.get(step)
        if self.kind == "array" and isinstance(step, int) and step < len(self.items):
            return self.items[step]
        return None


def parsed(text: str, finished: bool = True) -> Node | None:
    """The value of JSON text, or of the beginning of one; None where nothing has begun.

    Args:
        text: What has been written of it.
        finished: Whether that is all of it, so that a number at its end has ended.
    """
    root: Node | None = None
    open_: list[tuple[Node, str | None]] = []  # each with the key whose value comes next
    for token in _TOKEN.finditer(text):
        mark, string, _, other = token.groups()
        start = token.start(token.lastindex or 0)
        if mark in (",", ":"):
            continue
        if mark in ("]", "}"):
            open_.pop()[0].end = token.end()
            continue
        parent, key = open_[-1] if open_ else (None, None)
        if parent is not None and parent.kind == "object" and key is None:
            if string is not None:
                open_[-1] = (parent, json.loads(string, strict=False))
            continue
        if mark is not None:
            node = Node("object" if mark == "{" else "array", start)
        elif other is None:
            node = Node("string", start, None if string is None else token.end())
        else:
            ended = token.end() < len(text) or finished or other in _WORDS
            node = Node("other", start, token.end() if ended else None)
        if parent is None:
            root = root or node
        elif parent.kind == "array":
            parent.items.append(node)
        elif key is not None:
            parent.members[key] = node
            open_[-1] = (parent, None)
        if mark is not None:
            open_.append((node, None))
    return root


def place_of(root: Node, steps: Sequence[object]) -> tuple[Path, Node]:
    """The innermost value on a way, and the way to it; steps that lead nowhere are left out.

    pydantic names members of unions and kinds of keys among the fields that an error is about.
    """
    path: list[Step] = []
    here = root
    for step in steps:
        found = here.child(step)
        if found is not None and isinstance(step, (str, int)):
            path.append(step)
            here = found
    return tuple(path), here


def name_of(path: Sequence[Step]) -> str:
    """A path as people write it: ``lines[0].amount``; "" for the whole."""
    shown = ""
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            shown += f".{step}" if shown else step
        else:
            shown += f"[{json.dumps(step, ensure_ascii=False)}]"
    return shown


def walk(root: Node) -> Iterator[tuple[Path, Node]]:
    """All values with their paths, each before those in it."""
    todo: list[tuple[Path, Node]] = [((), root)]
    while todo:
        path, node = todo.pop()
        yield path, node
        todo += reversed([((*path, step), child) for step, child in node.children()])


def as_written(text: str, node: Node) -> Any:
    """What there is of a string that has not ended: its characters so far."""
    inside = text[node.start + 1 :]
    for cut in range(12):  # an escape, or the first half of a pair of them, may be incomplete
        try:
            found = json.loads(f'"{inside[: len(inside) - cut]}"', strict=False)
        except ValueError:
            continue
        if not found or not "\ud800" <= found[-1] <= "\udbff":
            return found
    return ""
