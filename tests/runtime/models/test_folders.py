"""Hugging Face folders: read as transformers wrote them, and refused by name where they are not."""

from __future__ import annotations

import copy as copy_module
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from lmlang.errors import ModelError
from lmlang.runtime.models.hf_config import hf_shape
from lmlang.runtime.models.loader import load_folder
from lmlang.runtime.shape import LayerKind, Rope
from tests.runtime.models.families import save_family


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    save_family(folder, "qwen2")
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    save_family(folder, "qwen2", max_shard_size="40KB")
    return folder


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "copy"))


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def config_with(folder: Path, changes: dict[str, Any]) -> None:
    edit(folder / "config.json", lambda config: config | changes)


def test_shards_are_one_model(good: Path, sharded: Path) -> None:
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    whole, parts = load_folder(good), load_folder(sharded)
    assert whole.shape == parts.shape
    assert all(torch.equal(parts.weights[name], weight) for name, weight in whole.weights.items())
    assert parts.metadata["model_type"] == "qwen2"


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_come_in_the_type_asked_for(copy: Path, stored, wanted) -> None:
    exact = load_folder(copy).weights["layers.1.down"]
    tensors = {name: t.to(stored) for name, t in load_file(copy / "model.safetensors").items()}
    save_file(tensors, copy / "model.safetensors")
    loaded = load_folder(copy, wanted)
    assert torch.equal(loaded.weights["layers.1.down"], exact.to(stored).to(wanted))
    assert loaded.weights["layers.1.attention_norm"].dtype == torch.float32


def test_what_old_files_store_beside_the_weights_is_left(copy: Path) -> None:
    config_with(copy, {"tie_word_embeddings": True})
    tensors = load_file(copy / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, copy / "model.safetensors")
    loaded = load_folder(copy)
    assert loaded.shape.tied_head
    assert "head" not in loaded.weights


def test_both_generations_of_rope_parameters_mean_the_same(copy: Path) -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 32}
    config_with(copy, {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **yarn}})
    new = load_folder(copy).shape
    old = {
        "rope_parameters": None,
        "rope_theta": 1_000_000,
        "rope_scaling": {"type": "yarn"} | yarn,
    }
    config_with(copy, old)
    assert load_folder(copy).shape == new
    assert new.kinds[0].rope is not None
    assert (new.kinds[0].rope.theta, new.kinds[0].rope.scaling) == (1e6, "yarn")


def test_pickled_weights_are_never_opened(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        load_folder(copy)
    (copy / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ModelError, match=r"pickle \(pytorch_model\.bin\).*convert it to safetens"):
        load_folder(copy)


def test_code_in_a_folder_is_never_run(copy: Path) -> None:
    (copy / "modeling_evil.py").write_text("raise SystemExit('run')")
    config_with(copy, {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}})
    assert load_folder(copy).shape.layers == 4


def test_paths_that_are_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent/config\.json cannot be read"):
        load_folder(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load_folder(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load_folder(tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        load_folder("nul\0byte")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (b"[" * 200_000, "no JSON"),
        (b'{"a":' * 200_000, "no JSON"),
        (b"[1]", "holds a list"),
        (b'{"vocab_size": 1' + b"0" * 5_000 + b"}", "no JSON"),
        (b"{}", "lacks the metadata 'model_type'"),
    ],
)
def test_configs_that_are_none(copy: Path, content: bytes, message: str) -> None:
    (copy / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=rf"config\.json.*{message}"):
        load_folder(copy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "of the type 'mamba'"),
        ({"model_type": ["llama"]}, "is of the type list"),
        ({"num_hidden_layers": None}, "lacks the metadata 'num_hidden_layers'"),
        ({"num_hidden_layers": 10**9}, "layers=1000000000"),
        ({"num_hidden_layers": 10**100}, "'num_hidden_layers' is 10+, and is no size"),
        ({"num_hidden_layers": 2.0}, "is of the type float, and must be int"),
        ({"num_hidden_layers": True}, "is of the type bool"),
        ({"num_hidden_layers": 5, "layer_types": None}, r"lacks the tensor 'model\.layers\.4\."),
        ({"num_hidden_layers": 3, "layer_types": None}, r"has the tensor 'model\.layers\.3\."),
        ({"num_attention_heads": 0}, "heads=0"),
        ({"num_key_value_heads": -2}, "kv_heads=-2"),
        ({"hidden_size": 40, "head_dim": 8}, r"ask for \(120, 40\)"),
        ({"vocab_size": 1 << 22}, r"has the shape \(120, 32\)"),
        ({"vocab_size": "many"}, "is of the type str"),
        ({"rms_norm_eps": float("nan")}, "norm_eps=nan"),
        ({"rms_norm_eps": float("inf")}, "norm_eps=inf"),
        ({"max_position_embeddings": -1}, "max_positions=-1"),
        ({"hidden_act": "relu"}, "the activation 'relu'"),
        ({"num_experts": 8}, r"experts \('num_experts'\)"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"partial_rotary_factor": 0.5}, "rope on a part of each head"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "scaling of the type 'dynamic'"),
        ({"rope_scaling": {"type": "longrope"}}, "scaling of the type 'longrope'"),
        ({"rope_scaling": {"type": 3}}, r"'rope_scaling\.type' is of the type int"),
        ({"rope_scaling": [1]}, "'rope_scaling' is of the type list"),
        ({"rope_scaling": {"type": "linear"}}, r"lacks the metadata 'rope_scaling\.factor'"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "must be a positive number"),
        ({"rope_scaling": {"type": "yarn", "factor": 1e999}}, "must be a positive number"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4,
                              "high_freq_factor": 1}},
            "low=4.0, high=1.0",
        ),
        ({"rope_parameters": {"rope_theta": -5.0}}, "must be a positive number"),
        ({"sliding_window": 0}, "'sliding_window' is 0"),
        ({"layer_types": ["full_attention"]}, "there are 4 layers"),
        ({"layer_types": ["chunked_attention"] * 4}, "layers of the type 'chunked_attention'"),
        ({"layer_types": [["full_attention"]] * 4}, "layers of the type"),
        ({"model_type": "gemma2"}, "the activation|lacks the tensor|is 4"),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5.0}}, "full_attention"),
        ({"model_type": "llama"}, "'layer_types' is .* in all layers"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "must be 4 flags"),
    ],
)  # fmt: skip
def test_configs_that_do_not_fit_are_refused(
    copy: Path, changes: dict[str, Any], message: str
) -> None:
    config_with(copy, changes)
    with pytest.raises(ModelError, match=message) as refusal:
        load_folder(copy)
    assert str(copy) in str(refusal.value)


@pytest.mark.parametrize(
    "name",
    ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "a\\b.safetensors", ".safetensors",
     "..safetensors", "C:evil.safetensors", "pytorch_model.bin", "", 7, None, "x\0.safetensors"],
)  # fmt: skip
def test_an_index_names_files_of_its_own_folder_only(
    good: Path, sharded: Path, tmp_path: Path, name: object
) -> None:
    folder = Path(shutil.copytree(sharded, tmp_path / "inside" / "copy"))
    shutil.copy(good / "model.safetensors", tmp_path / "inside")
    index = folder / "model.safetensors.index.json"

    def point_outside(value: Any) -> Any:
        value["weight_map"]["model.norm.weight"] = name
        return value

    edit(index, point_outside)
    with pytest.raises(ModelError, match=r"index\.json looks for the tensor 'model\.norm\.weight'"):
        load_folder(folder)


def without(value: Any, name: str) -> Any:
    del value["weight_map"][name]
    return value


def moved(value: Any, name: str) -> Any:
    files = value["weight_map"]
    files[name] = next(file for file in files.values() if file != files[name])
    return value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: {}, "no 'weight_map'"),
        (lambda value: {"weight_map": []}, "no 'weight_map'"),
        (lambda value: {"weight_map": {}}, "no 'weight_map'"),
        (lambda value: moved(value, "model.norm.weight"), "'model.norm.weight' is in .* is not"),
        (lambda value: {"weight_map": value["weight_map"] | {"more": "x.safetensors"}},
         r"x\.safetensors is not a usable"),
    ],
)  # fmt: skip
def test_an_index_that_does_not_fit_is_refused(
    sharded: Path, tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    folder = Path(shutil.copytree(sharded, tmp_path / "copy"))
    edit(folder / "model.safetensors.index.json", change)
    with pytest.raises(ModelError, match=message):
        load_folder(folder)


def test_a_tensor_in_two_files_is_refused(good: Path, sharded: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sharded, tmp_path / "copy"))
    shutil.copy(good / "model.safetensors", sorted(folder.glob("model-*"))[0])
    with pytest.raises(ModelError, match=r"is in .* and in .*damaged"):
        load_folder(folder)


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_header(path: Path, header: dict[str, Any] | bytes, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "I64", "shape": [2, 8]}, "type I64, and only F32, F16, BF16"),
        ({"dtype": "F8_E4M3", "shape": [128]}, "type F8_E4M3"),
        ({"dtype": "F31"}, "not a usable safetensors file"),
        ({"shape": [-32]}, "not a usable safetensors file"),
        ({"shape": [33]}, "not a usable safetensors file"),
        ({"shape": [4, 8]}, r"has the shape \(4, 8\), and the model's own"),
        ({"shape": [2**62, 2**62]}, "not a usable safetensors file"),
        ({"data_offsets": [0, 128]}, "not a usable safetensors file"),
        ({"data_offsets": [-128, 0]}, "not a usable safetensors file"),
        ({"data_offsets": [2**63, 2**63 + 128]}, "not a usable safetensors file"),
        ({"data_offsets": "all"}, "not a usable safetensors file"),
    ],
)
def test_headers_that_do_not_fit_are_refused(
    copy: Path, change: dict[str, Any], message: str
) -> None:
    path = copy / "model.safetensors"
    header, data = header_of(path)
    header["model.norm.weight"] |= change
    write_header(path, header, data)
    with pytest.raises(ModelError, match=message):
        load_folder(copy)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"1234567", struct.pack("<Q", 2**63), struct.pack("<Q", 50 << 20),
        struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 200_000) + b"[" * 200_000,
        struct.pack("<Q", 200_000) + b'{"a":' * 40_000, struct.pack("<Q", 8) + b"\xff" * 8,
    ],
)  # fmt: skip
def test_files_that_are_no_safetensors_are_refused(copy: Path, content: bytes) -> None:
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors|lacks the tensor"):
        load_folder(copy)


def test_a_shard_that_is_a_device_is_not_read(sharded: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sharded, tmp_path / "copy"))
    shard = min(folder.glob("model-*.safetensors"))
    shard.unlink()
    shard.symlink_to(os.devnull)
    with pytest.raises(ModelError, match="no regular file"):
        load_folder(folder)


def test_a_file_that_is_cut_off_is_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    whole = path.read_bytes()
    for length in [*range(0, 4_000, 131), *range(4_000, len(whole), 9_001), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors"):
            load_folder(copy)


EDITS = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4
)


@pytest.mark.parametrize(
    "pattern", ["config.json", "model.safetensors.index.json", "model-00001-*.safetensors"]
)
def test_wrong_bytes_are_read_or_refused_and_nothing_else(
    sharded: Path, tmp_path: Path, pattern: str
) -> None:
    folder = Path(shutil.copytree(sharded, tmp_path / "copy"))
    (path,) = folder.glob(pattern)
    whole = path.read_bytes()
    reach = len(whole)
    if path.suffix == ".safetensors":
        reach = 8 + struct.unpack("<Q", whole[:8])[0]

    @settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
    @given(EDITS, st.booleans())
    def check(edits: list[tuple[int, bytes]], insert: bool) -> None:
        odd = bytearray(whole)
        for at, replacement in edits:
            at %= reach
            odd[at : at if insert else at + len(replacement)] = replacement
        path.write_bytes(odd)
        try:
            load_folder(folder)
        except ModelError as error:
            assert str(folder) in str(error)  # noqa: PT017

    check()


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_of_a_config_is_read_or_refused_and_nothing_else(
    copy: Path, good: Path, data: st.DataObject
) -> None:
    config = json.loads((good / "config.json").read_text())
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
        | st.sampled_from([2**63, -(2**64), 10**300, "full_attention", "yarn", "llama3"]),
        lambda inner: st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["rope_type", "factor", "rope_theta", "type", "full_attention",
                             "original_max_position_embeddings", "x"]),
            inner, max_size=4,
        ),
        max_leaves=6,
    )  # fmt: skip
    keys = st.sampled_from([*sorted(config), "rope_scaling", "no_rope_layers", "head_dim"])
    changes = data.draw(st.dictionaries(keys, values, min_size=1, max_size=3))
    changes["model_type"] = data.draw(
        st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3_text"])
    )
    (copy / "config.json").write_text(json.dumps(config | changes))
    try:
        load_folder(copy)
    except ModelError as error:
        assert str(copy) in str(error)  # noqa: PT017


PUBLISHED = {
    "llama 3.2": {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "tie_word_embeddings": True, "vocab_size": 128256, "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1,
    },
    "llama 2": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "vocab_size": 32000, "hidden_act": "silu",
    },
    "mistral 0.1": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 4096, "vocab_size": 32000, "tie_word_embeddings": False,
    },
    "mistral 0.3": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "sliding_window": None, "vocab_size": 32768,
    },
    "qwen 2.5": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32768, "max_window_layers": 21, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
        "use_sliding_window": False, "vocab_size": 151936, "hidden_act": "silu",
    },
    "qwen 3": {
        "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "max_position_embeddings": 40960, "max_window_layers": 28, "rms_norm_eps": 1e-06,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                         "original_max_position_embeddings": 32768},
        "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False,
        "tie_word_embeddings": True, "vocab_size": 151936, "attention_bias": False,
    },
    "smollm 3": {
        "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008,
        "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
        "max_position_embeddings": 65536, "rms_norm_eps": 1e-06, "rope_theta": 5000000.0,
        "no_rope_layers": [1, 1, 1, 0] * 9, "no_rope_layer_interval": 4, "rope_scaling": None,
        "layer_types": ["full_attention"] * 36, "sliding_window": None,
        "use_sliding_window": False, "vocab_size": 128256,
    },
    "gemma 2": {
        "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "head_dim": 256,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 4096,
        "query_pre_attn_scalar": 256, "hidden_act": "gelu_pytorch_tanh", "vocab_size": 256000,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "gemma 3": {
        "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000, "rope_local_base_freq": 10000, "sliding_window": 512,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "vocab_size": 262144,
        "attn_logit_softcapping": None, "final_logit_softcapping": None,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}  # fmt: skip
"""Configs as they were published, in the older form of the format."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_old_config_means_what_transformers_makes_of_it(name: str) -> None:
    old = PUBLISHED[name]
    today = AutoConfig.for_model(**copy_module.deepcopy(old)).to_dict()
    path = Path("config.json")
    assert today["rope_parameters"]
    assert hf_shape(path, old) == hf_shape(path, today)


def test_published_windows_and_ropes() -> None:
    def kinds(name: str) -> list[LayerKind]:
        shape = hf_shape(Path("config.json"), PUBLISHED[name])
        return [shape.kind(layer) for layer in range(shape.layers)]

    assert {kind.window for kind in kinds("mistral 0.1")} == {4096}
    assert {kind.window for name in ("mistral 0.3", "qwen 2.5") for kind in kinds(name)} == {0}
    assert [kind.window for kind in kinds("gemma 2")] == [4096, 0] * 13
    assert [kind.window for kind in kinds("gemma 3")[:7]] == [512] * 5 + [0, 512]
    assert [kind.rope is None for kind in kinds("smollm 3")] == [False, False, False, True] * 9
    whole = kinds("gemma 3")[5].rope
    assert whole == Rope(1e6, "linear", 8.0)
    assert kinds("gemma 3")[0].rope == Rope(1e4)
