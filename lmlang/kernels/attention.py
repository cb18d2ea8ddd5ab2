"""Attention over a paged KV pool; every form returns (out, lse), so that results can be merged.

Shapes: T, n queries · L keys · R rows · H query heads · Hkv key/value heads (H = G * Hkv, query
head h reads kv head h // G) · D head size · S slots of the pool.

An attention state is (out, lse): out = softmax(score)·v over some keys, and lse = log Σ exp(score)
over the same keys, with score = q·kᵀ·scale, or softcap·tanh(q·kᵀ·scale / softcap) where there is a
softcap. The state over two disjoint sets of keys follows from the two states alone
(`merge_states`), so a prefix shared by many rows is attended once.

Source: Dao et al., "FlashAttention" (2022) for the online softmax; Ye et al., "Cascade Inference:
Memory Bandwidth Efficient Shared Prefix Batch Decoding" (2024) for merging states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmlang.kernels.forms import use_reference
from lmlang.kernels.linear import product

CAUSAL_STEP = 128
"""Queries of one step of `causal_steps`: few, so that scores stay in the cache."""
SCORES_AT_ONCE = 1 << 21
"""Scores of one step of `dense_steps`, so that memory is bounded."""
MANY_QUERIES = 96
"""Queries of a kv head from which on `span_steps` is faster than torch's fused kernel."""
SCORES_OF_A_STEP = 1 << 18
"""Scores of one step of `span_steps`: few, so that they stay in the cache."""
Slots = Tensor | slice
"""Which slots of the pool, in order: an int64 tensor [L], or a slice where they lie together."""
ALIGNED = 8
"""Query heads of one kv head are filled up to multiples of this where bits must not vary."""


def store_kv(k_pool: Tensor, v_pool: Tensor, slots: Slots, k: Tensor, v: Tensor) -> None:
    """Write new keys and values to their slots.

    Args:
        k_pool: [S, Hkv, D], written in place; so is v_pool.
        v_pool: [S, Hkv, D].
        slots: T slots, all different.
        k: [T, Hkv, D].
        v: [T, Hkv, D].
    """
    k_pool[slots] = k.to(k_pool.dtype)
    v_pool[slots] = v.to(v_pool.dtype)


def attend_span(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slots: Slots,
    scale: float,
    softcap: float = 0.0,
    hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All queries over the same L slots.

    Args:
        q: [n, H, D].
        k_pool: [S, Hkv, D].
        v_pool: [S, Hkv, D].
        slots: L > 0 slots.
        scale: Factor on q·kᵀ.
        softcap: 0 for none.
        hidden: float32 [n, L], 0 where a query sees the slot and -inf where not (each query sees
            at least one); None where all are seen.

    Returns:
        out [n, H, D] in q's dtype, lse [n, H] float32.
    """
    n, heads, size = q.shape
    kv_heads = k_pool.shape[1]
    if q.device.type == "cpu" and not use_reference() and n * heads >= MANY_QUERIES * kv_heads:
        return span_steps(q, k_pool[slots], v_pool[slots], scale, softcap, hidden)
    # The G query heads of one kv head are so many more queries of it: no key is copied.
    folded = q.view(n, kv_heads, heads // kv_heads, size).permute(1, 2, 0, 3)
    folded = folded.reshape(1, kv_heads, -1, size)
    k = k_pool[slots].to(q.dtype).permute(1, 0, 2)[None]
    v = v_pool[slots].to(q.dtype).permute(1, 0, 2)[None]
    mask = None if hidden is None else hidden.repeat(heads // kv_heads, 1)[None, None]
    out, lse = _dense(folded, k, v, scale, softcap, mask=mask)
    out = out.view(kv_heads, heads // kv_heads, n, size).permute(2, 0, 1, 3)
    lse = lse.view(kv_heads, heads // kv_heads, n).permute(2, 0, 1)
    return out.reshape(n, heads, size), lse.reshape(n, heads)


def span_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    softcap: float = 0.0,
    hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`attend_span` over keys and values [L, Hkv, D], some queries at a time, multiplied by oneDNN.

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
    out = torch.empty((n, kv_heads, groups, size), dtype=q.dtype, device=q.device)
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
            out[start:end, head] = part.view(-1, groups, size)
    lse = lse.view(kv_heads, n, groups).transpose(0, 1)
    return out.view(q.shape), lse.reshape(n, heads)


def attend_causal(
    q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Chunks over themselves: query i of a row sees its keys 0..i.

    So what stands behind the end of a shorter row changes none of its queries.

    Args:
        q: [R, n, H, D].
        k: [R, n, Hkv, D].
        v: [R, n, Hkv, D].
        scale: Factor on q·kᵀ.
        softcap: 0 for none.

    Returns:
        out [R, n, H, D] in q's dtype, lse [R, n, H] float32.
    """
    own = q.device.type == "cpu" and not use_reference()
    if own and (softcap or (len(q) == 1 and q.shape[1] > CAUSAL_STEP // 2)):
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
    values = v.permute(0, 2, 3, 1).reshape(flat, size, n)
    future = torch.full((CAUSAL_STEP, CAUSAL_STEP), float("-inf"), device=q.device).triu_(1)
    future = future.repeat_interleave(groups, 0)
    out = torch.empty((rows, n, kv_heads, groups, size), dtype=q.dtype, device=q.device)
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
            mine[start:end] = part.view(-1, groups, size)
    lse = lse.view(rows, kv_heads, n, groups).permute(0, 2, 1, 3)
    return out.view(q.shape), lse.reshape(rows, n, heads)


def attend_decode(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    table: Tensor,
    hidden: Tensor | None,
    scale: float,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """One query a row, each over its own slots.

    Args:
        q: [R, H, D].
        k_pool: [S, Hkv, D].
        v_pool: [S, Hkv, D].
        table: int64 [R, L] slots; rows shorter than L are filled with any valid slot.
        hidden: float [R, L], 0 where a row sees the slot and -inf where not (each row sees at
            least one); None where all are seen.
        scale: Factor on q·kᵀ.
        softcap: 0 for none.

    Returns:
        out [R, H, D] in q's dtype, lse [R, H] float32.
    """
    rows, heads, size = q.shape
    kv_heads = k_pool.shape[1]
    gathered = (rows, table.shape[1], kv_heads, size)
    k = k_pool.index_select(0, table.view(-1)).to(q.dtype).view(gathered).permute(0, 2, 1, 3)
    v = v_pool.index_select(0, table.view(-1)).to(q.dtype).view(gathered).permute(0, 2, 1, 3)
    folded = q.view(rows, kv_heads, heads // kv_heads, size)
    mask = None if hidden is None else hidden[:, None, None, :]
    out, lse = _dense(folded, k, v, scale, softcap, mask=mask)
    return out.reshape(rows, heads, size), lse.reshape(rows, heads)


def attend_alone(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    table: Tensor,
    hidden: Tensor,
    scale: float,
    softcap: float = 0.0,
) -> Tensor:
    """As `attend_decode`, and a row gets the same bits whatever other rows there are.

    Args:
        q: [R, H, D].
        k_pool: [S, Hkv, D].
        v_pool: [S, Hkv, D].
        table: int64 [R, L] slots, or [1, L] where all rows see the same.
        hidden: float32 [R, L], 0 where a row sees the slot and -inf where not.
        scale: Factor on q·kᵀ.
        softcap: 0 for none.

    Returns:
        [R, H, D] in q's dtype.
    """
    rows, heads, size = q.shape
    kv_heads = k_pool.shape[1]
    groups = heads // kv_heads
    # Filled up so that what a kernel works on is aligned alike in all rows: that decides its order.
    folded = q.new_zeros(rows, kv_heads, -(-groups // ALIGNED) * ALIGNED, size)
    folded[:, :, :groups] = q.view(rows, kv_heads, groups, size)
    gathered = (len(table), table.shape[1], kv_heads, size)
    k, v = (
        pool.index_select(0, table.view(-1)).to(q.dtype).view(gathered).permute(0, 2, 1, 3)
        for pool in (k_pool, v_pool)
    )
    shape = (rows, -1, -1, -1)
    mask = hidden[:, None, None, :]
    out, _ = _dense(folded, k.expand(shape), v.expand(shape), scale, softcap, mask=mask)
    return out[:, :, :groups].reshape(rows, heads, size)


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """The state over both key sets, from the states over each; the sets are disjoint.

    Args:
        out_a: [n, H, D].
        lse_a: [n, H] float32, finite.
        out_b: [n, H, D].
        lse_b: [n, H] float32, finite.

    Returns:
        out [n, H, D], lse [n, H].
    """
    share = torch.sigmoid(lse_b - lse_a).to(out_a.dtype)
    return torch.lerp(out_a, out_b, share[..., None]), torch.logaddexp(lse_a, lse_b)


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
    """Attention state over dense keys: q [B, h, n, D], k and v [B, h, L, D], mask [B, 1, ., L]."""
    if q.device.type == "cpu" and not use_reference():
        if softcap:
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
    """Attention a few queries at a time; it takes softcaps, which torch's fused kernel does not.

    Arguments and results as in `dense_reference`.
    """
    rows, heads, n, size = q.shape
    keys, flat = k.shape[2], rows * heads
    step = max(1, SCORES_AT_ONCE // (flat * keys))
    scaled = q.reshape(flat, n, size).float() * scale
    k, v = k.reshape(flat, keys, size).float().transpose(1, 2), v.reshape(flat, keys, size)
    out = torch.empty((flat, n, size), dtype=q.dtype, device=q.device)
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
    return out.view(rows, heads, n, size), lse.view(rows, heads, n)


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
        q: [B, h, n, D].
        k: [B, h, L, D]; so is v.
        v: [B, h, L, D].
        scale: Factor on q·kᵀ.
        softcap: 0 for none.
        causal: Query i sees keys 0..i only.
        mask: Added to the scores; broadcasts to [B, h, n, L].

    Returns:
        out [B, h, n, D] in q's dtype, lse [B, h, n] float32.
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
