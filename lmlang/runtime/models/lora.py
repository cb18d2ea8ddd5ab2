"""LoRA adapters as PEFT saves them: a folder with a config and the tensors of every changed module.

    adapter_config.json           peft_type, r, lora_alpha, use_rslora, ...
    adapter_model.safetensors     base_model.model.MODULE.lora_A.weight [r, in]
                                  base_model.model.MODULE.lora_B.weight [out, r]

Variants that compute something else (DoRA, biases, modules saved whole, ...) are refused by name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lmlang.errors import ModelError, quote
from lmlang.runtime.models.hf_config import read_json
from lmlang.runtime.models.metadata import Metadata
from lmlang.runtime.models.safetensors_file import SafetensorsFolder, open_file

CONFIG, TENSORS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MAX_RANK = 4_096
ROOT = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"

REFUSED = {
    "use_dora": "DoRA's magnitudes",
    "modules_to_save": "modules that are saved whole",
    "lora_bias": "biases",
    "rank_pattern": "ranks of their own for some modules",
    "alpha_pattern": "an alpha of its own for some modules",
    "layer_replication": "layers that are repeated",
    "trainable_token_indices": "new embeddings of tokens",
    "target_parameters": "changed parameters that are no linear layers",
    "alora_invocation_tokens": "an activation by tokens (aLoRA)",
    "use_qalora": "quantisation of its own (QALoRA)",
    "use_bdlora": "matrices in blocks (BD-LoRA)",
    "arrow_config": "routing between adapters (Arrow)",
    "kasa_config": "singular values of its base (KaSA)",
    "monteclora_config": "weights that are drawn (MonteCLoRA)",
}
"""Keys of a config whose value must be absent or mean no."""
INITIAL = ("gaussian", "eva", "orthogonal")
"""Ways to begin a training that leave the base as it is; others (PiSSA, ...) change its weights."""


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """What is added to the weight of one module: B · A, the adapter's factor multiplied into B.

    Args:
        a: float32 [r, in].
        b: float32 [out, r].
    """

    a: Tensor
    b: Tensor

    @property
    def inputs(self) -> int:
        """Of the module."""
        return self.a.shape[1]

    @property
    def outputs(self) -> int:
        """Of the module."""
        return self.b.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class LoraFile:
    """What an adapter's folder holds.

    Args:
        name: As requests say it.
        path: The folder.
        trained_on: The model that its config names; "" for none.
        deltas: By module, as in ``"model.layers.0.self_attn.q_proj"``.
    """

    name: str
    path: Path
    trained_on: str
    deltas: Mapping[str, Delta]

    def misfit(self, base: str, why: str) -> ModelError:
        """The error for a model that it does not belong to."""
        trained = f" It was trained on {quote(self.trained_on)}." if self.trained_on else ""
        return ModelError(
            f"lora: the adapter {quote(self.name)} ({self.path}) does not fit the model "
            f"{quote(base)}: {why}.{trained} Give an adapter of this model."
        )


def read_lora(name: str, path: str | os.PathLike[str]) -> LoraFile:
    """Read an adapter's folder.

    Args:
        name: As requests will say it.
        path: The folder.

    Raises:
        ModelError: Something is missing, broken, or of a variant that cannot be run.
    """
    folder = Path(path)
    if not (folder / CONFIG).is_file():
        raise ModelError(
            f"lora: {folder}, given for the adapter {quote(name)}, has no {CONFIG}: give the "
            "folder that PEFT's save_pretrained has written."
        )
    said = Metadata(folder / CONFIG, read_json(folder / CONFIG))
    _check(said)
    rank = said.size("r", highest=MAX_RANK)
    alpha = said.get("lora_alpha", float, 8.0)
    if not math.isfinite(alpha):
        raise said.wrong("lora_alpha", "must be finite")
    root = math.sqrt(rank) if said.get("use_rslora", bool, False) else rank
    if not (folder / TENSORS).is_file():
        raise _no_tensors(folder)
    trained_on = said.get("base_model_name_or_path", str, "")
    deltas = _deltas(open_file(folder / TENSORS), rank, alpha / root)
    return LoraFile(name, folder, trained_on, deltas)


def _check(said: Metadata) -> None:
    """Refuse what computes something else than B · A."""
    kind = said.get("peft_type", str)
    if kind != "LORA":
        raise _refused(said, f"'peft_type' {quote(kind)}, and only LORA can be run")
    for key, what in REFUSED.items():
        if said.values.get(key):
            raise _refused(said, f"{what} ({said.name(key)})")
    for key, harmless in (("bias", ("none",)), ("init_lora_weights", INITIAL)):
        value = said.values.get(key)
        if value not in (None, False, True, *harmless):
            raise _refused(said, f"{said.name(key)} {quote(str(value))}")


def _refused(said: Metadata, what: str) -> ModelError:
    return ModelError(f"lora: {said.path} has {what}: it cannot be run, give another adapter.")


def _deltas(store: SafetensorsFolder, rank: int, scale: float) -> dict[str, Delta]:
    """A and B of every module; nothing is left over."""
    path = store.path / TENSORS
    modules: dict[str, None] = {}
    for tensor in store.shapes:
        module = tensor.removeprefix(ROOT).removesuffix(A).removesuffix(B)
        if tensor not in (f"{ROOT}{module}{A}", f"{ROOT}{module}{B}"):
            raise ModelError(
                f"{path} has the tensor {quote(tensor)}, which is no lora_A or lora_B of a linear "
                "layer: this variant of LoRA cannot be run."
            )
        modules[module] = None
    if not modules:
        raise ModelError(f"{path} has no tensors: it is no adapter, or was not saved whole.")
    return {module: _delta(store, module, rank, scale) for module in modules}


def _delta(store: SafetensorsFolder, module: str, rank: int, scale: float) -> Delta:
    read: list[Tensor] = []
    for end, axis in ((A, 0), (B, 1)):
        name = f"{ROOT}{module}{end}"
        shape = store.shapes.get(name)
        if shape is None or len(shape) != 2 or shape[axis] != rank:
            found = "is missing" if shape is None else f"has the shape {shape}"
            raise ModelError(
                f"{store.path / TENSORS}: the tensor {quote(name)} {found}, and the rank is "
                f"{rank}: it is damaged or of a variant that cannot be run."
            )
        read.append(torch.empty(shape, dtype=torch.float32))
        store.read(name, read[-1])
    made = Delta(read[0], read[1].mul_(scale))
    if not (made.a.isfinite().all() and made.b.isfinite().all()):
        raise ModelError(
            f"{store.path / TENSORS}: what the adapter changes of {quote(module)} is not finite "
            f"(NaN or infinity), with the factor {scale:g} of its config: it is damaged, fetch it "
            "anew."
        )
    return made


def _no_tensors(folder: Path) -> ModelError:
    if (folder / PICKLED).exists():
        return ModelError(
            f"{folder} holds its adapter as a pickle ({PICKLED}), which may run any code and is "
            "never opened: save it as safetensors."
        )
    return ModelError(f"{folder} has no {TENSORS}: it is incomplete, fetch it anew.")
