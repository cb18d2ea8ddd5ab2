"""quantize="int8": models whose matrices are int8, native and of transformers, and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmlang.errors import ModelError, ProgramError
from lmlang.kernels.quant import Int8Weight, Weight
from lmlang.protocol import Output
from lmlang.runtime.local import Runtime
from lmlang.runtime.models import hf_quant
from lmlang.runtime.models.adapters import AdapterRows
from lmlang.runtime.models.causal import CausalLM, Inputs
from lmlang.runtime.models.hf import HFModel
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.models.loader import load_folder, load_gguf
from lmlang.runtime.models.lora import read_lora
from lmlang.runtime.models.opened import open_model
from tests.models.folders import said, save
from tests.reference import causal_attention
from tests.runtime import oracle
from tests.runtime.adapters import write_lora
from tests.runtime.test_engine import request
from tests.tiny import tiny_shape, write_tiny_gguf

LONG = [5 + i * i % 97 for i in range(60)]
"""More tokens than torch's kernel for few rows takes: exact products."""


@pytest.fixture(scope="module", autouse=True)
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMLANG_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("file") / "tiny.gguf")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for kind in ("gemma2", "phi", "gpt2", "mixtral"):
        save(root / kind, kind)
    return {path.name: path for path in root.iterdir()}


def widened(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    return {n: w.widened() if isinstance(w, Int8Weight) else w for n, w in weights.items()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("source", ["gguf", "folder"])
def test_a_native_model_computes_with_the_numbers_that_int8_stands_for(
    source: str, tied: bool, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    if source == "gguf":
        path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_shape(tied_head=tied))
        plain, loaded = load_gguf(path), load_gguf(path, quantize="int8")
    else:
        plain, loaded = (
            load_folder(folders["gemma2"]),
            load_folder(folders["gemma2"], quantize="int8"),
        )
    matrices = {name for name, weight in plain.weights.items() if len(weight.shape) == 2}
    assert {n for n, weight in loaded.weights.items() if isinstance(weight, Int8Weight)} == matrices
    model, same = (LlamaModel(loaded.shape, w) for w in (loaded.weights, widened(loaded.weights)))
    assert (model.dtype, model.device) == (torch.float32, torch.device("cpu"))
    got, wanted = (oracle.choice_logprobs(m, LONG[:40], LONG[40:]) for m in (model, same))
    assert got == pytest.approx(wanted, abs=1e-3)
    few, exact = (oracle.choice_logprobs(m, LONG[:4], LONG[4:8]) for m in (model, same))
    assert few == pytest.approx(exact, abs=0.1)
    unrounded = oracle.choice_logprobs(LlamaModel(plain.shape, plain.weights), LONG[:4], LONG[4:8])
    assert few == pytest.approx(unrounded, abs=0.5)
    assert few != pytest.approx(unrounded, abs=1e-4)


def test_the_matrices_take_half_of_the_memory_of_bfloat16(gguf: Path) -> None:
    plain, small = load_gguf(gguf, torch.bfloat16), load_gguf(gguf, torch.bfloat16, quantize="int8")
    for name, weight in small.weights.items():
        if isinstance(weight, Int8Weight):
            outputs, inputs = weight.shape
            assert weight.nbytes == outputs * inputs + 2 * outputs
            assert 2 * outputs * inputs == plain.weights[name].nbytes


def test_both_kinds_of_a_model_are_in_memory_once_each(gguf: Path) -> None:
    small = open_model(gguf, quantize="int8")
    assert open_model(gguf, quantize="int8") is small
    assert open_model(gguf) is not small


@pytest.mark.parametrize("kind", ["phi", "gpt2"])
def test_a_model_of_transformers_has_int8_layers(kind: str, folders: Mapping[str, Path]) -> None:
    plain, small = open_model(folders[kind]), open_model(folders[kind], quantize="int8")
    assert isinstance(plain.model, HFModel)
    assert isinstance(small.model, HFModel)
    layers = [m for m in small.model.module.modules() if isinstance(m, hf_quant.Int8Linear)]
    assert len(layers) >= 8
    for layer in layers:
        assert layer.values.dtype == torch.int8
        assert layer.values.shape == (layer.out_features, layer.in_features)
        assert [name for name, _ in layer.named_parameters()] in ([], ["bias"])
    got, wanted = (oracle.choice_logprobs(m.model, LONG[:40], LONG[40:]) for m in (small, plain))
    assert got == pytest.approx(wanted, abs=0.1)
    assert got != pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_adapters_act_beside_int8_as_beside_the_numbers_it_stands_for(
    implementation: str, tmp_path: Path
) -> None:
    folder, module = tmp_path / "model", "model.layers.1.mlp.down_proj"
    save(folder, "llama")
    model = open_model(folder, implementation=implementation, quantize="int8").model
    plain = open_model(folder, implementation=implementation).model
    sizes = load_file(folder / "model.safetensors")[f"{module}.weight"].shape[::-1]
    write_lora(tmp_path / "lora", {module: (sizes[0], sizes[1])}, strength=2.0)
    lora = read_lora("a", tmp_path / "lora")

    def scores(of: CausalLM, *, adapted: bool) -> torch.Tensor:
        every = torch.arange(len(LONG))
        rows = (AdapterRows(of.adapter(lora, "model"), slice(0, len(LONG))),) if adapted else ()
        inputs = Inputs(torch.tensor(LONG), every, every, rows)
        with torch.inference_mode():
            return of.forward(inputs, causal_attention()).log_softmax(-1)

    with_it, without = scores(model, adapted=True), scores(model, adapted=False)
    off, change = (with_it - scores(plain, adapted=True)).abs(), (with_it - without).abs()
    assert 0 < off.mean() < change.mean() / 10


def test_a_model_whose_numbers_are_mostly_elsewhere_is_refused(
    folders: Mapping[str, Path],
) -> None:
    with pytest.raises(ModelError, match=r"int8' is for linear layers, and .* of this Mixtral"):
        open_model(folders["mixtral"], quantize="int8")


def test_a_model_that_reads_the_weights_of_its_layers_is_refused(
    folders: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(layer: hf_quant.Int8Linear, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight)  # type: ignore[arg-type]

    monkeypatch.setattr(hf_quant.Int8Linear, "forward", forward)
    with pytest.raises(ModelError, match="PhiForCausalLM does more with its linear layers than to"):
        open_model(folders["phi"], dtype="bfloat16", quantize="int8")


@pytest.mark.parametrize(
    ("method", "packages"),
    [
        ("gptq", "gptqmodel optimum accelerate"),
        ("awq", "gptqmodel accelerate"),
        ("compressed-tensors", "compressed-tensors accelerate"),
    ],
)
def test_what_comes_quantised_needs_its_packages(
    method: str,
    packages: str,
    folders: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "model"
    save(folder, "llama")
    said(folder, quantization_config={"quant_method": method, "bits": 4, "group_size": 32})
    monkeypatch.setattr(hf_quant, "find_spec", lambda name: None)
    with pytest.raises(
        ModelError, match=f"is quantised by '{method}', .* `pip install {packages}`"
    ):
        open_model(folder)
    with pytest.raises(ModelError, match="has quantised weights"):
        open_model(folder, implementation="native")
    with pytest.raises(ModelError, match=f"quantised by '{method}' already: leave it out"):
        open_model(folder, quantize="int8")


def test_quantised_weights_are_not_taken_for_plain_ones(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(folder, "llama")
    weights = load_file(folder / "model.safetensors")
    packed = {
        name.replace("proj.weight", "proj.qweight"): weight.int() if "proj" in name else weight
        for name, weight in weights.items()
    }
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"proj\.qweight' is of the type I32, .* are not quantised"
    ):
        open_model(folder)


def test_a_model_that_comes_quantised_is_computed_by_transformers(tmp_path: Path) -> None:
    """In blocks of float8, which transformers widens by itself on a CPU."""
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    folder, plain, side = tmp_path / "model", tmp_path / "plain", 16
    save(folder, "llama")
    shutil.copytree(folder, plain)
    stored, stands_for = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        stored[name] = stands_for[name] = weight
        if name.endswith("proj.weight"):
            outputs, inputs = weight.shape
            blocks = weight.view(outputs // side, side, inputs // side, side)
            scales = blocks.abs().amax((1, 3)) / 448
            small = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
            stored[name], stored[f"{name}_scale_inv"] = small.reshape(weight.shape), scales
            stands_for[name] = (small.float() * scales[:, None, :, None]).reshape(weight.shape)
    for where, weights in ((folder, stored), (plain, stands_for)):
        save_file(weights, where / "model.safetensors", metadata={"format": "pt"})
    said(
        folder,
        quantization_config={
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [side, side]
        },
    )  # fmt: skip
    quantised, wanted = open_model(folder), open_model(plain)
    assert (quantised.implementation, wanted.implementation) == ("transformers", "native")
    got, known = (oracle.choice_logprobs(m.model, LONG[:9], LONG[9:]) for m in (quantised, wanted))
    assert got == pytest.approx(known, abs=1e-4)


def answers(rt: Runtime) -> list[Output]:
    texts = ["hello world and the user", "hello world and the other", "in the "]
    generations = [rt.generate(request(text, max_tokens=9, ignore_eos=True)) for text in texts]
    return [generation.result(timeout=60) for generation in generations]


def test_a_deterministic_runtime_gives_the_same_bits_with_both(gguf: Path) -> None:
    found = []
    for budget in (512, 3):
        with Runtime(
            gguf, quantize="int8", kv_cache_dtype="int8", deterministic=True,
            max_batch_tokens=budget, kv_tokens=300,
        ) as rt:  # fmt: skip
            found += [[(each.ids, each.logprobs) for each in answers(rt)] for _ in range(2)]
            rt.check()
    assert all(each == found[0] for each in found)


def test_what_cannot_be_honoured_is_refused(gguf: Path) -> None:
    with pytest.raises(
        ProgramError,
        match="quantize='int4' is unknown: give one of 'auto', 'none', 'int8', 'blocks'",
    ):
        Runtime(gguf, quantization="int4")
    opened = open_model(gguf)
    with pytest.raises(
        ProgramError, match="quantize='int8' is for models that are loaded, and this"
    ):
        Runtime.over(opened.model, opened.tokenizer, opened.template, quantize="int8")
