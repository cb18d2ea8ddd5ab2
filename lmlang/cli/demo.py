"""``lmlang demo``: programs that show what lmlang does, on the embedded model."""

from __future__ import annotations

import argparse

from lmlang.cli import terminal
from lmlang.cli.command import DONE, Command

DESCRIPTION = """\
Run programs on the embedded model and show what they gave and what the runtime did for it.

  lmlang demo            # five short programs: chat, select, fork, typed value, batch
  lmlang demo --list     # the others
  lmlang demo triage     # one of them
"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("demo", nargs="?", metavar="NAME", help="one of --list")
    parser.add_argument("--list", action="store_true", help="names, each with what it shows")


def _run(options: argparse.Namespace) -> int:
    from lmlang import demo

    if options.list:
        for name, about in demo.NAMES.items():
            terminal.say(f"{name:<12} {about}")
    elif options.demo is None:
        from lmlang.demo.tour import run_demo

        run_demo(_say)
    else:
        demo.run(options.demo, _say)
    return DONE


def _say(text: str) -> None:
    terminal.say(terminal.shown(text))


DEMO = Command("demo", "run example programs on the embedded model", DESCRIPTION, _add, _run)
