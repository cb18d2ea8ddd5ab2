"""A model by its name on the Hugging Face hub, brought into the hub's own cache on this machine."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from lmlang.errors import ModelError, ProgramTypeError, quote

WANTED = ("*.safetensors", "*.json", "*.jinja")
"""Data alone: no pickled weights, and no code."""
UNWANTED = ("*/*", "consolidated*")
"""Copies in other formats that some models have in subfolders or beside."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)

log = logging.getLogger("lmlang")


def is_hub_name(named: str) -> bool:
    """Whether this can be the name of a model on the hub: owner, slash, model."""
    return NAME.fullmatch(named) is not None and not named.endswith((".gguf", ".safetensors"))


def hub_folder(name: str, revision: str | None, offline: bool) -> Path:
    """The folder of a model in the hub's cache; what is missing is fetched unless ``offline``.

    Raises:
        ModelError: The package is missing, there is no such model or version, or the network
            cannot bring it.
    """
    if revision is not None and not isinstance(revision, str):
        raise ProgramTypeError(
            f"revision must be a branch, a tag or a commit, not {type(revision).__name__}: give "
            "its name."
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModelError(
            f"model={quote(name)} is no file or folder here, and models of the Hugging Face hub "
            "need the package huggingface_hub: `pip install huggingface_hub`, or give a folder."
        ) from error
    log.info("looking for %s on the Hugging Face hub", name)
    try:
        found = snapshot_download(
            name,
            revision=revision,
            local_files_only=offline,
            allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED),
        )
    except Exception as error:  # of the hub, of the network beneath it, of the disk
        version = "" if revision is None else f" at revision={quote(revision)}"
        place = "in the hub's cache on this machine" if offline else "on the Hugging Face hub"
        mend = (
            "call it once without offline, or give a folder"
            if offline
            else "look at the name, the network and, for a closed model, at `hf auth login`; or "
            "give a folder"
        )
        said = str(error).strip().splitlines()
        raise ModelError(
            f"model={quote(name)}{version} is no file or folder here, and was not found {place} "
            f"({type(error).__name__}: {quote(said[0] if said else '')}): {mend}."
        ) from error
    return Path(found)
