r"""Parts of a constrained output: where the named groups of a pattern and the values of JSON stand.

regex (?P<hour>\d+):\d+     "12:30"         hour -> "12", 0 to 2
JSON                        {"a": [1, 2]}   /a/0 -> "1", 7 to 8    /a/1 -> "2", 10 to 11
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lmlang.grammar.spec import Either, JsonSchema, Regex, Spec

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+)', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Capture(NamedTuple):
    """A part of a text: ``text`` stands from character ``start`` to before ``end``."""

    text: str
    start: int
    end: int


def captures(constraint: Spec | None, text: str) -> dict[str, Capture]:
    """The parts of an output that its constraint names.

    Named groups that took part in the match, by their names; values of JSON that hold no other
    value, as they are written, by their JSON pointers.
    """
    specs = constraint.specs if isinstance(constraint, Either) else (constraint,)
    for spec in specs:
        if isinstance(spec, Regex):
            found = re.fullmatch(spec.pattern, text)
            if found is not None:
                groups = found.re.groupindex
                return {
                    name: Capture(found[name], *found.span(name))
                    for name in groups
                    if found[name] is not None
                }
        if isinstance(spec, JsonSchema) and text[:1] in tuple('{["tfn-0123456789'):
            return _leaves(text)
    return {}


def _leaves(text: str) -> dict[str, Capture]:
    """The leaves of JSON text, which is valid; a loop, so that depth costs no stack."""
    found: dict[str, Capture] = {}
    path: list[str] = []
    open_: list[tuple[str, int]] = []  # each bracket that is open, and the number of its item
    is_key = False
    begun = -1  # where the bracket opened that came just before
    for token in _TOKEN.finditer(text):
        word, before, begun = token[1], begun, -1
        if word in "[{":
            open_.append((word, 0))
            path.append("0")
            is_key, begun = word == "{", token.start(1)
        elif word in "]}":
            open_.pop()
            path.pop()
            if before >= 0:
                found[_pointer(path)] = Capture(text[before : token.end()], before, token.end())
        elif word == ",":
            kind, number = open_[-1]
            open_[-1] = kind, number + 1
            path[-1] = str(number + 1)
            is_key = kind == "{"
        elif is_key:
            path[-1] = _unescaped(word[1:-1]).replace("~", "~0").replace("/", "~1")
            is_key = False
        elif word != ":":
            found[_pointer(path)] = Capture(word, *token.span(1))
    return found


def _pointer(path: list[str]) -> str:
    return "".join([f"/{step}" for step in path])


def _unescaped(text: str) -> str:
    """What stands between the quotes of a string of JSON."""

    def char(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _SHORT.get(escape, escape)

    plain = _ESCAPE.sub(char, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
