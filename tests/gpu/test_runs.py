"""Whole runs on the GPU: beside the CPU, transformers, and with and without CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lmlang.errors import ModelError, ProgramError
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.device import check_room
from lmlang.runtime.local import Runtime
from lmlang.runtime.models.fetch import find_embedded_model
from lmlang.runtime.shape import KVLayer
from tests.gpu import NEEDS_GPU
from tests.tiny import write_tiny_gguf

# isort: split
from gpu_check_parity import beside_transformers, embedded, random_one
from gpu_check_rows import Rows
from gpu_check_setting import CPU, GPU, Setting

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("part", [embedded, random_one, beside_transformers])
def test_a_part_of_the_check_passes(part: Callable[[Setting], Rows]) -> None:
    model = find_embedded_model() if part is embedded else None
    assert [row for row in part(Setting(GPU, False, model)) if row.ok is False] == []


def test_evicted_prefixes_come_back_from_main_memory() -> None:
    layers = (KVLayer(4, 2, 64, 32, 1.0),) * 2
    here, back = (KVPool(layers, 200, torch.float16, GPU) for _ in range(2))
    host = KVPool(layers, 100, torch.float16, CPU, pinned=True)
    for layer in here.layers:
        for tensor in layer.tensors():
            tensor.normal_()
    theirs, again = np.random.default_rng(0).permutation(200).reshape(2, 100)[:, :60]
    ours = np.r_[10:40, 50:80]
    host.copy_from(here, theirs, ours)
    back.copy_from(host, ours, again)
    for mine, its in zip(back.layers, here.layers, strict=True):
        for into, out_of in zip(mine.tensors(), its.tensors(), strict=True):
            assert torch.equal(into[again], out_of[theirs])


def test_what_the_gpu_cannot_hold_or_promise_is_refused(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(ProgramError, match="deterministic=True holds on a CPU"):
        Runtime(file, device="cuda", deterministic=True)
    with pytest.raises(ModelError, match=r"the weights take [\d,]+ bytes, and [\d,]+ bytes of"):
        check_room("the weights", 1 << 50, GPU)
    with pytest.raises(ModelError, match="kv_tokens: 1,000,000,000 tokens take"):
        Runtime(file, device="cuda", kv_tokens=1_000_000_000)


def test_a_runtime_on_the_gpu_takes_bfloat16_by_itself(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    with Runtime(file, kv_tokens=500) as runtime:
        assert runtime._opened.model.dtype == torch.bfloat16
        assert runtime._opened.model.device == GPU
