"""Attention over a paged KV pool; every form returns (out, lse), so that results can be merged.

Shapes: T, n queries · L keys · R rows · H query heads · Hkv key/value heads (H = G * Hkv, query
head h reads kv head h // G) · Dk, Dv sizes of a key and of a value head.

An attention state is (out, lse): out = softmax(score)·v over some keys, and lse = log Σ exp(score)
over the same keys, with score = q·kᵀ·scale, or softcap·tanh(q·kᵀ·scale / softcap) where there is a
softcap. The state over two disjoint sets of keys follows from the two states alone
(`merge_states`), so a prefix shared by many rows is attended once. A sink is a score without a
key, one a query head: it takes its share of the softmax and adds no value (`apply_sinks`).

Source: Dao et al., "FlashAttention" (2022) for the online softmax; Ye et al., "Cascade Inference:
Memory Bandwidth Efficient Shared Prefix Batch Decoding" (2024) for merging states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmlang.kernels.forms import use_reference
from lmlang.kernels.linear import product
from lmlang.kernels.paged import PagedKV, Slots

CAUSAL_STEP = 128
"""Queries of one step of `causal_steps`: few, so that scores stay in the cache."""
SCORES_AT_ONCE = 1 << 21
"""Scores of one step of `dense_steps`, so that memory is bounded."""
MANY_QUERIES = 96
"""Queries of a kv head from which on `span_steps` is faster than torch's fused kernel."""
SCORES_OF_A_STEP = 1 << 18
"""Scores of one step of `span_steps`: few, so that they stay in the cache."""
ALIGNED = 8
"""Query heads of one kv head are filled up to multiples of this where bits must not vary."""


def attend_span(
    q: Tensor,
    kv: PagedKV,
    slots: Slots,
    scale: float,
    softcap: float = 0.0,
    hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All queries over the same L slots.

    Args:
        q: [n, H, Dk].
        kv: The layer's pool.
        slots: L > 0 slots.
        scale: Factor on q·kᵀ.
        softcap: 0 for none.
        hidden: float32 [n, L], 0 where a query sees the slot and -inf where not (each query sees
            at least one); None where all are seen.

    Returns:
        out [n, H, Dv] in q's dtype, lse [n, H] float32.
    """
    n, heads, size = q.shape
    kv_heads = kv.kv_heads
    k, v = kv.keys(slots, q.dtype), kv.values(slots, q.dtype)
    if q.device.type == "cpu" and not use_reference() and n * heads >= MANY_QUERIES * kv_heads:
        return span_steps(q, k, v, scale, softcap, hidden)
    # The G query heads of one kv head are so many more queries of it: no key is copied.
    folded = q.view(n, kv_heads, heads // kv_heads, size).permute(1, 2, 0, 3)
    folded = folded.reshape(1, kv_heads, -1, size)
    k, v = k.permute(1, 0, 2)[None], v.permute(1, 0, 2)[None]
    mask = None if hidden is None else hidden.repeat(heads // kv_heads, 1)[None, None]
    out, lse = _dense(folded, k, v, scale, softcap, mask=mask)
    out = out.view(kv_heads, heads // kv_heads, n, -1).permute(2, 0, 1, 3)
    lse = lse.view(kv_heads, heads // kv_heads, n).permute(2, 0, 1)
    return out.reshape(n, heads, -1), lse.reshape(n, heads)


def span_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    softcap: float = 0.0,
    hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`attend_span` over keys [L, Hkv, Dk] and values [L, Hkv, Dv], by oneDNN, in steps.

    Arguments and results as there.
    """
    n, heads, size = q.shape
    kv_heads = k.shape[1]
    groups = heads // kv_heads
    step = max(32, SCORES_OF_A_STEP // len(k) // groups)
    queries = q.view(n, kv_heads, groups, size).transpose(0, 1)
    queries = queries.reshape(kv_heads, n * groups, size).float() * scale
    keys = k.transpose(0, 1).float()
    values = v.to(q.dtype).permute(1, 2, 0).contiguous()
    out = torch.empty((n, kv_heads, groups, v.shape[2]), dtype=q.dtype, device=q.device)
    lse = torch.empty((kv_heads, n * groups), dtype=torch.float32, device=q.device)
    for head in range(kv_heads):
        seen = keys[head].contiguous()
        for start in range(0, n, step):
            end = min(start + step, n)
            at = slice(start * groups, end * groups)
            scores = product(queries[head, at], seen)
            if softcap:
                scores.div_(softcap).tanh_().mul_(softcap)
            if hidden is not None:
                scores.view(end - start, groups, -1).add_(hidden[start:end, None])
            weights = torch.softmax(scores, dim=-1)
            lse[head, at] = _lse(scores, weights)
            part = product(weights.to(q.dtype), values[head])
            out[start:end, head] = part.view(end - start, groups, -1)
    lse = lse.view(kv_heads, n, groups).transpose(0, 1)
    return out.view(n, heads, -1), lse.reshape(n, heads)


def attend_causal(
    q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Chunks over themselves: query i of a row sees its keys 0..i.

    So what stands behind the end of a shorter row changes none of its queries.

    Args:
        q: [R, n, H, Dk].
        k: [R, n, Hkv, Dk].
        v: [R, n, Hkv, Dv].
        scale: Factor on q·kᵀ.
        softcap: 0 for none.

    Returns:
        out [R, n, H, Dv] in q's dtype, lse [R, n, H] float32.
    """
    own = q.device.type == "cpu" and not use_reference()
    long = len(q) == 1 and q.shape[1] > CAUSAL_STEP // 2
    if own and (long or not _fuses(k, v, softcap)):
        return causal_steps(q, k, v, scale, softcap)
    groups = q.shape[2] // k.shape[2]
    k = k.repeat_interleave(groups, dim=2).transpose(1, 2)
    v = v.repeat_interleave(groups, dim=2).transpose(1, 2)
    out, lse = _dense(q.transpose(1, 2), k, v, scale, softcap, causal=True)
    return out.transpose(1, 2), lse.transpose(1, 2)


def causal_steps(
    q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """`attend_causal` some queries at a time, each step over the keys up to the last of them.

    For chunks of a few hundred tokens it is faster than torch's fused kernel: it leaves out most
    of the scores that nobody sees, the query heads of a kv head are queries of it, and oneDNN
    multiplies.
    """
    rows, n, heads, size = q.shape
    kv_heads = k.shape[2]
    groups, flat = heads // kv_heads, rows * kv_heads

    queries = q.view(rows, n, kv_heads, groups, size).permute(0, 2, 1, 3, 4)
    queries = queries.reshape(flat, n * groups, size).float() * scale
    keys = k.permute(0, 2, 1, 3).reshape(flat, n, size).float()
    values = v.permute(0, 2, 3, 1).reshape(flat, -1, n)
    future = queries.new_full((CAUSAL_STEP, CAUSAL_STEP), float("-inf")).triu_(1)
    future = future.repeat_interleave(groups, 0)
    out = torch.empty((rows, n, kv_heads, groups, v.shape[3]), dtype=q.dtype, device=q.device)
    lse = torch.empty((flat, n * groups), dtype=torch.float32, device=q.device)
    for head in range(flat):
        mine = out[head // kv_heads, :, head % kv_heads]
        for start in range(0, n, CAUSAL_STEP):
            end = min(start + CAUSAL_STEP, n)
            at = slice(start * groups, end * groups)
            scores = product(queries[head, at], keys[head, :end])
            if softcap:
                scores.div_(softcap).tanh_().mul_(softcap)
            scores[:, start:].add_(future[: (end - start) * groups, : end - start])
            weights = torch.softmax(scores, dim=-1)
            lse[head, at] = _lse(scores, weights)
            part = product(weights.to(v.dtype), values[head, :, :end])
            mine[start:end] = part.view(end - start, groups, -1)
    lse = lse.view(rows, kv_heads, n, groups).permute(0, 2, 1, 3)
    return out.view(rows, n, heads, -1), lse.reshape(rows, n, heads)


def attend_decode(
    q: Tensor,
    kv: PagedKV,
    table: Tensor,
    hidden: Tensor | None,
    scale: float,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """One query a row, each over its own slots.

    Args:
        q: [R, H, Dk].
        kv: The layer's pool.
        table: int64 [R, L] slots; rows shorter than L are filled with any valid slot.
        hidden: float [R, L], 0 where a row sees the slot and -inf where not (each row sees at
            least one); None where all are seen.
        scale: Factor on q·kᵀ.
        softcap: 0 for none.

    Returns:
        out [R, H, Dv] in q's dtype, lse [R, H] float32.
    """
    rows, heads, size = q.shape
    kv_heads = kv.kv_heads
    k, v = _of_rows(kv, table, q.dtype)
    folded = q.view(rows, kv_heads, heads // kv_heads, size)
    mask = None if hidden is None else hidden[:, None, None, :]
    out, lse = _dense(folded, k, v, scale, softcap, mask=mask)
    return out.reshape(rows, heads, -1), lse.reshape(rows, heads)


def attend_alone(
    q: Tensor,
    kv: PagedKV,
    table: Tensor,
    hidden: Tensor,
    scale: float,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """As `attend_decode`, and a row gets the same bits whatever other rows there are.

    Args:
        q: [R, H, Dk].
        kv: The layer's pool.
        table: int64 [R, L] slots, or [1, L] where all rows see the same.
        hidden: float32 [R, L], 0 where a row sees the slot and -inf where not.
        scale: Factor on q·kᵀ.
        softcap: 0 for none.

    Returns:
        out [R, H, Dv] in q's dtype, lse [R, H] float32.
    """
    rows, heads, size = q.shape
    kv_heads = kv.kv_heads
    groups = heads // kv_heads
    # Filled up so that what a kernel works on is aligned alike in all rows: that decides its order.
    folded = q.new_zeros(rows, kv_heads, -(-groups // ALIGNED) * ALIGNED, size)
    folded[:, :, :groups] = q.view(rows, kv_heads, groups, size)
    k, v = (part.expand(rows, -1, -1, -1) for part in _of_rows(kv, table, q.dtype))
    out, lse = _dense(folded, k, v, scale, softcap, mask=hidden[:, None, None, :])
    out, lse = out[:, :, :groups], lse[:, :, :groups]
    return out.reshape(rows, heads, -1), lse.reshape(rows, heads)


def _of_rows(kv: PagedKV, table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys [R, Hkv, L, Dk] and values [R, Hkv, L, Dv] of a table [R, L] of slots."""
    slots, shape = table.view(-1), (*table.shape, kv.kv_heads, -1)
    both = kv.keys(slots, dtype), kv.values(slots, dtype)
    k, v = (part.view(shape).permute(0, 2, 1, 3) for part in both)
    return k, v


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """The state over both key sets, from the states over each; the sets are disjoint.

    Args:
        out_a: [n, H, Dv].
        lse_a: [n, H] float32, finite.
        out_b: [n, H, Dv].
        lse_b: [n, H] float32, finite.

    Returns:
        out [n, H, Dv], lse [n, H].
    """
    share = torch.sigmoid(lse_b - lse_a).to(out_a.dtype)
    return torch.lerp(out_a, out_b, share[..., None]), torch.logaddexp(lse_a, lse_b)


def apply_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """What is left of a state's output where each head's sink takes part in the softmax.

    exp(lse) / (exp(lse) + exp(sink)) is a sigmoid: the output over all keys is scaled, once.

    Args:
        out: [n, H, Dv].
        lse: [n, H] float32.
        sinks: [H].

    Returns:
        [n, H, Dv] in out's dtype.
    """
    return out * torch.sigmoid(lse - sinks.float())[..., None].to(out.dtype)


def _fuses(k: Tensor, v: Tensor, softcap: float) -> bool:
    """Whether torch's fused CPU kernel computes it."""
    return not softcap and k.shape[-1] == v.shape[-1]


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    softcap: float = 0.0,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention state over dense keys; shapes as in `dense_reference`, mask [B, 1, ., L]."""
    if q.device.type == "cpu" and not use_reference():
        if not _fuses(k, v, softcap):
            return dense_steps(q, k, v, scale, softcap, mask=mask)
        # torch's own fused CPU kernel: same result without the [n, L] scores in memory.
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )
        return out, lse
    return dense_reference(q, k, v, scale, softcap, causal=causal, mask=mask)


def dense_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    softcap: float = 0.0,
    *,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention a few queries at a time; it takes softcaps and values of another size than keys.

    Arguments and results as in `dense_reference`.
    """
    rows, heads, n, size = q.shape
    keys, flat = k.shape[2], rows * heads
    step = max(1, SCORES_AT_ONCE // (flat * keys))
    scaled = q.reshape(flat, n, size).float() * scale
    k, v = k.reshape(flat, keys, size).float().transpose(1, 2), v.reshape(flat, keys, -1)
    out = torch.empty((flat, n, v.shape[2]), dtype=q.dtype, device=q.device)
    lse = torch.empty((flat, n), dtype=torch.float32, device=q.device)
    for start in range(0, n, step):
        end = min(start + step, n)
        scores = torch.bmm(scaled[:, start:end], k)
        if softcap:
            scores.div_(softcap).tanh_().mul_(softcap)
        if mask is not None:
            part = mask if mask.shape[2] == 1 else mask[:, :, start:end]
            scores.view(rows, heads, end - start, keys).add_(part)
        weights = torch.softmax(scores, dim=-1)
        lse[:, start:end] = _lse(scores, weights)
        out[:, start:end] = torch.bmm(weights.to(v.dtype), v)
    return out.view(rows, heads, n, -1), lse.view(rows, heads, n)


def _lse(scores: Tensor, weights: Tensor) -> Tensor:
    """Log-sum-exp of scores whose softmax is known: the largest weight is exp(largest - lse)."""
    return scores.amax(-1) - weights.amax(-1).log()


def dense_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    softcap: float = 0.0,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, in plain torch and float32.

    Args:
        q: [B, h, n, Dk].
        k: [B, h, L, Dk].
        v: [B, h, L, Dv].
        scale: Factor on q·kᵀ.
        softcap: 0 for none.
        causal: Query i sees keys 0..i only.
        mask: Added to the scores; broadcasts to [B, h, n, L].

    Returns:
        out [B, h, n, Dv] in q's dtype, lse [B, h, n] float32.
    """
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if causal:
        n, keys = scores.shape[-2:]
        seen = torch.ones(n, keys, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    out = torch.matmul(torch.exp(scores - lse[..., None]), v.float())
    return out.to(q.dtype), lse
