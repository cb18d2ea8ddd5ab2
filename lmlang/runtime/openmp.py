"""Loads torch with OpenMP threads that do not spin; imported before anything else loads it."""

from __future__ import annotations

import os
import sys


def _load_torch() -> None:
    """Load torch so, unless the user chose otherwise or has loaded it already.

    libgomp reads the variable once, when torch loads it. Its default lets the threads of a
    parallel region spin so long that every step takes many times longer as soon as anything else
    wants a core. The variable is taken out again: child processes decide for themselves.
    """
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
    if chosen or "torch" in sys.modules:
        return
    os.environ["GOMP_SPINCOUNT"] = "10000"
    try:
        import torch  # noqa: F401 - loaded here for its effect on libgomp
    finally:
        del os.environ["GOMP_SPINCOUNT"]


_load_torch()
