"""Packed products against torch's own, and the switch that forces the reference."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.kernels.linear import linear, pack_weight


@settings(max_examples=40)
@given(st.integers(0, 70), st.integers(1, 90), st.integers(1, 90), st.integers(0, 9))
def test_a_packed_product_is_the_product(rows: int, inputs: int, outputs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator)
    weight = torch.randn(outputs, inputs, generator=generator)
    kept = weight.clone()
    packed = pack_weight(weight)
    got = linear(x, packed)
    torch.testing.assert_close(got, x @ weight.T, rtol=1e-5, atol=1e-5)
    assert got.shape == (rows, outputs)
    assert torch.equal(weight, kept)


def test_other_dtypes_stay_as_they_are() -> None:
    weight = torch.ones(4, 3, dtype=torch.bfloat16)
    assert pack_weight(weight) is weight


@pytest.mark.parametrize(
    ("value", "printed"), [("reference", "False"), ("auto", "True"), ("fast", "ModelError")]
)
def test_the_environment_may_force_the_reference(value: str, printed: str) -> None:
    script = (
        "import torch\n"
        "from lmlang.kernels.linear import pack_weight\n"
        "try:\n"
        "    print(pack_weight(torch.ones(4, 3)).is_mkldnn)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )
    environment = {"LMLANG_KERNELS": value}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    if value == "auto" and not torch.backends.mkldnn.is_available():
        printed = "False"
    assert done.stdout.strip() == printed, done.stderr
