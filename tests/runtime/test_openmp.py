"""What torch's threads are told reaches torch, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import os, sys
{before}
from lmlang.runtime import openmp
print(sorted(name for name in openmp.THREADS | openmp.MEMORY if name in os.environ))
print("torch" in sys.modules)
"""
CHOSEN = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "THP_MEM_ALLOC_ENABLE"}


@pytest.mark.parametrize(
    ("given", "before", "loaded"),
    [
        ({}, "", True),
        ({}, "import torch", True),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "", True),
        ({"THP_MEM_ALLOC_ENABLE": "0"}, "", True),
        ({"GOMP_SPINCOUNT": "5", "THP_MEM_ALLOC_ENABLE": "1"}, "", False),
    ],
)
def test_the_variables_are_taken_out_again_and_a_users_own_stay(
    given: dict[str, str], before: str, loaded: bool
) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in CHOSEN} | given
    found = subprocess.run(
        [sys.executable, "-c", SHOW.format(before=before)],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert found.stdout.split("\n")[:2] == [str(sorted(given)), str(loaded)]


HUGE = """
from lmlang.runtime import openmp
import torch
kept = torch.ones(1 << 24)
address, inside = kept.data_ptr(), False
for line in open("/proc/self/smaps"):
    first, _, rest = line.partition("-")
    if rest and " " in rest and ":" not in first:
        inside = int(first, 16) <= address < int(rest.split()[0], 16)
    elif inside and line.startswith("VmFlags:"):
        print("hg" in line.split())
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has none"
)
@pytest.mark.parametrize(
    ("given", "asked"), [({}, "True"), ({"THP_MEM_ALLOC_ENABLE": "0"}, "False")]
)
def test_large_tensors_ask_for_large_pages(given: dict[str, str], asked: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in CHOSEN} | given
    found = subprocess.run(
        [sys.executable, "-c", HUGE],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == asked


def test_torch_reads_the_variables_while_they_are_there() -> None:
    code = "import os, sys; from lmlang.runtime import openmp; import torch"
    environment = {k: v for k, v in os.environ.items() if k not in CHOSEN}
    environment["OMP_DISPLAY_ENV"] = "VERBOSE"  # libgomp tells what it has read
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    if "GOMP_SPINCOUNT" not in found.stderr:
        pytest.skip("this torch has another OpenMP library than libgomp")
    assert "GOMP_SPINCOUNT = '10000'" in found.stderr
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in found.stderr
