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
    r'[ \t\r\n]*(?:([\[\]{},:])|("[^"\\]*(?:\\.[^"\\]*)*)(?:(")|\\?)|([^\s\[\]{},:"]+))',
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


class Scan:
    """JSON text as it comes; only what has not ended is looked at again. For one thread.

    Attributes:
        text: What has been written.
        root: Its value; None where nothing has begun.
    """

    def __init__(self) -> None:
        self.text = ""
        self.root: Node | None = None
        self._open: list[tuple[Node, str | None]] = []  # each with the key whose value comes next
        self._begun: Node | None = None  # a string or a number that has not ended
        self._at = 0

    def push(self, text: str, finished: bool = False) -> None:
        """More text.

        Args:
            text: What has come.
            finished: Whether that is the end, so that a number there has ended.
        """
        self.text += text
        for token in _TOKEN.finditer(self.text, self._at):
            mark, string, closing, other = token.groups()
            ended = mark is not None or closing is not None
            if other is not None:
                ended = token.end() < len(self.text) or finished or other in _WORDS
            if ended:
                self._at = token.end()
            if mark in ("]", "}"):
                self._open.pop()[0].end = token.end()
            elif self._expects_a_key():
                if closing is not None:
                    key = json.loads(f'{string}"', strict=False)
                    self._open[-1] = (self._open[-1][0], key)
            elif mark not in (",", ":"):
                self._value(token, ended)

    def _expects_a_key(self) -> bool:
        if self._begun is not None or not self._open:
            return False
        parent, key = self._open[-1]
        return parent.kind == "object" and key is None

    def _value(self, token: re.Match[str], ended: bool) -> None:
        """A value that begins, or goes on."""
        node = self._begun or self._new(token)
        self._begun = None if ended else node
        if token[1] is not None:
            self._open.append((node, None))
        elif ended:
            node.end = token.end()

    def _new(self, token: re.Match[str]) -> Node:
        mark, string, _, _ = token.groups()
        if mark is not None:
            node = Node("object" if mark == "{" else "array", token.start(1))
        elif string is not None:
            node = Node("string", token.start(2))
        else:
            node = Node("other", token.start(4))
        if not self._open:
            self.root = self.root or node
            return node
        parent, key = self._open[-1]
        if key is None:
            parent.items.append(node)
        else:
            parent.members[key] = node
            self._open[-1] = (parent, None)
        return node


def parsed(text: str) -> Node | None:
    """The value of JSON text that has ended; None where nothing has begun."""
    scan = Scan()
    scan.push(text, finished=True)
    return scan.root


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
