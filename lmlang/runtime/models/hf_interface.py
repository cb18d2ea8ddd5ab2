"""Our attention under a private name in transformers: what a model's layers call in a forward pass.

    layer of a model -> AttentionInterface[name] -> the handler of this forward pass

A model object owns its name and the place for the handler, so that models do not meet, and nothing
has to pass through the keyword arguments of layers, which some of them drop.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lmlang.errors import ModelError

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCall:
    """What a layer hands to its attention, for the T tokens of one packed row.

    Args:
        module: The layer's attention.
        q: [T, H, Dk], after rope.
        k: [T', Hkv, Dk], after rope; T' is T but in attention over something else.
        v: [T', Hkv, Dv].
        mask: Its mask, None where transformers leaves that to us.
        options: All else that it says.
    """

    module: torch.nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    options: Mapping[str, Any]

    @property
    def sinks(self) -> Tensor | None:
        """[H] scores without a key."""
        sinks: Tensor | None = self.options.get("s_aux")
        return sinks


Handler: TypeAlias = Callable[[AttentionCall], Tensor]
"""Gives [T, H, Dv]."""
MaskFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether, for (row, head, query's place, key's place), the query sees the key."""


class AttentionDoor:
    """One model's private names in transformers' tables, and who answers to them.

    Attributes:
        name: What the model's ``attn_implementation`` is while it runs: it makes no masks.
        tagging: What it is while its layers are looked at: a mask holds the number of its
            function in ``masks``, the first being 1, all over.
        masks: Functions of masks that were asked for under ``tagging``.
    """

    def __init__(self) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface

        number = next(_numbers)
        self.name = f"lmlang_{number}"
        self.tagging = f"lmlang_{number}_tagging"
        self.masks: list[MaskFunction] = []
        self._handlers: list[Handler] = []
        answer, tag = _answering(self._handlers), _tagging(self.masks)
        AttentionInterface.register(self.name, answer)
        AttentionInterface.register(self.tagging, answer)
        AttentionMaskInterface.register(self.tagging, tag)
        weakref.finalize(self, _forget, (self.name, self.tagging)).atexit = False

    @contextmanager
    def answered_by(self, handler: Handler) -> Iterator[None]:
        """Let a handler answer all calls within; one forward pass at a time."""
        self._handlers.append(handler)
        try:
            yield
        finally:
            self._handlers.pop()

    def forget(self) -> None:
        """Let nobody answer."""
        self._handlers.clear()


def _answering(handlers: list[Handler]) -> Callable[..., tuple[Tensor, None]]:
    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """As transformers calls it: [1, H, T, D] in, [1, T, H, D] out."""
        if not handlers:
            raise ModelError(
                "a model that lmlang opened was called outside of its Runtime, and its attention "
                "is there only: generate with the Runtime."
            )
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        out = handlers[-1](AttentionCall(module, q, k, v, attention_mask, options))
        return out.unsqueeze(0), None

    return attention


def _tagging(masks: list[MaskFunction]) -> Callable[..., Tensor]:
    def tag(
        *, q_length: int, kv_length: int, mask_function: MaskFunction, device: Any, **_: Any
    ) -> Tensor:
        masks.append(mask_function)
        return torch.full((1, 1, q_length, kv_length), float(len(masks)), device=device)

    return tag


def _forget(names: tuple[str, ...]) -> None:
    """Take the names out again; transformers has no call for that."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for table in (AttentionInterface, AttentionMaskInterface):
        for name in names:
            getattr(table, "_global_mapping", {}).pop(name, None)
