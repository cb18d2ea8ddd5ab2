"""Runs one batch through the model: the only place where model and KV pool meet."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from lmlang.kernels.forms import row_invariant
from lmlang.runtime.attention import run_attention
from lmlang.runtime.batch import Batch
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.exact_attention import ExactPlan, run_exact
from lmlang.runtime.models.llama import CausalLM


class ModelRunner:
    """A model and the pool that its keys and values live in; the engine thread's own.

    Args:
        model: Computed with.
        pool: Of keys and values.
        deterministic: Whether a position's bits may depend on nothing but its text; batches must
            then be built ``exact``.
    """

    def __init__(self, model: CausalLM, pool: KVPool, *, deterministic: bool = False) -> None:
        self.model = model
        self.pool = pool
        self.deterministic = deterministic
        self.windows = model.shape.windows

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Store the batch's K and V and return logits float32 [K, V] for ``batch.logits_at``."""
        shape, plan = self.model.shape, batch.attention

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            own = (q, k, v, self.pool.k[layer], self.pool.v[layer])
            scale, window, cap = shape.score_scale, shape.kind(layer).window, shape.softcap
            if isinstance(plan, ExactPlan):
                return run_exact(plan, *own, scale=scale, window=window, softcap=cap)
            return run_attention(plan, *own, scale=scale, window=window, softcap=cap)

        with row_invariant() if self.deterministic else nullcontext():
            hidden = self.model.hidden(batch.input_ids, batch.positions, attend)
            return self.model.logits(hidden[batch.logits_at])
