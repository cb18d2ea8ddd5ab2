"""Why a model of transformers cannot run on our pool, as far as its config and its class say so."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from lmlang.errors import quote

ATTENTION_LAYERS = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention", "attention"}
)
"""Kinds of layers, by transformers' names, that keep nothing but keys and values."""
RECURRENT_LAYERS = frozenset(
    {"linear_attention", "conv", "mamba", "mamba2", "recurrent", "hybrid", "ssm", "rwkv"}
)
RECURRENT = (
    "it keeps a recurrent or convolutional state, which the radix cache cannot share between "
    "prompts"
)
ENCODER_DECODER = "it is an encoder-decoder, and only decoders are run"
ALIBI = "its positions are ALiBi biases on the scores, which our attention has not"
OWN_POSITIONS = "it numbers positions by itself, and a batch has its own"


class Refused(Exception):
    """A model cannot run right on our pool; the text says why, without a name or a mend."""


def check_config(config: Any) -> None:
    """Refuse what a config says plainly, before weights are read.

    Args:
        config: transformers' object.

    Raises:
        Refused: It is an encoder-decoder or recurrent, or has positions that are not ours.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise Refused(ENCODER_DECODER)
    text = config.get_text_config(decoder=True)
    layers = getattr(text, "num_hidden_layers", None)
    if isinstance(layers, int) and layers < 1:
        raise Refused(f"its config says that it has {layers:,} layers (num_hidden_layers)")
    if getattr(text, "add_cross_attention", False):
        raise Refused("it attends to the output of an encoder (add_cross_attention)")
    if _has_alibi(text):
        raise Refused(ALIBI)
    kind = getattr(text, "position_embedding_type", None)
    if isinstance(kind, str) and kind.startswith("relative_key"):
        raise Refused(f"its positions are biases on the scores ({kind})")
    if getattr(text, "attn_temperature_tuning", False):
        raise Refused(
            "it scales queries by their place in the batch instead of their position "
            "(attn_temperature_tuning)"
        )
    for name in ("layer_types", "layers_block_type"):
        kinds = {str(kind) for kind in getattr(text, name, None) or ()}
        if kinds & RECURRENT_LAYERS:
            raise Refused(f"{RECURRENT} ({quote(min(kinds & RECURRENT_LAYERS))} in {name})")
        if kinds - ATTENTION_LAYERS:
            raise Refused(f"it has layers of another kind ({min(kinds - ATTENTION_LAYERS)!r})")


def check_class(model: Any) -> None:
    """Refuse what a model's class says of itself.

    Raises:
        Refused: It is recurrent, or numbers positions by itself.
    """
    if getattr(model, "_is_stateful", False):
        raise Refused(RECURRENT)
    if any(isinstance(module, nn.Conv1d) for module in model.get_decoder().modules()):
        raise Refused(f"{RECURRENT} (a Conv1d)")
    if any(hasattr(module, "build_alibi_tensor") for module in model.modules()):
        raise Refused(ALIBI)
    if "position_ids" not in inspect.signature(model.forward).parameters or any(
        hasattr(module, "create_position_ids_from_input_ids") for module in model.modules()
    ):
        raise Refused(OWN_POSITIONS)


def longest_context(config: Any) -> int:
    """Tokens up to which a position's angles are its own, whatever else is in the batch.

    Dynamic and "longrope" scaling take other angles for all tokens of a batch once one of them
    stands behind the context of the training (`transformers.modeling_rope_utils`), and cached keys
    have the old ones.

    Raises:
        Refused: The config says no length.
    """
    text = config.get_text_config(decoder=True)
    longest = getattr(text, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1:
        raise Refused("its config says no length of the context (max_position_embeddings)")
    given = getattr(text, "rope_parameters", None) or {}
    for rope in (given, *given.values()):
        if isinstance(rope, Mapping) and rope.get("rope_type") in ("dynamic", "longrope"):
            before = rope.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            longest = min(longest, before or longest)
    return longest


def _has_alibi(config: Any) -> bool:
    if getattr(config, "alibi", False):
        return True
    inner = getattr(config, "attn_config", None)
    if inner is not None:
        inner = inner if isinstance(inner, Mapping) else vars(inner)
        return bool(inner.get("alibi"))
    return getattr(config, "position_embedding_type", None) == "alibi"
