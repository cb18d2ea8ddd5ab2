"""What `check` finds: a code, a line, what is likely wrong there, and how to mend it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from lmlang.frontend.literals import quoted

Level = Literal["error", "warning", "note"]

CODES: Mapping[str, tuple[Level, str]] = {
    "LM100": ("error", "the body raises before it has run on a model"),
    "LM101": ("warning", "a name is set twice; the last one wins"),
    "LM102": ("warning", "an argument is never used"),
    "LM103": ("error", "a variable is read that nothing sets"),
    "LM104": ("error", "an expression is made and never appended"),
    "LM105": ("warning", "a select has one choice"),
    "LM106": ("warning", "a choice begins another, which can never win"),
    "LM107": ("error", "a budget is below the shortest output of its constraint"),
    "LM108": ("warning", "what rows have in common stands behind what differs between them"),
    "LM109": ("note", "a value that only a run knows decides what follows"),
    "LM110": ("note", "a generation has neither max_tokens nor an end of its own"),
    "LM111": ("warning", "the text before a generation ends with a space"),
    "LM112": ("warning", "several samples at temperature 0 are all the same"),
    "LM113": ("warning", "text stands in no turn of a chat"),
    "LM114": ("note", "a typed output has no max_tokens, and is closed where it would be longer"),
}
"""Every code: how much it matters, and what it means. Codes keep their meaning for ever."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. A value; ``print()`` shows it on one line.

    Args:
        code: A key of `CODES`.
        level: "error": it will fail or be lost; "warning": likely not meant; "note": worth
            knowing.
        source: The line, as ``path/file.py:12``.
        message: What is wrong, and the mend.
    """

    code: str
    level: Level
    source: str
    message: str

    @classmethod
    def of(cls, code: str, source: str, message: str) -> Finding:
        """A finding with the level of its code."""
        return cls(code, CODES[code][0], source, message)

    @property
    def place(self) -> tuple[str, int]:
        """File and line, to sort by."""
        path, _, line = self.source.rpartition(":")
        return path, int(line) if line.isdigit() else 0

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=True)

    def __str__(self) -> str:
        where = quoted(os.path.relpath(self.source) if _is_near(self.source) else self.source)
        return f"{where[1:-1]}: {self.code} {self.level}: {self.message}"


def _is_near(source: str) -> bool:
    """Whether a path is under the working folder, and so shorter from there."""
    try:
        here = os.getcwd()
    except OSError:
        return False
    return source.startswith(os.path.join(here, ""))
