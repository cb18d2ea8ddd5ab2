"""What the runtime knows of a model: ids go in, logits come out, attention is passed in.

    Inputs   ids [T], positions [T]  -> forward(inputs, attend) -> logits [K, vocab]
                                             attend(layer, q, k, v) once a KV layer, in order

The model knows no request, no cache and no batch. Where keys and values lie, and which of them a
token sees, is `attend`'s business; what its attention is like stands in ``kv_layers``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlang.kernels.paged import PagedKV
from lmlang.runtime.models.adapters import Adapter, AdapterRows
from lmlang.runtime.models.lora import LoraFile
from lmlang.runtime.shape import KVLayer


class Attend(Protocol):
    """``attend(layer, q, k, v) -> out``; it stores k and v itself."""

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """Attention of the batch's tokens in one layer.

        The tensors may be views of a buffer that the layer does not use again: rows are dense in
        their last axis, not contiguous as a whole, and ``attend`` must not keep them.

        Args:
            layer: Index into the model's ``kv_layers``.
            q: [T, heads, key_dim], after rope.
            k: [T, kv_heads, key_dim], after rope.
            v: [T, kv_heads, value_dim].
            sinks: [heads] of a layer that has them; a score that takes part in the softmax of
                every token and has no value.

        Returns:
            [T, heads, value_dim] in q's dtype.
        """
        ...


@runtime_checkable
class StoringAttend(Attend, Protocol):
    """Attention for which a model may store keys and values itself, in the pass that turns them."""

    def place(self, layer: int) -> tuple[PagedKV, Tensor]:
        """A layer's keys and values, and the slots of the batch's tokens, int64 [T]."""
        ...

    def stored(self, layer: int, q: Tensor, sinks: Tensor | None = None) -> Tensor:
        """What a call gives, where keys and values have been stored."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The tokens of one step, of all rows one after the other.

    Args:
        input_ids: int64 [T], each below the model's ``vocab``.
        positions: int64 [T], each below its ``max_positions``.
        logits_at: int64 [K], places in the T tokens.
        adapters: Which tokens have which adapter; most have none.
    """

    input_ids: Tensor
    positions: Tensor
    logits_at: Tensor
    adapters: tuple[AdapterRows, ...] = ()


class CausalLM(Protocol):
    """A decoder-only language model, as the runtime sees it. Thread-safe."""

    @property
    def vocab(self) -> int:
        """Logits of a token."""
        ...

    @property
    def max_positions(self) -> int:
        """Tokens of the longest context."""
        ...

    @property
    def kv_layers(self) -> tuple[KVLayer, ...]:
        """What attention is like, for each call of ``attend`` in a forward pass, in order."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, hidden states, keys and values."""
        ...

    @property
    def device(self) -> torch.device:
        """Where weights lie and inputs must."""
        ...

    def forward(self, inputs: Inputs, attend: Attend) -> Tensor:
        """Float32 logits [K, vocab] of the tokens ``inputs.logits_at``."""
        ...

    def adapter(self, lora: LoraFile, base: str) -> Adapter:
        """The form of an adapter for ``inputs.adapters``.

        Args:
            lora: What its files hold.
            base: The model's name, for messages.

        Raises:
            ModelError: It does not belong to this model.
        """
        ...
