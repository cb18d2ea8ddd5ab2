"""A model ready to run: weights, tokenizer and chat template; each is in memory once."""

from __future__ import annotations

import math
import os
import threading
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, cast

import torch

from lmlang.errors import ModelError, ProgramError, quote
from lmlang.kernels import native
from lmlang.kernels.forms import form_of
from lmlang.kernels.packed import PackedWeight
from lmlang.kernels.quant import Int8Weight
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_templates import resolve_chat_template
from lmlang.runtime.device import CPU, check_room, launching_on
from lmlang.runtime.fingerprint import combined, of_files
from lmlang.runtime.models.causal import CausalLM
from lmlang.runtime.models.digits import MOST_FAR, TEXT, with_chosen_digits
from lmlang.runtime.models.fetch import find_embedded_model, model_file
from lmlang.runtime.models.gguf_blocks import is_quantised
from lmlang.runtime.models.gguf_file import open_gguf
from lmlang.runtime.models.hf import HFModel
from lmlang.runtime.models.hf_loader import load_hf
from lmlang.runtime.models.hub import hub_folder, is_hub_name
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.models.loader import LoadedModel, Scheme, load_folder, load_gguf
from lmlang.runtime.models.metadata import NotNative
from lmlang.runtime.tokenizer import Tokenizer
from lmlang.runtime.tokenizer_json import folder_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Of weights, by the name that a user gives."""
READ = (".safetensors", ".json", ".jinja")
"""Endings of the files of a folder that are read; nothing else in it is."""


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """What a Runtime runs. Immutable, so that any number of Runtimes share it.

    Args:
        name: For people: the file it came from.
        model: The weights.
        tokenizer: Its tokenizer.
        template: Its chat template, or the plain one.
        files: The fingerprint of its files and of how its weights are kept; None: it has no files.
    """

    name: str
    model: CausalLM
    tokenizer: Tokenizer
    template: ChatTemplate
    files: str | None = None

    @property
    def implementation(self) -> str:
        """Whose code computes it: "native" (ours) or "transformers"."""
        return "transformers" if isinstance(self.model, HFModel) else "native"

    @property
    def weights(self) -> str | None:
        """How matrices are kept: a dtype, or a scheme of `open_model`; None: transformers knows."""
        if not isinstance(self.model, LlamaModel):
            return None
        matrix = self.model.products[0]["down"]
        if isinstance(matrix, PackedWeight):
            return "blocks" if bool((matrix.digits == 2).all()) else "blocks8"
        return "int8" if isinstance(matrix, Int8Weight) else str(matrix.dtype).split(".")[-1]

    def with_template(self, spec: str | os.PathLike[str]) -> OpenedModel:
        """The same model under another chat template: a name, a path or Jinja.

        Raises:
            ProgramError: There is no such template, or it is no valid Jinja.
        """
        template = _template(resolve_chat_template(spec), self.tokenizer, given=True)
        return replace(self, template=template)


@dataclass(frozen=True, slots=True)
class Loading:
    """How a model is loaded.

    Args:
        dtype: Of its weights.
        quantize: As of `open_model`; "auto" only where it means blocks.
        implementation: As of `open_model`.
        device: Where they go.
    """

    dtype: torch.dtype
    quantize: str
    implementation: str
    device: torch.device

    @property
    def scheme(self) -> Scheme:
        """What becomes of matrices as they are read."""
        return "blocks" if self.quantize in BLOCKS else cast(Scheme, self.quantize)


BLOCKS = ("auto", "blocks", "blocks8")
"""Of `Loading.quantize`, what keeps matrices in blocks."""
Stamp: TypeAlias = tuple[tuple[str, int, int], ...]
"""Name, size and time of every file that a model is read from."""

_opening = threading.Lock()
_opened: weakref.WeakValueDictionary[tuple[str, Loading, Stamp], OpenedModel] = (
    weakref.WeakValueDictionary()
)


def _after_fork() -> None:
    """Whoever was opening a model is not there in the child process."""
    global _opening
    _opening = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def open_model(
    named: str | os.PathLike[str] | None,
    *,
    dtype: str = "float32",
    quantize: str = "auto",
    revision: str | None = None,
    offline: bool = False,
    implementation: str = "auto",
    device: torch.device = CPU,
) -> OpenedModel:
    """Load a model; one that is already in memory is shared. Code of a model is never run.

    Args:
        named: A ``.gguf`` file, a folder with safetensors and a ``tokenizer.json``, the name of a
            model on the Hugging Face hub ("owner/name"), or None for the embedded model. What is
            there on this machine goes first.
        dtype: Of the weights: "float32", "bfloat16" or "float16"; "auto" is float32 on a CPU and
            bfloat16 on a GPU.
        quantize: Of the matrices among them: "none", "int8", "blocks", "blocks8" (see `Runtime`);
            "auto" is blocks for a quantised GGUF file on a CPU whose dtype is "auto", where the C
            kernels are, and none otherwise; "blocks8" unless a trial run shows it to be too far
            from "blocks".
        revision: Branch, tag or commit of a model on the hub.
        offline: Look for a model of the hub in its cache on this machine alone.
        implementation: Whose code computes it: "native", "transformers", or "auto" for the native
            one where there is one.
        device: Where the weights go.

    Raises:
        ModelError: It cannot be found or read, is of a kind that cannot be run, or is too large
            for the device.
        ProgramError: A parameter is out of range.
    """
    path = _find(named, revision, offline)
    if quantize == "auto":
        blocks = dtype == "auto" and device.type == "cpu" and _has_blocks(path)
        quantize = "auto" if blocks and form_of(torch.empty(0)) == "c" else "none"
    if dtype == "auto":
        dtype = "float32" if device.type == "cpu" else "bfloat16"
    if not isinstance(dtype, str) or dtype not in DTYPES:
        known = ", ".join(map(repr, DTYPES))
        raise ProgramError(f"dtype={quote(str(dtype))} is none of {known}: give one of these.")
    if quantize in BLOCKS:
        _check_blocks(quantize, dtype, device)
    how = Loading(DTYPES[dtype], quantize, implementation, device)
    name = named if isinstance(named, str) and is_hub_name(named) else path.name
    with _opening:
        key = (str(path.resolve()), how, _stamp(path))
        found = _opened.get(key)
        if found is None:
            load = _load_folder if path.is_dir() else _load_gguf
            with launching_on(device):  # as what looks at a model there does
                files = combined(of_files(path, READ), str(how.dtype), how.quantize)
                found = _opened[key] = replace(load(path, str(name), how), files=files)
        return found


def _has_blocks(path: Path) -> bool:
    return path.is_file() and is_quantised(open_gguf(path))


def _check_blocks(quantize: str, dtype: str, device: torch.device) -> None:
    """Refuse blocks where they cannot be multiplied."""
    if device.type != "cpu" or dtype != "float32":
        raise ProgramError(
            f"quantize='{quantize}' is for a CPU and dtype='float32', and this is {device.type} "
            f"and {dtype}: leave it out, or give these."
        )
    native.library()


def _find(named: str | os.PathLike[str] | None, revision: str | None, offline: bool) -> Path:
    if isinstance(named, str) and is_hub_name(named) and not Path(named).exists():
        return hub_folder(named, revision, offline)
    if revision is not None:
        raise ProgramError(
            f"revision={quote(str(revision))} is the version of a model on the Hugging Face hub, "
            "and model= names none: leave it out."
        )
    if named is None:
        return find_embedded_model()
    path = model_file("model", named, folders=True)
    if path.is_file() and path.suffix in READ:
        raise ModelError(f"{path} is one file of a model folder: give the folder, {path.parent}.")
    return path


def _stamp(path: Path) -> Stamp:
    try:
        files = [path] if path.is_file() else [f for f in path.iterdir() if f.suffix in READ]
        stats = [(file.name, file.stat()) for file in sorted(files)]
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error}): make it readable.") from error
    return tuple([(name, status.st_size, status.st_mtime_ns) for name, status in stats])


def _load_gguf(path: Path, name: str, how: Loading) -> OpenedModel:
    if how.implementation == "transformers":
        raise ProgramError(
            "implementation='transformers' is for folders with safetensors, and "
            f"{quote(str(path))} is a GGUF file, which runs natively: leave it out."
        )
    loaded = load_gguf(path, how.dtype, quantize=how.scheme)
    tokenizer = Tokenizer.from_gguf(loaded.metadata)
    source = loaded.metadata.get("tokenizer.chat_template")
    source = source if isinstance(source, str) else None
    return _made(name, _native(loaded, how, tokenizer), tokenizer, source)


def _load_folder(path: Path, name: str, how: Loading) -> OpenedModel:
    if not (path / "config.json").exists():
        raise ModelError(f"{path} has no config.json: give the folder of a whole model.")
    tokenizer = Tokenizer.from_folder(path)  # first: it is the quicker one to be refused
    source = _folder_template(path)
    return _made(name, _folder_model(path, how, tokenizer), tokenizer, source)


def _folder_model(path: Path, how: Loading, tokenizer: Tokenizer) -> CausalLM:
    """The model of a folder, by our own code where that has its type."""
    if how.implementation != "transformers":
        try:
            loaded = load_folder(path, how.dtype, quantize=how.scheme)
            return _native(loaded, how, tokenizer)
        except NotNative:
            if how.implementation == "native":
                raise
    if how.quantize in BLOCKS:
        raise ProgramError(
            f"quantize='{how.quantize}' is for models that run natively, and {quote(str(path))} is "
            "run by transformers: leave it out."
        )
    return load_hf(path, how.dtype, how.device, quantize=how.quantize == "int8")


def _native(loaded: LoadedModel, how: Loading, tokenizer: Tokenizer) -> LlamaModel:
    if how.quantize in ("auto", "blocks8"):
        most = MOST_FAR if how.quantize == "auto" else math.inf
        loaded = with_chosen_digits(loaded, tokenizer.encode(TEXT), most)
    weights, device = loaded.weights, how.device
    needed = sum(weight.nbytes for weight in weights.values())
    check_room(f"the weights of {quote(loaded.path.name)}", needed, device)
    moved = {name: weight.to(device) for name, weight in weights.items()}
    return LlamaModel(loaded.shape, moved)


def _made(name: str, model: CausalLM, tokenizer: Tokenizer, source: str | None) -> OpenedModel:
    tokenizer = tokenizer.fitted(model.vocab)
    return OpenedModel(name, model, tokenizer, _template(source, tokenizer))


def _folder_template(folder: Path) -> str | None:
    """The Jinja source of a folder's chat template, None where it has none."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return resolve_chat_template(path)
        except ProgramError as error:
            raise ModelError(f"{error}") from error
    for name in ("tokenizer_config.json", "chat_template.json"):
        found = folder_json(folder, name).get("chat_template")
        if isinstance(found, list):  # several by name
            named = [entry for entry in found if isinstance(entry, dict)]
            found = next((e.get("template") for e in named if e.get("name") == "default"), None)
        if isinstance(found, str):
            return found
        if found is not None:
            raise ModelError(f"{folder / name}: chat_template is no text: the file is damaged.")
    return None


def _template(source: str | None, tokenizer: Tokenizer, given: bool = False) -> ChatTemplate:
    bos, eos = (
        "" if token is None else tokenizer.spelling(token)
        for token in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return ChatTemplate(source, bos, eos, given=given)
