"""A planned batch through the Triton kernels gives what the reference gives, all tables in one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lmlang.kernels import forms
from lmlang.kernels.paged import PagedKV
from lmlang.runtime import paged_plan
from lmlang.runtime.paged_plan import paged_words, plan_paged, run_paged
from lmlang.runtime.shape import KVLayer
from lmlang.runtime.sharing import RowSlots
from lmlang.runtime.transfer import Transfer

INTERPRETED = True
CPU = torch.device("cpu")
WINDOWS = (0, 70)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """For choosing the form that runs."""
    yield monkeypatch
    monkeypatch.undo()
    forms._chosen.cache_clear()


def rows_of(counts: list[int]) -> list[RowSlots]:
    """Rows that share 60 slots, some of them 40 more, each with its own behind them."""
    rows, start = [], 0
    for i, count in enumerate(counts):
        shared = np.r_[0:60, 60:100] if i % 2 else np.arange(60)
        own = np.arange(120 + 10 * i, 120 + 10 * i + 3 + count)
        rows.append(RowSlots(start, count, np.concatenate([shared, own])))
        start += count
    return rows


@pytest.mark.parametrize(
    ("counts", "even"), [([1] * 5, True), ([1, 1, 1, 1, 4, 3], False)], ids=["decode", "mixed"]
)
def test_a_plan_runs_in_triton(counts: list[int], even: bool, kernels: pytest.MonkeyPatch) -> None:
    kernels.setattr(paged_plan, "MIN_SAVED", 40)
    rows = rows_of(counts)
    words = paged_words(rows, WINDOWS)
    transfer = Transfer(words, CPU, torch.full((words,), 1 << 30, dtype=torch.int32))
    plan = plan_paged(rows, transfer, WINDOWS, even=even)
    transfer.send()
    assert all(len(levels) for levels in plan.form)
    generator = torch.Generator().manual_seed(0)
    total = sum(counts)
    qkv = torch.randn(total, 4 + 2 + 2, 32, generator=generator)
    q, k, v = qkv.split([4, 2, 2], dim=1)
    before = torch.randn(2, 200, 2, 32, generator=generator)
    for window in WINDOWS:
        found = []
        for form in ("triton", "reference"):
            kernels.setenv("LMLANG_KERNELS", form)
            forms._chosen.cache_clear()
            kv = PagedKV(*before.clone())
            layer = KVLayer(4, 2, 32, 32, 0.2, window, sinks=True)
            out = run_paged(plan, q, k, v, kv, layer, torch.arange(4.0))
            found.append((out, kv.k, kv.v))
        for mine, its in zip(*found, strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)
