"""Runs one batch through the model: the only place where model and KV pool meet."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from lmlang.kernels.forms import row_invariant
from lmlang.runtime.attention import AttentionPlan, run_attention
from lmlang.runtime.batch import Batch, build_batch, build_paged_batch
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.cuda_graphs import DecodeGraphs
from lmlang.runtime.decode_batch import DecodeBatches
from lmlang.runtime.exact_attention import ExactPlan, run_exact
from lmlang.runtime.models.adapters import Adapter, AdapterRows
from lmlang.runtime.models.causal import Attend, CausalLM, Inputs
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.native_step import NativeStep, runs_in_c, takes
from lmlang.runtime.paged_plan import PagedAttend, PagedPlan
from lmlang.runtime.scheduler import Plan
from lmlang.runtime.transfer import Buffer

NO_ADAPTERS: Mapping[str, Adapter] = MappingProxyType({})


class ModelRunner:
    """A model and the pool that its keys and values live in; the engine thread's own.

    Args:
        model: Computed with.
        pool: Of keys and values.
        adapters: That rows may have, by name.
        deterministic: Whether a position's bits may depend on nothing but its text.
        paged: Whether attention runs in the paged kernels, as on a GPU, and the whole step in C
            where it can. C's are deterministic; otherwise `run_exact` is.
        graphs: Of decode steps; for paged ones.
    """

    def __init__(
        self,
        model: CausalLM,
        pool: KVPool,
        *,
        adapters: Mapping[str, Adapter] = NO_ADAPTERS,
        deterministic: bool = False,
        paged: bool = False,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.model = model
        self.pool = pool
        self.windows = tuple(sorted({layer.window for layer in model.kv_layers}))
        self._adapters = adapters
        self._deterministic = deterministic
        # States over parts of the keys are kept in the model's dtype; only float32 loses nothing.
        self._shares = not deterministic or model.dtype == torch.float32
        self._paged = paged
        self._buffer = Buffer() if pool.device.type == "cpu" else None
        self._decode_batches = DecodeBatches(self.windows)
        self._native = None
        if paged and isinstance(model, LlamaModel) and runs_in_c(model):
            self._native = NativeStep(model, pool)
        self.graphs = graphs

    def batch(self, plan: Plan) -> Batch:
        """A plan's tensors, for `run`."""
        if not self._paged:
            return build_batch(plan, self.pool.device, self.windows, exact=self._deterministic)
        if self.graphs is not None:
            return build_paged_batch(plan, self.pool.device, self.windows, self.graphs.padding)
        return self._decode_batches.next(plan) or self._other_batch(plan)

    def _other_batch(self, plan: Plan) -> Batch:
        """One that is not made from the batch before."""
        device, shares, buffer = self.pool.device, self._shares, self._buffer
        batch = build_paged_batch(plan, device, self.windows, shares=shares, buffer=buffer)
        if buffer is not None:
            self._decode_batches.note(plan, batch)
        return batch

    def run(self, batch: Batch) -> Tensor:
        """Store the batch's K and V and return logits float32 [K, V], those of padding left out.

        On a GPU it returns before they are computed; the next call may overwrite them.
        """
        if self._native is not None and takes(batch):
            return self._native.run(batch)
        with torch.inference_mode():
            if batch.graph is None or self.graphs is None:
                return self._forward(batch)
            logits = self.graphs.run(batch.graph, partial(self._forward, batch))
            return logits[: batch.logit_rows[-1].end]

    def _forward(self, batch: Batch) -> Tensor:
        adapters = tuple([AdapterRows(self._adapters[name], at) for name, at in batch.adapters])
        inputs = Inputs(batch.input_ids, batch.positions, batch.logits_at, adapters)
        with row_invariant() if self._deterministic else nullcontext():
            return self.model.forward(inputs, self._attend(batch.attention))

    def _attend(self, plan: AttentionPlan | ExactPlan | PagedPlan) -> Attend:
        layers, kv_layers = self.pool.layers, self.model.kv_layers
        if isinstance(plan, PagedPlan):
            return PagedAttend(plan, layers, kv_layers)

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
        ) -> Tensor:
            own = (q, k, v, layers[layer], kv_layers[layer], sinks)
            if isinstance(plan, ExactPlan):
                return run_exact(plan, *own)
            return run_attention(plan, *own)

        return attend
