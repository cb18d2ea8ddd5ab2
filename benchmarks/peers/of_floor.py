"""The floor as a subject: the model's matrix products in plain int8, and nothing else.

One scale a token and one a row of weights, which costs this model 4 % of perplexity: no form of
lmlang computes so, and no answers come of it. It says how near to the hardware the others are.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import report

# isort: split
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmlang.runtime.models.loader import load_gguf

CHUNK = 512
"""Tokens of one step of a prefill."""
PRODUCTS = ("qkv", "out", "gate_up", "down")


class Floor:
    """Products of int8 [M, K] and int8 [K, N], by `torch._int_mm`.

    Args:
        model: The GGUF file, for the shapes.
    """

    def __init__(self, model: Path) -> None:
        loaded = load_gguf(model)
        weights, layers = loaded.weights, range(loaded.shape.layers)
        self._layers = [
            _int8(weights[f"layers.{layer}.{name}"]) for layer in layers for name in PRODUCTS
        ]
        self._head = _int8(weights["embed" if loaded.shape.tied_head else "head"])

    @torch.inference_mode()
    def __call__(self, prompts: list[list[int]], tokens: int) -> float:
        """Seconds of the products for prompts, in chunks that span them, and for each step."""
        rows, total = len(prompts), sum(map(len, prompts))
        sizes = [min(CHUNK, total - begin) for begin in range(0, total, CHUNK)]
        inputs = {
            (size, weight.shape[1]): torch.ones(size, weight.shape[1], dtype=torch.int8)
            for size in {*sizes, rows}
            for weight in [*self._layers, self._head]
        }
        began = time.perf_counter()
        for size in [*sizes, *[rows] * (tokens - 1)]:
            for weight in self._layers:
                torch._int_mm(inputs[size, weight.shape[1]], weight.t())
            torch._int_mm(inputs[rows, self._head.shape[1]], self._head.t())
        return time.perf_counter() - began


def _int8(weight: Tensor) -> Tensor:
    """[N, K] in int8, with one scale a row, which is left out."""
    largest = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-9)
    return (weight / largest * 127).round().to(torch.int8).contiguous()


def made(model: str, folder: str) -> Callable[[str, dict[str, Any]], tuple[float, None]]:
    """What runs rows that share nothing; there are no programs of a floor.

    Args:
        model: The GGUF file.
        folder: Not needed.
    """
    floor = Floor(Path(model))
    assert report  # which sets OpenMP up before torch is loaded
    return lambda name, work: (floor(work["ids"], work["tokens"]), None)
