"""Models of transformers with few bits a weight: those that come so, and int8 of our own making.

What comes quantised (GPTQ, AWQ, …) is loaded and computed by transformers with the packages that
it takes for that. Of a plain model the linear layers can be made int8, as native models' are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lmlang.errors import ModelError, quote
from lmlang.kernels.linear import linear
from lmlang.kernels.quant import Int8Weight, quantise_weight

NEEDED: Mapping[str, Sequence[str]] = {
    "gptq": ("gptqmodel", "optimum", "accelerate"),
    "awq": ("gptqmodel", "accelerate"),
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "compressed-tensors": ("compressed-tensors", "accelerate"),
    "torchao": ("torchao", "accelerate"),
    "fp8": ("accelerate",),
}
"""By method of quantisation the packages, as pip names them, without which transformers loads
none; it says so itself of the methods that are not here."""


def method_of(config: Any) -> str | None:
    """How a model that comes quantised is quantised, by transformers' name of it.

    Args:
        config: transformers' object.
    """
    given = getattr(config, "quantization_config", None)
    if not given:
        return None
    named = given.get("quant_method") if isinstance(given, Mapping) else given.quant_method
    if named is None and isinstance(given, Mapping):  # as transformers tells it of old files
        named = "bitsandbytes" if given.get("load_in_4bit") or given.get("load_in_8bit") else None
    return str(getattr(named, "value", named))


def check_packages(folder: Path, method: str) -> None:
    """Refuse a quantised model whose packages are not there.

    Raises:
        ModelError: It names the method and what to install.
    """
    needed = NEEDED.get(method, ())
    absent = [name for name in needed if find_spec(name.replace("-", "_")) is None]
    if absent:
        raise ModelError(
            f"{folder} is quantised by {quote(method)}, which transformers computes with the "
            f"packages {', '.join(needed)}; {', '.join(absent)} missing: "
            f"`pip install {' '.join(absent)}`, or give the model unquantised."
        )


class Int8Linear(nn.Module):
    """A linear layer whose weight is int8.

    Args:
        weight: [O, I].
        bias: [O] or None.
    """

    values: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        made = quantise_weight(weight.detach())
        self.out_features, self.in_features = made.shape
        self._dtype = made.dtype
        self.register_buffer("values", made.values)
        self.register_buffer("scale", made.scale)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] to [..., O]."""
        weight = Int8Weight(self.values, self.scale, self._dtype)
        flat = linear(x.reshape(-1, self.in_features), weight, self.bias)
        return flat.view(*x.shape[:-1], self.out_features)


def quantise_layers(model: Any) -> None:
    """Make the linear layers of a model of transformers int8, in place.

    A head that shares its weight with the embedding stays as it is.

    Raises:
        ModelError: Most of its numbers are elsewhere (in fused experts, say).
    """
    from transformers.pytorch_utils import Conv1D

    embedded = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    layers = {
        name: module
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, Conv1D) and id(module.weight) not in embedded
    }
    ours = {id(module.weight): module.weight.numel() for module in layers.values()}
    others = sum(
        parameter.numel()
        for parameter in model.parameters()
        if parameter.ndim > 1 and id(parameter) not in ours.keys() | embedded
    )
    most = sum(ours.values())
    if others > most:
        raise ModelError(
            f"quantize='int8' is for linear layers, and {others:,} of the {others + most:,} "
            f"numbers of this {type(model).__name__} are elsewhere: leave it out."
        )
    for name, module in layers.items():
        weight = module.weight.T if isinstance(module, Conv1D) else module.weight
        model.set_submodule(name, Int8Linear(weight, module.bias))
