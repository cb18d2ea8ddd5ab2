"""Fingerprints of what a Runtime computes with: the same files, kept the same way, have the same.

    model file or folder ─ of_files ─┐
    dtype, quantisation, template ───┴─ combined ──> what `BackendInfo.fingerprint` tells

Of large files samples are read, so that a fingerprint takes milliseconds and not the time of
reading the model twice; whoever trains, merges or quantises a model changes all of its tensors.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from lmlang.errors import ModelError, quote

WHOLE = 16 * 2**20
"""Bytes of the largest file that is read whole."""
SAMPLE = 64 * 2**10
"""Bytes of a sample of a larger one."""
EVERY = 2 * 2**20
"""Bytes from one sample's beginning to the next one's."""
HEAD = 2**20
"""Bytes at its beginning, where the names and shapes of its tensors stand."""


ADAPTER = (".json", ".safetensors")
"""Endings of the files of an adapter."""


def of_runtime(files: str | None, template: str, kv_dtype: str) -> str | None:
    """The fingerprint of a runtime; None where its model has no files.

    Where it computes and how fast is no part of it.
    """
    return None if files is None else combined(files, template, kv_dtype)


def of_adapters(folders: Mapping[str, str | os.PathLike[str]] | None) -> tuple[str, ...]:
    """The fingerprints of LoRA adapters in the order of their names."""
    found = sorted((folders or {}).items())
    return tuple([of_files(Path(folder), ADAPTER) for _, folder in found])


def of_files(path: Path, endings: Collection[str]) -> str:
    """The fingerprint of a file, or of the files of a folder that have one of these endings.

    Raises:
        ModelError: One cannot be read.
    """
    try:
        if path.is_file():
            return combined(_of_file(path))
        files = sorted(file for file in path.iterdir() if file.suffix in endings)
        return combined(*[part for file in files for part in (file.name, _of_file(file))])
    except OSError as error:
        raise ModelError(f"{quote(str(path))} cannot be read: {error}.") from error


def combined(*parts: str) -> str:
    """One fingerprint for several parts in this order."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        made.update(len(data).to_bytes(8, "little") + data)
    return made.hexdigest()


def _of_file(path: Path) -> str:
    made = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        made.update(size.to_bytes(8, "little"))
        if size <= WHOLE:
            made.update(file.read())
        else:
            made.update(file.read(HEAD))
            for start in [*range(HEAD, size - SAMPLE, EVERY), size - SAMPLE]:
                file.seek(start)
                made.update(file.read(SAMPLE))
    return made.hexdigest()
