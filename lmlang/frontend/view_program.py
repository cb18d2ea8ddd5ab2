"""Programs before a run as a page: the nodes with their source lines, and what will be asked."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence

from lmlang import markup
from lmlang.errors import ProgramError
from lmlang.frontend import ir
from lmlang.frontend.arguments import told
from lmlang.frontend.printer import print_program
from lmlang.markup import BLUE, BOX, CODE, MUTED, Html, element, tint

LONGEST = 4_000
"""Characters of a prompt that are shown."""
_NODE = 400
"""Characters of a node."""


def bundle(program: ir.Program) -> dict[str, str]:
    """A program as text and HTML, for a notebook."""
    try:
        text = print_program(program)
    except ProgramError:  # it was made by hand, of what cannot be printed
        return {"text/plain": repr(program)}
    return {"text/plain": text.rstrip("\n"), "text/html": str(_page(program, text.splitlines()))}


def _page(program: ir.Program, lines: Sequence[str]) -> Html:
    sheet = markup.Sheet()
    sheet.open("div", markup.PAGE)
    sheet.add(element("div", element("b", markup.middle(lines[0], _NODE), style=CODE)))
    sheet.open(markup.TABLE, markup.TABLE_STYLE)
    for node, line in zip(program.nodes, lines[1:], strict=True):
        made = ir.made_by(node)
        source = program.sources.get(made[0], "") if made else ""
        code: Html = element("span", markup.middle(line.strip(), _NODE), style=CODE)
        if isinstance(node, (ir.Gen, ir.Select)):
            code = element("b", code)
        where = element("span", os.path.basename(source), style=MUTED)
        if not sheet.add(markup.row((code, where), styles={1: "white-space:nowrap"})):
            break
    sheet.close()
    _stop(sheet, program)
    return sheet.end("print(lm.print_program(p))")


def _stop(sheet: markup.Sheet, program: ir.Program) -> None:
    stopped = program.stopped
    if stopped is not None:
        where = f"{os.path.basename(stopped.source)}: {stopped.reason}"
        sheet.add(element("div", f"… the trace ends at {where}", style=MUTED))


def function_page(body: Callable[..., object], given: Mapping[str, object]) -> str:
    """A program as it was written: nothing of its body is run for it.

    Args:
        body: Its function.
        given: Options of its runs and bound arguments.
    """
    code = getattr(body, "__code__", None)
    source = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
    pairs = [("", inspect.getdoc(body) or ""), ("source", source)]
    pairs += [(name, markup.middle(repr(value), _NODE)) for name, value in given.items()]
    pairs.append(("to see more", "f.preview(…), f.check() and f.trace(…), which run no model"))
    name = getattr(body, "__name__", type(body).__name__)
    title = f"program {name}{told(inspect.signature(body))}"
    return str(markup.facts(title, [pair for pair in pairs if pair[1]]))


def preview_page(
    prompt: str, ids: Sequence[int] | None, complete: bool, rest: Sequence[str], program: ir.Program
) -> Html:
    """What a program will ask first, and what follows."""
    sheet = markup.Sheet()
    sheet.open("div", markup.PAGE)
    count = "" if ids is None else f" ({markup.counted(len(ids), 'token')})"
    sheet.add(element("div", element("b", f"prompt of {program.name}{count}")))
    style = f"{BOX};{tint(BLUE, 0.08)};padding:6px 8px;margin:4px 0"
    shown = markup.middle(prompt, LONGEST)
    sheet.add(element("div", element("pre", shown, style=f"{markup.TEXT};{CODE}"), style=style))
    upto = (
        "up to the first generation, exactly"
        if complete
        else "up to what only a run knows, or does side by side"
    )
    sheet.add(element("div", upto, style=MUTED))
    if rest:
        sheet.add(element("div", element("b", "then"), style="margin-top:6px"))
    sheet.open("pre", f"{markup.TEXT};{CODE}")
    for line in rest:
        if not sheet.add(element("span", markup.middle(line, _NODE) + "\n")):
            break
    sheet.close()
    _stop(sheet, program)
    return sheet.end("print() shows all of it")
