"""Part of the GPU check: every kernel on the device beside the same op on the CPU in float32.

Both get the same numbers, rounded to the device's dtype first. Tests under tests/gpu run the same
cases one by one.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from gpu_check_rows import Row, Rows, failed
from gpu_check_setting import CPU, Setting
from torch import Tensor

from lmlang.kernels.activation import gelu_tanh_mul, silu_mul
from lmlang.kernels.bitmask import apply_bitmask
from lmlang.kernels.linear import int8_product
from lmlang.kernels.norm import add_rms_norm, rms_norm
from lmlang.kernels.paged import PagedKV, quantised, store_kv
from lmlang.kernels.paged_attention import (
    merge_states,
    paged_decode,
    paged_prefill,
    paged_shared,
)
from lmlang.kernels.quant import quantise_weight
from lmlang.kernels.rope import apply_rope, rope_angles, rope_frequencies
from lmlang.kernels.sampling import draw, draw_reference
from lmlang.runtime import paged_plan
from lmlang.runtime.paged_plan import paged_words, plan_paged, run_paged
from lmlang.runtime.shape import KVLayer
from lmlang.runtime.sharing import RowSlots
from lmlang.runtime.transfer import Transfer

DRAWS = "draws unlike the reference's"
PROCESSES = 8
"""At most, and four cores are left to others."""
TOLERANCE = {torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""How far numbers of about 1 may be off: some roundings of the dtype."""


@dataclass(slots=True)
class Maker:
    """Makes the same tensors on every device: from one generator, rounded, then widened again.

    Args:
        device: Where they go.
        rounded: The dtype that all numbers fit.
        dtype: The dtype that they have.
    """

    device: torch.device
    rounded: torch.dtype
    dtype: torch.dtype
    seed: int = 0

    def numbers(self, *shape: int, wide: bool = False) -> Tensor:
        """Normal numbers; ``wide`` are float32 in any case."""
        self.seed += 1
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(self.seed))
        if wide:
            return drawn.to(self.device)
        return drawn.to(self.rounded).to(self.dtype).to(self.device)

    def whole(self, numbers: object, dtype: torch.dtype = torch.int32) -> Tensor:
        """Whole numbers."""
        if not isinstance(numbers, Tensor):
            numbers = torch.from_numpy(np.array(numbers))
        return numbers.to(dtype).to(self.device)

    def order(self, count: int) -> Tensor:
        """int64 [count], all numbers below in some order."""
        self.seed += 1
        return torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))

    def pool(self, slots: int, heads: int, key: int, value: int, *, whole: bool = False) -> PagedKV:
        """Keys and values; ``whole`` are int8 with scales."""
        if not whole:
            return PagedKV(self.numbers(slots, heads, key), self.numbers(slots, heads, value))
        (k, ks), (v, vs) = (
            quantised(self.numbers(slots, heads, size, wide=True).cpu(), torch.float16)
            for size in (key, value)
        )
        k, v, ks, vs = (x.to(self.device) for x in (k, v, ks, vs))
        return PagedKV(k, v, ks, vs)


Case = Callable[[Maker], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of attention: query heads, kv heads, key and value head sizes."""

    heads: int
    kv_heads: int
    key: int
    value: int


def _starts(lengths: list[int], base: int = 0) -> list[int]:
    return [base, *(base + int(end) for end in np.cumsum(lengths))]


def prefill(sizes: Sizes, window: int, softcap: float, whole: bool, m: Maker) -> tuple[Tensor, ...]:
    """Ragged rows: an empty prefix, one token, long ones."""
    counts, lengths = [5, 1, 130, 64], [5, 1, 400, 1_064]
    kv = m.pool(sum(lengths), sizes.kv_heads, sizes.key, sizes.value, whole=whole)
    q = m.numbers(sum(counts), sizes.heads, sizes.key)
    table = m.whole(m.order(sum(lengths)))
    starts, table_starts = m.whole(_starts(counts)), m.whole(_starts(lengths))
    return paged_prefill(q, kv, starts, table, table_starts, sizes.key**-0.5, window, softcap)


def decode(sizes: Sizes, window: int, softcap: float, whole: bool, m: Maker) -> tuple[Tensor, ...]:
    """Rows of one token over contexts of all lengths, whose tables begin somewhere."""
    lengths, base = [1, 17, 2_000, 300, 129], 50
    kv = m.pool(sum(lengths) + base, sizes.kv_heads, sizes.key, sizes.value, whole=whole)
    q = m.numbers(len(lengths), sizes.heads, sizes.key)
    table, table_starts = m.whole(m.order(sum(lengths) + base)), m.whole(_starts(lengths, base))
    return paged_decode(q, kv, table, table_starts, sizes.key**-0.5, window, softcap)


def shared(sizes: Sizes, window: int, softcap: float, whole: bool, m: Maker) -> tuple[Tensor, ...]:
    """Groups over a stretch each, an empty one among them, merged into other states."""
    groups, lengths, base = [7, 0, 20, 3], [900, 40, 130, 0], 30
    kv = m.pool(sum(lengths) + base, sizes.kv_heads, sizes.key, sizes.value, whole=whole)
    q = m.numbers(40, sizes.heads, sizes.key)
    rows = m.whole(m.order(40)[: sum(groups)])
    table, table_starts = m.whole(m.order(sum(lengths) + base)), m.whole(_starts(lengths, base))
    starts = m.whole(_starts(groups))
    part = paged_shared(q, rows, starts, kv, table, table_starts, sizes.key**-0.5, softcap)
    out, lse = m.numbers(40, sizes.heads, sizes.value), m.numbers(40, sizes.heads, wide=True)
    merge_states(out, lse, *part, rows)
    return out, lse


def planned(sizes: Sizes, window: int, softcap: float, whole: bool, m: Maker) -> tuple[Tensor, ...]:
    """A layer by a plan: decode rows and chunks, two levels of shared stretches, sinks."""
    stem, branch = np.arange(600), np.arange(700, 900)
    tables = [np.r_[stem, 1_000 + 40 * i : 1_010 + 40 * i] for i in range(3)]
    tables += [np.r_[stem, branch, 1_200 + 40 * i : 1_230 + 40 * i] for i in range(3)]
    rows, start = [], 0
    for i, table in enumerate(tables):
        count = 20 if i in (2, 5) else 1
        rows.append(RowSlots(start, count, table.astype(np.int64)))
        start += count
    kv = m.pool(1_500, sizes.kv_heads, sizes.key, sizes.value, whole=whole)
    q, k, v = (
        m.numbers(start, heads, size)
        for heads, size in (
            (sizes.heads, sizes.key), (sizes.kv_heads, sizes.key), (sizes.kv_heads, sizes.value),
        )
    )  # fmt: skip
    layer = KVLayer(
        sizes.heads, sizes.kv_heads, sizes.key, sizes.value, sizes.key**-0.5, window, softcap, True
    )
    transfer = Transfer(paged_words(rows, (window,)), m.device)
    least, paged_plan.MIN_SAVED = paged_plan.MIN_SAVED, 100
    try:
        plan = plan_paged(rows, transfer, (window,))
    finally:
        paged_plan.MIN_SAVED = least
    transfer.send()
    return (run_paged(plan, q, k, v, kv, layer, m.numbers(sizes.heads)),)


def norms(m: Maker) -> tuple[Tensor, ...]:
    """RMS norms alone and with the residual."""
    x, residual, weight = m.numbers(70, 2_048), m.numbers(70, 2_048), m.numbers(2_048, wide=True)
    return rms_norm(x, weight, 1e-5), add_rms_norm(x, residual, weight, 1e-5), residual


def gates(m: Maker) -> tuple[Tensor, ...]:
    """Both gated activations."""
    x = m.numbers(33, 2 * 1_408)
    return silu_mul(x), gelu_tanh_mul(x)


def ropes(m: Maker) -> tuple[Tensor, ...]:
    """Heads of a wider buffer, turned in place."""
    frequencies = rope_frequencies(128, 10_000.0).to(m.device)
    cos, sin = rope_angles(m.whole(range(0, 6_000, 200), torch.int64), frequencies)
    x = m.numbers(30, 12, 128)
    cos, sin = (a.to(m.rounded).to(m.dtype) for a in (cos, sin))
    apply_rope(x[:, :9], cos, sin)
    return (x,)


def stores(whole: bool, m: Maker) -> tuple[Tensor, ...]:
    """New keys and values in the pool, and read back."""
    kv = m.pool(50, 4, 128, 64, whole=whole)
    slots = m.whole(m.order(50)[:20], torch.int64)
    store_kv(kv, slots, m.numbers(20, 4, 128), m.numbers(20, 4, 64))
    every = m.whole(range(50), torch.int64)
    return kv.keys(every, torch.float32), kv.values(every, torch.float32)


def int8_products(m: Maker) -> tuple[Tensor, ...]:
    """Rows by a weight of int8: on a GPU in groups of all kinds, on a CPU at once, so exactly."""
    weight = quantise_weight(m.numbers(1_000, 576, wide=True).cpu() / 24).to(m.device)
    x = m.numbers(300, 576)
    groups = [300] if m.device.type == "cpu" else [1, 16, 53, 80, 150]
    parts = [int8_product(rows, weight.values, weight.scale) for rows in torch.split(x, groups)]
    return (torch.cat(parts),)


def masks(m: Maker) -> tuple[Tensor, ...]:
    """Bitmasks over some rows of logits, where a vocabulary ends inside of a word."""
    vocab = 49_153
    logits = m.numbers(12, vocab, wide=True)
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (5, -(-vocab // 32)))
    apply_bitmask(logits, m.whole(words), m.whole([11, 0, 4, 5, 7], torch.int64))
    return (torch.nan_to_num(logits, neginf=-99.0),)


def draws(m: Maker, run: Callable[..., Tensor] = draw) -> Tensor:
    """Tokens of 600 rows by all kinds of sampling, as `draw` or its reference tells them."""
    rows, vocab = 600, 49_152
    rng = np.random.default_rng(1)
    scores = m.numbers(rows, vocab, wide=True).mul_(3)
    temperatures = rng.choice([0.0, 0.3, 1.0, 1.7], rows)
    limits = (rng.choice([vocab, 1, 40], rows), rng.choice([1.0, 0.9], rows))
    least = rng.choice([0.0, 0.05], rows)
    return run(
        scores,
        m.whole(rng.integers(-(2**31), 2**31, (rows, 2))),
        m.whole(temperatures, torch.float32),
        m.whole(limits[0], torch.int64),
        m.whole(limits[1], torch.float32),
        m.whole(least, torch.float32),
        True,
    )


SIZES = {
    "32/8 x 128": Sizes(32, 8, 128, 128),
    "32/8 x 64": Sizes(32, 8, 64, 64),
    "9/3 x 64": Sizes(9, 3, 64, 64),
    "8/8 x 80": Sizes(8, 8, 80, 80),
    "8/4 x 256": Sizes(8, 4, 256, 256),
    "16/16 x 192/128": Sizes(16, 16, 192, 128),
}
ATTENTION = {"prefill": prefill, "decode": decode, "shared": shared, "planned": planned}
OTHERS: Mapping[str, Case] = {
    "norms": norms,
    "gates": gates,
    "rope": ropes,
    "store": partial(stores, False),
    "store int8": partial(stores, True),
    "bitmask": masks,
    "int8 products": int8_products,
}


def cases() -> dict[str, Case]:
    """All of them by name but `draws`, which has no dtype and no tolerance."""
    found: dict[str, Case] = dict(OTHERS)
    for op, run in ATTENTION.items():
        for name, sizes in SIZES.items():
            found[f"{op} {name}"] = partial(run, sizes, 0, 0.0, False)
        first = SIZES["32/8 x 128"]
        found[f"{op} window softcap"] = partial(run, first, 200, 20.0, False)
        found[f"{op} int8"] = partial(run, first, 0, 0.0, True)
    return found


def difference(case: Case, device: torch.device, dtype: torch.dtype) -> float:
    """How far a case on a device is off the CPU's float32 at most, relative to numbers above 1."""
    on_device = case(Maker(device, dtype, dtype))
    wanted = case(Maker(CPU, dtype, torch.float32))
    worst = 0.0
    for mine, its in zip(on_device, wanted, strict=True):
        mine = mine.float().cpu()
        same = mine == its  # infinities too
        off = (mine - its).abs() / its.abs().clamp(min=1.0)
        worst = max(worst, float(torch.where(same, 0.0, off.nan_to_num(nan=float("inf"))).max()))
    return worst


def draws_alike(device: torch.device) -> tuple[int, int]:
    """Of how many draws a device is sure, and how many of those are not the reference's."""
    found = draws(Maker(device, torch.float32, torch.float32)).cpu()
    wanted = draws(Maker(CPU, torch.float32, torch.float32), draw_reference)
    sure = found[2] == 1
    return int(sure.sum()), int((found[0] != wanted[0])[sure].sum())


def one(name: str, dtype: torch.dtype, device: torch.device) -> Row:
    """The row of one case; `draws` has no dtype."""
    if name == DRAWS:
        sure, unlike = draws_alike(device)
        return Row(name, unlike, "tokens", "0", not unlike, f"{sure} of 600 sure")
    off, bound = difference(cases()[name], device, dtype), TOLERANCE[dtype]
    return Row(titled(name, dtype), off, "off", f"<= {bound:g}", off <= bound)


def titled(name: str, dtype: torch.dtype) -> str:
    """A case in a dtype."""
    return f"{name}, {str(dtype).removeprefix('torch.')}"


def run(setting: Setting) -> Rows:
    """The worst of every op and dtype, and every case that is off.

    On a GPU the cases run in several processes, as nearly all of the time goes to compiling.
    """
    jobs = [(name, dtype) for dtype in TOLERANCE for name in cases()] + [(DRAWS, torch.float32)]
    if setting.dry:
        few = {DRAWS, *OTHERS, *(name for name in cases() if "9/3" in name)}
        jobs = [(name, dtype) for name, dtype in jobs if name in few and dtype == torch.float32]
        done = [(job, partial(one, *job, setting.device)) for job in jobs]
        yield from summed(done)
        return
    workers = max(1, min(PROCESSES, (os.cpu_count() or 1) - 4))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        futures = [(job, pool.submit(one, *job, setting.device)) for job in jobs]
        yield from summed([(job, future.result) for job, future in futures])


def summed(results: list[tuple[tuple[str, torch.dtype], Callable[[], Row]]]) -> Rows:
    """Rows of what is off or fails, then the worst of every op and dtype."""
    worst: dict[str, Row] = {}
    for (name, dtype), result in results:
        try:
            row = result()
        except Exception as error:
            yield failed(titled(name, dtype), error)
            continue
        if name == DRAWS or not row.ok:
            yield row
        title = f"{titled(name.split()[0], dtype)}, worst"
        if name != DRAWS and (title not in worst or row.value > worst[title].value):
            worst[title] = replace(row, name=title, note=name)
    yield from worst.values()
