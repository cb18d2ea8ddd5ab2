"""Rows of a model on a pool, step by step; and the same rows whole, by transformers alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmlang.runtime.attention import RowSlots, plan_attention, run_attention
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.models.causal import CausalLM, Inputs
from lmlang.runtime.models.hf import HFModel
from lmlang.runtime.models.hf_loader import opened
from lmlang.runtime.models.hf_packed import pack_layers
from lmlang.runtime.models.hf_refusals import check_class, check_config
from tests.models import zoo

SLOTS = 256
SHARED = 36
"""Tokens that rows share: so many that they are attended to once for all of them."""
STEPS = (
    {"a": 20},
    {"a": 17, "lone": 3},
    {"lone": 1, "a": 6, "b": 5},
    {"a": 1, "b": 1, "lone": 1, "c": 9},
    {"b": 1, "c": 1, "a": 1},
    {"lone": 1, "c": 1, "b": 1},
)
"""How many tokens of which row each step computes: chunks, decoding, both; b and c begin as a."""


class Paged:
    """A model with a pool of its own; rows by name."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self._pool = KVPool(model.kv_layers, SLOTS, model.dtype, model.device)
        # Not in order: a row's slots lie here and there.
        self._free = np.random.default_rng(1).permutation(SLOTS).tolist()
        self._tables: dict[str, list[int]] = {}

    def share(self, new: str, old: str, count: int) -> None:
        """Begin a row with the first tokens of another."""
        self._tables[new] = self._tables[old][:count]

    @torch.inference_mode()
    def step(self, parts: dict[str, list[int]]) -> dict[str, Tensor]:
        """Compute the next tokens of rows together; their logits [n, vocab] by row."""
        rows, positions, start = [], [], 0
        for name, ids in parts.items():
            table = self._tables.setdefault(name, [])
            positions += range(len(table), len(table) + len(ids))
            table += [self._free.pop() for _ in ids]
            rows.append(RowSlots(start, len(ids), np.array(table)))
            start += len(ids)
        layers = self.model.kv_layers
        windows = tuple({layer.window for layer in layers})
        plan = plan_attention(rows, self.model.device, windows)

        def attend(layer: int, q: Any, k: Any, v: Any, sinks: Any = None) -> Tensor:
            return run_attention(plan, q, k, v, self._pool.layers[layer], layers[layer], sinks)

        ids = torch.tensor([token for part in parts.values() for token in part])
        every = torch.arange(start)
        logits = self.model.forward(Inputs(ids, torch.tensor(positions), every), attend)
        return dict(zip(parts, logits.split([len(ids) for ids in parts.values()]), strict=True))


def on_our_pool(kind: str, **changes: Any) -> HFModel:
    """A tiny model of a type, as it is opened."""
    config = zoo.tiny_config(kind, **changes)
    check_config(config)
    transformer = zoo.tiny_transformer(config)
    check_class(transformer)
    pack_layers(transformer)
    return opened(transformer)


def rows_of(vocab: int) -> dict[str, list[int]]:
    """The tokens of each row of `STEPS`."""
    draw = np.random.default_rng(2)
    rows = {
        name: draw.integers(3, min(vocab, 120), count).tolist()
        for name, count in (("a", 45), ("b", SHARED + 8), ("c", SHARED + 11), ("lone", 6))
    }
    for name in ("b", "c"):
        rows[name][:SHARED] = rows["a"][:SHARED]
    return rows


def stepwise(model: CausalLM, rows: dict[str, list[int]]) -> dict[str, Tensor]:
    """Logits of each row's last tokens, those that `STEPS` compute, from the pool."""
    paged, found = Paged(model), {name: [] for name in rows}
    done = {"a": 0, "b": SHARED, "c": SHARED, "lone": 0}
    for step in STEPS:
        for name in {"b", "c"} & step.keys():
            if done[name] == SHARED:
                paged.share(name, "a", SHARED)
        parts = {name: rows[name][done[name] : done[name] + count] for name, count in step.items()}
        for name, logits in paged.step(parts).items():
            found[name].append(logits)
            done[name] += len(logits)
    assert done == {name: len(ids) for name, ids in rows.items()}
    return {name: torch.cat(parts) for name, parts in found.items()}


@torch.inference_mode()
def whole(transformer: Any, ids: list[int]) -> Tensor:
    """Logits [T, vocab] of a row by transformers alone."""
    return transformer(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
