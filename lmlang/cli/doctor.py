"""``lmlang doctor``: what this machine has for lmlang, and what is slow or missing and why."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lmlang import __version__
from lmlang.cli import terminal
from lmlang.cli.command import DONE, PARTLY, Command, nothing
from lmlang.cli.models import size

DESCRIPTION = """\
Say what lmlang finds on this machine: Python, torch, the device, the kernels, the embedded model,
the cache folder, optional packages. Lines that begin with ! say what is missing or slow, why, and
what to do; the exit code is then 3.
"""
OPTIONAL = {
    "tqdm": ("progress", "progress bars of batches"),
    "transformers": ("hf", "models that lmlang does not compute by itself"),
    "huggingface_hub": ("hf", "models by their name on the Hugging Face hub"),
    "fastapi": ("server", "lmlang serve"),
    "uvicorn": ("server", "lmlang serve"),
    "httpx": ("remote", "lm.connect, --url"),
    "openai": ("openai", "lm.OpenAI"),
    "pandas": ("tables", "results of batches as data frames"),
    "pyarrow": ("tables", "results of batches as Arrow tables"),
    "opentelemetry": ("telemetry", "spans of runs"),
}
"""Import names: the extra of lmlang that brings them, and what for."""
WANTED = ("numpy", "gguf", "safetensors", "tokenizers", "jinja2", "pydantic", "psutil")
ROOM = 2_000_000_000
"""Bytes of free memory below which a line says so: the embedded model with its caches needs one."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at; with a mend it is something to be mended."""

    name: str
    found: str
    mend: str = ""


def _run(options: argparse.Namespace) -> int:
    bad = 0
    for part in PARTS:
        try:
            lines = list(part())
        except Exception as error:  # whatever is broken here is what is looked for
            name = part.__name__.lstrip("_")
            lines = [Line(name, f"{type(error).__name__}: {error}", "mend this first.")]
        for line in lines:
            bad += bool(line.mend)
            mark = "!" if line.mend else " "
            terminal.say(terminal.shown(f"{mark} {line.name:<16} {line.found}"))
            if line.mend:
                terminal.say(terminal.shown(f"  {'':<16} {line.mend}"))
    return PARTLY if bad else DONE


# ---------------------------------------------------------------------------- what is looked at


def _python() -> Iterator[Line]:
    yield Line("lmlang", f"{__version__} in {Path(__file__).parents[1]}")
    system = f"{platform.system()} {platform.machine()}"
    yield Line("python", f"{platform.python_version()} ({system})")
    for name in WANTED:
        if importlib.util.find_spec(name) is None:
            yield Line(name, "is missing", "pip install lmlang again: it needs this package.")


def _torch() -> Iterator[Line]:
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield Line("torch", f"{torch.__version__} ({built})")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            found = f"{torch.cuda.get_device_name(index)}, {size(free)} of {size(total)} free"
            yield Line(f"cuda:{index}", found)
    elif torch.version.cuda:
        yield Line(
            "device",
            "cpu: torch is built for CUDA and finds no GPU",
            "see nvidia-smi: is there a GPU, and a driver for this CUDA? The CPU works too.",
        )
    else:
        yield Line("device", "cpu")
    yield from _triton(torch.cuda.is_available())


def _triton(gpu: bool) -> Iterator[Line]:
    if importlib.util.find_spec("triton") is not None:
        yield Line("triton", importlib.metadata.version("triton"))
    elif gpu:
        yield Line(
            "triton",
            "is missing: on the GPU the reference kernels run, many times slower",
            "pip install triton (torch's CUDA builds for Linux bring it).",
        )
    else:
        yield Line("triton", "not installed, and not needed without a GPU")


def _kernels() -> Iterator[Line]:
    import torch

    from lmlang.errors import ModelError
    from lmlang.kernels import forms, native

    try:
        forms.use_reference()
    except ModelError as error:
        yield Line("kernels", str(error), "unset LMLANG_KERNELS, which is for comparing.")
        return
    if os.environ.get("LMLANG_KERNELS") == "reference":
        yield Line(
            "kernels",
            "reference, by LMLANG_KERNELS: many times slower",
            "unset LMLANG_KERNELS, which is for comparing.",
        )
    elif native.available():
        yield Line("kernels", native.description())
    else:
        yield Line(
            "kernels",
            f"{native.description()}; on the CPU plain torch runs, many times slower",
            "install a C compiler (gcc or clang), then lmlang again, from where it came, by "
            "pip install --force-reinstall --no-deps --no-cache-dir.",
        )
    cpus, threads = _cpus(), torch.get_num_threads()
    if threads > cpus:
        yield Line(
            "threads",
            f"{threads} on {cpus} CPUs: they wait for one another",
            f"set OMP_NUM_THREADS={cpus}.",
        )
    elif threads < cpus // 2:
        yield Line(
            "threads",
            f"{threads} of {cpus} CPUs are used",
            "unset OMP_NUM_THREADS, or set it to the number of cores.",
        )
    else:
        yield Line("threads", f"{threads} on {cpus} CPUs")


def _cpus() -> int:
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


def _memory() -> Iterator[Line]:
    import psutil

    found = psutil.virtual_memory()
    told = f"{size(found.available)} of {size(found.total)} free"
    small = found.available < ROOM
    mend = "end other programs, or give Runtime(kv_tokens=…) a small number." if small else ""
    yield Line("memory", told, mend)


def _model() -> Iterator[Line]:
    from lmlang.errors import ModelError
    from lmlang.runtime.models.fetch import FETCH_COMMAND, cache_folder, find_embedded_model

    try:
        path = find_embedded_model()
    except ModelError as error:
        named = os.environ.get("LMLANG_MODEL")
        mend = "unset LMLANG_MODEL, or name a file." if named else f"run `{FETCH_COMMAND}`."
        yield Line("embedded model", str(error), mend)
    else:
        yield Line("embedded model", f"{path} ({size(path.stat().st_size)})")
    folder = cache_folder()
    if not folder.exists():
        yield Line("cache folder", f"{folder} (not made yet)")
    elif os.access(folder, os.W_OK):
        taken = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
        yield Line("cache folder", f"{folder} ({size(taken)})")
    else:
        yield Line(
            "cache folder",
            f"{folder} cannot be written: what could be kept is made anew at each start",
            "make it writable, or set LMLANG_CACHE to another folder.",
        )


def _optional() -> Iterator[Line]:
    for name, (extra, purpose) in OPTIONAL.items():
        if importlib.util.find_spec(name) is not None:
            yield Line(name, f"installed ({purpose})")
        else:
            mend = f'pip install "lmlang[{extra}]"'
            yield Line(name, f"not installed; for {purpose}: {mend}")


PARTS: tuple[Callable[[], Iterator[Line]], ...] = (
    _python, _torch, _kernels, _memory, _model, _optional,
)  # fmt: skip

DOCTOR = Command(
    "doctor",
    "say what this machine has, what is slow and why",
    DESCRIPTION,
    nothing,
    _run,
)
