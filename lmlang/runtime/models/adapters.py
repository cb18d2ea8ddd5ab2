"""Low-rank adapters beside a model's weights: several of them in one batch, each on its own tokens.

    y = x · Wᵀ                            all tokens
    y[rows] += (x[rows] · Aᵀ) · Bᵀ        tokens of an adapter         A [r, I]   B [O, r]

A product that a model has fused (the rows of q, k and v in one weight) has one A and one B: the
modules' own As one below the other, their Bs in their own rows and columns, and zeros elsewhere.
So tokens without an adapter are computed as if there were none.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlang.errors import quote
from lmlang.kernels.forms import is_row_invariant
from lmlang.kernels.linear import linear, product
from lmlang.runtime.models.lora import Delta, LoraFile

FEW_ROWS = 32
"""Up to so many rows of such narrow matrices the plain product is the faster one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the outputs of a module lie in a product of the model.

    Args:
        product: The model's own name of it.
        row: First of the module's outputs among the product's.
        rows: How many the module has.
        inputs: Of the product.
        outputs: Of the product.
    """

    product: str
    row: int
    rows: int
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter in the form that one model uses.

    Args:
        name: As requests say it.
        deltas: A [r, I] and B [O, r] by product, of the model's dtype; the factor is in B.
    """

    name: str
    deltas: Mapping[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class AdapterRows:
    """Which tokens of a step an adapter acts on: int64 [n] places, or a slice of them."""

    adapter: Adapter
    rows: Tensor | slice


def add_deltas(out: Tensor, x: Tensor, name: str, adapters: Seq[AdapterRows]) -> None:
    """Add to a product's outputs what adapters change of them.

    Args:
        out: [T, O], **written**.
        x: [T, I], what the product was of.
        name: The model's own of the product.
        adapters: No token is in two of them.
    """
    for each in adapters:
        delta = each.adapter.deltas.get(name)
        if delta is not None:
            a, b = delta
            mine = x[each.rows]
            times = product if len(mine) > FEW_ROWS and not is_row_invariant() else linear
            out[each.rows] += times(times(mine, a), b)


def fit(
    lora: LoraFile, base: str, places: Mapping[str, Place], dtype: torch.dtype, device: torch.device
) -> Adapter:
    """An adapter for a model whose modules lie at these places.

    Args:
        lora: What its files hold.
        base: The model's name, for messages.
        places: By module, as PEFT names it.
        dtype: Of the model.
        device: Of the model.

    Raises:
        ModelError: It does not belong to this model.
    """
    found: dict[str, list[tuple[Place, Delta]]] = {}
    for module, delta in lora.deltas.items():
        place = places.get(module)
        if place is None:
            raise lora.misfit(
                base, f"it changes {quote(module)}, which that model cannot have changed"
            )
        wanted = (place.inputs, place.rows)
        if (delta.inputs, delta.outputs) != wanted:
            raise lora.misfit(
                base,
                f"its {quote(module)} goes from {delta.inputs:,} numbers to {delta.outputs:,}, and "
                f"that of the model from {wanted[0]:,} to {wanted[1]:,}",
            )
        found.setdefault(place.product, []).append((place, delta))

    def ready(weight: Tensor) -> Tensor:
        return weight.to(device=device, dtype=dtype)

    stacked = {product: _stacked(parts) for product, parts in found.items()}
    return Adapter(lora.name, {name: (ready(a), ready(b)) for name, (a, b) in stacked.items()})


def _stacked(parts: Seq[tuple[Place, Delta]]) -> tuple[Tensor, Tensor]:
    """A and B of one product from those of its modules."""
    a = torch.cat([delta.a for _, delta in parts])
    b = torch.zeros(parts[0][0].outputs, len(a), dtype=torch.float32)
    column = 0
    for place, delta in parts:
        end = column + len(delta.a)
        b[place.row : place.row + place.rows, column:end] = delta.b
        column = end
    return a, b
