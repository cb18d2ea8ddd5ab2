"""Loads torch with OpenMP threads that spin a little; imported before anything else loads it."""

from __future__ import annotations

import os
import sys

CHOSEN = {"GOMP_SPINCOUNT": "10000", "OMP_WAIT_POLICY": "ACTIVE"}
"""How long threads spin for one another before they sleep.

libgomp's default of 300,000 turns makes every step many times longer as soon as anything else
wants a core. With more threads than cores, as when the thread that loads a model and the engine's
each have helpers, it turns to 100, and every small operation then waits for a thread to wake up: a
prompt took a third longer. Under the policy ACTIVE that number is 1,000.
"""


def _load_torch() -> None:
    """Load torch so, unless the user chose otherwise or has loaded it already.

    libgomp reads the variables once, when torch loads it. They are taken out again: child
    processes decide for themselves.
    """
    if CHOSEN.keys() & os.environ.keys() or "torch" in sys.modules:
        return
    os.environ.update(CHOSEN)
    try:
        import torch  # noqa: F401 - loaded here for its effect on libgomp
    finally:
        for name in CHOSEN:
            del os.environ[name]


_load_torch()
