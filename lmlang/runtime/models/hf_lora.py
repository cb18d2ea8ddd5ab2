"""LoRA adapters on a model of transformers: hooks on its linear layers add what adapters change.

    linear(x [1, T, in]) -> y [1, T, out]       hook:  y[0, rows] += (x[0, rows] · Aᵀ) · Bᵀ

Only layers that see every token of the packed row, in its order, can have an adapter: not the
output head, which sees few of them, and no experts, to which tokens are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lmlang.errors import ModelError, quote
from lmlang.runtime.models.adapters import Adapter, AdapterRows, Place, add_deltas, fit
from lmlang.runtime.models.lora import LoraFile


class LoraHooks:
    """The hooks of one model, and which tokens of the pass that runs have which adapter.

    Not thread-safe: whoever runs the model lets one pass at a time.

    Args:
        model: Of transformers.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._hooked: set[str] = set()
        self._called: set[str] = set()
        self._tokens = 0
        self._adapters: Seq[AdapterRows] = ()

    def adapter(self, lora: LoraFile, base: str, run: Callable[[], object]) -> Adapter:
        """The form of an adapter for `applied`.

        Args:
            lora: What its files hold.
            base: The model's name, for messages.
            run: A forward pass of two tokens.

        Raises:
            ModelError: It does not belong to the model, or changes what cannot have an adapter.
        """
        modules = _linear(self._model)
        places = {name: _place(name, module) for name, module in modules.items()}
        made = fit(lora, base, places, self._model.dtype, self._model.device)
        for name in made.deltas.keys() - self._hooked:
            modules[name].register_forward_hook(self._hook(name))
            self._hooked.add(name)
        with self.applied([AdapterRows(made, slice(0, 2))], 2):
            run()
        for name in made.deltas.keys() - self._called:
            raise lora.misfit(
                base, f"it changes {quote(name)}, whose weight that model reads without calling it"
            )
        return made

    @contextmanager
    def applied(self, adapters: Seq[AdapterRows], tokens: int) -> Iterator[None]:
        """Let adapters act on their tokens, of so many, in the forward pass within."""
        self._adapters, self._tokens = adapters, tokens
        self._called.clear()
        try:
            yield
        finally:
            self._adapters = ()

    def _hook(self, name: str) -> Callable[[torch.nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def add(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if not self._adapters:
                return output
            self._called.add(name)
            flat = output.reshape(-1, output.shape[-1])
            if len(flat) != self._tokens:
                raise ModelError(
                    f"lora: {quote(name)} was called with {len(flat):,} of {self._tokens:,} "
                    "tokens, so no adapter can act there: give one that leaves it as it is."
                )
            x = inputs[0].reshape(self._tokens, -1).to(self._model.dtype)
            add_deltas(flat, x, name, self._adapters)
            return flat.view(output.shape)

        return add


def _linear(model: Any) -> Mapping[str, torch.nn.Module]:
    """Layers that can have an adapter, by name."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if module is not head and "experts" not in name.split(".") and _sizes(module) is not None
    }


def _place(name: str, module: torch.nn.Module) -> Place:
    sizes = _sizes(module)
    assert sizes is not None
    inputs, outputs = sizes
    return Place(name, 0, outputs, inputs, outputs)


def _sizes(module: torch.nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of a linear layer, whatever its weight is like; None for other modules."""
    sizes = getattr(module, "in_features", None), getattr(module, "out_features", None)
    if all(isinstance(size, int) for size in sizes):
        return sizes  # type: ignore[return-value]
    weight = getattr(module, "weight", None)
    if type(module).__name__ == "Conv1D" and isinstance(weight, Tensor):  # GPT-2's: [in, out]
        return weight.shape[0], weight.shape[1]
    return None
