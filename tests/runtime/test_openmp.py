"""What torch's threads are told reaches torch, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = """
import os, sys
{before}
from lmlang.runtime import openmp
print(sorted(name for name in openmp.CHOSEN if name in os.environ))
print("torch" in sys.modules)
"""
CHOSEN = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}


@pytest.mark.parametrize(
    ("given", "before", "left"),
    [
        ({}, "", "[]"),
        ({}, "import torch", "[]"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "", "['OMP_WAIT_POLICY']"),
        ({"GOMP_SPINCOUNT": "5"}, "", "['GOMP_SPINCOUNT']"),
    ],
)
def test_the_variables_are_taken_out_again_and_a_users_own_stay(
    given: dict[str, str], before: str, left: str
) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in CHOSEN} | given
    found = subprocess.run(
        [sys.executable, "-c", SHOW.format(before=before)],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    loaded = "False" if given else "True"
    assert found.stdout.split("\n")[:2] == [left, loaded]


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
