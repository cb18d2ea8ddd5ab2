"""Batches of paged attention: ragged rows over scattered slots, nothing but numbers elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlang.kernels.paged import PagedKV, store_kv

NAN = float("nan")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Batch:
    """Arguments of `paged_prefill`, and of the other ops where they have the same."""

    q: Tensor
    kv: PagedKV
    starts: Tensor
    table: Tensor
    table_starts: Tensor

    @property
    def scale(self) -> float:
        return float(self.q.shape[2] ** -0.5)

    def to(self, device: str, dtype: torch.dtype) -> Batch:
        """The same numbers, as near as the dtype has them, on a device; int8 stays int8."""
        pools = [x if x.dtype == torch.int8 else x.to(dtype) for x in (self.kv.k, self.kv.v)]
        scales = [x for x in (self.kv.k_scale, self.kv.v_scale) if x is not None]
        return replace(
            self,
            q=self.q.to(dtype).to(device),
            kv=PagedKV(*(x.to(device) for x in (*pools, *scales))),
            starts=self.starts.to(device),
            table=self.table.to(device),
            table_starts=self.table_starts.to(device),
        )


def batch(
    rows: list[tuple[int, int]],
    *,
    seed: int = 0,
    groups: int = 2,
    kv_heads: int = 2,
    sizes: tuple[int, int] = (32, 32),
    dtype: torch.dtype = torch.float32,
    int8: bool = False,
) -> Batch:
    """Rows of (queries, slots), whose slots lie in random order, some of them in several rows.

    Slots that are in no row hold NaN, and so does what stands before the first row and behind the
    last one in the table: one number taken from there spoils the result. Queries are a part of a
    wider tensor, as those of a fused projection are.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens, longest = sum(n for n, _ in rows), max([length for _, length in rows], default=0)
    heads = groups * kv_heads
    wide = torch.randn(tokens, heads + 2 * kv_heads, sizes[0], generator=generator).to(dtype)
    slots = longest + 40
    order = torch.randperm(slots - 1, generator=generator)[: longest + 20]
    k, v = (torch.randn(slots, kv_heads, size, generator=generator).to(dtype) for size in sizes)
    own = [order[torch.randperm(len(order), generator=generator)[:n]] for _, n in rows]
    before = seed % 3 * 4
    table = torch.cat([torch.full((before,), slots - 1), *own, torch.full((5,), slots - 1)]).int()
    unused = torch.ones(slots, dtype=torch.bool)
    unused[table[before:-5].long()] = False
    if int8:
        scales = [torch.zeros(slots, kv_heads, dtype=torch.float16) for _ in range(2)]
        kv = PagedKV(*(torch.zeros_like(x, dtype=torch.int8) for x in (k, v)), *scales)
        store_kv(kv, slice(0, slots), k, v)
        for scale in scales:
            scale[unused] = NAN
    else:
        kv = PagedKV(k, v)
        k[unused] = v[unused] = NAN
    starts, table_starts = (offsets([row[i] for row in rows]) for i in (0, 1))
    return Batch(wide[:, :heads], kv, starts, table, table_starts + before)


def offsets(counts: list[int]) -> Tensor:
    """Where each of these begins, one behind the other, and where the last ends."""
    return torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)


def close(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    """Two attention states agree."""
    for x, y in zip(got, wanted, strict=True):
        assert x.dtype == y.dtype
        bound = TOLERANCE[dtype]
        torch.testing.assert_close(x.float().cpu(), y.float().cpu(), rtol=bound, atol=bound)
