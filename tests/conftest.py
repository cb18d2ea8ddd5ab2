"""Settings of all tests: the same examples every time, and no limit on seconds."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# Two processes share the cores (make test), and two threads in each would wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from lmlang.runtime import openmp  # noqa: F401 - before any test loads torch

settings.register_profile(
    "lmlang",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # of the machine, where it is busy
)
settings.load_profile("lmlang")

pytest_plugins = ["pytester"]

# Tests interrupt their own process, which a shell that put them into the background had ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
