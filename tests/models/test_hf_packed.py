"""Packed linear layers compute what plain ones do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from lmlang.runtime.models.hf_packed import PackedLinear, pack_layers
from tests.models import zoo
from tests.models.paged import whole


def packed(module: nn.Module) -> nn.Module:
    """The module packed, or a skip where this build of torch has no such layout."""
    holder = nn.ModuleDict({"layer": module})
    pack_layers(holder)
    if not isinstance(holder["layer"], PackedLinear):
        pytest.skip("this build of torch has no packed products on this CPU")
    return holder["layer"]


@pytest.mark.parametrize("shape", [(7,), (1, 5, 7), (0, 7), (2, 3, 4, 7)])
@pytest.mark.parametrize(
    "module", [nn.Linear(7, 12), nn.Linear(7, 12, bias=False), Conv1D(12, 7)], ids=repr
)
@torch.inference_mode()
def test_a_packed_layer_computes_the_same(module, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    other = packed(module)
    torch.testing.assert_close(other(x), module(x))
    assert (other.in_features, other.out_features) == (7, 12)
    assert torch.equal(other.weight, module.weight)


@pytest.mark.parametrize("kind", ["gpt2", "hunyuan_v1_moe", "llama"])
def test_models_say_the_same_also_where_they_read_weights_themselves(kind):
    if why := zoo.missing(kind):
        pytest.skip(why)
    model = zoo.tiny_transformer(zoo.tiny_config(kind))
    ids = list(range(5, 25))
    plain = whole(model, ids)
    pack_layers(model)
    torch.testing.assert_close(whole(model, ids), plain)
