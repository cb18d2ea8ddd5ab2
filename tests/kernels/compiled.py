"""Compiles what a launcher launches, for a GPU that need not be there, and reads what came out."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia
from triton.runtime import driver
from triton.runtime.jit import JITFunction


@dataclass(frozen=True)
class Compiled:
    """One kernel as the device would run it.

    Args:
        name: Of the kernel.
        ptx: Its code before the last step.
        registers: Of a thread.
        spilled: Bytes of a thread that found no room in registers.
        shared: Bytes of shared memory of a program.
        warps: Of a program.
    """

    name: str
    ptx: str
    registers: int
    spilled: int
    shared: int
    warps: int


@dataclass
class _Absent:
    """Stands for Triton's driver of a GPU: answers what compiling asks."""

    capability: int
    kernels: list[Compiled] = field(default_factory=list)

    def get_current_device(self) -> int:
        return self.capability  # by which Triton remembers what it has compiled

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


@contextmanager
def compiling(capability: int, monkeypatch: Any, folder: Path) -> Iterator[list[Compiled]]:
    """In this block a launch compiles its kernel instead; tensors are of the device "meta".

    Args:
        capability: 90 for Hopper.
        monkeypatch: pytest's.
        folder: Where compiled kernels go.
    """
    absent = _Absent(capability)
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **named)
        absent.kernels.append(_read(self.__name__, kernel, folder))

    with monkeypatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        patch.setenv("TRITON_DISABLE_LINE_INFO", "1")  # faster
        patch.setattr(JITFunction, "run", compile_only)
        patch.setattr(driver, "_active", absent)  # put back as it was, which may be none at all
        yield absent.kernels


def _read(name: str, kernel: Any, folder: Path) -> Compiled:
    """Resources of a compiled kernel, read from its cubin."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    said = subprocess.run(
        [_tool("cuobjdump"), "-res-usage", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    used = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    return Compiled(
        name=name,
        ptx=kernel.asm["ptx"],
        registers=used["REG"],
        spilled=used["STACK"] + used["LOCAL"],
        shared=kernel.metadata.shared,
        warps=kernel.metadata.num_warps,
    )


def _tool(name: str) -> str:
    """A program of NVIDIA's that comes with Triton."""
    path = Path(nvidia.__file__).parent / "bin" / name
    assert path.exists(), f"triton {triton.__version__} has no {name}"
    return str(path)
