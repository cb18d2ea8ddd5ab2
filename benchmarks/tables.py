"""How every benchmark prints: a table for people, and a line of JSON at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below a title, the first column to the left and the others to the right."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    print(f"\n{title}")
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  " + "   ".join(cells))


def print_json(value: Mapping[str, Any]) -> None:
    """The last line of a benchmark."""
    print()
    print(json.dumps(value))
