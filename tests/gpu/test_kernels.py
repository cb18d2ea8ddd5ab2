"""Every kernel on the GPU beside the same op on the CPU, in every dtype."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import NEEDS_GPU

# isort: split
from gpu_check_kernels import TOLERANCE, Case, cases, difference, draws_alike

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases().items()])
def test_a_kernel_gives_what_the_cpu_gives(case: Case, dtype: torch.dtype) -> None:
    assert difference(case, torch.device("cuda", 0), dtype) <= TOLERANCE[dtype]


def test_draws_are_the_references() -> None:
    sure, unlike = draws_alike(torch.device("cuda", 0))
    assert sure > 500
    assert unlike == 0
