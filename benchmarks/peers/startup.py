"""How long a Runtime takes to be ready in a process of its own, from the start of that process.

First, the model, torch and lmlang are read from the disk, and the cache folder is empty. Warm, the
files are in memory, and what lmlang has found out is in its cache folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FORMS: Mapping[str, str] = {
    "lmlang": "",
    "lmlang blocks": ", quantize='blocks'",
    "lmlang float32": ", quantize=None",
}
"""Parameters of the Runtime, by the subject that has them."""
READ = ("lmlang", "numpy", "tokenizers", "torch", "transformers")
"""Packages whose files a first start reads from the disk."""


def measured(model: Path, threads: int, repeat: int) -> dict[str, dict[str, Any]]:
    """Seconds of a first start and of warm ones, by form.

    Args:
        model: The GGUF file.
        threads: Of the process.
        repeat: Warm starts.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, parameters in FORMS.items():
        with tempfile.TemporaryDirectory() as cache:
            forget(model)
            first = _start(model, parameters, threads, cache)
            warm = [_start(model, parameters, threads, cache) for _ in range(repeat)]
        found[name] = {"first": first, "warm": warm}
    return found


def _start(model: Path, parameters: str, threads: int, cache: str) -> float:
    """Seconds until the process has said that its Runtime is ready."""
    code = (
        "import sys, lmlang\n"
        f"runtime = lmlang.Runtime(sys.argv[1]{parameters})\n"
        "print('ready', flush=True)\n"
        "runtime.close()\n"
    )
    own = {"LMLANG_CACHE": cache, "OMP_NUM_THREADS": str(threads)}
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", code, str(model)], stdout=subprocess.PIPE, env={**os.environ, **own}
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
    if line != b"ready\n" or process.returncode:
        raise RuntimeError(f"a Runtime({parameters}) did not start: see above")
    return round(seconds, 3)


def forget(model: Path) -> None:
    """Have the system drop its copies of all files of the model and of `READ` that none has mapped.

    Where the system knows no such call, a first start is one with an empty cache folder alone.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    folders = [
        Path(spec.origin).parent for name in READ if (spec := find_spec(name)) and spec.origin
    ]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    for file in [model, *files]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
