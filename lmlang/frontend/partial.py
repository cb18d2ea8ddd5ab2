"""Typed values while they are written: what is complete has its type, the rest grows.

{"vendor": "ACME", "date": "2026-11-30", "lines": [{"item": "te

value     {"vendor": "ACME", "date": date(2026, 11, 30), "lines": [{"item": "te"}]}
complete  vendor, date
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from lmlang.frontend.json_text import Node, Path, Scan, Step, as_written, name_of, parsed, walk


@dataclass(frozen=True, slots=True)
class Partial:
    """A value while it is written. A value itself; what follows is never in it before it is sure.

    Args:
        value: What there is of it. A part that is complete has the type that it will have; objects
            and arrays that are not are dicts and lists of what there is of them, and strings what
            has been written of them. Numbers and words come when they are complete. None: nothing
            has come, or the value is no JSON and not complete. Once it is ``done``, the value.
        complete: The names of the parts that are complete, as in ``lines[0].amount``; "" is the
            whole.
        text: What has been written.
        done: Whether this is the end.
    """

    value: Any
    complete: frozenset[str]
    text: str
    done: bool = False


@dataclass(slots=True)
class _Members:
    """The parts of an object or an array that are complete: how many, and their values."""

    count: int = 0
    values: list[tuple[Step, Any]] = field(default_factory=list)


class Growing:
    """Makes the partial values of one variable; each part of it is read once. For one thread.

    Args:
        asked: Its type; None: it has none.
    """

    def __init__(self, asked: Any) -> None:
        self._asked = asked
        self._json = self._held = False
        if asked is not None:
            from lmlang.grammar.types import is_json, is_validated

            self._json = is_json(asked)
            # Validators of the program's own see the whole alone: no part is sure before that.
            self._held = is_validated(asked)
        self._scan = Scan()
        self._members: dict[Node, _Members] = {}
        self._complete = frozenset[str]()
        self._text = ""

    def push(self, text: str) -> Partial | None:
        """The value behind more text; None where there is none to show yet."""
        self._text += text
        if self._held:
            return None
        if not self._json:
            return Partial(self._text if self._asked is None else None, frozenset(), self._text)
        self._scan.push(text)
        root = self._scan.root
        value = None if root is None else self._built(root, self._asked, ())
        return Partial(None if value is _NOTHING else value, self._complete, self._text)

    def end(self, value: Any) -> Partial:
        """The value itself."""
        root = parsed(self._text) if self._json else None
        names = {""} if root is None else {name_of(path) for path, _ in walk(root)}
        return Partial(value, frozenset(names), self._text, done=True)

    def _built(self, node: Node, tp: Any, path: Path) -> Any:
        """What there is of a part."""
        from lmlang.grammar.type_parts import Unread, part_of, read_part

        if node.end is not None:
            try:
                value = read_part(tp, self._source(node))
            except Unread:  # by itself it is no value of what was taken for its type
                pass
            else:
                self._complete |= {name_of((*path, *rest)) for rest, _ in walk(node)}
                return value
        if node.kind == "string":
            written = node.end is None
            return as_written(self._text, node) if written else json.loads(self._source(node))
        if node.kind == "other":
            return _NOTHING
        members = self._members.setdefault(node, _Members())
        parts = members.values
        for step, child in islice(node.children(), members.count, None):
            value = self._built(child, part_of(tp, step), (*path, step))
            there = [] if value is _NOTHING else [(step, value)]
            if child.end is None:
                parts = [*parts, *there]
            else:
                members.count += 1
                parts += there
        return dict(parts) if node.kind == "object" else [part for _, part in parts]

    def _source(self, node: Node) -> str:
        return self._text[node.start : node.end]


_NOTHING: Any = object()
"""What there is of a number that may go on."""
