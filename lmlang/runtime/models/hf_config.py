"""From the config.json of a Hugging Face folder to the shape of its model, by model type.

Both generations of the format are read: ``rope_theta`` beside ``rope_scaling``, and
``rope_parameters``. What a config leaves out has the default of its model type in transformers.
No code of a folder is ever run, whatever its config names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlang.errors import ModelError, quote
from lmlang.runtime.models.metadata import Metadata, NotNative
from lmlang.runtime.shape import LayerKind, ModelShape, Rope, check_size

MAX_JSON_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Family:
    """What the models of one type have in common, and what their configs may leave out."""

    gemma: bool = False
    tied_head: bool = False
    theta: float = 10_000.0
    qkv_bias: bool = False
    may_have_bias: bool = True
    qk_norm: bool = False
    head_dim: int | None = None
    window: int = 0
    """Of the layers that have one, where nothing is said."""
    every: int = 1
    """Gemma: every n-th layer sees everything, the others a window."""


FAMILIES = {
    "llama": Family(),
    "mistral": Family(may_have_bias=False, window=4096),
    "qwen2": Family(qkv_bias=True, may_have_bias=False),
    "qwen3": Family(qk_norm=True, head_dim=128),
    "smollm3": Family(tied_head=True, theta=2_000_000.0),
    "gemma2": Family(gemma=True, tied_head=True, head_dim=256, window=4096, every=2),
    "gemma3_text": Family(
        gemma=True,
        tied_head=True,
        theta=1_000_000.0,
        qk_norm=True,
        head_dim=256,
        window=4096,
        every=6,
    ),
}
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
REFUSED = {
    "num_experts": "experts",
    "num_local_experts": "experts",
    "n_routed_experts": "experts",
    "quantization_config": "quantised weights",
    "mlp_bias": "biases in its feed-forward part",
    "alibi": "ALiBi positions",
    "use_bidirectional_attention": "attention in both directions",
    "use_mrope": "positions in several dimensions",
}
"""Keys whose value must be absent or mean no."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model folder.

    Raises:
        ModelError: It is missing, too large, no JSON, nested too deep, or no object.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError("no regular file")
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
    except (OSError, ValueError) as error:  # nothing there, a folder, a NUL in the path
        raise ModelError(
            f"{path} cannot be read ({error}): give the folder of a whole model."
        ) from None
    if len(content) > MAX_JSON_BYTES:
        raise ModelError(f"{path} has more than {MAX_JSON_BYTES:,} bytes: it is no model's.")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} is no JSON that can be read ({str(error)[:128]}): fetch it anew."
        ) from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}, no object: fetch it anew.")
    return value


def hf_shape(path: Path, config: Mapping[str, Any]) -> ModelShape:
    """The shape of the model that a config describes.

    Args:
        path: The config's file, for messages.
        config: What it holds.

    Raises:
        NotNative: It is of a type or variant that the native family has not.
        ModelError: It says what cannot be.
    """
    said = Metadata(path, config)
    name = said.get("model_type", str)
    if name not in FAMILIES:
        raise NotNative(
            f"{path} describes a model of the type {quote(name)}, and natively only "
            f"{', '.join(FAMILIES)} are run: give one of these, or leave implementation= out."
        )
    family = FAMILIES[name]
    for key, what in REFUSED.items():
        if config.get(key):
            raise said.refuse(f"{what} ({said.name(key)})")
    layers = check_size("layers", said.get("num_hidden_layers", int))
    heads = check_size("heads", said.get("num_attention_heads", int))
    hidden = check_size("hidden", said.get("hidden_size", int))
    bias = family.may_have_bias and said.get("attention_bias", bool, False)
    softcap, logit_softcap = _softcaps(said, name, family)
    return ModelShape(
        layers=layers,
        heads=heads,
        kv_heads=said.get("num_key_value_heads", int, heads),
        head_dim=said.get("head_dim", int, family.head_dim or hidden // heads),
        hidden=hidden,
        intermediate=said.get("intermediate_size", int),
        vocab=said.get("vocab_size", int),
        max_positions=said.get("max_position_embeddings", int),
        kinds=_kinds(said, name, family, layers),
        norm_eps=said.get("rms_norm_eps", float, 1e-6),
        tied_head=said.get("tie_word_embeddings", bool, family.tied_head),
        activation=_activation(said, family),
        qkv_bias=family.qkv_bias or bias,
        out_bias=bias,
        qk_norm=family.qk_norm,
        post_norms=family.gemma,
        query_scale=_query_scale(said) if family.gemma else None,
        embed_scale=math.sqrt(hidden) if family.gemma else 1.0,
        softcap=softcap,
        logit_softcap=logit_softcap,
    )


def _activation(said: Metadata, family: Family) -> str:
    key = "hidden_activation" if family.gemma else "hidden_act"
    name = said.get(key, str, "gelu_pytorch_tanh" if family.gemma else "silu")
    if name not in ACTIVATIONS:
        raise said.refuse(f"the activation {quote(name)}")
    return ACTIVATIONS[name]


def _query_scale(said: Metadata) -> float:
    return 1.0 / math.sqrt(said.positive("query_pre_attn_scalar", 256.0))


def _softcaps(said: Metadata, name: str, family: Family) -> tuple[float, float]:
    """Of attention scores and of logits."""
    if name == "gemma2":
        scores = _cap(said, "attn_logit_softcapping", 50.0)
        return scores, _cap(said, "final_logit_softcapping", 30.0)
    if said.has("attn_logit_softcapping"):
        raise said.refuse("'attn_logit_softcapping'")
    return 0.0, _cap(said, "final_logit_softcapping", 0.0) if family.gemma else 0.0


def _cap(said: Metadata, key: str, default: float) -> float:
    """A softcap; a config that says null has none, one that says nothing the default."""
    if key in said.values and not said.has(key):
        return 0.0
    return said.positive(key) if said.has(key) else default


def _kinds(said: Metadata, name: str, family: Family, layers: int) -> tuple[LayerKind, ...]:
    rope, local = _ropes(said, name, family)
    if name in ("llama", "mistral"):
        window = _window(said, family) if name == "mistral" else 0
        wanted = "sliding_attention" if window else "full_attention"
        if set(_layer_types(said, layers) or [wanted]) != {wanted}:
            raise said.wrong("layer_types", f"a {name} model has {wanted} in all layers")
        return (LayerKind(window, rope),)
    roped = _roped(said, layers) if name == "smollm3" else [True] * layers
    window = _window(said, family)
    slides = _sliding(said, name, family, layers, window, roped)
    return tuple(
        LayerKind(window if slides[i] else 0, (local if slides[i] else rope) if roped[i] else None)
        for i in range(layers)
    )


def _window(said: Metadata, family: Family) -> int:
    """The window of the layers that have one, 0 where it is switched off."""
    if family.window:
        switched_off = "sliding_window" in said.values and not said.has("sliding_window")
        return 0 if switched_off else said.size("sliding_window", family.window)
    if not said.get("use_sliding_window", bool, False) or not said.has("sliding_window"):
        return 0
    return said.size("sliding_window")


def _sliding(
    said: Metadata, name: str, family: Family, layers: int, window: int, roped: list[bool]
) -> list[bool]:
    """For each layer whether it has the window."""
    types = _layer_types(said, layers)
    if types is not None:
        return [kind == "sliding_attention" for kind in types]
    if family.gemma:
        every = family.every
        if name == "gemma3_text":
            every = said.size("sliding_window_pattern", every)
        return [(layer + 1) % every != 0 for layer in range(layers)]
    if not window:
        return [False] * layers
    if name == "smollm3":
        return [not has_rope for has_rope in roped]
    first = said.get("max_window_layers", int, 28)
    return [layer >= first for layer in range(layers)]


def _layer_types(said: Metadata, layers: int) -> list[str] | None:
    if not said.has("layer_types"):
        return None
    types = said.get("layer_types", list)
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise said.refuse(f"layers of the type {str(kind)[:64]!r}")
    if len(types) != layers:
        raise said.wrong("layer_types", f"there are {layers} layers")
    return types


def _roped(said: Metadata, layers: int) -> list[bool]:
    """For each layer of a SmolLM3 whether it has rope."""
    if not said.has("no_rope_layers"):
        every = said.size("no_rope_layer_interval", 4)
        return [(layer + 1) % every != 0 for layer in range(layers)]
    flags = said.get("no_rope_layers", list)
    if len(flags) < layers or not all(isinstance(flag, int) for flag in flags):
        raise said.wrong("no_rope_layers", f"must be {layers} flags, 1 for a layer with rope")
    return [bool(flag) for flag in flags[:layers]]


def _ropes(said: Metadata, name: str, family: Family) -> tuple[Rope, Rope]:
    """The rope of layers that see everything, and of those with a window."""
    theta = said.positive("rope_theta", family.theta)
    key = "rope_scaling" if said.values.get("rope_scaling") else "rope_parameters"
    given = said.get(key, dict, {})
    within = Metadata(said.path, given, f"{key}.")
    if name != "gemma3_text":
        rope = _rope(said, within, theta)
        return rope, rope
    local_theta = said.positive("rope_local_base_freq", 10_000.0)
    if key == "rope_scaling":  # of the first generation: for the layers that see everything
        return _rope(said, within, theta), Rope(local_theta)
    full, sliding = (
        Metadata(said.path, within.get(kind, dict, {}), f"{key}.{kind}.")
        for kind in ("full_attention", "sliding_attention")
    )
    if given and not (full.values or sliding.values):
        raise within.wrong(key, "must say what 'full_attention' and 'sliding_attention' have")
    return _rope(said, full, theta), _rope(said, sliding, local_theta)


def _rope(said: Metadata, given: Metadata, theta: float) -> Rope:
    """One rope from its own parameters and those of the whole config."""
    for place in (given, said):
        if place.positive("partial_rotary_factor", 1.0) != 1:
            raise place.refuse(
                f"rope on a part of each head ({place.name('partial_rotary_factor')})"
            )
    theta = given.positive("rope_theta", theta)
    kind = given.get("rope_type", str, given.get("type", str, "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", given.positive("factor"))
    if kind not in ("llama3", "yarn"):
        raise given.refuse(f"rope scaling of the type {quote(kind)}")
    positions = said.size("max_position_embeddings")
    original = said if said.has("original_max_position_embeddings") else given
    before = original.size("original_max_position_embeddings", positions)
    if kind == "llama3":
        return Rope(
            theta,
            "llama3",
            given.positive("factor"),
            before,
            low=given.positive("low_freq_factor"),
            high=given.positive("high_freq_factor"),
        )
    factor = given.positive("factor", positions / before)
    return Rope(
        theta,
        "yarn",
        factor,
        before,
        low=given.positive("beta_slow", 1.0),
        high=given.positive("beta_fast", 32.0),
        attention_factor=_yarn_attention(given, factor),
        truncate=given.get("truncate", bool, True),
    )


def _yarn_attention(given: Metadata, factor: float) -> float:
    if given.has("attention_factor"):
        return given.positive("attention_factor")

    def scale(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0

    if given.has("mscale") and given.has("mscale_all_dim"):
        return scale(given.positive("mscale")) / scale(given.positive("mscale_all_dim"))
    return scale(1.0)
