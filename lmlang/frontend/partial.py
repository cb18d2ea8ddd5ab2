"""Typed values while they are written: what is complete has its type, the rest grows.

{"vendor": "ACME", "date": "2026-11-30", "lines": [{"item": "te

value     {"vendor": "ACME", "date": date(2026, 11, 30), "lines": [{"item": "te"}]}
complete  vendor, date
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lmlang.frontend.json_text import Node, Path, as_written, name_of, parsed, walk


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


class Growing:
    """Makes the partial values of one variable. For one thread.

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
        self._known: dict[tuple[int, int], Any] = {}
        self._text = ""

    def push(self, text: str) -> Partial | None:
        """The value behind more text; None where there is none to show yet."""
        self._text += text
        if self._held:
            return None
        if not self._json:
            return Partial(self._text if self._asked is None else None, frozenset(), self._text)
        root = parsed(self._text, finished=False)
        complete: set[str] = set()
        value = None if root is None else self._built(root, self._asked, (), complete)
        return Partial(None if value is _NOTHING else value, frozenset(complete), self._text)

    def end(self, value: Any) -> Partial:
        """The value itself."""
        root = parsed(self._text) if self._json else None
        names = {""} if root is None else {name_of(path) for path, _ in walk(root)}
        return Partial(value, frozenset(names), self._text, done=True)

    def _built(self, node: Node, tp: Any, path: Path, complete: set[str]) -> Any:
        """What there is of a part."""
        from lmlang.grammar.type_parts import Unread, part_of

        if node.end is not None:
            try:
                value = self._read(node, tp)
            except Unread:  # by itself it is no value of what was taken for its type
                pass
            else:
                complete |= {name_of((*path, *rest)) for rest, _ in walk(node)}
                return value
        if node.kind == "string":
            written = node.end is None
            return as_written(self._text, node) if written else json.loads(self._source(node))
        if node.kind == "other":
            return _NOTHING
        parts = [
            (step, self._built(child, part_of(tp, step), (*path, step), complete))
            for step, child in node.children()
        ]
        there = [(step, part) for step, part in parts if part is not _NOTHING]
        return dict(there) if node.kind == "object" else [part for _, part in there]

    def _read(self, node: Node, tp: Any) -> Any:
        from lmlang.grammar.type_parts import read_part

        place = (node.start, node.end or 0)
        if place not in self._known:
            self._known[place] = read_part(tp, self._source(node))
        return self._known[place]

    def _source(self, node: Node) -> str:
        return self._text[node.start : node.end]


_NOTHING: Any = object()
"""What there is of a number that may go on."""
