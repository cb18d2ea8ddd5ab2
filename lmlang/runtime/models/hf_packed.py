"""The linear layers of a model of transformers, with weights as the CPU's matrix kernels like them.

The layout is the one of native models. On a CPU that is not Intel's these products take half the
time of torch's own; on a device, and in dtypes that have no such layout, nothing is changed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lmlang.kernels.linear import linear, pack_weight


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed; what else of the model reads it gets a plain copy.

    Args:
        packed: [O, I], by `pack_weight`.
        bias: [O] or None.
        turned: Whether ``weight`` is [I, O], as in GPT-2's layers.
    """

    def __init__(self, packed: Tensor, bias: nn.Parameter | None, turned: bool) -> None:
        super().__init__()
        self.out_features, self.in_features = packed.shape
        self.bias = bias
        self._packed = packed
        self._turned = turned

    @property
    def weight(self) -> Tensor:
        """Its numbers, unpacked for this one use."""
        plain = self._packed.to_dense()
        return plain.T if self._turned else plain

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] to [..., O]."""
        out = linear(x.reshape(-1, self.in_features), self._packed, self.bias)
        return out.view(*x.shape[:-1], self.out_features)


def pack_layers(model: Any) -> None:
    """Pack the linear layers of a model in place, where that is of use."""
    from transformers.pytorch_utils import Conv1D

    for name, module in list(model.named_modules()):
        if type(module) not in (nn.Linear, Conv1D):
            continue
        turned = isinstance(module, Conv1D)
        plain = module.weight.detach()
        packed = pack_weight(plain.T if turned else plain)
        if isinstance(packed, Tensor) and packed.is_mkldnn:
            model.set_submodule(name, PackedLinear(packed, module.bias, turned))
