"""Part of the GPU check: attention as a share of what the device's memory and matrix units reach.

    copy, GEMM     the rates that all is measured by: a large copy, and bfloat16 products of 8,192
    decode         64 rows of 4,096 tokens, in runs of slots and in slots of no order
    prefill        a prompt of 8,192 tokens, and a chunk of 2,048 behind 8,192
    cascade        64 rows behind one prefix of 8,192 tokens, shared and each by itself

Heads are those of an 8B Llama: 32 query heads, 8 kv heads of 128 numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from gpu_check_rows import Row, Rows, at_least, failed
from gpu_check_setting import Setting

from lmlang.kernels.paged import PagedKV, quantised
from lmlang.kernels.paged_attention import paged_decode, paged_prefill
from lmlang.runtime import paged_plan
from lmlang.runtime.paged_plan import paged_words, plan_paged, run_paged
from lmlang.runtime.shape import KVLayer
from lmlang.runtime.sharing import RowSlots
from lmlang.runtime.transfer import Transfer

HEADS, KV_HEADS, SIZE = 32, 8, 128


def pool(setting: Setting, slots: int) -> PagedKV:
    """Random keys and values."""
    k, v = (
        torch.empty((slots, KV_HEADS, SIZE), dtype=setting.half, device=setting.device).normal_()
        for _ in range(2)
    )
    return PagedKV(k, v)


def queries(setting: Setting, count: int) -> torch.Tensor:
    """Random queries."""
    return torch.randn((count, HEADS, SIZE), device=setting.device).to(setting.half)


def whole(setting: Setting, numbers: object) -> torch.Tensor:
    """int32 on the device."""
    return torch.as_tensor(np.array(numbers), dtype=torch.int32).to(setting.device)


def gemm(setting: Setting) -> float:
    """Operations a second of a large product."""
    size = 64 if setting.dry else 8_192
    a, b = (torch.randn((size, size), device=setting.device).to(setting.half) for _ in range(2))
    return 2 * size**3 / (setting.milliseconds(lambda: a @ b) * 1e-3)


def decode(setting: Setting, bandwidth: float) -> Rows:
    """Bytes of keys and values a second, as a share of the copy's."""
    rows, length = (4, 64) if setting.dry else (64, 4_096)
    kv, q = pool(setting, rows * length), queries(setting, rows)
    starts = whole(setting, range(0, rows * length + 1, length))
    runs = torch.arange(rows * length, dtype=torch.int32, device=setting.device)
    mixed = torch.randperm(rows * length, device=setting.device).int()
    stored = 2 * kv.k.nbytes
    for name, table in (("in runs", runs), ("in no order", mixed)):
        work = partial(paged_decode, q, kv, table, starts, SIZE**-0.5)
        share = stored / (setting.milliseconds(work) * 1e-3) / bandwidth
        title = f"decode attention, {rows} x {length:,}, slots {name}"
        yield at_least(title, share, "of copy", 0.80 if name == "in runs" else 0.70)
    (k, ks), (v, vs) = (quantised(x, torch.float16) for x in (kv.k, kv.v))
    packed = PagedKV(k, v, ks, vs)
    stored = sum(x.nbytes for x in packed.tensors())
    taken = setting.milliseconds(partial(paged_decode, q, packed, runs, starts, SIZE**-0.5))
    yield Row("decode attention, int8", stored / (taken * 1e-3) / bandwidth, "of copy")


def prefill(setting: Setting, rate: float) -> Rows:
    """Operations a second of the scores that are seen, as a share of the product's."""
    for new, before in ((64, 0), (16, 64)) if setting.dry else ((8_192, 0), (2_048, 8_192)):
        kv, q = pool(setting, new + before), queries(setting, new)
        table = torch.arange(new + before, dtype=torch.int32, device=setting.device)
        starts, ends = whole(setting, [0, new]), whole(setting, [0, new + before])
        taken = setting.milliseconds(partial(paged_prefill, q, kv, starts, table, ends, SIZE**-0.5))
        seen = new * before + new * (new + 1) / 2
        share = 4 * HEADS * SIZE * seen / (taken * 1e-3) / rate
        yield at_least(f"prefill attention, {new:,} behind {before:,}", share, "of GEMM", 0.45)


@contextmanager
def least_saved(least: int):
    """Share stretches from so many slots on."""
    usual, paged_plan.MIN_SAVED = paged_plan.MIN_SAVED, least
    try:
        yield
    finally:
        paged_plan.MIN_SAVED = usual


def layer_of(
    setting: Setting, rows: list[RowSlots], slots: int, least: int
) -> Callable[[], object]:
    """A layer of decode rows, planned beforehand."""
    transfer = Transfer(paged_words(rows, (0,)), setting.device)
    with least_saved(least):
        plan = plan_paged(rows, transfer)
    transfer.send()
    kv, q = pool(setting, slots), queries(setting, len(rows))
    fresh = kv.k[: len(rows)].clone()
    layer = KVLayer(HEADS, KV_HEADS, SIZE, SIZE, SIZE**-0.5)
    return partial(run_paged, plan, q, fresh, fresh, kv, layer)


def cascade(setting: Setting) -> Rows:
    """What sharing a prefix gains, and where it begins to."""
    own = 8 if setting.dry else 128

    def both(count: int, prefix: int) -> tuple[float, float]:
        rows = [
            RowSlots(i, 1, np.r_[0:prefix, prefix + own * i : prefix + own * (i + 1)])
            for i in range(count)
        ]
        slots = prefix + own * count
        plain, shared = (
            setting.milliseconds(layer_of(setting, rows, slots, least)) for least in (1 << 40, 1)
        )
        return plain, shared

    rows, prefix = (4, 64) if setting.dry else (64, 8_192)
    plain, shared = both(rows, prefix)
    note = f"{plain:.3f} ms and {shared:.3f} ms a layer"
    yield at_least(f"cascade, {rows} rows over {prefix:,}", plain / shared, "x plain", 4.0, note)
    for rows, prefix in ((2, 16),) if setting.dry else ((4, 512), (4, 4_096), (16, 512), (64, 128)):
        plain, shared = both(rows, prefix)
        name = f"cascade, {rows} rows over {prefix:,} ({prefix * (rows - 1):,} saved)"
        yield Row(name, plain / shared, "x plain", note="MIN_SAVED is to be where this passes 1")


def run(setting: Setting) -> Rows:
    """Rates first, then what is measured by them."""
    bandwidth, rate = setting.bandwidth(), gemm(setting)
    yield Row("copy bandwidth", bandwidth / 1e12, "TB/s")
    yield Row("GEMM rate", rate / 1e12, "TFLOP/s")
    for name, part in (
        ("decode attention", partial(decode, setting, bandwidth)),
        ("prefill attention", partial(prefill, setting, rate)),
        ("cascade", partial(cascade, setting)),
    ):
        try:
            yield from part()
        except Exception as error:
            yield failed(name, error)
