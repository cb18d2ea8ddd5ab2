"""Checkpoints of GPTQ and AWQ, packed here by hand, against the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lmlang.runtime.models.opened import open_model
from tests.models.folders import said, save
from tests.models.paged import Paged

GROUP = 32
METHODS: dict[str, dict[str, Any]] = {
    "gptq": {"bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
    "awq": {"bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs each nibble of a word holds, from the lowest (AutoAWQ's format)."""

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("gptqmodel", "optimum")),
    reason="transformers loads these with the packages gptqmodel and optimum, which are not here",
)


def _words(nibbles: Tensor, dim: int, order: Sequence[int] = range(8)) -> Tensor:
    """Eight neighbours along a dimension as one int32, the lowest bits first."""
    parts = nibbles.to(torch.int64).unflatten(dim, (-1, 8)).movedim(dim + 1, -1)
    word = sum(parts[..., place] << (4 * nibble) for nibble, place in enumerate(order))
    assert isinstance(word, Tensor)
    return (word - (word >> 31 << 32)).to(torch.int32)


def _packed(method: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A weight [O, I] as the method's tensors, and what they stand for, [O, I]."""
    groups = weight.T.unflatten(0, (-1, GROUP))  # [I / GROUP, GROUP, O]
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    scale = ((high - low) / 15).half().float()
    zero = (-low / scale).round().clamp(1, 15)
    digits = (groups / scale + zero).round().clamp(0, 15)
    stands_for = ((digits - zero) * scale).flatten(0, 1).T
    digits, zero, scale = digits.flatten(0, 1), zero.flatten(0, 1), scale.flatten(0, 1)
    if method == "awq":
        order = {"qweight": _words(digits, 1, AWQ_ORDER), "qzeros": _words(zero, 1, AWQ_ORDER)}
    else:  # GPTQ's first format keeps a zero point as one less
        indices = torch.arange(len(digits), dtype=torch.int32) // GROUP
        order = {"qweight": _words(digits, 0), "qzeros": _words(zero - 1, 1), "g_idx": indices}
    return order | {"scales": scale.half()}, stands_for


@pytest.mark.parametrize("method", METHODS)
def test_four_bits_are_the_numbers_that_they_stand_for(method: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    for folder in (plain, packed):
        torch.manual_seed(1)
        save(folder, "llama", **sizes)
    weights, held = load_file(plain / "model.safetensors"), {}
    for name, weight in list(weights.items()):
        if name.endswith("_proj.weight"):
            tensors, weights[name] = _packed(method, weight)
            held |= {name.replace("weight", key): tensor for key, tensor in tensors.items()}
        else:
            held[name] = weight
    for folder, state in ((plain, weights), (packed, held)):
        whole = {name: tensor.contiguous() for name, tensor in state.items()}
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    said(packed, quantization_config={"quant_method": method, **METHODS[method]})

    def logits(folder: Path) -> Tensor:
        paged = Paged(open_model(folder, dtype="bfloat16").model)
        first = paged.step({"a": list(range(3, 23))})["a"]
        return torch.cat([first, paged.step({"a": [7]})["a"]]).float()

    expected, got = logits(plain), logits(packed)
    assert (got - expected).abs().max() < 0.05 * expected.abs().max()
