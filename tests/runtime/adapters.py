"""LoRA adapters for tests: folders as PEFT saves them, and what they do to a model's weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ROOT = "base_model.model."


@dataclass(frozen=True, slots=True)
class Made:
    """A folder, and the weight B · A times its factor that it adds to each module's."""

    path: Path
    added: Mapping[str, torch.Tensor]


def write_lora(
    path: Path,
    modules: Mapping[str, tuple[int, int]] | Iterable[tuple[str, torch.nn.Module]],
    *,
    seed: int = 0,
    rank: int = 4,
    alpha: float = 8,
    strength: float = 0.3,
    tensors: Mapping[str, torch.Tensor | None] | None = None,
    **config: Any,
) -> Made:
    """Write an adapter of random numbers.

    Args:
        path: The folder to make.
        modules: Inputs and outputs by the module's name, or modules with these attributes.
        seed: Of its numbers.
        rank: Of A and B.
        alpha: In its config.
        strength: The larger, the more it changes.
        tensors: Over its own; None leaves one out.
        **config: Over its own.
    """
    if not isinstance(modules, Mapping):
        modules = {name: (m.in_features, m.out_features) for name, m in modules}  # type: ignore[misc]
    path.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    own: dict[str, torch.Tensor] = {}
    added: dict[str, torch.Tensor] = {}
    for name, (inputs, outputs) in modules.items():
        a = torch.randn(rank, inputs, generator=generator) * strength / inputs**0.5
        b = torch.randn(outputs, rank, generator=generator)
        own[f"{ROOT}{name}.lora_A.weight"], own[f"{ROOT}{name}.lora_B.weight"] = a, b
        added[name] = scale * (b.double() @ a.double()).float()
    kept = {k: v for k, v in (own | dict(tensors or {})).items() if v is not None}
    save_file(kept, path / "adapter_model.safetensors", metadata={"format": "pt"})
    said = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha,
        "use_rslora": False, "use_dora": False, "bias": "none", "fan_in_fan_out": False,
        "init_lora_weights": True, "lora_dropout": 0.05, "modules_to_save": None,
        "rank_pattern": {}, "alpha_pattern": {}, "inference_mode": True, "layers_pattern": None,
        "target_modules": sorted({name.rsplit(".", 1)[-1] for name in modules}),
        "base_model_name_or_path": "tiny/base",
    }  # fmt: skip
    (path / "adapter_config.json").write_text(json.dumps(said | config))
    return Made(path, added)
