"""The table of a comparison on its page of the docs: between two marks, of nothing but its JSON."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "peers.md"
BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"
OURS = "lmlang"


def write(told: Mapping[str, Any]) -> None:
    """Put the figures of a run into the page.

    Raises:
        SystemExit: The page has no place for them, or the run was a small one.
    """
    if told["small"]:
        raise SystemExit("the times of a --small run mean nothing: give the JSON of a full one")
    text = PAGE.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{PAGE} has no lines {BEGIN} and {END}")
    pattern = re.escape(BEGIN) + ".*" + re.escape(END)
    PAGE.write_text(re.sub(pattern, lambda _: f"{BEGIN}\n{table(told)}\n{END}", text, flags=re.S))


def table(told: Mapping[str, Any]) -> str:
    """Setup, seconds and answers by subject and part, and where a peer is ahead."""
    parts = told["results"]
    names = list(dict.fromkeys(name for part in parts.values() for name in part))
    lines = [
        f"{told['model']}, {told['cores']} cores, {told['threads']} threads of every subject, "
        f"torch {told['torch']}, transformers {told['transformers']}, Python {told['python']}; "
        f"medians of {told['repeat']} rounds in seconds, in brackets how many answers are those "
        f"of lmlang float32. Sizes: {told['size']}.",
        "",
        "| | " + " | ".join(parts) + " |",
        "|---|" + "---|" * len(parts),
    ]
    for name in names:
        cells = [_cell(part.get(name)) for part in parts.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    missing = [f"{name} ({why})" for name, why in told["missing"].items()]
    if missing:
        lines += ["", "Not measured: " + "; ".join(missing) + "."]
    ahead = [line for part, found in parts.items() for line in _ahead(part, found)]
    lines += ["", "Ahead of lmlang: " + ("; ".join(ahead) if ahead else "nobody") + "."]
    return "\n".join(lines)


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    if not found["seconds"]:
        return "failed"
    same = f" ({found['same']}/{found['of']})" if "same" in found else ""
    return f"{statistics.median(found['seconds']):.2f}{same}"


def _ahead(part: str, found: Mapping[str, Any]) -> list[str]:
    """Other libraries that took less time, and by how much."""
    middles = {n: statistics.median(f["seconds"]) for n, f in found.items() if f["seconds"]}
    ours = middles.get(OURS)
    return [
        f"{name} in {part}, {ours / middle:.2f} times as fast"
        for name, middle in middles.items()
        if ours is not None and middle < ours and not name.startswith(OURS)
    ]
