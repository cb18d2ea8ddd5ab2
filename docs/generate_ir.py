"""Writes docs/reference/ir.md from the node classes, their docstrings and the printer.

python docs/generate_ir.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

from lmlang.frontend import ir
from lmlang.frontend.layout import NODES, word_of
from lmlang.frontend.printer import parse_program, print_program
from lmlang.frontend.verify import verify

PAGE = Path(__file__).parent / "reference" / "ir.md"

TIPS = r"""
program tips(topic: str)
  %0 = start
  %1 = text %0 "Two tips about "
  %2 = arg %1 topic
  %3, %4 = fork %2 2
  %5 = gen %3 -> tip [max_tokens=32, stop="\n"]
  %6 = gen %4 -> tip [max_tokens=32, stop="\n"]
  %7 = join %2 %5 %6
  %8 = ref %7 tip[0]
  %9 = select %8 -> verdict ["good", "bad"]
  return %9
"""

EXAMPLES = {
    ir.Start: "",
    ir.Text: r'%1 = text %0 "One line\nand \"another\""',
    ir.Arg: "%1 = arg %0 topic",
    ir.Ref: """
        %1 = gen %0 -> tip [n=2]
        %2 = ref %1 tip[0]
        %3 = fork %2 1
        %4 = gen %3 -> aside
        %5 = ref %2 aside [of=%4]
    """,
    ir.Role: "%1 = role %0 user",
    ir.EndRole: """
        %1 = role %0 user
        %2 = text %1 "Hello"
        %3 = end_role %2 user
    """,
    ir.Gen: r"""
        %1 = gen %0 -> tip [max_tokens=32, stop=["\n", "."], logit_bias={5: -100.0}]
        %2 = gen %1 -> age [constraint=either(regex("[1-9][0-9]*"), choice("None")), think=50]
    """,
    ir.Select: '%1 = select %0 -> verdict ["good", "bad"] [ends_turn=True]',
    ir.Image: '%1 = image %0 "cat.png"',
    ir.SetVar: """
        %1 = set_var %0 -> limit 3
        %2 = set_var %1 -> table <dict>
        %3 = set_var %2 -> "two words" arg topic
    """,
    ir.Scope: "%1 = scope %0 greeting",
    ir.EndScope: """
        %1 = scope %0 greeting
        %2 = text %1 "Hello"
        %3 = end_scope %2 greeting
    """,
    ir.Fork: "%1, %2, %3 = fork %0 3",
    ir.Join: """
        %1, %2 = fork %0 2
        %3 = gen %1 -> tip
        %4 = gen %2 -> tip
        %5 = join %0 %3 %4
        %6, %7 = fork %5 2
        %8 = join %5 %6 %7 [mode="concate_and_append"]
    """,
    ir.Call: '%1 = call %0 judge [text=arg topic, strict=True, rules=<list>, name="Bo"]',
    ir.Return: """
        %1 = gen %0 -> tip
        return %1 ref tip
    """,
}
"""What stands behind the start in the example of each kind of node."""

HEAD = """\
# The IR

<!-- Written by docs/generate_ir.py; edit lmlang/frontend/ir.py or that script instead. -->

A run of a program records nodes, and so does a trace of it, `f.trace()`. `s.program()` is the
recording of a run. `lm.print_program(program)` gives its text and `lm.parse_program(text)` the same
program again; `verify(program)` in `lmlang.frontend.verify` returns it if it is well formed.

{tips}
One line a node: the states it makes, its word, the state it takes, what it must have, and in
brackets what it may have.

- A **state** (`%1`) is one prompt with its variables. Each is made once, above where it is taken.
  A node takes the newest state of its line and is the newest from then on; a fork begins new lines
  and leaves its own as it is.
- A **name** stands without quotes where it is an ASCII identifier.
- A **text** is in double quotes. Its escapes are `\\"` `\\\\` `\\n` `\\r` `\\t` `\\x1f` `\\u2028`
  `\\U0001f600`.
- A **number** is decimal; an integer of more than 63 bits is hexadecimal. Infinities and NaN are
  refused.
- A **value** is `None`, `True`, `False`, a number, a text, `arg name`, `ref name[0]`, or `<type>`,
  which stands for what is no data.
- A **constraint** is `regex("…")`, `json_schema("…")` with its style behind the text where it is
  not one line, `ebnf("…")` with its root where that has another name, `choice("…", "…")`, or
  `either(…)` of these.
- A tuple of one item stands without brackets: `stop="a"` is `stop=["a"]`.
- Blank lines and further spaces have no meaning.
- A program's parameters have their types as in its function; one that is more than names, brackets
  and `|` is in quotes.

Version {version} of the IR. `Program.digest()` is a SHA-256 of the content.

## Nodes
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD.format(tips=_block(TIPS.lstrip()), version=ir.VERSION)]
    parts += [section for kind in NODES for section in _section(kind)]
    return "\n".join(parts)


def _section(kind: type[ir.Node]) -> Iterator[str]:
    text = inspect.getdoc(kind) or ""
    summary, _, arguments = text.partition("Args:")
    meanings = {
        name: " ".join(meaning.split())
        for name, meaning in re.findall(r"^    (\w+): ((?:.|\n(?!    \w+:))*)", arguments, re.M)
    }
    yield f"### {word_of(kind)}\n"
    yield summary.strip() + "\n"
    rows = [f for f in fields(kind) if f.name not in ("state", "made")]
    if rows:
        yield "| field | type | default | meaning |\n|---|---|---|---|"
        for f in rows:
            default = "" if f.default is MISSING else f"`{_shown(f.default)}`"
            # No | in a table: one reader wants it escaped within code, another shows the escape.
            shown_type = str(f.type).replace(" | ", " or ")
            yield f"| `{f.name}` | `{shown_type}` | {default} | {meanings[f.name]} |"
        yield ""
    lines = inspect.cleandoc(EXAMPLES[kind]).splitlines()
    parameters = "topic: str" if "topic" in EXAMPLES[kind] else ""
    program = [f"program example({parameters})", "  %0 = start", *(f"  {line}" for line in lines)]
    yield _block("\n".join(program) + "\n")


def _shown(default: object) -> str:
    return f"<{default.kind}>" if isinstance(default, ir.Opaque) else repr(default)


def _block(text: str) -> str:
    """A program as a block of the page, if it is one and is printed so."""
    program = verify(parse_program(text))
    assert print_program(program) == text, text
    return f"```ir\n{text}```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
