"""Threads of the C kernels: no more than CPUs, of two callers at once, and after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from lmlang.kernels import native
from lmlang.kernels.c import rows
from lmlang.kernels.norm import rms_norm_reference

pytestmark = pytest.mark.skipif(not native.available(), reason=native.description())
TASKS = Path("/proc/self/task")
counts_threads = pytest.mark.skipif(
    not TASKS.exists() or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two CPUs"
)

FORKS = """
import os, signal, sys, threading
import torch
from lmlang.kernels import native
from lmlang.kernels.c import rows

torch.set_num_threads(1)
native.threads = lambda: 2
library = native.library()
library.lm_set_parallel(None)  # threads of our own, or none
x, weight = torch.randn(4096, 64), torch.ones(64)
stop = False

def busy():
    library.lm_own_threads(True)
    while not stop:
        rows.rms_norm(x, weight, 1e-5)

thread = threading.Thread(target=busy)
thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(60)
        library.lm_own_threads(True)
        rows.rms_norm(x, weight, 1e-5)
        os._exit(len(os.listdir("/proc/self/task")) != 2)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        stop = True
        sys.exit("a child has no threads of its own")
stop = True
"""


@pytest.fixture
def many_threads() -> Iterator[int]:
    """More threads asked of torch than any machine of tests has CPUs."""
    before = torch.get_num_threads()
    torch.set_num_threads(500)
    yield 500
    torch.set_num_threads(before)


@pytest.mark.usefixtures("many_threads")
def test_no_more_threads_than_cpus_are_used_however_many_are_asked_for() -> None:
    assert native.threads() <= (os.cpu_count() or 1)
    assert f", {native.threads()} threads)" in native.description()


@counts_threads
def test_own_threads_are_no_more_than_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "threads", lambda: 64)
    before = len(list(TASKS.iterdir()))
    native.library().lm_own_threads(True)
    rows.rms_norm(torch.randn(50_000, 64), torch.ones(64), 1e-5)
    native.library().lm_own_threads(False)
    assert len(list(TASKS.iterdir())) - before < len(os.sched_getaffinity(0))


@counts_threads
def test_a_forked_process_has_threads_of_its_own() -> None:
    run = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, timeout=150, text=True)
    assert run.returncode == 0, run.stderr


def test_two_callers_at_once_get_their_own_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "threads", lambda: 3)

    def same(seed: int) -> bool:
        x = torch.randn(3000, 64, generator=torch.Generator().manual_seed(seed))
        weight = torch.ones(64)
        wanted = rms_norm_reference(x, weight, 1e-5)
        native.library().lm_own_threads(True)
        found = [rows.rms_norm(x, weight, 1e-5) for _ in range(100)]
        native.library().lm_own_threads(False)
        return all(torch.allclose(each, wanted, atol=1e-5) for each in found)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(same, range(4)))
