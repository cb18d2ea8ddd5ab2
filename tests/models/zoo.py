"""Types of transformers' causal language models: which run on our pool, and which are refused.

The one list that the tests and the table of docs/reference/models.md are made from. A type stands
with what its tiny config needs beyond `SIZES`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from packaging.version import Version

SIZES: dict[str, Any] = {
    "hidden_size": 64, "n_embd": 64, "d_model": 64, "embedding_size": 64, "word_embed_proj_dim": 64,
    "num_hidden_layers": 2, "n_layer": 2, "num_layers": 2, "decoder_layers": 2,
    "encoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "decoder_attention_heads": 4,
    "encoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 64, "ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_ffn_dim": 64,
    "ffn_hidden_size": 64, "expert_ffn_hidden_size": 32,
    "vocab_size": 128, "max_position_embeddings": 256, "n_positions": 256, "n_ctx": 256,
    "rotary_dim": 8, "sliding_window": 6,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "first_k_dense_replace": 1, "zero_expert_num": 2,
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.2, "init_std": 0.2, "use_cache": False,
}  # fmt: skip
"""Where a config has a setting of this name. The window is shorter than the rows of the tests, and
the weights are so large that a token's logits depend on those before it."""

MLA = {"head_dim": 8, "num_key_value_heads": 4}
"""Latent attention: a head has keys of its own, and head_dim is the part of them that is turned."""
BOTH = {"layer_types": ["sliding_attention", "full_attention"]}
DECODER = {"is_decoder": True}

RUNS: dict[str, dict[str, Any]] = {
    "cohere": {}, "cohere2": BOTH, "deepseek_v3": MLA, "diffllama": {}, "gemma2": BOTH,
    "gemma3_text": BOTH, "glm4": {}, "gpt2": {}, "gpt_bigcode": {}, "gpt_neox": {},
    "gpt_oss": BOTH, "gptj": {}, "granite": {}, "llama": {}, "mimo_v2_flash": {},
    "ministral3": {}, "mistral": {}, "mixtral": {}, "modernbert-decoder": {}, "nemotron": {},
    "olmo2": {}, "opt": {}, "phi": {}, "phi3": {}, "qwen2": {}, "qwen3": {}, "qwen3_moe": {},
    "smollm3": {}, "stablelm": {}, "starcoder2": {},
}  # fmt: skip
"""One or more of each kind, in the ordinary suite."""

MORE: dict[str, dict[str, Any]] = {
    "afmoe": BOTH, "apertus": {}, "apertus1p5_text": {}, "arcee": {}, "aria_text": {},
    "axk1": MLA, "beam": {}, "bert": DECODER, "bert-generation": DECODER, "biogpt": {},
    "bitnet": {}, "codegen": {}, "cohere2_moe": BOTH, "ctrl": {}, "cwm": BOTH,
    "deepseek_v2": MLA, "dory": {}, "dots1": {"n_shared_experts": 1},
    "electra": DECODER, "ernie": DECODER, "ernie4_5": {}, "ernie4_5_moe": {}, "exaone": {},
    "exaone4": BOTH, "exaone_moe": BOTH, "flex_olmo": {}, "flint": {}, "gemma": {},
    "gemma3": {"text": "gemma3_text"},
    "gemma3n_text": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 128,
        "hidden_size_per_layer_input": 8, "laurel_rank": 8, "layer_types": BOTH["layer_types"] * 2,
    },
    "gemma4": {"text": "gemma4_text"},
    "gemma4_text": {
        "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 8, **BOTH,
    },
    "gemma4_unified_text": BOTH,
    "glm": {}, "glm4_moe": {}, "glm4_moe_lite": MLA, "gpt-sw3": {}, "granite_swa": {},
    "granitemoe": {}, "granitemoe_swa": {}, "granitemoeshared": {}, "helium": {}, "hrm_text": {},
    "hunyuan_v1_dense": {}, "hunyuan_v1_moe": {}, "hy_v3": {}, "hyperclovax": {}, "internlm3": {},
    "iquestcoder": {}, "jais2": {}, "jetmoe": {}, "kolibri1": {}, "laguna": {},
    "longcat_flash": MLA, "mellum": {}, "minicpm3": MLA, "minimax_m2": {},
    "minimax_m3_vl_text": {}, "ministral": {}, "moshi": {}, "nanochat": {}, "olmo": {},
    "olmo3": BOTH, "olmoe": {}, "persimmon": {}, "phimoe": {}, "qwen2_moe": {},
    "roc_bert": DECODER, "sarvam_mla": MLA, "sarvam_moe": {}, "seed_oss": {}, "solar_open": {},
    "vaultgemma": BOTH, "youtu": MLA,
}  # fmt: skip
"""The others that run, under the mark ``hf``."""


SINCE = dict.fromkeys(("codegen", "gptj", "moshi"), "5.24")
"""The transformers from which on a type runs, where that is not 5.17 (of these two)."""

STATE = "it keeps a recurrent or convolutional state"
ENCODER = "it is an encoder-decoder"
ALIBI = "its positions are ALiBi biases"
POSITIONS = "it numbers positions by itself"
PRIVATE = "its attention does not go through transformers' AttentionInterface"
LAYERS = "it has layers of another kind"
MASK = "it makes its attention's mask by itself"
PLACES = "it scales queries by their place in the batch"
BOTH_WAYS = "its attention sees tokens in both directions"

CONVOLUTION = {"layer_types": ["conv", "full_attention"]}

REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "bamba": (STATE, {}), "bart": (ENCODER, {}), "bloom": (ALIBI, {}), "deepseek_v32": (LAYERS, {}),
    "doge": (MASK, {}), "falcon": (PRIVATE, {}), "gpt_neo": (PRIVATE, {
        "attention_types": [[["global", "local"], 1]], "num_heads": 4,
    }),
    "jamba": (STATE, {}), "lfm2": (STATE, CONVOLUTION), "llama4_text": (PLACES, {}),
    "mamba": (STATE, {}), "minimax": (STATE, {}), "mpt": (ALIBI, {}), "openai-gpt": (PRIVATE, {}),
    "roberta": (POSITIONS, DECODER), "rwkv": (STATE, {}), "whisper": (ENCODER, {}),
    "xglm": (PRIVATE, {}), "xlnet": (POSITIONS, {}),
}  # fmt: skip
"""For each reason at least one, in the ordinary suite; a reason is how its message begins."""

MORE_REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "axk2": (LAYERS, {}), "bailing_hybrid": (STATE, {}), "big_bird": (PRIVATE, DECODER),
    "bigbird_pegasus": (ENCODER, {}), "blenderbot": (ENCODER, {}),
    "blenderbot-small": (ENCODER, {}), "camembert": (POSITIONS, DECODER), "cpmant": (POSITIONS, {}),
    "data2vec-text": (POSITIONS, DECODER), "deepseek_v4": (LAYERS, {}), "dots3_note": (LAYERS, {}),
    "falcon_h1": (STATE, {}), "falcon_mamba": (STATE, {}), "glm_moe_dsa": (LAYERS, {}),
    "gpt_neox_japanese": (PRIVATE, {}), "granitemoehybrid": (STATE, {}), "hy_v4": (LAYERS, {}),
    "inkling2_loop_text": (LAYERS, {}), "inkling2_text": (LAYERS, {}), "inkling_text": (LAYERS, {}),
    "kimi_linear": (STATE, {}), "lara_mini": (STATE, {}), "lfm2_moe": (STATE, CONVOLUTION),
    "lfm3": (STATE, {}), "mamba2": (STATE, {"num_heads": 8, "head_dim": 16}),
    "marian": (ENCODER, {}), "mbart": (ENCODER, {}), "megatron-bert": (PRIVATE, DECODER),
    "mvp": (ENCODER, {}), "nemotron_h": (STATE, {}), "olmo_hybrid": (STATE, {}),
    "pegasus": (ENCODER, {}), "plbart": (ENCODER, {}), "prophetnet": (ENCODER, {}),
    "qwen3_5": (STATE, {}), "qwen3_5_moe": (STATE, {}), "qwen3_5_moe_text": (STATE, {}),
    "qwen3_5_text": (STATE, {}), "qwen3_next": (STATE, {}), "qwen4_exp_text": (STATE, {}),
    "recurrent_gemma": (STATE, {}),
    "reformer": (PRIVATE, DECODER | {"axial_pos_embds_dim": (16, 48)}),
    "rembert": (PRIVATE, DECODER), "roberta-prelayernorm": (POSITIONS, DECODER),
    "roformer": (POSITIONS, DECODER), "trocr": (POSITIONS, {}),
    "xlm-roberta": (POSITIONS, DECODER), "xlm-roberta-xl": (POSITIONS, DECODER),
    "xlm": (PRIVATE, {"emb_dim": 64, "n_layers": 2, "n_heads": 4}), "xlstm": (STATE, {}),
    "xmod": (POSITIONS, DECODER), "zaya": (STATE, {"num_experts_per_tok": 1}),
}  # fmt: skip
"""The others, under the mark ``hf``."""


def missing(kind: str) -> str:
    """Why the transformers at hand cannot run or refuse this type; "" where it can."""
    from transformers import CONFIG_MAPPING, __version__

    if kind not in CONFIG_MAPPING:
        return f"transformers {__version__} does not know the type {kind}"
    since = SINCE.get(kind, "0")
    if Version(__version__) < Version(since):
        return f"{kind} runs from transformers {since} on, and this one is {__version__}"
    return ""


VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip


def tiny_config(kind: str, *, text: str = "", **changes: Any) -> Any:
    """A small config of a type: the settings of `SIZES` that it has, and ``changes``.

    That of a model with pictures has one for its text, of the type ``text``, inside.
    """
    from transformers import CONFIG_MAPPING

    if text:
        inner = tiny_config(text, **(RUNS | MORE)[text]).to_dict()
        places = {"image_token_id": 120, "boi_token_id": 121, "eoi_token_id": 122}
        changes |= places | {"text_config": inner, "vision_config": VISION}
    cls = CONFIG_MAPPING[kind]
    names = set(inspect.signature(cls.__init__).parameters)
    for base in cls.__mro__:
        names |= set(vars(base).get("__annotations__", {}))
    names -= set(cls.attribute_map)
    return cls(**({name: SIZES[name] for name in SIZES if name in names} | changes))


def tiny_transformer(config: Any, seed: int = 0) -> Any:
    """A model of transformers with random weights; the same for the same config and seed."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model.eval()
