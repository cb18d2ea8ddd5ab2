"""Any causal language model of transformers on our pool: its layers, our attention and cache.

    ids [1, T], positions [1, T]  ->  the model of transformers  ->  logits [1, K, vocab]
                                         |  call i of AttentionInterface
                                         v
                                      attend(i, q, k, v, sinks)       keys and values in the pool

All rows of a step are one packed row to it, and it makes no masks: what a token sees is `attend`'s
business. It is opened by `hf_loader`, which has looked at it and compared it with itself first.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lmlang.errors import ModelError
from lmlang.runtime.models.adapters import Adapter
from lmlang.runtime.models.causal import Attend, Inputs
from lmlang.runtime.models.hf_interface import AttentionCall, AttentionDoor
from lmlang.runtime.models.hf_lora import LoraHooks
from lmlang.runtime.models.hf_probe import Probed
from lmlang.runtime.models.lora import LoraFile
from lmlang.runtime.shape import KVLayer

_models: weakref.WeakSet[HFModel] = weakref.WeakSet()


class HFModel:
    """A `CausalLM` over a model of transformers.

    Args:
        model: It; on its device, in ``eval`` mode, under ``door.name``.
        door: Where its layers call.
        probed: What it is like.

    Attributes:
        module: The model of transformers.
    """

    def __init__(self, model: Any, door: AttentionDoor, probed: Probed) -> None:
        self.module = model
        self._door = door
        self._probed = probed
        self._lora = LoraHooks(model)
        # Models keep tables and buffers that a forward pass may write, and the door has one place.
        self._lock = threading.Lock()
        _models.add(self)

    @property
    def vocab(self) -> int:
        """Logits of a token."""
        return self._probed.vocab

    @property
    def max_positions(self) -> int:
        """Tokens of the longest context."""
        return self._probed.max_positions

    @property
    def kv_layers(self) -> tuple[KVLayer, ...]:
        """What attention is like in each call of a forward pass, by order."""
        return self._probed.kv_layers

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, hidden states, keys and values."""
        dtype: torch.dtype = self.module.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Where weights lie and inputs must."""
        device: torch.device = self.module.device
        return device

    def forward(self, inputs: Inputs, attend: Attend) -> Tensor:
        """Float32 logits [K, vocab] of the tokens ``inputs.logits_at``; see `CausalLM`."""
        with self._lock, self._lora.applied(inputs.adapters, len(inputs.input_ids)):
            return self._forward(inputs, attend)

    def adapter(self, lora: LoraFile, base: str) -> Adapter:
        """The form of an adapter for ``inputs.adapters``; see `CausalLM`."""

        def values(
            layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
        ) -> Tensor:
            return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

        two = torch.arange(2, device=self.device)
        with self._lock, torch.inference_mode():
            return self._lora.adapter(
                lora, base, lambda: self._forward(Inputs(two, two, two), values)
            )

    def _forward(self, inputs: Inputs, attend: Attend) -> Tensor:
        layers, done = len(self.kv_layers), 0

        def handler(call: AttentionCall) -> Tensor:
            nonlocal done
            done += 1
            if done > layers:
                raise self._other_count(done)
            q, k, v = (x.to(self.dtype) for x in (call.q, call.k, call.v))
            return attend(done - 1, q, k, v, call.sinks).to(call.v.dtype)

        options = {"logits_to_keep": inputs.logits_at} if self._probed.keeps_rows else {}
        with self._door.answered_by(handler):
            logits: Tensor = self.module(
                input_ids=inputs.input_ids[None],
                position_ids=inputs.positions[None],
                use_cache=False,
                **options,
            ).logits[0]
        if done != layers:
            raise self._other_count(done)
        return (logits if options else logits[inputs.logits_at]).float()

    @contextmanager
    def plain(self) -> Iterator[Any]:
        """Let the model of transformers run by itself within, under its eager attention."""
        with self._lock:
            self.module.set_attn_implementation("eager")
            try:
                yield self.module
            finally:
                self.module.set_attn_implementation(self._door.name)

    def _other_count(self, done: int) -> ModelError:
        return ModelError(
            f"a {type(self.module).__name__} called its attention {len(self.kv_layers)} times when "
            f"it was loaded and {done} times now: it cannot run on our cache. Give another model."
        )

    def free(self) -> None:
        """Let go of a pass that runs on a thread which is not there after os.fork."""
        self._lock = threading.Lock()
        self._door.forget()


def _after_fork() -> None:
    for model in _models:
        model.free()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
