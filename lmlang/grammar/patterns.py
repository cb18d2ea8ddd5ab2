r"""Patterns of Python's types as JSON Schema reads them: the same texts or fewer, or refused.

Rust's expressions, which pydantic has, and Python's know classes of Unicode where ECMA's, which
JSON Schema has, know ASCII: ``\d`` is then fewer texts, and ``\D`` would be more.
"""

from __future__ import annotations

import re

_ALIKE = re.compile(r"\\(?:[tnrfv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^\w\s<>])", re.ASCII)
"""Escapes that mean the same everywhere."""
_CLASS = re.compile(r"\\[dws]")
"""... and those that mean fewer texts, except in a class of all others."""
_GROUP = re.compile(r"\((?!\?)|\(\?:|\(\?P<\w+>")
_UNLIKE = re.compile(r"\{,|\{(?!\d+(?:,\d*)?\})")
_SPACES = r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""All that is white space for any of the three."""
_ANYTHING = (r"[\s\S]", r"[\S\s]", r"[\d\D]", r"[\w\W]")
_PARTS = re.compile(r"\[\\[sdwS]\\[SDWs]\]|\\(?s:.)|\[\^?\]?|\]|(?s:.)")
_IN_CLASS = ("[", "&&", "--", "~~", "||")
"""What Rust reads as an operation on classes."""


def spelled_out(pattern: str) -> str:
    r"""A pattern whose ``\S`` and ``[^\s]`` leave out what is white space for any of the three."""
    found, opened = list[str](), ""
    for part in _PARTS.findall(pattern):
        if part in _ANYTHING and not opened:
            part = "(?:[^a]|a)"
        elif part == r"\S" and not opened:
            part = f"[^{_SPACES}]"
        elif part == r"\s" and opened.startswith("[^"):
            part = _SPACES
        elif part[0] == "[" and not opened:
            opened = part
        elif part == "]":
            opened = ""
        found.append(part)
    return "".join(found)


def unlike(pattern: str) -> str | None:
    """What in a pattern might let other texts through than its own kind does; None: nothing."""
    inside = negated = False
    position = 0
    while position < len(pattern):
        char, step = pattern[position], 1
        if char == "\\":
            narrow = None if negated else _CLASS.match(pattern, position)
            found = _ALIKE.match(pattern, position) or narrow
            if found is None:
                return pattern[position : position + 2]
            step = len(found.group())
        elif inside:
            for operation in _IN_CLASS:
                if pattern.startswith(operation, position):
                    return operation
            inside = char != "]"
            negated = negated and inside
        elif char == "[":
            inside, negated = True, pattern.startswith("[^", position)
            step += negated
            if pattern.startswith("]", position + step):
                return pattern[position : position + step + 1]
        elif char == "(" and not _GROUP.match(pattern, position):
            return pattern[position : position + 3]
        elif _UNLIKE.match(pattern, position):
            return pattern[position : position + 2]
        position += step
    return None
