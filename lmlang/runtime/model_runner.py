"""Runs one batch through the model: the only place where model and KV pool meet."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlang.runtime.attention import run_attention
from lmlang.runtime.batch import Batch
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.models.llama import CausalLM


class ModelRunner:
    """A model and the pool that its keys and values live in; the engine thread's own."""

    def __init__(self, model: CausalLM, pool: KVPool) -> None:
        self.model = model
        self.pool = pool
        self.windows = model.shape.windows

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Store the batch's K and V and return logits float32 [K, V] for ``batch.logits_at``."""
        shape = self.model.shape

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return run_attention(
                batch.attention, q, k, v, self.pool.k[layer], self.pool.v[layer],
                scale=shape.score_scale, window=shape.kind(layer).window, softcap=shape.softcap,
            )  # fmt: skip

        hidden = self.model.hidden(batch.input_ids, batch.positions, attend)
        return self.model.logits(hidden[batch.logits_at])
