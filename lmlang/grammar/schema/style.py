"""White space of the JSON text that is written, and how a string is spelled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from lmlang.grammar.spec import Style


class Layout(NamedTuple):
    """What stands between the parts of arrays and objects.

    Attributes:
        comma: Between two items on one line.
        colon: Between a key and its value.
        indent: Spaces by which each level is indented; 0: all is on one line.
    """

    comma: bytes
    colon: bytes
    indent: int

    @classmethod
    def of(cls, style: Style) -> Layout:
        """The layout of a style."""
        if isinstance(style, int):
            return cls(b",", b": ", style)
        return cls(b",", b":", 0) if style == "compact" else cls(b", ", b": ", 0)

    def inner(self, depth: int) -> int:
        """The depth of what an array or object at a depth holds; always 0 on one line."""
        return depth + 1 if self.indent else 0

    def opening(self, depth: int) -> bytes:
        """Between the bracket of an array or object at a depth and its first item."""
        return b"\n" + b" " * (self.indent * (depth + 1)) if self.indent else b""

    def between(self, depth: int) -> bytes:
        """Between two of its items."""
        return self.comma + self.opening(depth)

    def closing(self, depth: int) -> bytes:
        """Between its last item and its closing bracket."""
        return b"\n" + b" " * (self.indent * depth) if self.indent else b""

    def ending(self, parts: Sequence[bytes], first: bool, depth: int, bracket: bytes) -> bytes:
        """The rest of the text of an array or object at a depth.

        Args:
            parts: The items or properties that are still to come.
            first: Whether none has been written before them.
            depth: Of the array or object.
            bracket: Which closes it.
        """
        if first and not parts:
            return bracket
        before = self.opening(depth) if first else self.between(depth) if parts else b""
        return before + self.between(depth).join(parts) + self.closing(depth) + bracket

    def at(self, depth: int, text: bytes) -> bytes:
        """JSON text of depth 0 as it stands at a depth."""
        if not self.indent or not depth:
            return text  # and no string holds a line break: it is spelled with an escape
        return text.replace(b"\n", b"\n" + b" " * (self.indent * depth))


def spell_text(text: str) -> bytes:
    """A string between its quotes in its one spelling."""
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()
