"""Tests that need an NVIDIA GPU: they skip, with the reason, where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # whose cases are run one by one

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="torch finds no GPU (torch.cuda.is_available())"
    ),
]
