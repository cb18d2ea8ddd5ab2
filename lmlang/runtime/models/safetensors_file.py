"""A folder of safetensors files: names, shapes and types checked first, tensors read on demand.

    model.safetensors                       one file, or
    model.safetensors.index.json            {"weight_map": {tensor: file}} and its files

The `safetensors` package reads the files; it checks that headers hold together and that tensors
lie inside the file and not over one another. Nothing here unpickles: a folder that has only
pickled weights is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lmlang.errors import ModelError, quote
from lmlang.runtime.models.hf_config import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_FILES = 4_096
MAX_TENSORS = 1 << 20
MAX_HEADER_BYTES = 64 << 20
TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class SafetensorsFolder:
    """Tensors of a folder; read only, thread-safe.

    Args:
        path: The folder.
        shapes: By tensor.
        files: The file that holds each tensor.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    files: Mapping[str, Path]

    def read(self, name: str, out: Tensor) -> None:
        """Convert a tensor into ``out``, of the same shape and any floating type; **written**.

        Raises:
            ModelError: Its file cannot be read any more.
        """
        path = self.files[name]
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                out.copy_(file.get_tensor(name))
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise _broken(path, error) from None

    def check_types(self, names: Iterable[str]) -> None:
        """Refuse those of some tensors, as far as they are here, that are no plain numbers.

        Raises:
            ModelError: One is of whole numbers, or of less than 16 bits.
        """
        of_file: dict[Path, list[str]] = {}
        for name in names:
            if name in self.files:
                of_file.setdefault(self.files[name], []).append(name)
        for path, here in of_file.items():
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in here:
                    _check_type(path, name, file.get_slice(name), (*TYPES, "F64"))


def open_safetensors(folder: Path, *, any_type: bool = False) -> SafetensorsFolder:
    """Read the headers of a folder's safetensors files.

    Args:
        folder: Where they lie.
        any_type: Take tensors that `SafetensorsFolder.read` cannot convert too.

    Raises:
        ModelError: There are none, they are broken, or they do not fit their index.
    """
    index = folder / INDEX
    if (folder / SINGLE).is_file():
        expected: Mapping[str, Path] = {}
        paths = [folder / SINGLE]
    elif index.is_file():
        expected = _weight_map(folder, index)
        paths = sorted(set(expected.values()))
    else:
        raise _no_weights(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Path] = {}
    for path in paths:
        for name, shape in _header(path, any_type).items():
            if name in files:
                raise ModelError(
                    f"the tensor {quote(name)} is in {files[name]} and in {path}: the folder is "
                    "damaged, fetch it anew."
                )
            shapes[name], files[name] = shape, path
    for name, path in expected.items():
        if files.get(name) != path:
            raise ModelError(
                f"{index} says that the tensor {quote(name)} is in {path.name}, and it is not: "
                "the folder is damaged, fetch it anew."
            )
    return SafetensorsFolder(folder, shapes, files)


def open_file(path: Path) -> SafetensorsFolder:
    """The tensors of one safetensors file, all of types that can be read; ModelError as above."""
    shapes = _header(path, any_type=False)
    return SafetensorsFolder(path.parent, shapes, dict.fromkeys(shapes, path))


def _weight_map(folder: Path, index: Path) -> dict[str, Path]:
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not 1 <= len(listed) <= MAX_TENSORS:
        raise ModelError(f"{index} has no 'weight_map' of 1 to {MAX_TENSORS:,} tensors.")
    found: dict[str, Path] = {}
    for name, file in listed.items():
        if not isinstance(file, str) or not _is_plain(file):
            raise ModelError(
                f"{index} looks for the tensor {quote(name)} in {str(file)[:64]!r}: it must name a "
                "safetensors file of its own folder. Do not trust this folder."
            )
        found[name] = folder / file
    if len(set(found.values())) > MAX_FILES:
        raise ModelError(f"{index} names more than {MAX_FILES:,} files.")
    return found


def _is_plain(name: str) -> bool:
    """Whether it is a file's name and no path."""
    return (
        name.endswith(".safetensors")
        and not name.startswith(".")
        and len(name) <= 255
        and name.isprintable()
        and not set(name) & set('/\\:"*?<>|')
    )


def _header(path: Path, any_type: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a file's tensors, all of types that can be read unless ``any_type``."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError("no regular file")
        with path.open("rb") as raw:
            start = raw.read(8)
        announced = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if announced > MAX_HEADER_BYTES:
            raise _broken(path, f"its header announces {announced:,} bytes")
        with safe_open(path, framework="pt", device="cpu") as file:
            names: list[Any] = list(file.keys())
            if len(names) > MAX_TENSORS:
                raise _broken(path, f"it has {len(names):,} tensors")
            views = {name: file.get_slice(name) for name in names}
            if any_type:
                return {name: tuple(view.get_shape()) for name, view in views.items()}
            for name, view in views.items():
                _check_type(path, name, view, TYPES)
            return {name: tuple(view.get_shape()) for name, view in views.items()}
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _broken(path, error) from None


def _check_type(path: Path, name: str, view: Any, types: Collection[str]) -> None:
    if view.get_dtype() not in types:
        raise ModelError(
            f"{path}: the tensor {quote(name)} is of the type {view.get_dtype()}, and only "
            f"{', '.join(types)} can be read: give a model whose weights are not quantised."
        )


def _broken(path: Path, error: object) -> ModelError:
    return ModelError(
        f"{path} is not a usable safetensors file ({str(error)[:200]}): it is damaged, cut off or "
        "of another format. Fetch it anew."
    )


def _no_weights(folder: Path) -> ModelError:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return ModelError(f"the model folder {folder} cannot be read ({error.strerror or error}).")
    pickled = [name for name in names if name.endswith(PICKLED)]
    if pickled:
        return ModelError(
            f"{folder} holds its weights as a pickle ({pickled[0]}), which may run any code and is "
            "never opened: convert it to safetensors, or take a revision that has them."
        )
    return ModelError(
        f"{folder} has neither {SINGLE} nor {INDEX}: give the folder of a whole model."
    )
