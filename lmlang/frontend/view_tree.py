"""The tree of a run: its operations, forks side by side, with tokens, time and the program's lines.

    operation              prompt  cached  new    ms  when        source
    ├─ fork of 2                                                  tips.py:3
    │  ├─ 1 of 2
    │  │  └─ gen tip "Sit"     23       0    4   1.2  ──██──      tips.py:5
    └─ join of 2                                                  tips.py:6

What branches did that are too many to be shown is summed in one line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lmlang import markup
from lmlang.frontend import ir
from lmlang.frontend.logged import LoggedOperation
from lmlang.frontend.story import Step, Story, kind_of
from lmlang.frontend.view_transcript import BRANCHES, Hidden, heading, outcome, shown_steps
from lmlang.markup import BLUE, BOX, CODE, MUTED, ORANGE, RED, Html, element, tint
from lmlang.protocol import Usage

BAR = 12
"""Columns of the axis of time."""
_TEXT = 40
"""Characters of an output's beginning."""
_SHOWN = ("gen", "select", "image", "set", "end_scope", "call", "fork", "join")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the tree.

    Args:
        what: The operation.
        text: What came of it.
        usage: Its tokens; None: it has none.
        seconds: How long the backend took.
        span: When, as parts of the run from 0 to 1; None: it was not asked.
        source: The program's line.
        failed: Whether it failed.
    """

    what: str
    text: str = ""
    usage: Usage | None = None
    seconds: float | None = None
    span: tuple[float, float] | None = None
    source: str = ""
    failed: bool = False


def line_of(step: Step, story: Story) -> Line:
    """What is told of an operation."""
    operation, node = step.operation, step.node
    what = _what(node)
    if operation is None:
        return Line(what, "queued")
    usage = operation.usage if operation.usage != Usage() or operation.submitted else None
    why, text = outcome(operation), ""
    if operation.text is not None and not isinstance(node, ir.Fork | ir.Join):
        text = f'"{markup.line(operation.text[: _TEXT * 4])}"'
        text = markup.start(text, _TEXT)
    more = len(operation.samples) - 1
    text += f" and {more:,} more" if more > 0 else ""
    text = f"{text} ({why})" if why and text else why or text
    return Line(
        what,
        text,
        usage,
        operation.seconds,
        _span(operation, story.seconds),
        markup.line(os.path.basename(operation.source)),
        operation.error is not None,
    )


def _what(node: ir.Node) -> str:
    match node:
        case ir.Fork():
            return f"fork of {len(node.made):,}"
        case ir.Join():
            return f"join of {len(node.children):,}"
        case ir.Gen() | ir.Select():
            kind = kind_of(node)
            word = "gen" if isinstance(node, ir.Gen) else "select"
            name = f"{word} {markup.line(node.name)}"
            return f"{name}: {markup.plain(kind)}" if kind else name
        case ir.SetVar():
            return f"set {markup.line(node.name)}"
        case ir.EndScope():
            return f"scope {markup.line(node.name)}"
        case ir.Call():
            return f"call {markup.line(node.callee)}"
        case ir.Image():
            return "image"
    return type(node).__name__.lower()


def _span(operation: LoggedOperation, seconds: float) -> tuple[float, float] | None:
    if operation.submitted is None or seconds <= 0:
        return None
    end = seconds if operation.finished is None else operation.finished
    return tuple([max(0.0, min(1.0, at / seconds)) for at in (operation.submitted, end)])  # type: ignore[return-value]


def hidden_line(hidden: Hidden) -> Line:
    """What the branches that are not shown did, summed."""
    return Line(str(hidden), usage=total(hidden.operations))


def total(operations: Iterable[LoggedOperation]) -> Usage:
    """Tokens of operations."""
    found = Usage()
    for operation in operations:
        found += operation.usage
    return found


def numbers(line: Line) -> tuple[str, str, str, str]:
    """Prompt tokens, cached ones, new ones, milliseconds."""
    usage = line.usage
    took = "" if line.seconds is None else f"{line.seconds * 1e3:,.1f}"
    if usage is None:
        return "", "", "", took
    new = usage.generated_tokens + usage.scored_tokens
    return f"{usage.prompt_tokens:,}", f"{usage.cached_tokens:,}", f"{new:,}", took


# ------------------------------------------------------------------------------ text


def lines(story: Story, width: int) -> list[str]:
    """The tree as lines of at most so many columns."""
    found = [each for head in story.head for each in markup.wrapped(markup.plain(head), width)]
    rows = [["operation", "prompt", "cached", "new", "ms", "when", "source"]]
    deepest = max(1, width // 10)
    for depth, line in _lines(story):
        text = f"{'│  ' * min(depth, deepest)}{line.what}{' ' if line.text else ''}{line.text}"
        rows.append([text, *numbers(line), _axis(line.span), line.source])
    if len(rows) == 1:
        return [*found, *markup.wrapped("nothing has been recorded but text", width)]
    kept = [i for i in range(7) if i in (0, 3) or any(row[i] for row in rows[1:])]
    for narrow, dropped in ((96, 5), (72, 6), (56, 4), (48, 1), (40, 2)):
        if width < narrow and dropped in kept:
            kept.remove(dropped)
    right = [at for at, column in enumerate(kept) if 1 <= column <= 4]
    return [*found, *markup.table([[row[i] for i in kept] for row in rows], right, width)]


def _lines(story: Story) -> Iterator[tuple[int, Line]]:
    """Lines with how deep they stand."""
    for step in shown_steps(story):
        if isinstance(step, Hidden):
            yield step.depth * 2 - 1, hidden_line(step)
        elif step.what == "open":
            yield step.depth * 2 - 1, Line(f"{step.branch + 1} of {_size(step)}")
        elif step.what in _SHOWN:
            yield step.depth * 2, line_of(step, story)


def _size(step: Step) -> int:
    return len(ir.made_by(step.node))


def _axis(span: tuple[float, float] | None) -> str:
    if span is None:
        return ""
    begin = min(BAR - 1, int(span[0] * BAR))
    end = max(begin + 1, min(BAR, round(span[1] * BAR)))
    return "·" * begin + "█" * (end - begin) + "·" * (BAR - end)


# ------------------------------------------------------------------------------ HTML


def page(story: Story) -> Html:
    """The tree as static HTML; a fork's branches stand side by side."""
    sheet = markup.Sheet()
    sheet.open("div", markup.PAGE)
    heading(sheet, story.head)
    rows = _Rows(sheet)
    for step in shown_steps(story):
        if isinstance(step, Hidden):
            rows.add(hidden_line(step))
        elif step.what == "open":
            if step.branch == 0:
                rows.open("div", "display:flex;flex-wrap:wrap;gap:8px;margin:2px 0 2px 12px")
            style = f"{BOX};border-style:dashed;flex:1 1 440px;min-width:0;padding:2px 8px"
            rows.open("div", style, headless=step.branch == 0)
            sheet.add(element("div", f"{step.branch + 1} of {_size(step)}", style=MUTED))
        elif step.what == "close":
            rows.close()
            if step.branch == min(_size(step), BRANCHES) - 1:
                rows.close()
        elif step.what in _SHOWN:
            rows.add(line_of(step, story))
    return sheet.end("print(log.tree()) shows it")


_COLUMNS = ("operation", "prompt", "new", "ms", "when")
_STYLES = {1: "width:6em", 2: "width:3em", 3: "width:4.5em", 4: "width:64px"}


class _Rows:
    """Rows of operations, in a table for each run of them, and boxes between."""

    def __init__(self, sheet: markup.Sheet) -> None:
        self._sheet = sheet
        self._inside = False
        self._headless = True
        """Whether the next table has a head: the first one, and that of a fork's first branch."""

    def add(self, line: Line) -> None:
        if not self._inside:
            self._sheet.open(markup.TABLE, f"{markup.TABLE_STYLE};width:100%")
            if self._headless:
                self._sheet.add(markup.row(_COLUMNS, (1, 2, 3), head=True, styles=_STYLES))
            self._inside, self._headless = True, False
        prompt, cached, new, took = numbers(line)
        if cached not in ("", "0"):
            prompt += f" ({cached} cached)"
        parts: list[str] = [element("b", line.what, style=CODE)]
        if line.text:
            style = f"{tint(RED, 0.18)};{CODE}" if line.failed else CODE
            parts.append(element("span", f" {line.text}", style=style))
        if line.source:
            parts.append(element("span", f" {line.source}", style=MUTED))
        cells = [markup.joined(parts), prompt, new, took, _bar(line)]
        self._sheet.add(markup.row(cells, (1, 2, 3), styles=_STYLES))

    def open(self, name: str, style: str, headless: bool = False) -> None:
        self._end()
        self._headless = headless
        self._sheet.open(name, style)

    def close(self) -> None:
        self._end()
        self._headless = False
        self._sheet.close()

    def _end(self) -> None:
        if self._inside:
            self._sheet.close()
            self._inside = False


def _bar(line: Line) -> Html:
    """Where on the axis of the run's time an operation lies; without styles nothing."""
    if line.span is None:
        return Html("")
    begin, end = line.span
    wide = max(2.0, (end - begin) * 100)
    colour = ORANGE if line.what.startswith("select") else BLUE
    inner = element(
        "div",
        style=f"margin-left:{min(begin * 100, 98):.0f}%;width:{wide:.0f}%;max-width:100%;"
        f"height:8px;{tint(colour, 0.75)};border-radius:2px",
    )
    return element(
        "div",
        inner,
        style="width:64px;border-bottom:1px solid rgba(128,128,128,.5);overflow:hidden",
    )
