"""The library of C kernels: found, loaded, and told whose threads to use.

The package's build compiles it (lmlang/kernels/c) where there is a C compiler, and leaves it out
where there is none; then the reference implementations run. One library serves all CPUs of an
architecture: it looks at run time which instructions this one has.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

from lmlang.errors import ModelError

VERSION = 6
"""Of the functions and structs of lmlang.h; a library of another is not used."""
HOME = Path(__file__).parent


class _Types(dict[torch.dtype, int]):
    def __missing__(self, dtype: torch.dtype) -> int:
        raise ValueError(f"the C kernels have no {dtype}: only {', '.join(map(str, self))}")


TYPES = _Types({torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3})
"""Numbers of dtypes in lmlang.h."""
FAULTS = {
    1: "a table names a slot that the pool does not have",
    2: "starts must ascend to at most what they count, a row needs as many slots as queries, and "
    "members must be queries",
    3: "the workspace is too small",
    4: "an id names a row that the weight does not have",
}
"""What the kernels return."""


class Attention(ctypes.Structure):
    """``lm_attention`` of lmlang.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "k_scale", "v_scale")),
        *((name, ctypes.c_void_p) for name in ("queries", "starts", "table", "table_starts")),
        *((name, ctypes.c_void_p) for name in ("out", "lse", "space")),
        ("space_size", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("q_stride", "q_head", "k_stride", "k_head")),
        *((name, ctypes.c_int64) for name in ("v_stride", "v_head", "table_size")),
        *((name, ctypes.c_int32) for name in ("q_type", "kv_type", "scale_type")),
        *((name, ctypes.c_int32) for name in ("rows", "tokens", "members", "slots")),
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "key_dim", "value_dim")),
        *((name, ctypes.c_int32) for name in ("causal", "window", "carries")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        ("threads", ctypes.c_int32),
    )


class Product(ctypes.Structure):
    """``lm_product`` of lmlang.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "digits", "bias", "out", "space")),
        *((name, ctypes.c_int64) for name in ("space_size", "x_stride")),
        *((name, ctypes.c_int32) for name in ("bits", "rows", "inputs", "outputs")),
        ("threads", ctypes.c_int32),
    )


class NormRows(ctypes.Structure):
    """``lm_norm_rows`` of lmlang.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "residual", "weight", "out")),
        *((name, ctypes.c_int64) for name in ("x_stride", "x_head", "residual_stride")),
        ("weight_head", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("type", "weight_type", "rows", "heads", "size")),
        ("eps", ctypes.c_float),
        ("threads", ctypes.c_int32),
    )


class GateRows(ctypes.Structure):
    """``lm_gate_rows`` of lmlang.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "out")),
        ("x_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("type", "rows", "size", "gelu", "threads")),
    )


class RopeRows(ctypes.Structure):
    """``lm_rope_rows`` of lmlang.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "cos", "sin")),
        *((name, ctypes.c_int64) for name in ("x_stride", "x_head", "angle_stride")),
        *((name, ctypes.c_int32) for name in ("type", "rows", "heads", "size", "threads")),
    )


class StoreRows(ctypes.Structure):
    """``lm_store_rows`` of lmlang.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "pool", "scales", "at")),
        *((name, ctypes.c_int64) for name in ("x_stride", "x_head", "pool_stride", "pool_head")),
        *((name, ctypes.c_int32) for name in ("type", "pool_type", "scale_type", "rows")),
        *((name, ctypes.c_int32) for name in ("heads", "size", "slots", "wide_slots", "threads")),
    )


class _Room(threading.local):
    """A thread's own workspace, which grows to what its largest call needs."""

    space: Tensor = torch.empty(0, dtype=torch.float32, device="cpu")


_room = _Room()


def available() -> bool:
    """Whether the library is there and can be used."""
    return _loaded()[0] is not None


def library() -> ctypes.CDLL:
    """The library.

    Raises:
        ModelError: It is not there, or cannot be used.
    """
    found, why = _loaded()
    if found is None:
        raise ModelError(
            f"the C kernels cannot be used: {why}. Install lmlang again where there is a C "
            "compiler (gcc or clang), or set LMLANG_KERNELS to 'auto'."
        )
    return found


def description() -> str:
    """What runs, for people: "C kernels (avx512, 2 threads)", or why there are none."""
    found, why = _loaded()
    if found is None:
        return f"no C kernels: {why}"
    instructions = found.lm_instructions().decode()
    return f"C kernels ({instructions}, {threads()} threads)"


def threads() -> int:
    """How many threads the kernels use: as many as torch does, of those that CPUs are there for."""
    return min(torch.get_num_threads(), _cpus()) if _shares_threads() else 1


def workspace(numbers: int) -> Tensor:
    """At least so many float32, this thread's own until its next call."""
    if len(_room.space) < numbers:
        _room.space = torch.empty(numbers, dtype=torch.float32, device="cpu")
    return _room.space


def check_fault(fault: int) -> None:
    """Raise what a kernel's result says.

    Raises:
        ValueError: It refused its arguments.
    """
    if fault:
        raise ValueError(FAULTS[fault])


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and why."""
    paths = [HOME / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return None, "lmlang was installed without them"
    try:
        found = ctypes.CDLL(str(path))
        version = found.lm_version()
    except (OSError, AttributeError) as error:
        return None, f"{path} does not load on this {platform.machine()} machine ({error})"
    if version != VERSION:
        return None, f"{path} is of version {version}, and this lmlang needs {VERSION}"
    found.lm_instructions.restype = ctypes.c_char_p
    found.lm_set_parallel.argtypes = [ctypes.c_void_p]
    found.lm_set_parallel.restype = None
    found.lm_attend_space.argtypes = [ctypes.POINTER(Attention)]
    found.lm_attend_space.restype = ctypes.c_int64
    found.lm_attend.argtypes = [ctypes.POINTER(Attention)]
    found.lm_multiply.argtypes = [ctypes.POINTER(Product)]
    found.lm_set_parallel(_parallel())
    return found, ""


@cache
def _parallel() -> int | None:
    """Address of ``GOMP_parallel`` in the OpenMP library that torch itself uses, if it has one.

    Looked up through torch's own module, among the libraries that it was linked with: another
    OpenMP library in the process would have other threads.
    """
    try:
        function = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


def _shares_threads() -> bool:
    return _parallel() is not None


@cache
def _cpus() -> int:
    """CPUs that this process may run on; an OpenMP that binds threads binds this one to one CPU."""
    bound = any(map(os.environ.get, ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")))
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if bound or allowed is None else len(allowed(0))
