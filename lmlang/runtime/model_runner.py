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
from lmlang.runtime.models.causal import CausalLM, Inputs


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
        self.windows = tuple(sorted({layer.window for layer in model.kv_layers}))

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Store the batch's K and V and return logits float32 [K, V] for ``batch.logits_at``."""
        plan, kv_layers, pool = batch.attention, self.model.kv_layers, self.pool

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
        ) -> Tensor:
            own = (q, k, v, pool.layers[layer], kv_layers[layer], sinks)
            if isinstance(plan, ExactPlan):
                return run_exact(plan, *own)
            return run_attention(plan, *own)

        inputs = Inputs(batch.input_ids, batch.positions, batch.logits_at)
        with row_invariant() if self.deterministic else nullcontext():
            return self.model.forward(inputs, attend)
