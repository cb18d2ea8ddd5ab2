"""Forward passes of a native model in blocks as one C call each, with nothing of Python between.

The same kernels in the same order as `LlamaModel.forward` with the paged plan: what is saved is
some three hundred small calls, half of the time of a decode step.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from lmlang.kernels import native
from lmlang.kernels.c import step as c
from lmlang.kernels.forms import form_of
from lmlang.kernels.packed import PackedWeight
from lmlang.runtime.batch import Batch
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.models.causal import CausalLM
from lmlang.runtime.models.llama import PRODUCTS, LlamaModel
from lmlang.runtime.paged_plan import PagedParts, PagedPlan


class NativeStep:
    """A model and its pool as C sees them; of the engine thread.

    Args:
        model: With all its matrices in blocks.
        pool: Its own; both are kept, and none of their tensors may be replaced.
    """

    def __init__(self, model: LlamaModel, pool: KVPool) -> None:
        self._kept = model, pool
        shape = model.shape
        self._ropes = list(model.frequencies)
        self._angles = torch.empty(0, 2 * len(self._ropes), shape.head_dim // 2)
        self._windows = sorted({layer.window for layer in model.kv_layers})
        self._layers = (c.Layer * shape.layers)(*map(self._layer, range(shape.layers)))
        kv = pool.layers[0]
        self._model = c.Model(
            self._layers,
            _matrix(model.embed),
            _matrix(model.head),
            model.norm.data_ptr(),
            shape.layers,
            shape.hidden,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.intermediate,
            shape.activation == "gelu_tanh",
            native.TYPES[kv.k.dtype],
            0 if kv.k_scale is None else native.TYPES[kv.k_scale.dtype],
            len(kv.k),
            len(self._windows),
            len(self._ropes),
            shape.norm_eps,
            shape.embed_scale,
            shape.softcap,
            shape.logit_softcap,
        )

    def _layer(self, index: int) -> c.Layer:
        model, pool = self._kept
        kv, of, norms = pool.layers[index], model.kv_layers[index], model.norms[index]
        rope = model.shape.kind(index).rope
        names = ("attention_norm", "mlp_norm", "qk_norm", "post_attention_norm", "post_mlp_norm")
        products = model.products[index]
        return c.Layer(
            *(_matrix(products[name], norms.get(f"{name}_bias")) for name in PRODUCTS),
            *(_address(norms.get(name)) for name in names),
            *(_address(part) for part in (kv.k, kv.v, kv.k_scale, kv.v_scale)),
            of.window,
            -1 if rope is None else self._ropes.index(rope),
            self._windows.index(of.window),
            of.scale,
        )

    def run(self, batch: Batch) -> Tensor:
        """Store the batch's K and V and return logits float32 [K, V]; for what `takes` a batch."""
        model, plan = self._kept[0], batch.attention
        assert isinstance(plan, PagedPlan)
        tokens, wanted = batch.input_ids.shape[0], batch.logits_at.shape[0]
        angles = self._angles_at(batch.positions)
        logits = torch.empty((wanted, model.vocab), dtype=torch.float32)
        kept: list[Tensor] = []
        parts = (c.Parts * len(self._windows))(
            *(_parts(plan.parts[window], kept) for window in self._windows)
        )
        step = c.Step(
            batch.input_ids.data_ptr(),
            plan.stores.data_ptr(),
            angles.data_ptr(),
            plan.table.data_ptr(),
            ctypes.cast(parts, ctypes.POINTER(c.Parts)),
            batch.logits_at.data_ptr(),
            logits.data_ptr(),
            table_size=plan.table.shape[0],
            tokens=tokens,
            wanted=wanted,
        )
        c.run(self._model, step)
        return logits

    def _angles_at(self, positions: Tensor) -> Tensor:
        """Float32 [T, 2 of each rope, head_dim / 2]: cosines, then sines, of a table that grows."""
        model, known = self._kept[0], self._angles.shape[0]
        last = int(positions.numpy().max(initial=0))
        if last >= known:
            new = torch.arange(known, max(last + 1, 2 * known, 512))
            parts = [part for rope in self._ropes for part in model.angles(new, rope)]
            if not parts:
                return self._angles
            self._angles = torch.cat([self._angles, torch.cat(parts, dim=1)])
        return self._angles.index_select(0, positions)


def runs_in_c(model: CausalLM) -> bool:
    """Whether steps of a model have a C form: a native one on a CPU, all matrices in blocks."""
    if not isinstance(model, LlamaModel) or form_of(torch.empty(0, device=model.device)) != "c":
        return False
    matrices = [model.embed, model.head, *(w for own in model.products for w in own.values())]
    return all(isinstance(weight, PackedWeight) for weight in matrices)


def takes(batch: Batch) -> bool:
    """Whether the C form runs a batch: no row has an adapter."""
    return isinstance(batch.attention, PagedPlan) and not batch.adapters


def _parts(parts: PagedParts, kept: list[Tensor]) -> c.Parts:
    """``kept`` gets what the C structs point to and nobody else has."""
    made = c.Parts(row_count=len(parts.rows), level_count=len(parts.levels))
    for i, rows in enumerate(parts.rows):
        at, places, first = rows.queries, None, 0
        if isinstance(at, slice):
            first, queries = at.start, at.stop - at.start
        else:
            places, queries = at.int(), len(at)
            kept.append(places)
        where = _address(places), _address(rows.starts), rows.table_starts.data_ptr()
        made.rows[i] = c.Rows(*where, first, queries, len(rows.table_starts) - 1)
    for i, level in enumerate(parts.levels):
        index = (level.queries, level.starts, level.table_starts)
        sizes = len(level.queries), len(level.starts) - 1
        made.levels[i] = c.Level(*(each.data_ptr() for each in index), *sizes)
    return made


def _matrix(weight: object, bias: Tensor | None = None) -> c.Matrix:
    assert isinstance(weight, PackedWeight)
    return c.Matrix.of(weight, bias)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
