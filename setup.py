"""Adds to pyproject.toml what it cannot say: the C kernels, left out where nothing compiles."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup

C = Path("lmlang/kernels/c")

# Loaded through ctypes: it knows nothing of Python, so one library serves all versions of it.
NATIVE = Extension(
    "lmlang.kernels._native",
    sources=sorted(str(path) for path in C.glob("*.c")),
    depends=sorted(str(path) for path in C.glob("*.h")),
    # Without errno, square roots and the like are one instruction; a product and a sum may be one.
    extra_compile_args=[
        *("-std=gnu11", "-O3", "-g0", "-Wall", "-Wextra", "-fvisibility=hidden"),
        *("-fno-math-errno", "-ffp-contract=fast", "-pthread"),
    ],
    extra_link_args=["-pthread"],
    libraries=["m"],
    py_limited_api=True,
    optional=True,  # no compiler, or one that fails: the reference implementations run
)

setup(
    # Microsoft's compiler does not have the vector types that they are written with.
    ext_modules=[] if sys.platform == "win32" else [NATIVE],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
