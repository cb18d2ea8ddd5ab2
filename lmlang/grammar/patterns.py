r"""Patterns of Python's types as JSON Schema reads them: the same texts or fewer, or refused.

Rust's expressions, which pydantic has, and Python's know classes of Unicode where ECMA's, which
JSON Schema has, know ASCII: ``\d`` is then fewer texts, and ``\D`` would be more.
"""

from __future__ import annotations

import re

_NARROW = frozenset("dws")
_UNLIKE = frozenset("DWSbBAzZpPGKRXhHvVNk")
"""Behind a backslash: what the kinds of expressions read differently, or not all of them know."""
_SET_OPERATIONS = ("&&", "--", "~~", "||", "[")


def unlike(pattern: str) -> str | None:
    """What in a pattern would let other texts through than its own kind does; None: nothing."""
    inside = negated = False
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            escaped = pattern[position + 1 : position + 2]
            if escaped in _UNLIKE or escaped.isdigit() or (negated and escaped in _NARROW):
                return f"\\{escaped}"
            position += 2
            continue
        if inside:
            for operation in _SET_OPERATIONS:
                if pattern.startswith(operation, position):
                    return operation
            if char == "]":
                inside = negated = False
        elif char == "[":
            inside = True
            negated = pattern.startswith("[^", position)
            position += 1 + negated
            position += pattern.startswith("]", position)
            continue
        elif flags := re.compile(r"\(\?(?!:)[^)]*\)?").match(pattern, position):
            return flags.group()[:8]
        position += 1
    return None
