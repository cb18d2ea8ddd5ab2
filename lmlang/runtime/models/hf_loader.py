"""From a Hugging Face folder to a model of transformers that is known to run right on our pool.

    config -> refused by what it says?  -> by its class?  -> weights -> probed -> compared

Code that comes with a model is never run, and weights are read from safetensors alone.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmlang.errors import ModelError, quote
from lmlang.runtime.device import CPU, check_room
from lmlang.runtime.models import hf_parity
from lmlang.runtime.models.causal import Inputs
from lmlang.runtime.models.hf import HFModel
from lmlang.runtime.models.hf_config import read_json
from lmlang.runtime.models.hf_interface import AttentionDoor
from lmlang.runtime.models.hf_packed import pack_layers
from lmlang.runtime.models.hf_probe import probe
from lmlang.runtime.models.hf_quant import check_packages, method_of, quantise_layers
from lmlang.runtime.models.hf_refusals import Refused, check_class, check_config, longest_context
from lmlang.runtime.models.safetensors_file import SafetensorsFolder, open_safetensors

log = logging.getLogger("lmlang")

COUNTS = ("layer", "layers", "head", "heads", "expert", "experts")
"""How keys of a config end that count parts which are made one by one."""
MOST = 4_096
PACKED = 32
"""Numbers of a quantised weight that a file may have in one, at most."""
OWN = 1 << 24
"""Numbers that no file holds and models make, such as tables of positions, at most."""
INSTALL = 'pip install "lmlang[hf]"'


def load_hf(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device | None = None,
    *,
    quantize: bool = False,
) -> HFModel:
    """Load a causal language model through transformers.

    Args:
        folder: With config.json and safetensors files; it may come quantised.
        dtype: Of the weights: float32, bfloat16 or float16.
        device: Where they go; None is the CPU.
        quantize: Whether those of linear layers become int8.

    Raises:
        ModelError: transformers is missing, a file is missing or broken, or the model is of a kind
            that cannot run right; the message says which and why.
    """
    try:
        import transformers  # noqa: F401 - whether it is there
    except ImportError as error:
        raise ModelError(
            f"{folder} is of no type that lmlang runs by itself, and others need the package "
            f"transformers: `{INSTALL}`, or give another model."
        ) from error
    held = open_safetensors(folder, any_type=True)
    path = folder / "config.json"
    try:
        config = _config(path)
        _check_empty(path, config, held)
        return _loaded(folder, config, dtype, device or CPU, quantize)
    except Refused as refused:
        raise ModelError(f"{path}: {_refusal(path, refused)}") from None


def _loaded(
    folder: Path, config: Any, dtype: torch.dtype, device: torch.device, quantize: bool
) -> HFModel:
    """The model of a folder on its device, its layers in the form that they run in."""
    path, method = folder / "config.json", method_of(config)
    if method is not None:
        if quantize:
            raise ModelError(
                f"quantize='int8' is for plain weights, and {folder} is quantised by "
                f"{quote(method)} already: leave it out."
            )
        check_packages(folder, method)
        return opened(_weights(folder, config, dtype, device_map={"": device}), path)
    model = _weights(folder, config, dtype)
    if quantize:
        made = opened(model, path)
        quantise_layers(model)
        _move(model, folder, device)
        _check_quantised(made)
        return made
    _move(model, folder, device)
    return opened(model, path)


def _move(model: Any, folder: Path, device: torch.device) -> None:
    """Bring a model to where it is computed, in the form for that; ModelError without room."""
    parts = itertools.chain(model.parameters(), model.buffers())
    needed = sum(part.nbytes for part in parts)
    check_room(f"the weights of {quote(folder.name)}", needed, device)
    model.to(device)
    pack_layers(model)


def opened(model: Any, config_path: Path | None = None) -> HFModel:
    """A model of transformers on our pool, looked at and compared with itself.

    Args:
        model: It, taken by `check_config` and `check_class`, under eager attention.
        config_path: Its config's file, by which the verdict is kept; None compares anew.

    Raises:
        Refused: It cannot run right.
    """
    model.eval()
    door = AttentionDoor()
    made = HFModel(model, door, probe(model, door, longest_context(model.config)))
    if config_path is None:
        hf_parity.check_parity(made)
        return made
    key = hf_parity.verdict_key(config_path, made.dtype, made.device)
    if not hf_parity.has_passed(key):
        hf_parity.check_parity(made)
        hf_parity.keep_passed(key)
    return made


def _check_quantised(model: HFModel) -> None:
    """Refuse a model that is known to run right, and does not with int8 layers."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        return q.new_zeros(*q.shape[:2], v.shape[2])

    places = torch.arange(2, device=model.device)
    try:
        with torch.inference_mode():
            model.forward(Inputs(places, places, places), attend)
    except Exception as error:  # of any kind: it is someone else's code in a use of our own
        raise ModelError(
            f"quantize='int8': a {type(model.module).__name__} does more with its linear layers "
            f"than to call them ({quote(str(error)[:128])}): leave it out."
        ) from error


def _config(path: Path) -> Any:
    """The object of a config.json; ModelError where transformers makes no language model of it.

    Raises:
        Refused: By what it says.
    """
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, __version__

    said = read_json(path)
    kind = said.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        code = ", and code that comes with a model is never run" if "auto_map" in said else ""
        raise ModelError(
            f"{path} describes a model of the type {quote(str(kind))}, which neither lmlang nor "
            f"transformers {__version__} knows{code}: update transformers, or give another model."
        )
    _check_counts(path, said)
    with _naming(path):
        config = AutoConfig.from_pretrained(
            path.parent, trust_remote_code=False, local_files_only=True
        )
        check_config(config)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise Refused("transformers has no causal language model of its type")
    return config


def _check_counts(path: Path, said: Any) -> None:
    """Refuse numbers of parts that no model has; transformers would begin to make them."""
    for key, value in said.items():
        if isinstance(value, dict):
            _check_counts(path, value)
        elif isinstance(value, int) and key.endswith(COUNTS) and value > MOST:
            raise ModelError(
                f"{path} says {quote(key)} is {value:,}, and no model has more than {MOST:,}: the "
                "file is damaged."
            )


def _check_empty(path: Path, config: Any, stored: SafetensorsFolder) -> None:
    """Refuse a model by its class, and weights that are not its: made without any here.

    Args:
        path: The config's file.
        config: What it holds.
        stored: The tensors beside it. A model may make a few more by itself.
    """
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with _naming(path.parent), torch.device("meta"):
        empty = auto.from_config(config)
    check_class(empty)
    described = sum(weight.numel() for weight in empty.parameters())
    held, plain = sum(map(math.prod, stored.shapes.values())), method_of(config) is None
    most = held * (2 if plain else PACKED)
    if described > most + OWN:
        raise ModelError(
            f"{path} describes a model of {described:,} numbers, and the files beside it hold "
            f"{held:,}: one of them is damaged or incomplete, fetch it anew."
        )
    if plain:
        root = f"{empty.base_model_prefix}."  # which files of a model without its head leave out
        names = [name for name, _ in empty.named_parameters()]
        stored.check_types({*names, *(name.removeprefix(root) for name in names)})


def _weights(folder: Path, config: Any, dtype: torch.dtype, **options: Any) -> Any:
    """The model of transformers, every weight of it from the folder; ModelError otherwise."""
    from transformers import AutoModelForCausalLM

    with _naming(folder), _quiet():
        auto: Any = AutoModelForCausalLM
        model, found = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are told of below
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    others = [each if isinstance(each, str) else each[0] for each in found["mismatched_keys"]]
    absent = sorted([*map(str, found["missing_keys"]), *others])
    if absent:
        more = f" and {len(absent) - 1:,} more" if len(absent) > 1 else ""
        raise ModelError(
            f"{folder} lacks the tensor {quote(absent[0])}{more}, or has it in another shape: it "
            "is incomplete, fetch it anew."
        )
    if found["unexpected_keys"]:
        log.warning("%s has tensors that its type of model does not use, such as %s", folder,
                    sorted(found["unexpected_keys"])[0])  # fmt: skip
    return model


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What transformers cannot read, as a ModelError that names the file."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:  # of any kind: it checks little, and fails where it stands
        said = " ".join(str(error).split())
        raise ModelError(
            f"{path}: transformers cannot open this model ({type(error).__name__}: "
            f"{quote(said)}): install what it asks for, or fetch the model anew."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars of progress, and no report of tensors: what it tells of is told by us."""
    from transformers.utils import logging

    spoken: Any = logging
    shown, level = spoken.is_progress_bar_enabled(), spoken.get_verbosity()
    spoken.disable_progress_bar()
    spoken.set_verbosity_error()
    try:
        yield
    finally:
        spoken.set_verbosity(level)
        if shown:
            spoken.enable_progress_bar()


def _refusal(path: Path, refused: Refused) -> str:
    kind = read_json(path).get("model_type")
    return (
        f"a model of the type {quote(str(kind))} cannot run on our cache: {refused}. Give another "
        "model; docs/reference/models.md lists the types that run."
    )
