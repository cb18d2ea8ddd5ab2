"""transformers' Llama on the very weights that the runtime computes with, and its two usages.

    plain        generate(), or one forward per question: what is shared between calls is recomputed
    by hand      a DynamicCache of the shared prefix, kept, cropped and repeated by the caller

Prompts come as token ids: transformers' side never pays for tokenising.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
)

from lmlang.runtime.models.loader import LoadedModel
from lmlang.runtime.shape import ModelShape

CPU = torch.device("cpu")

TIE = 2e-4
"""Logits this close, relative to the largest, are equal up to the order of float additions, and up
to what the rows of blocks are rounded to."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Output tokens of each row, and when each step ended (`time.perf_counter`)."""

    tokens: list[list[int]]
    stamps: list[float]


class Peer:
    """One transformers model in one dtype, with PyTorch's fused attention.

    Args:
        loaded: The weights; in float32 they are used as they lie, not copied.
        dtype: What transformers computes in.
        device: Where.
    """

    def __init__(self, loaded: LoadedModel, dtype: torch.dtype, device: torch.device = CPU) -> None:
        self.model = llama_of(loaded.shape, loaded.weights).to(dtype).to(device)
        self.device = device
        self.name = f"transformers {str(dtype).removeprefix('torch.')}"
        named = inspect.signature(self.model.forward).parameters
        # Renamed between releases of transformers.
        self._cache_name = "cache" if "cache" in named else "past_key_values"

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        cache: DynamicCache | None = None,
        held: int = 0,
        ends: Sequence[int] = (),
    ) -> Generated:
        """Greedy tokens by transformers' own `generate`.

        Args:
            prompts: One a row; shorter ones are padded behind their first ``held`` tokens.
            count: Tokens of each row at most; ends of text do not end it.
            cache: Holds a proper prefix of every prompt, one row for each; it goes on to hold all
                tokens but the last.
            held: Tokens that it holds, where prompts differ in length.
            ends: Each of these tokens ends its row, as the last one of it.
        """
        longest = max(map(len, prompts))
        gaps = [longest - len(prompt) for prompt in prompts]
        ids = torch.tensor(
            [
                [*prompt[:held], *[0] * gap, *prompt[held:]]
                for prompt, gap in zip(prompts, gaps, strict=True)
            ],
            device=self.device,
        )
        mask = torch.ones_like(ids)
        for row, gap in enumerate(gaps):
            mask[row, held : held + gap] = 0
        clock = _Clock()
        given = {} if cache is None else {self._cache_name: cache}
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=list(ends) or None,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([clock]),
            **given,
        )
        rows = output[:, longest:].tolist()
        return Generated([_up_to(row, ends) for row in rows], clock.stamps)

    @torch.inference_mode()
    def prefix(self, ids: Sequence[int], repeats: int = 1) -> DynamicCache:
        """A cache of these tokens, in as many rows as asked for."""
        cache = DynamicCache()
        self._forward(ids, cache, keep=1)
        if repeats > 1:
            cache.batch_repeat_interleave(repeats)
        return cache

    @torch.inference_mode()
    def score(
        self, choices: Sequence[Sequence[int]], held: int = 0, cache: DynamicCache | None = None
    ) -> list[float]:
        """Joint log-probability of each choice behind the tokens that all of them share.

        Args:
            choices: Prompt and choice as ids, none the beginning of another.
            held: Tokens of the prompt that ``cache`` holds.
            cache: Left as it was given; None computes the whole prompt.
        """
        cache = DynamicCache() if cache is None else cache
        stem = common_tokens(choices)
        first = self._forward(choices[0][held:stem], cache, keep=1)[0]
        sums = []
        for ids in choices:
            total = float(first[ids[stem]])
            rest = ids[stem + 1 :]
            if rest:
                logprobs = self._forward(ids[stem:-1], cache, keep=len(rest))
                told = torch.tensor(rest, device=self.device)[:, None]
                total += float(logprobs.gather(-1, told).sum())
                cache.crop(-len(rest))
            sums.append(total)
        cache.crop(held - stem)
        return sums

    def same_up_to_ties(
        self, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]
    ) -> bool:
        """Whether outputs are equal, or part where both next tokens are equally likely."""
        for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a != b:
                return self._tied([*prompt, *ours[:index]], a, b)
        return len(ours) == len(theirs)

    @torch.inference_mode()
    def _tied(self, ids: list[int], a: int, b: int) -> bool:
        given = torch.tensor([ids], device=self.device)
        logits = self.model(input_ids=given, logits_to_keep=1).logits[0, -1].float()
        return bool((logits[a] - logits[b]).abs() <= TIE * logits.abs().max())

    def _forward(self, ids: Sequence[int], cache: DynamicCache, keep: int) -> Tensor:
        """Run one row on from a cache: float32 [keep, V] log-probabilities of its last tokens."""
        output = self.model(
            input_ids=torch.tensor([ids], device=self.device),
            logits_to_keep=keep,
            use_cache=True,
            **{self._cache_name: cache},
        )
        return torch.log_softmax(output.logits[0].float(), dim=-1)


def _up_to(row: list[int], ends: Sequence[int]) -> list[int]:
    """A row up to its first end, which is part of it."""
    at = next((index for index, token in enumerate(row) if token in ends), len(row))
    return row[: at + 1]


def common_tokens(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all rows begin with."""
    count = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


class _Clock(StoppingCriteria):
    """Stops nothing; notes when each step of `generate` ended."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.stamps.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def llama_of(shape: ModelShape, weights: Mapping[str, Tensor]) -> LlamaForCausalLM:
    """Transformers' model over our tensors: the stacked products are taken apart as views."""
    (kind,) = shape.kinds
    assert kind.rope is not None, "a plain Llama turns every layer by its positions"
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": kind.rope.theta},
        tie_word_embeddings=shape.tied_head,
        attn_implementation="sdpa",
    )
    state = {
        "model.embed_tokens.weight": weights["embed"],
        "model.norm.weight": weights["norm"],
        "lm_head.weight": weights["embed" if shape.tied_head else "head"],
    }
    for layer in range(shape.layers):
        own = {
            name: weights[f"layers.{layer}.{name}"]
            for name in ("attention_norm", "qkv", "out", "mlp_norm", "gate_up", "down")
        }
        q, k, v = own["qkv"].split([shape.query_width, shape.kv_width, shape.kv_width])
        gate, up = own["gate_up"].split(shape.intermediate)
        parts = {
            "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v,
            "self_attn.o_proj": own["out"], "mlp.gate_proj": gate, "mlp.up_proj": up,
            "mlp.down_proj": own["down"], "input_layernorm": own["attention_norm"],
            "post_attention_layernorm": own["mlp_norm"],
        }  # fmt: skip
        state |= {f"model.layers.{layer}.{name}.weight": part for name, part in parts.items()}
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(state, strict=True, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers were on meta
    model.tie_weights()
    model.eval()
    return model.to(weights["embed"].device)  # which moves those buffers alone
