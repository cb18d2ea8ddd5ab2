"""Chat templates by name, by path and as they are written out."""

from __future__ import annotations

import json

import pytest

from lmlang.errors import ModelError, ProgramError, ProgramTypeError
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_templates import (
    PLAIN_TEMPLATE,
    chat_template_names,
    register_chat_template,
    resolve_chat_template,
)
from lmlang.runtime.config import RuntimeConfig

ROLES = ("system", "user", "assistant", "user")
TEXTS = ("be brief", " a ", "b", "c")
EXPECTED = {
    "plain": "System:\nbe brief\n\nUser:\n a \n\nAssistant:\nb\n\nUser:\nc\n\nAssistant:\n",
    "chatml": "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n a <|im_end|>\n"
    "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n",
    "llama-2": "<s>[INST] <<SYS>>\nbe brief\n<</SYS>>\n\na [/INST] b </s><s>[INST] c [/INST]",
    "llama-3": "<s><|start_header_id|>system<|end_header_id|>\n\nbe brief<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nc<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "<s><start_of_turn>user\nbe brief\n\na<end_of_turn>\n<start_of_turn>model\n"
    "b<end_of_turn>\n<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n",
    "mistral": "<s>[INST] be brief\n\n a  [/INST] b</s>[INST] c [/INST]",
    "phi-3": "<|system|>\nbe brief<|end|>\n<|user|>\n a <|end|>\n<|assistant|>\nb<|end|>\n"
    "<|user|>\nc<|end|>\n<|assistant|>\n",
    "zephyr": "<|system|>\nbe brief</s>\n<|user|>\n a </s>\n<|assistant|>\nb</s>\n"
    "<|user|>\nc</s>\n<|assistant|>\n",
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_named_templates_write_what_their_models_know(name):
    template = ChatTemplate(resolve_chat_template(name), "<s>", "</s>")
    assert template.text(ROLES, TEXTS, generation_prompt=True) == EXPECTED[name]


def test_the_names_are_those_that_are_documented():
    assert set(EXPECTED) <= set(chat_template_names())


@pytest.mark.parametrize("name", ["gemma", "llama-2", "mistral"])
def test_named_templates_refuse_what_their_models_do_not_know(name):
    template = ChatTemplate(resolve_chat_template(name))
    with pytest.raises(ProgramError, match="must alternate"):
        template.text(("user", "user"), ("a", "b"))


def test_nothing_said_is_the_models_own():
    assert resolve_chat_template(None, "{{ own }}") == "{{ own }}"
    assert resolve_chat_template(None) is None
    assert resolve_chat_template("plain", "{{ own }}") == PLAIN_TEMPLATE
    assert resolve_chat_template(" ChatML ") == resolve_chat_template("chatml")


def test_jinja_is_taken_as_it_is():
    assert resolve_chat_template("{{ messages }}", "x") == "{{ messages }}"


def test_files_of_jinja_and_of_tokenizers(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ 'é' }}", encoding="utf-8")
    assert resolve_chat_template(tmp_path / "own.jinja") == "{{ 'é' }}"
    assert resolve_chat_template(str(tmp_path / "own.jinja")) == "{{ 'é' }}"
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "{{ 1 }}"}))
    assert resolve_chat_template(config) == "{{ 1 }}"
    several = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    config.write_text(json.dumps({"chat_template": several}))
    assert resolve_chat_template(config) == "d"


def test_a_registered_template_is_found_by_its_name():
    register_chat_template("Ours", "{% for m in messages %}<{{ m.content }}>{% endfor %}")
    template = ChatTemplate(resolve_chat_template("ours"))
    assert template.text(("user",), ("x",)) == "<x>"
    register_chat_template("ours", "{{ 2 }}")
    assert resolve_chat_template("ours") == "{{ 2 }}"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("chatlm", "no chat template of the name 'chatlm': did you mean 'chatml'"),
        ("llama3", "did you mean 'llama-3'"),
        ("", "no chat template of the name ''.*Known are .*'chatml'"),
        ("no/such.jinja", "'no/such.jinja' cannot be read.*FileNotFoundError"),
        ("/", "cannot be read"),
        ("a\0/b", "cannot be read"),
        ("{{ x }}" * 40_000, "280,000 characters: at most 200,000"),
        (3, 'must be a name .as "chatml".*, a path or a template in Jinja, not int'),
    ],
)
def test_what_cannot_be_found_is_said_with_what_is_near(spec, message):
    with pytest.raises(ProgramError, match=message):
        resolve_chat_template(spec)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "no valid JSON"), ("[1]", "no text under"), ('{"chat_template": 3}', "no text under")],
)
def test_files_without_a_template_are_refused(tmp_path, text, message):
    path = tmp_path / "tokenizer_config.json"
    path.write_text(text)
    with pytest.raises(ProgramError, match=message):
        resolve_chat_template(path)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "model.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProgramError, match="UnicodeDecodeError"):
        resolve_chat_template(tmp_path / "model.jinja")
    with (tmp_path / "large.jinja").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ProgramError, match="1,073,741,824 bytes"):
        resolve_chat_template(tmp_path / "large.jinja")


def test_a_template_that_is_no_jinja_is_not_registered():
    for source in ("{{", "{% for %}", "{{ x | nothing }}"):
        with pytest.raises(ProgramError, match=r"the chat template 'bad' is no valid Jinja .Te"):
            register_chat_template("bad", source)
    assert "bad" not in chat_template_names()


def test_built_in_names_stay_what_they_are():
    for name in ("chatml", " ChatML "):
        with pytest.raises(ProgramError, match="is built in: register yours under another name"):
            register_chat_template(name, "{{ 1 }}")


def test_errors_say_whose_template_it_is():
    with pytest.raises(ModelError, match=r"^the model's chat template is no valid Jinja"):
        ChatTemplate("{{")
    with pytest.raises(ProgramError, match=r"^the chat template that was given is no valid Jinja"):
        ChatTemplate("{{", given=True)
    with pytest.raises(
        ProgramError, match=r"^the chat template that was given fails for the roles"
    ):
        ChatTemplate("{{ messages.content.text }}", given=True).text(("user",), ("a",))
    with pytest.raises(ProgramError, match=r"^the chat template that was given refuses turns"):
        ChatTemplate("{{ raise_exception('no') }}", given=True).text(("user",), ("a",))


def test_a_runtime_says_what_a_chat_template_can_be():
    with pytest.raises(ProgramTypeError, match="must be a name, a path, a template in Jinja or No"):
        RuntimeConfig(chat_template=3)  # type: ignore[arg-type]
    with pytest.raises(ProgramTypeError, match="model must be a path or None, not int"):
        RuntimeConfig(model=3)  # type: ignore[arg-type]


def test_names_that_are_none_are_refused():
    with pytest.raises(ProgramError, match="no name of a chat template"):
        register_chat_template("{{ x }}", "y")
    with pytest.raises(ProgramTypeError, match="two texts"):
        register_chat_template("x", 3)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="300,000 characters"):
        register_chat_template("long", "x" * 300_000)
