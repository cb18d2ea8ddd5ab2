"""Folders of models of transformers: what is refused before, while and after they are read."""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmlang.errors import ModelError
from lmlang.runtime import device
from lmlang.runtime.models import hf_parity, opened
from lmlang.runtime.models.hf import HFModel
from lmlang.runtime.models.hf_loader import load_hf
from lmlang.runtime.models.opened import open_model
from tests.models.folders import said, save

F32 = torch.float32
GPU = torch.device("cuda", 0)
"""Not asked for anything, so that no machine needs one."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "phi"
    save(folder, "phi")
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "phi"))


def test_a_type_that_is_not_native_is_opened_by_transformers(folder):
    opened = open_model(folder)
    assert opened.implementation == "transformers"
    assert isinstance(opened.model, HFModel)
    with pytest.raises(ModelError, match="of the type 'phi', and natively only llama, mistral"):
        open_model(folder, implementation="native")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "none-such"}, "of the type 'none-such', which neither lmlang nor trans"),
        (
            {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "code.Model"}},
            "code that comes with a model is never run: update transformers, or give another",
        ),
        ({"model_type": 5}, "config.json: the metadata 'model_type' is of the type int"),
        ({"model_type": "bloom"}, "a model of the type 'bloom' cannot run on our cache: its pos"),
        (
            {"model_type": "t5"},
            "of the type 't5' cannot run on our cache: it is an encoder-decoder",
        ),
        ({"model_type": "vit"}, "'vit' cannot run .* no causal language model of its type. Give"),
        ({"model_type": "mamba"}, "'mamba' cannot run on our cache: it keeps a recurrent or conv"),
        ({"hidden_size": "wide"}, "cannot open this model .* 'hidden_size': .* int, got str"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1,000,000,000, and no model has"),
        ({"inner": {"num_experts": 10**9}}, "'num_experts' is 1,000,000,000, and no model has"),
        (
            {"num_hidden_layers": 0},
            "'phi' cannot run on our cache: its config says that it has 0 layers",
        ),
        (
            {"vocab_size": 10**12},
            r"describes a model of [\d,]+ numbers, and the files .* hold [\d,]+:",
        ),
        (
            {"vocab_size": 300},
            "lacks the tensor 'lm_head.bias' and 2 more, or has it in another sh",
        ),
        ({"num_attention_heads": 0}, "transformers cannot open this model"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised by 'gptq'"),
    ],
)
def test_what_transformers_cannot_run_right_is_refused_with_name_and_reason(
    folder, changes, message
):
    said(folder, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        open_model(folder)
    assert str(folder) in str(caught.value)


def test_weights_must_be_whole(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights.pop("model.layers.1.mlp.fc1.weight")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks the tensor '.*layers\.1\.mlp\.fc1\.weight', or "):
        open_model(folder)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="not a usable safetensors file"):
        open_model(folder)
    path.rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="weights as a pickle"):
        open_model(folder)


def test_code_of_a_folder_is_never_run(folder, monkeypatch):
    said(folder, auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"})
    (folder / "code.py").write_text("raise SystemExit('code of a model was run')")
    assert open_model(folder).implementation == "transformers"


def test_without_the_package_the_error_says_how_to_get_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r'need the package transformers: `pip install "lmlang\['):
        open_model(folder)


def test_a_model_is_compared_with_itself_once(folder, monkeypatch):
    made: list[Any] = []
    measure = hf_parity.measure
    monkeypatch.setattr(hf_parity, "measure", lambda model: made.append(model) or measure(model))
    said(folder, note="another config")
    for _ in range(2):
        load_hf(folder, F32)
    assert len(made) == 1
    load_hf(folder, torch.bfloat16)
    assert len(made) == 2  # another dtype is another question
    said(folder, note="a third one")
    load_hf(folder, F32)
    assert len(made) == 3


def test_a_refusal_is_not_kept_nor_is_what_is_no_verdict_taken(folder, cache, monkeypatch):
    said(folder, note="refused")
    with monkeypatch.context() as patch:
        patch.setattr(hf_parity, "measure", lambda model: 0.3)
        with pytest.raises(ModelError, match=r"by 0\.3 of their length, 0\.0001 is allowed"):
            load_hf(folder, F32)
    key = hf_parity.verdict_key(folder / "config.json", F32, torch.device("cpu"))
    path = cache / "transformers" / f"{key}.txt"
    assert not path.exists()
    path.write_bytes(b"\xff{")
    assert not hf_parity.has_passed(key)
    load_hf(folder, F32)
    assert hf_parity.has_passed(key)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused_until_they_are(folder, value):
    said(folder, note=f"whole again after {value}")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    tensors = load_file(path)
    next(iter(tensors.values())).view(-1)[0] = value
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"logits are not finite .*: its weights are damaged"):
        load_hf(folder, F32)
    path.write_bytes(whole)
    assert isinstance(load_hf(folder, F32), HFModel)


def test_where_verdicts_cannot_be_kept_models_load_all_the_same(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LMLANG_CACHE", str(tmp_path / "file" / "none"))
    assert isinstance(load_hf(folder, F32), HFModel)


def test_the_names_of_a_model_leave_transformers_with_it(folder):
    from transformers import AttentionInterface

    before = set(AttentionInterface().valid_keys())
    model = load_hf(folder, F32)
    assert len(set(AttentionInterface().valid_keys()) - before) == 2
    with pytest.raises(ModelError, match="was called outside of its Runtime"):
        model.module(input_ids=torch.tensor([[3, 4]]))
    del model
    assert set(AttentionInterface().valid_keys()) == before


@pytest.mark.parametrize("quantize", [False, True])
def test_weights_that_a_device_has_no_room_for_are_refused_with_both_numbers(
    folder, monkeypatch, quantize
):
    monkeypatch.setattr(device, "free_bytes", lambda where: 1_000)
    message = rf"the weights of 'phi' take [\d,]+ bytes, and 1,000 bytes of the memory of {GPU}"
    with pytest.raises(ModelError, match=message):
        load_hf(folder, F32, GPU, quantize=quantize)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn])
def test_weights_of_a_plain_model_are_no_packed_ones(folder, dtype):
    path = folder / "model.safetensors"
    name, weights = "model.layers.1.mlp.fc1.weight", load_file(path)
    save_file(weights | {name: weights[name].double()}, path, metadata={"format": "pt"})
    assert isinstance(load_hf(folder, F32), HFModel)  # more bits are no matter
    mask = {"model.layers.1.mask": torch.ones(2, 2, dtype=torch.bool)}  # nor what nothing reads
    save_file(weights | mask, path, metadata={"format": "pt"})
    assert isinstance(load_hf(folder, F32), HFModel)
    save_file(weights | {name: weights[name].to(dtype)}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"fc1\.weight' is of the type .* are not quantised"):
        load_hf(folder, F32)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_process_waits_for_no_pass_of_its_parent(folder):
    """The thread that runs it, or opens another model, is not in the child."""
    model = open_model(folder)
    with model.model._lock, opened._opening:
        child = os.fork()
        if child == 0:
            free = model.model._lock.acquire(timeout=5) and opened._opening.acquire(timeout=5)
            os._exit(0 if free else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
