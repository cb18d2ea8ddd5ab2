"""transformers' Llama in float32 with the weights of ours, read from the file by another path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.quants import dequantize
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.models.causal import Attend
from lmlang.runtime.models.fetch import find_embedded_model
from lmlang.runtime.models.gguf_file import open_gguf
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.models.loader import LoadedModel, load_gguf
from lmlang.runtime.shape import ModelShape
from lmlang.runtime.tokenizer import Tokenizer
from tests.tiny import rope_theta

PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


@cache
def reference_model(path: Path, shape: ModelShape) -> LlamaForCausalLM:
    """The model of a GGUF file, each tensor dequantised whole and un-permuted here."""
    file = open_gguf(path)

    def tensor(name: str) -> torch.Tensor:
        entry = file.tensors[name]
        values = dequantize(file.rows(name), entry.kind).reshape(entry.shape)
        for part, heads in (("attn_q", shape.heads), ("attn_k", shape.kv_heads)):
            if f".{part}." in name:
                values = np.concatenate(
                    [np.concatenate([head[0::2], head[1::2]]) for head in np.split(values, heads)]
                )
        return torch.from_numpy(np.array(values))

    return reference_llama(tensor, shape)


def reference_llama(tensor: Callable[[str], torch.Tensor], shape: ModelShape) -> LlamaForCausalLM:
    """transformers' Llama of these sizes; ``tensor`` gives weights by GGUF name, half-split."""
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
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta(shape)},
        tie_word_embeddings=shape.tied_head,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    state = {
        "model.embed_tokens.weight": tensor("token_embd.weight"),
        "model.norm.weight": tensor("output_norm.weight"),
    }
    head = "token_embd.weight" if shape.tied_head else "output.weight"
    state["lm_head.weight"] = tensor(head)
    for layer in range(shape.layers):
        for theirs, ours in PARTS.items():
            state[f"model.layers.{layer}.{theirs}.weight"] = tensor(f"blk.{layer}.{ours}.weight")
    model.load_state_dict(state, strict=True, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers were on meta
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def reference_logits(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    """``[T, vocab]`` float32 logits of every position."""
    return model(torch.tensor([ids])).logits[0]


@torch.inference_mode()
def greedy(model: LlamaForCausalLM, ids: list[int], count: int) -> list[int]:
    """The next ``count`` tokens, argmax each time (lowest id on ties), end tokens included."""
    found: list[int] = []
    step: Mapping[str, Any] = {"input_ids": torch.tensor([ids])}
    past: dict[str, Any] = {}
    named = inspect.signature(model.forward).parameters
    past_name = "cache" if "cache" in named else "past_key_values"  # by release of transformers
    for _ in range(count):
        output = model(**step, **past, use_cache=True)
        past = {past_name: getattr(output, past_name)}
        found.append(int(output.logits[0, -1].argmax()))
        step = {"input_ids": torch.tensor([found[-1:]])}
    return found


def causal_attention() -> Attend:
    """Plain attention over one sequence, all of it at once; an ``attend`` for tests."""

    def attend(
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert sinks is None
        tokens, heads, width = q.shape
        repeat = heads // k.shape[1]
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        k, v = k.repeat_interleave(repeat, 0), v.repeat_interleave(repeat, 0)
        scores = q @ k.transpose(1, 2) * width**-0.5
        future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return (weights @ v).transpose(0, 1)

    return attend


@cache
def embedded() -> tuple[Path, LoadedModel, LlamaModel, Tokenizer, ChatTemplate]:
    """The embedded model's path, file, weights, tokenizer and template; loaded once."""
    path = find_embedded_model()
    loaded = load_gguf(path)
    tokenizer = Tokenizer.from_gguf(loaded.metadata)
    template = ChatTemplate(loaded.metadata["tokenizer.chat_template"])
    return path, loaded, LlamaModel(loaded.shape, loaded.weights), tokenizer, template


@cache
def reference_tokenizer() -> Any:
    """transformers' tokenizer of the embedded model, made by its own reader of GGUF files.

    That reader knows no pre-tokenisers; the published tokenizer.json of SmolLM2 has this one.
    """
    path = find_embedded_model()
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer
