"""The tables of a comparison on their page of the docs: between two marks, of nothing but its JSON.

programs and raw rows of lmlang, the others and the floor      lmlang without something
records by a schema          selects beside float32's          starts
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from subjects import FLOAT32, OURS, SUBJECTS

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "peers.md"
BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"
TYPED = "typed"
NONE: Mapping[str, Any] = {"seconds": []}
Table = Iterator[str]


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
    """All that the JSON of a run has."""
    sections = (_setup, _others, _ahead, _floor, _typed, _without, _select, _start, _not_measured)
    parts = ["\n".join(section(told)) for section in sections]
    return "\n\n".join(part for part in parts if part)


def _setup(told: Mapping[str, Any]) -> Table:
    yield (
        f"{told['model']}, {told['cores']} cores, {told['threads']} threads of every subject, "
        f"torch {told['torch']}, transformers {told['transformers']}, Python {told['python']}; "
        f"medians of {told['repeat']} rounds; sizes: {told['size']}."
    )


def _others(told: Mapping[str, Any]) -> Table:
    """Everybody but ours without something: seconds, in decoding milliseconds a step."""
    parts = [part for part in told["results"] if part != TYPED]
    names = [n for n, group in told["groups"].items() if group != "without"]
    names = [n for n in names if any(n in told["results"][part] for part in parts)]
    if not names:
        return
    yield "In brackets how many answers are those of lmlang float32."
    yield ""
    units = {part: "ms a step" if told["steps"].get(part) else "s" for part in parts}
    yield from _head([f"{part}, {units[part]}" for part in parts])
    for name in names:
        yield _line(name, [_cell(told, part, name) for part in parts])


def _ahead(told: Mapping[str, Any]) -> Table:
    """How far the quickest of the others is behind, or ahead."""
    behind, ahead = [], []
    for part in told["results"]:
        middles = _middles(told, part)
        others = {n: s for n, s in middles.items() if told["groups"][n] == "other"}
        if OURS not in middles or not others:
            continue
        ours = middles[OURS]
        quickest = min(others, key=lambda name: others[name])
        if others[quickest] >= ours:
            behind.append(f"{part} {others[quickest] / ours:.2f} ({quickest})")
        ahead += [
            f"{name} in {part}, {ours / seconds:.2f} times as fast"
            for name, seconds in others.items()
            if seconds < ours
        ]
    if behind:
        yield f"lmlang is so many times as fast as the fastest of the others: {', '.join(behind)}."
    if ahead or behind:
        yield f"Ahead of lmlang: {'; '.join(ahead) or 'nobody'}."


def _floor(told: Mapping[str, Any]) -> Table:
    """How near ours come to the products alone."""
    floors = [name for name, group in told["groups"].items() if group == "floor"]
    found = []
    for part in told["results"]:
        middles = _middles(told, part)
        found += [
            f"{part} {middles[OURS] / middles[floor]:.2f}"
            for floor in floors
            if floor in middles and OURS in middles
        ]
    if found:
        yield f"lmlang takes so many times as long as the int8 products alone: {', '.join(found)}."


def _typed(told: Mapping[str, Any]) -> Table:
    """Records that have to be of a schema."""
    results = told["results"].get(TYPED)
    if not results:
        return
    yield "### Records by a schema"
    yield ""
    count = max(found.get("of", 0) for found in results.values())
    yield from _head(["typed, s", f"valid JSON, of {count}", "right"])
    for name, found in results.items():
        if told["groups"][name] != "without":
            counts = [str(found.get(kind, "")) for kind in ("valid", "right")]
            yield _line(name, [_cell(told, TYPED, name), *counts])


def _without(told: Mapping[str, Any]) -> Table:
    """Ours without something: seconds, and how many times as long as with it."""
    names = [n for n, group in told["groups"].items() if group == "without"]
    parts = [p for p, found in told["results"].items() if any(name in found for name in names)]
    if not parts:
        return
    yield "### Without something"
    yield ""
    yield "Seconds, in decoding milliseconds a step, and how many times those of lmlang."
    yield ""
    yield from _head(parts)
    for name in (OURS, FLOAT32, *names):
        cells = []
        for part in parts:
            middles = _middles(told, part)
            times = name != OURS and name in middles and OURS in middles
            more = f" (× {middles[name] / middles[OURS]:.2f})" if times else ""
            cells.append(_cell(told, part, name, same=False) + more)
        yield _line(name, cells)


def _select(told: Mapping[str, Any]) -> Table:
    """Choices beside float32's."""
    found = told.get("select")
    if not found:
        return
    yield "### Select beside float32"
    yield ""
    headings = ["items", "as float32", "not, with a margin of 0.05 nats or more", "margins of all"]
    yield from _head([*headings, "most apart, nats"])
    for name, each in found.items():
        margins = ", ".join(f"{margin:.3f}" for margin in each["margins"]) or "–"
        cells = [str(each[kind]) for kind in ("items", "equal", "beyond")]
        yield _line(name, [*cells, margins, f"{each['apart']:.3f}"])


def _start(told: Mapping[str, Any]) -> Table:
    """Seconds until a Runtime is ready."""
    found = told.get("start")
    if not found:
        return
    yield "### Start"
    yield ""
    yield from _head(["first start, s", "warm start, s"])
    for name, each in found.items():
        yield _line(name, [f"{each['first']:.1f}", f"{statistics.median(each['warm']):.1f}"])


def _not_measured(told: Mapping[str, Any]) -> Table:
    """Who was not there, and who has failed."""
    missing = [f"{name} ({why})" for name, why in told["missing"].items()]
    missing += [
        f"{name} in {part} ({found['error'][:120]})"
        for part, results in told["results"].items()
        for name, found in results.items()
        if "error" in found
    ]
    if missing:
        yield "Not measured: " + "; ".join(missing) + "."
    known = {*told["missing"], *(name for found in told["results"].values() for name in found)}
    left_out = [name for name in SUBJECTS if name not in known]
    if left_out:
        yield f"Not in this run: {'; '.join(left_out)}."


def _head(headings: Sequence[str]) -> Table:
    yield _line("", headings)
    yield "|---" * (len(headings) + 1) + "|"


def _line(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def _middles(told: Mapping[str, Any], part: str) -> dict[str, float]:
    """Median seconds of those that were measured."""
    results = told["results"][part]
    return {n: statistics.median(f["seconds"]) for n, f in results.items() if f["seconds"]}


def _cell(told: Mapping[str, Any], part: str, name: str, *, same: bool = True) -> str:
    """One subject's figure in one part."""
    found = told["results"][part].get(name, NONE)
    if not found["seconds"]:
        return "failed" if "error" in found else ""
    middle, steps = statistics.median(found["seconds"]), told["steps"].get(part)
    figure = f"{middle / steps * 1e3:.1f}" if steps else f"{middle:.2f}"
    return f"{figure} ({found['same']}/{found['of']})" if same and "same" in found else figure
