"""Opening models: folders, files, the hub's cache; each in memory once, their code never run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import lmlang as lm
from lmlang.errors import ModelError, ProgramError
from lmlang.protocol import EndTurn, Prompt, Text, Turn
from lmlang.runtime.encoder import PromptEncoder
from lmlang.runtime.models.hub import UNWANTED, WANTED
from lmlang.runtime.models.opened import open_model
from tests.reference import greedy
from tests.runtime.folders import byte_level_json, sentencepiece_json, write
from tests.tiny import CHATML, write_tiny_gguf

CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|endoftext|>",
    "eos_token": "<|im_end|>",
    "chat_template": CHATML,
}


def save_llama(folder: Path, vocab: int = 320, **sizes: Any) -> LlamaForCausalLM:
    """A random Llama as transformers saves it; the ids that the tokenizer lacks are padding."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        initializer_range=0.6, eos_token_id=None, bos_token_id=None, pad_token_id=None, **sizes,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model") / "tiny"
    save_llama(made)
    return write(made, byte_level_json(), tokenizer_config=CONFIG)


def copied(folder: Path, target: Path, **files: Any) -> Path:
    shutil.copytree(folder, target)
    for stem, content in files.items():
        (target / f"{stem}.json").write_text(json.dumps(content))
    return target


@lm.function
def hello(s: Any, text: str) -> None:
    s += text
    s += lm.gen("x", max_tokens=24, temperature=0, ignore_eos=True)


TEXTS = ["hello", "the user's 12 hello", "a\n\nb, you"]


@pytest.mark.parametrize("family", ["bytes", "spaces"])
def test_greedy_tokens_of_a_folder_are_those_of_transformers(tmp_path, family):
    reference = save_llama(tmp_path)
    if family == "bytes":
        write(tmp_path, byte_level_json("qwen2"), tokenizer_config=CONFIG)
    else:
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
        write(tmp_path, sentencepiece_json("first"), tokenizer_config=config)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    with lm.Runtime(tmp_path, kv_tokens=256) as runtime:
        for text in TEXTS:
            ids = theirs.encode(text)
            assert runtime.encode(Prompt.of(Text(text))) == ids
            state = hello.run(text, backend=runtime)
            assert list(state.meta("x").tokens) == greedy(reference, ids, 24)


def test_prompts_of_a_folder_are_those_of_its_chat_template(folder):
    opened = open_model(folder)
    theirs = AutoTokenizer.from_pretrained(str(folder))
    turns = [("user", "hello <|im_end|>"), ("assistant", " the\n"), ("user", "é")]
    prompt = Prompt.of(*(p for role, text in turns for p in (Turn(role), Text(text), EndTurn())))
    encoder = PromptEncoder(opened.tokenizer, opened.template)
    messages = [{"role": role, "content": text} for role, text in turns]
    assert encoder.render(prompt) == theirs.apply_chat_template(messages, tokenize=False)
    messages[0]["content"] = turns[0][1].replace("<|im_end|>", "")
    plain = Prompt.of(
        *(p for m in messages for p in (Turn(m["role"]), Text(m["content"]), EndTurn()))
    )
    expected = theirs.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert encoder.encode(plain) == expected
    assert opened.tokenizer.vocab_size == 320
    assert opened.tokenizer.stop_ids == {opened.tokenizer.control_id(t) for t in
                                         ("<|im_end|>", "<|endoftext|>")}  # fmt: skip


@pytest.mark.parametrize(
    ("files", "jinja", "expected"),
    [
        ({}, "{{ bos_token }}from jinja", "<|endoftext|>from jinja"),
        ({"tokenizer_config": CONFIG | {"chat_template": None}}, None, "User:\nx\n\n"),
        (
            {"tokenizer_config": CONFIG | {"chat_template": [
                {"name": "tool_use", "template": "tools"},
                {"name": "default", "template": "{{ eos_token }}the default"}]}},
            None, "<|im_end|>the default",
        ),
        (
            {"tokenizer_config": CONFIG | {"chat_template": [{"name": "x", "template": "y"}]}},
            None, "User:\nx\n\n",
        ),
        (
            {"tokenizer_config": CONFIG | {"chat_template": None},
             "chat_template": {"chat_template": "from its own file"}},
            None, "from its own file",
        ),
    ],
)  # fmt: skip
def test_the_chat_template_of_a_folder(folder, tmp_path, files, jinja, expected):
    made = copied(folder, tmp_path / "model", **files)
    if jinja is not None:
        (made / "chat_template.jinja").write_text(jinja)
    opened = open_model(made)
    encoder = PromptEncoder(opened.tokenizer, opened.template)
    assert encoder.render(Prompt.of(Turn("user"), Text("x"), EndTurn())) == expected


def test_a_model_is_in_memory_once_for_each_dtype_and_state_of_its_files(folder, tmp_path):
    made = copied(folder, tmp_path / "model")
    (tmp_path / "link").symlink_to(made)
    with lm.Runtime(made, kv_tokens=64) as one, lm.Runtime(tmp_path / "link", kv_tokens=64) as two:
        assert one._opened is two._opened
    first = open_model(made)
    assert open_model(str(made)) is first
    half = open_model(made, dtype="bfloat16")
    assert half is not first
    assert half.model.dtype == torch.bfloat16
    (made / "notes.txt").write_text("not read")
    assert open_model(made) is first
    config = made / "tokenizer_config.json"
    config.write_text(json.dumps(CONFIG | {"chat_template": "another"}))
    os.utime(config, ns=(1, 1))
    assert open_model(made) is not first


def test_a_file_is_in_memory_once_for_each_dtype(tmp_path):
    path = write_tiny_gguf(tmp_path / "m.gguf")
    first = open_model(path)
    assert open_model(path) is first
    assert open_model(path, dtype="auto") is first
    assert open_model(path, dtype="float16") is not first


def test_code_of_a_folder_is_never_run(folder, tmp_path, monkeypatch):
    made = copied(folder, tmp_path / "evil")
    config = json.loads((made / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_evil.EvilForCausalLM"}
    (made / "config.json").write_text(json.dumps(config))
    named = CONFIG | {"auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}}
    (made / "tokenizer_config.json").write_text(json.dumps(named))
    for name in ("modeling_evil", "tokenization_evil", "configuration_evil", "__init__"):
        (made / f"{name}.py").write_text("import pathlib; pathlib.Path('ran').touch()\n1/0\n")
    monkeypatch.chdir(tmp_path)
    with lm.Runtime(made, kv_tokens=64) as runtime:
        hello.run("hello", backend=runtime)
    assert not [name for name in sys.modules if "evil" in name]
    assert not list(tmp_path.rglob("ran")) + list(tmp_path.rglob("__pycache__"))


# ---------------------------------------------------------------------- the hub


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's own library, and nothing but it: the network is off."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def cache_model(cache: Path, name: str, folder: Path, revision: str = "main") -> None:
    """Lay a folder into the hub's cache as its library does: a commit, and a name for it."""
    commit = "c" * 40
    place = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / revision).write_text(commit)


@pytest.mark.parametrize(("revision", "offline"), [(None, True), ("main", False), ("v2", True)])
def test_a_model_of_the_hub_comes_from_its_cache(hub_cache, folder, revision, offline):
    cache_model(hub_cache, "some-org/tiny.model", folder, revision or "main")
    opened = open_model("some-org/tiny.model", revision=revision, offline=offline)
    assert opened.name == "some-org/tiny.model"
    assert opened.tokenizer.vocab_size == 320


def test_data_alone_is_asked_of_the_hub():
    from huggingface_hub.utils import filter_repo_objects

    wanted = [
        *("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"),
        *("model-00001-of-00002.safetensors", "model.safetensors.index.json"),
    ]
    other = [
        *("pytorch_model.bin", "modeling_x.py", "tokenizer.model", "README.md", "x.pt", "x.pkl"),
        *("original/params.json", "onnx/model.safetensors", "consolidated.safetensors", "x.gguf"),
    ]
    asked = filter_repo_objects(
        [*wanted, *other], allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)
    )
    assert list(asked) == wanted


@pytest.mark.parametrize("offline", [True, False])
def test_a_model_that_the_hub_does_not_bring_is_named(hub_cache, offline):
    with pytest.raises(ModelError, match=r"model='some-org/none' at revision='v1' is no file or f"):
        open_model("some-org/none", revision="v1", offline=offline)


def test_without_the_package_the_error_says_how_to_get_it(hub_cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="pip install huggingface_hub"):
        open_model("some-org/none")


def test_what_is_here_goes_before_the_hub(hub_cache, folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "some-org" / "tiny")
    monkeypatch.chdir(tmp_path)
    assert open_model("some-org/tiny").tokenizer.vocab_size == 320


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("named", "changes", "error", "message"),
    [
        ("/no/such/folder", {}, ModelError, "is no file or folder here: give the path of a .gguf"),
        ("some/file.gguf", {}, ModelError, "is no file"),
        ("nul\0", {}, ModelError, "cannot be looked up|is no file"),
        (None, {"dtype": "int8"}, ProgramError, "dtype='int8' is none of 'float32', 'bfloat16'"),
        (None, {"dtype": ["x"]}, ProgramError, "dtype="),
        (None, {"revision": "v1"}, ProgramError, "revision='v1' is the version of a model on the"),
        ("/tmp", {"revision": "v1"}, ProgramError, "names none"),
        ("some-org/none", {"revision": 5}, ProgramError, "revision must be a branch"),
    ],
)
def test_what_cannot_be_opened_is_named(named, changes, error, message):
    with pytest.raises(error, match=message):
        open_model(named, **changes)


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ("tokenizer.json", r"no tokenizer\.json: copy that"),
        ("config.json", r"no config\.json: give the folder of a whole model"),
        ("model.safetensors", "safetensors"),
    ],
)
def test_a_folder_that_is_not_whole_is_named(folder, tmp_path, absent, message):
    made = copied(folder, tmp_path / "model")
    (made / absent).unlink()
    with pytest.raises(ModelError, match=message):
        open_model(made)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_of_a_folder_is_told_from_its_folder(folder, name):
    with pytest.raises(ModelError, match=f"one file of a model folder: give the folder, {folder}"):
        open_model(folder / name)


def test_files_that_do_not_belong_together_are_named(tmp_path):
    save_llama(tmp_path, vocab=280)
    write(tmp_path, byte_level_json(), tokenizer_config=CONFIG)
    with pytest.raises(ModelError, match="they belong to different models"):
        open_model(tmp_path)


@pytest.mark.parametrize("template", [5, {"a": 1}, [{"name": "default", "template": 5}]])
def test_a_chat_template_that_is_no_text_is_refused(folder, tmp_path, template):
    files = {"tokenizer_config": CONFIG | {"chat_template": template}}
    with pytest.raises(ModelError, match="chat_template is no text"):
        open_model(copied(folder, tmp_path / "model", **files))


def test_a_template_file_that_is_no_text_is_refused(folder, tmp_path):
    made = copied(folder, tmp_path / "model")
    (made / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"chat_template\.jinja.* cannot be read"):
        open_model(made)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_device_or_a_pipe_in_a_folder_is_not_waited_for(folder, tmp_path, name):
    made = copied(folder, tmp_path / "model")
    (made / name).unlink(missing_ok=True)
    (made / name).symlink_to(os.devnull)
    with pytest.raises(ModelError, match=rf"{name}.*no regular file"):
        open_model(made)
