"""Which columns of a model's products get a second digit: those that a trial run finds large.

    rows of a product   [T, I] of a short text     largest number of each 32 columns and token
    noise of a block    the mean of its square     digits have steps of 1/127 of the largest
    two digits          for the largest SHARE of the blocks, one for the others
    how far that is     the same text once more: KL of its distributions from those of two digits
                        everywhere; where it is more than somebody wants, it stays at these

A few columns of a model's hidden states are many times as large as the others, whatever the text.
Rounded to one digit they make most of the noise, and with a second one in their blocks alone
products are about as far from float32 as in bfloat16, for a quarter more work than with one digit.

Source: Dettmers et al., "LLM.int8()" (2022) for large columns being the same in all texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from lmlang.kernels.packed import BLOCK, PackedWeight, watching
from lmlang.runtime.models.causal import Attend, Inputs
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.models.loader import LoadedModel

SHARE = 1 / 6
"""Of a product's blocks of columns. With it the embedded model is a little nearer to float32 than
bfloat16 is (21,456 tokens: KL 0.0009 nats and 0.0010)."""
MOST_FAR = 0.002
"""Nats a token: twice of what bfloat16 costs the embedded model."""
TEXT = '''The harbour was quiet that morning, and the old ferry left for the islands at half past \
seven; nobody on board knew why the captain, who had never been late in thirty years, looked at \
his watch again and again.
def total(prices: list[float], rate: float = 0.2) -> float:
    """Sum of all prices, taxes added."""
    return sum(price * (1 + rate) for price in prices if price > 0)
{"name": "Ada", "born": 1815, "languages": ["English", "French"], "address": {"zip": null}}
Question: What is 17 * 24? Answer: 408. Les enfants jouent dans le jardin. Der Zug kommt um 9:45.
'''
"""What is run: some of everything."""


@torch.inference_mode()
def with_chosen_digits(
    loaded: LoadedModel, ids: Seq[int], most_far: float = math.inf
) -> LoadedModel:
    """The model with a second digit where a run over some tokens says so.

    Args:
        loaded: Its matrices are in blocks, with two digits everywhere; on a CPU.
        ids: Of `TEXT`, or of any text.
        most_far: Nats a token; a model that would be farther from ``loaded`` is left as it is.
    """
    shape = loaded.shape
    tokens = torch.tensor([i for i in ids if i < shape.vocab][: shape.max_positions])
    noise: dict[int, Tensor] = {}

    def see(x: Tensor, weight: PackedWeight) -> None:
        filled = F.pad(x, (0, -x.shape[1] % BLOCK)).view(len(x), -1, BLOCK)
        noise[id(weight)] = filled.abs().amax(-1).square().mean(0)

    with watching(see):
        wanted = _logprobs(loaded, tokens)
    weights = {
        name: replace(weight, digits=_digits(noise[id(weight)]))
        if isinstance(weight, PackedWeight) and id(weight) in noise
        else weight
        for name, weight in loaded.weights.items()
    }
    chosen = replace(loaded, weights=weights)
    far = (wanted.exp() * (wanted - _logprobs(chosen, tokens))).sum(-1).mean()
    return chosen if far <= most_far else loaded


def _logprobs(loaded: LoadedModel, tokens: Tensor) -> Tensor:
    """Float32 [T, vocab], of what follows each of the tokens."""
    model, places = LlamaModel(loaded.shape, loaded.weights), torch.arange(len(tokens))
    return model.forward(Inputs(tokens, places, places), _attention(model)).log_softmax(-1)


def _digits(noise: Tensor) -> Tensor:
    """uint8 [B], of float32 [B]."""
    digits = torch.ones(len(noise), dtype=torch.uint8)
    digits[noise.topk(max(1, round(len(noise) * SHARE))).indices] = 2
    return digits


def _attention(model: LlamaModel) -> Attend:
    """Of one sequence at once; without windows and caps, which make no column larger."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        scale = model.kv_layers[layer].scale
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return out[0].transpose(0, 1)

    return attend
