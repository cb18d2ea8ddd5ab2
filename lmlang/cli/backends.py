"""Options that say which model runs a program, and the backend that they mean."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from lmlang.errors import ProgramError
from lmlang.protocol import Backend

KEY = "LMLANG_API_KEY"
"""The variable with the key of a server: command lines can be seen by others."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add ``--url``, ``--model`` and ``--device``."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--url",
        metavar="URL",
        help=f"a server that `lmlang serve` started; its key is read from {KEY}",
    )
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="a .gguf file, a folder, or a name on the Hugging Face hub; the backend that the "
        "file sets, else the embedded SmolLM2-135M-Instruct, without it",
    )
    group.add_argument("--device", metavar="DEVICE", help="cpu, cuda, or cuda:1 for the second GPU")


@contextmanager
def chosen(options: argparse.Namespace) -> Iterator[Backend | None]:
    """The backend that the options name; None: the one that a program has by itself."""
    if options.url is not None and (options.model is not None or options.device is not None):
        raise ProgramError(
            "--url names a server, which has its model: leave --model, --device out."
        )
    if options.url is not None:
        from lmlang.backends.remote import connect

        with connect(options.url, api_key=os.environ.get(KEY) or None) as endpoint:
            yield endpoint
    elif options.model is not None or options.device is not None:
        from lmlang.runtime.local import Runtime

        with Runtime(options.model, device=options.device or "auto") as runtime:
            yield runtime
    else:
        yield None
