"""Writes docs/reference/cli.md from the parsers of the command line.

python docs/generate_cli.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from lmlang.cli import COMMANDS, parser_of
from lmlang.cli.command import EXIT_CODES

PAGE = Path(__file__).parent / "reference" / "cli.md"
HEAD = """\
# The command line

<!-- Written by docs/generate_cli.py from the parsers: change those. -->

`lmlang COMMAND`, or `python -m lmlang COMMAND` where scripts are not on the path, as on Windows. \
Every command has `--help`.
"""
TAIL = """\
## Streams and terminals

Standard output has results alone, so that it can be piped; messages, and what programs print, go \
to standard error. Nothing is coloured, and nothing depends on a terminal. Control characters and \
escape sequences in a model's text are taken out before a terminal sees them. A reader that closes\
 the output early, as `head` does, ends the command quietly.

## Variables

| variable | meaning |
|---|---|
| `LMLANG_MODEL` | a .gguf file in place of the embedded model |
| `LMLANG_CACHE` | the folder for what is fetched and found out; `$XDG_CACHE_HOME/lmlang` or \
`~/.cache/lmlang` without it |
| `LMLANG_API_KEY` | the key of the server that `--url` names |
| `LMLANG_API_KEYS`, `LMLANG_ADMIN_KEYS` | the keys that `lmlang serve` takes |
| `LMLANG_KERNELS` | `reference` computes with plain torch, to compare; `c` insists on the C \
kernels |
| `OMP_NUM_THREADS` | threads on a CPU |
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, _commands(), _exit_codes()]
    parser = parser_of()
    words = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    parts += ["\n".join(_command(name, words.choices[name])) for name in words.choices]
    return "\n".join([*parts, TAIL])


def _commands() -> str:
    lines = [f"| [`{c.name}`](#lmlang-{c.name}) | {_cell(c.summary)} |" for c in COMMANDS]
    return "\n".join(["| command | to |", "|---|---|", *lines, ""])


def _exit_codes() -> str:
    lines = [f"| {code} | {_cell(about)} |" for code, about in EXIT_CODES.items()]
    return "\n".join(["## Exit codes", "", "| code | meaning |", "|---|---|", *lines, ""])


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## lmlang {name}\n"
    yield from _described(parser.description or "")
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if action.dest != "help"]
        if rows:
            title = group.title or ""
            yield f"| {title} | meaning |\n|---|---|"
            yield from rows
            yield ""


def _described(text: str) -> Iterator[str]:
    """Paragraphs as they are, indented lines as shell."""
    for part in text.strip().split("\n\n"):
        lines = part.splitlines()
        if all(line.startswith("  ") for line in lines):
            yield "\n".join(["```sh", *(line[2:] for line in lines), "```", ""])
        else:
            yield " ".join(line.strip() for line in lines) + "\n"


def _row(action: argparse.Action) -> str:
    if action.option_strings:
        shown = ", ".join(action.option_strings)
        if action.nargs != 0:
            shown += f" {action.metavar or _choices(action)}"
    else:
        shown = str(action.metavar or _choices(action))
    return f"| `{shown}` | {_cell((action.help or '').replace('%%', '%'))} |"


def _choices(action: argparse.Action) -> str:
    return "{" + ",".join(map(str, action.choices or ())) + "}" if action.choices else action.dest


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
