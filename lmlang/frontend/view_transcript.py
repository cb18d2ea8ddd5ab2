"""The transcript of a run: turns, text as it was written, and in it what was generated or chosen.

── user ──                     a turn
Who wrote Emma?                plain: the program wrote it
⟦author: str ‹"›Austen‹"›⟧     a variable, its type, its text; ‹…› was forced by its constraint
│ fork 1 of 2                  a branch of a fork, before what the parent goes on with
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lmlang import markup
from lmlang.frontend import ir
from lmlang.frontend.logged import LoggedOperation
from lmlang.frontend.story import Step, Story, forced_parts, kind_of
from lmlang.markup import BLUE, BOX, CODE, GREEN, MUTED, ORANGE, RED, Html, element, tint

LONGEST = 4_000
"""Characters of one text that are shown in text; of HTML a half."""
THOUGHT = 300
"""Characters of a thought that are shown."""
BRANCHES = 12
"""Branches of a fork that are shown."""
LEGEND = "⟦name: …⟧ was generated or chosen"
FORCED = "‹…› was forced by its constraint"
_ENDS = {"length": "cut by max_tokens", "forced_close": "closed to fit max_tokens"}


@dataclass(frozen=True, slots=True)
class Hidden:
    """Branches of a fork that are not shown: how many, and what they did."""

    branches: int
    depth: int
    operations: tuple[LoggedOperation, ...]

    def __str__(self) -> str:
        return f"… {self.branches:,} more branch{'' if self.branches == 1 else 'es'} left out"


def shown_steps(story: Story) -> Iterator[Step | Hidden]:
    """The steps, with one `Hidden` in the place of a fork's branches that are too many."""
    first: Step | None = None
    hidden: list[LoggedOperation] = []
    for step in story.steps:
        if first is not None:
            if step.operation is not None and step.what not in ("open", "close"):
                hidden.append(step.operation)
            last = step.what == "close" and step.branch == _last(step)
            if last and step.node is first.node:
                yield Hidden(_last(step) + 1 - BRANCHES, step.depth, tuple(hidden))
                first, hidden = None, []
        elif step.what == "open" and step.branch == BRANCHES:
            first = step
        else:
            yield step


def _last(step: Step) -> int:
    return len(ir.made_by(step.node)) - 1


def outcome(operation: LoggedOperation | None) -> str:
    """Why there is no text, or not all of it; "" where there is."""
    if operation is None:
        return "queued"
    if operation.error is not None:
        error = markup.line(f"{operation.error.type}: {operation.error.message}")
        return f"failed: {error[:200]}"
    if operation.status != "done":
        return operation.status
    finish = operation.samples[0].finish if operation.samples else None
    return _ENDS.get(finish or "", "")


def thought(step: Step) -> str:
    """What the model wrote before an output, hidden; "" where it wrote nothing."""
    samples = () if step.operation is None else step.operation.samples
    text = markup.line(samples[0].thought.strip()) if samples else ""
    before = markup.line(label(step))
    return f"thought before {before} {markup.middle(text, THOUGHT)}" if text else ""


def label(step: Step) -> str:
    """The name of a variable, and what it had to be."""
    name = getattr(step.node, "name", "")
    kind = kind_of(step.node)
    return f"{name}: {kind}" if kind else f"{name}:"


# ------------------------------------------------------------------------------ text


def lines(story: Story, width: int) -> list[str]:
    """The transcript as lines of at most so many columns."""
    found = [each for head in story.head for each in markup.wrapped(markup.plain(head), width)]
    writer = _Writer(width, found)
    forced = False
    for step in shown_steps(story):
        if isinstance(step, Hidden):
            writer.block(str(step))
            continue
        match step.what:
            case "open":
                writer.block(f"fork {step.branch + 1} of {_last(step) + 1}", step.depth)
            case "close":
                writer.flush()
                writer.depth = step.depth - 1
            case "turn":
                writer.block(f"── {markup.line(step.text)} ──")
            case "end_turn":
                writer.flush()
            case "text":
                writer.inline(markup.middle(markup.plain(step.text), LONGEST))
            case "hole":
                writer.inline(f"{{{markup.line(step.text)}}}")
            case "gen" | "select":
                if thought(step):
                    writer.block(f"· {thought(step)}")
                text, some = _inline(step, story)
                forced = forced or some
                writer.inline(text)
            case _:
                said = _aside(step)
                if said:
                    writer.block(f"· {said}")
    writer.flush()
    if any(step.what in ("gen", "select") for step in story.steps):
        found.append("")
        legend = f"{LEGEND}; {FORCED}" if forced else LEGEND
        found += markup.wrapped(legend, width)
    return found


class _Writer:
    """Text that runs on, and blocks that stand alone, as lines behind the bars of their branch."""

    def __init__(self, width: int, found: list[str]) -> None:
        self._width = width
        self._found = found
        self._running = ""
        self.depth = 0

    def inline(self, text: str) -> None:
        self._running += text

    def block(self, text: str, depth: int | None = None) -> None:
        self.flush()
        self.depth = self.depth if depth is None else depth
        self._lines(text)

    def flush(self) -> None:
        if self._running:
            self._lines(self._running.rstrip("\n"))
            self._running = ""

    def _lines(self, text: str) -> None:
        bars = "│ " * min(self.depth, max(1, self._width // 6))
        self._found += [each.rstrip() for each in markup.wrapped(text, self._width, bars)]


def _inline(step: Step, story: Story) -> tuple[str, bool]:
    """A variable in brackets, and whether a part of it was forced."""
    operation, why = step.operation, outcome(step.operation)
    parts = [] if operation is None else forced_parts(operation, step.node, story.spelling)
    text = "".join([f"‹{piece}›" if flag else piece for piece, flag in parts])
    text = markup.middle(markup.plain(text), LONGEST)
    more = 0 if operation is None else len(operation.samples) - 1
    said = [markup.line(label(step)), text, f"({why})" if why else ""]
    said.append(f"(and {markup.counted(more, 'more sample')})" if more > 0 else "")
    return f"⟦{' '.join(filter(None, said))}⟧", any(flag for _, flag in parts)


def _aside(step: Step) -> str:
    """What is no text of the prompt."""
    node, operation = step.node, step.operation
    failed = outcome(operation) if operation is not None else ""
    failed = f" ({failed})" if failed else ""
    match node:
        case ir.SetVar():
            value = operation.text if operation is not None else None
            shown = markup.start(markup.line(value or ""), 60)
            return f"{markup.line(node.name)} = {shown}{failed}"
        case ir.Image():
            return f"picture {markup.line(node.image)}{failed}"
        case ir.Scope():
            return f"{markup.line(node.name)} begins"
        case ir.EndScope():
            return f"{markup.line(node.name)} ends{failed}"
        case ir.Call():
            return f"program {markup.line(node.callee)}{failed}"
        case ir.Join():
            count = len(node.children)
            appended = ", whose text is appended" if node.mode == "concate_and_append" else ""
            return f"join of {count:,} branch{'' if count == 1 else 'es'}{appended}{failed}"
    return ""


# ------------------------------------------------------------------------------ HTML


def page(story: Story) -> Html:
    """The transcript as static HTML."""
    sheet = markup.Sheet()
    sheet.open("div", markup.PAGE)
    heading(sheet, story.head)
    writer = _Page(sheet)
    forced = False
    for step in shown_steps(story):
        if isinstance(step, Hidden):
            writer.block(element("i", str(step)), MUTED)
            continue
        match step.what:
            case "fork":
                writer.open("div", "display:flex;flex-wrap:wrap;gap:8px;margin:4px 0")
            case "open":
                writer.open(
                    "div", f"{BOX};border-style:dashed;flex:1 1 240px;min-width:0;padding:4px 8px"
                )
                writer.block(f"fork {step.branch + 1} of {_last(step) + 1}", MUTED)
            case "close":
                writer.close()
                if step.branch == min(_last(step), BRANCHES - 1):
                    writer.close()
            case "turn":
                writer.turn(step.text)
            case "end_turn":
                writer.end_turn()
            case "text":
                writer.inline(escaped_middle(step.text))
            case "hole":
                writer.inline(element("i", f"{{{step.text}}}"))
            case "gen" | "select":
                if thought(step):
                    writer.block(thought(step), MUTED)
                content, some = _capture(step, story)
                forced = forced or some
                writer.inline(content)
            case _:
                said = _aside(step)
                if said:
                    writer.block(said, MUTED)
    writer.finish()
    if any(step.what in ("gen", "select") for step in story.steps):
        key = element("b", "name", style=_LABEL)
        marks: list[str] = [element("span", key, " generated or chosen", style=_filled(BLUE))]
        if forced:
            marks += [" ", element("u", "forced by its constraint", style=_DOTTED)]
        sheet.add(element("div", *marks, style=f"{MUTED};margin-top:6px"))
    return sheet.end("print(log.transcript()) shows it")


def heading(sheet: markup.Sheet, head: Sequence[str]) -> None:
    """The lines that say what a page is of: the first in bold."""
    first, *others = head
    sheet.add(element("div", element("b", markup.middle(first, 400))))
    for each in others:
        sheet.add(element("div", markup.middle(each, 400), style=MUTED))


def escaped_middle(text: str) -> Html:
    """A text as HTML, its middle left out where it is long."""
    return markup.escaped(markup.middle(text, LONGEST // 2))


_TURN = "margin:6px 0;border-left:3px solid rgba(128,128,128,.5);padding:0 0 0 8px"
_LABEL = f"{CODE};font-size:11px;opacity:.85"
_DOTTED = "text-decoration:underline dotted;text-underline-offset:3px"


def _filled(colour: str) -> str:
    return f"{BOX};{tint(colour, 0.16)};padding:0 4px"


class _Page:
    """Text that runs on in a <pre>, and blocks that stand alone, in turns and branches."""

    def __init__(self, sheet: markup.Sheet) -> None:
        self._sheet = sheet
        self._open: list[str] = []

    def inline(self, content: Html) -> None:
        if not self._open or self._open[-1] != "pre":
            self._sheet.open("pre", markup.TEXT)
            self._open.append("pre")
        self._sheet.add(content)

    def block(self, content: str, style: str) -> None:
        self._end("pre")
        self._sheet.add(element("div", content, style=style))

    def open(self, name: str, style: str) -> None:
        self._end("pre")
        self._sheet.open(name, style)
        self._open.append(name)

    def close(self) -> None:
        """End the innermost branch or row of branches, and what is open in it."""
        self._end("pre")
        self._end("turn")
        self._end("div")

    def turn(self, role: str) -> None:
        self._end("pre")
        self._end("turn")
        self._sheet.open("div", _TURN)
        self._sheet.add(element("div", element("b", role), style=MUTED))
        self._open.append("turn")

    def end_turn(self) -> None:
        self._end("pre")
        self._end("turn")

    def finish(self) -> None:
        while self._open:
            self._open.pop()
            self._sheet.close()

    def _end(self, name: str) -> None:
        if self._open and self._open[-1] == name:
            self._open.pop()
            self._sheet.close()


def _capture(step: Step, story: Story) -> tuple[Html, bool]:
    """A variable in its box, and whether a part of it was forced."""
    operation, why = step.operation, outcome(step.operation)
    parts = [] if operation is None else forced_parts(operation, step.node, story.spelling)
    shown: list[str] = [element("b", label(step), style=_LABEL), " "]
    room = LONGEST // 2
    for piece, flag in parts:
        text = markup.middle(piece, max(40, room))
        room -= len(text)
        shown.append(element("u", text, style=_DOTTED) if flag else text)
        if room <= 0:
            shown.append(element("i", " …") if piece is not parts[-1][0] else "")
            break
    if why:
        failed = operation is not None and operation.error is not None
        shown.append(element("b" if failed else "i", f"{' ' if parts else ''}({why})"))
    more = [] if operation is None else operation.samples[1:]
    for sample in more[:8]:
        shown.append(element("span", "│ ", markup.middle(sample.text, 400), style="opacity:.8"))
    if len(more) > 8:
        shown.append(element("i", f" … {len(more) - 8:,} more samples"))
    colour = ORANGE if step.what == "select" else BLUE
    if operation is not None and operation.error is not None:
        colour = RED
    elif operation is None or operation.status != "done":
        colour = GREEN
    said = "" if operation is None else _told(operation)
    return element("span", *shown, style=_filled(colour), title=said), any(f for _, f in parts)


def _told(operation: LoggedOperation) -> str:
    """What a pointer that rests on a variable shows."""
    usage = operation.usage
    took = "" if operation.seconds is None else f", {operation.seconds * 1e3:,.1f} ms"
    new = usage.generated_tokens + usage.scored_tokens
    forced = f", {usage.forced_tokens:,} forced" if usage.forced_tokens else ""
    return (
        f"{operation.kind} {operation.path}: {usage.prompt_tokens:,} prompt tokens "
        f"({usage.cached_tokens:,} cached), {markup.counted(new, 'new token')}{forced}{took}"
    )
