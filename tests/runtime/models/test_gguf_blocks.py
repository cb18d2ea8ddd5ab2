"""Blocks of GGUF files as packed weights, against the dequantiser of the gguf package."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from lmlang.runtime.models.gguf_blocks import packed_rows


def rows(kind: Kind, outputs: int, inputs: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((outputs, inputs), dtype=np.float32)
    return quantize(values, kind)


@pytest.mark.parametrize(
    ("kinds", "bits"),
    [
        ((Kind.Q4_1,), 4),
        ((Kind.Q4_0,), 4),
        ((Kind.Q4_0, Kind.Q4_1), 4),
        ((Kind.Q8_0, Kind.Q8_0), 8),
    ],
)
def test_numbers_of_four_and_eight_bits_are_kept(kinds: tuple[Kind, ...], bits: int) -> None:
    parts = [(kind, rows(kind, 20 + i, 96, i)) for i, kind in enumerate(kinds)]
    weight = packed_rows(parts)
    assert weight.bits == bits
    wanted = np.concatenate([dequantize(part, kind) for kind, part in parts])
    assert np.array_equal(weight.unpacked().numpy(), wanted)


@pytest.mark.parametrize("kinds", [(Kind.Q5_1,), (Kind.Q4_1, Kind.Q8_0), (Kind.Q5_0, Kind.F16)])
def test_others_are_quantised_anew(kinds: tuple[Kind, ...]) -> None:
    parts = [(kind, rows(kind, 20 + i, 96, i)) for i, kind in enumerate(kinds)]
    weight = packed_rows(parts)
    assert weight.bits == 8
    wanted = np.concatenate([dequantize(part, kind) for kind, part in parts])
    step = np.abs(wanted).reshape(len(wanted), -1, 32).max(-1, keepdims=True) / 127
    far = np.abs(weight.unpacked().numpy() - wanted).reshape(len(wanted), -1, 32)
    assert (far <= step * 0.51).all()
