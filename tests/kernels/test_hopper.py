"""Every kernel compiled for Hopper (and attention for Ampere) without a GPU: what it makes of it.

A launcher is called with tensors that hold no numbers, and what it launches is compiled, so the
tiles, dtypes and alignments are those that a device gets. Matrix products must run on tensor
cores, no number may be spilled from registers, and shared memory must suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lmlang.kernels.paged import PagedKV

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from lmlang.kernels.triton import (
    activation,
    attention,
    bitmask,
    decode,
    norm,
    rope,
    sampling,
    states,
    tiles,
)
from tests.kernels.compiled import Compiled, compiling

SHARED_MEMORY = {86: 99 * 1024, 90: 227 * 1024}
"""Of a program, at most, by compute capability; 8.6 has the least of the 8.x."""
WGMMA, MMA = "wgmma.mma_async", "mma.sync"

half, single, int8 = torch.bfloat16, torch.float32, torch.int8


def empty(*shape: int, dtype: torch.dtype = half) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def index(count: int) -> torch.Tensor:
    return empty(count, dtype=torch.int32)


def pool(dk: int, dv: int, dtype: torch.dtype) -> PagedKV:
    scales = [empty(1024, 8, dtype=torch.float16) for _ in range(2)] if dtype == int8 else []
    return PagedKV(empty(1024, 8, dk, dtype=dtype), empty(1024, 8, dv, dtype=dtype), *scales)


def prefill(
    dk: int, dv: int, dtype: torch.dtype = half, kv: torch.dtype | None = None, *,
    tokens: int = 4096, window: int = 0, softcap: float = 0.0, splits: int = 1,
) -> None:  # fmt: skip
    """Two rows over contexts of 16,384 tokens, four query heads for a kv head."""
    q = empty(tokens, 48, dk, dtype=dtype)[:, :32]
    layer = pool(dk, dv, kv or dtype)
    attention.paged_prefill(
        q, layer, index(3), index(32768), index(3), dk**-0.5, window, softcap, splits=splits
    )


def shared(dk: int, dv: int, dtype: torch.dtype = half, kv: torch.dtype | None = None) -> None:
    """64 rows over one prefix."""
    q, layer = empty(64, 32, dk, dtype=dtype), pool(dk, dv, kv or dtype)
    attention.paged_shared(q, index(64), index(2), layer, index(8192), index(2), dk**-0.5)


def rows(
    dk: int, dv: int, dtype: torch.dtype = half, kv: torch.dtype | None = None, *,
    groups: int = 4, window: int = 0, softcap: float = 0.0,
) -> None:  # fmt: skip
    """64 rows of one query over contexts of 4,096 tokens."""
    q, layer = empty(64, 8 * groups, dk, dtype=dtype), pool(dk, dv, kv or dtype)
    decode.paged_decode(q, layer, index(64 * 4096), index(65), dk**-0.5, window, softcap)


def merging() -> None:
    out, lse = empty(64, 32, 128), empty(64, 32, dtype=single)
    states.merge_states(out, lse, out, lse, index(64))


def norms(width: int) -> None:
    x, weight = empty(64, width), empty(width)
    norm.rms_norm(x, weight, 1e-5)
    norm.add_rms_norm(x, x, weight, 1e-5)
    norm.add_rms_norm_at(x, x, index(8), weight, 1e-5)


def gates(width: int) -> None:
    activation.silu_mul(empty(64, 2 * width))
    activation.gelu_tanh_mul(empty(64, 2 * width))


def turned(size: int, kv: torch.dtype = half) -> None:
    """48 heads of a token turned, and those of keys and values stored, in one pass and apart."""
    qkv, angles, layer = empty(64, 48, size), empty(64, 1, size // 2), pool(size, size, kv)
    tensors = (layer.k, layer.v, layer.k_scale, layer.v_scale)
    norm.rms_norm(qkv[:, :40], empty(40, size), 1e-5)
    rope.apply_rope(qkv[:, :40], angles, angles)
    rope.rope_store(qkv, angles, angles, 32, index(64), *tensors)
    rope.store(index(64), qkv[:, 32:40], qkv[:, 40:], *tensors)


def drawn(truncates: bool) -> None:
    scores, each = empty(64, 128_256, dtype=single), empty(64, dtype=single)
    bitmask.apply_bitmask(scores, empty(64, 4_008, dtype=torch.int32), index(64).long())
    words = empty(2, 64, dtype=torch.int32).T
    sampling.draw(scores, words, each, index(64), each, each, truncates)


Launch = Callable[[], None]
MATRIX: dict[str, Launch] = {
    "prefill 128": lambda: prefill(128, 128),
    "prefill 128 float16": lambda: prefill(128, 128, torch.float16),
    "prefill 32": lambda: prefill(32, 32),
    "prefill 64": lambda: prefill(64, 64),
    "prefill 96, window and softcap": lambda: prefill(96, 96, window=4096, softcap=50.0),
    "prefill 256, window and softcap": lambda: prefill(256, 256, window=4096, softcap=50.0),
    "prefill 192 and 128": lambda: prefill(192, 128),
    "prefill 128 over int8": lambda: prefill(128, 128, kv=int8),
    "prefill 128, few tokens, split": lambda: prefill(128, 128, tokens=20, splits=4),
    "prefill 128 float32": lambda: prefill(128, 128, single),
    "shared 128": lambda: shared(128, 128),
    "rows 128": lambda: rows(128, 128),
    "rows 128, window and softcap": lambda: rows(128, 128, window=4096, softcap=50.0),
    "rows 64": lambda: rows(64, 64),
    "rows 256, 64 query heads for a kv head": lambda: rows(256, 256, groups=64),
    "rows 128, 64 query heads for a kv head": lambda: rows(128, 128, groups=64),
    "rows 128 over int8": lambda: rows(128, 128, kv=int8),
    "rows 128 float32": lambda: rows(128, 128, single),
    "rows 128 float32 over int8": lambda: rows(128, 128, single, int8),
}
"""Launches whose first kernel multiplies matrices; what else they launch merges its parts."""
PLAIN: dict[str, Launch] = {
    "prefill 256 float32": lambda: prefill(256, 256, single),
    "rows 256 float32 over int8": lambda: rows(256, 256, single, int8),
    "merged states": merging,
    "norms of 4,096": lambda: norms(4_096),
    "norms of 16,384": lambda: norms(16_384),
    "gates": lambda: gates(14_336),
    "heads of 128": lambda: turned(128),
    "heads of 96 to int8": lambda: turned(96, int8),
    "heads of 256 to int8": lambda: turned(256, int8),
    "draws": lambda: drawn(False),
    "draws that truncate": lambda: drawn(True),
}
"""Launches without tensor cores."""
SMALLER = (
    "prefill 128", "prefill 256, window and softcap", "prefill 128 over int8",
    "prefill 128 float32", "rows 128", "rows 256, 64 query heads for a kv head",
)  # fmt: skip
"""Launches that are compiled for 8.6 too."""


def compiled(
    launch: Launch, capability: int, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> list[Compiled]:
    with compiling(capability, monkeypatch, folder) as kernels:
        launch()
    assert kernels
    return kernels


def fits(kernels: list[Compiled], capability: int) -> None:
    for kernel in kernels:
        assert kernel.spilled == 0, f"{kernel.name} spills {kernel.spilled} bytes"
        assert kernel.registers * kernel.warps * 32 <= 65536
        assert kernel.shared <= SHARED_MEMORY[capability], kernel.name


@pytest.mark.parametrize("name", MATRIX)
def test_products_run_on_the_tensor_cores_of_hopper_without_spills(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernels = compiled(MATRIX[name], 90, monkeypatch, tmp_path)
    fits(kernels, 90)
    assert WGMMA in kernels[0].ptx or MMA in kernels[0].ptx
    if name.startswith(("prefill", "shared")) and "float32" not in name:
        assert WGMMA in kernels[0].ptx  # the wide form: 64 rows of queries at once
    assert "cp.async" in kernels[0].ptx  # loads that the products do not wait for


@pytest.mark.parametrize("name", PLAIN)
def test_what_multiplies_no_matrices_fits_too(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fits(compiled(PLAIN[name], 90, monkeypatch, tmp_path), 90)


@pytest.mark.parametrize("name", SMALLER)
def test_attention_fits_into_smaller_devices(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tiles, "H200", tiles.Device(84, 8))
    tiles.device_of.cache_clear()
    kernels = compiled(MATRIX[name], 86, monkeypatch, tmp_path)
    tiles.device_of.cache_clear()
    fits(kernels, 86)
    assert MMA in kernels[0].ptx
