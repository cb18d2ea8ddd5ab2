"""Packed products against torch's own, and the switch that forces the reference."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.kernels.linear import linear, pack_weight


@settings(max_examples=60)
@given(
    st.integers(0, 70), st.integers(1, 90), st.integers(1, 90), st.integers(0, 9), st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)  # fmt: skip
def test_a_packed_product_is_the_product(
    rows: int, inputs: int, outputs: int, seed: int, biased: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator).to(dtype)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    bias = torch.randn(outputs, generator=generator).to(dtype) if biased else None
    kept = weight.clone()
    packed = pack_weight(weight)
    got = linear(x, packed, bias)
    wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance * 5)
    assert (got.shape, got.dtype) == ((rows, outputs), dtype)
    assert torch.equal(weight, kept)


def test_dtypes_without_a_layout_of_their_own_stay_as_they_are() -> None:
    weight = torch.ones(4, 3, dtype=torch.float16)
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
