"""Adapters over HTTP: named by programs, by shipped ones and in SGLang's ``lora_path``."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import lmlang as lm
from lmlang.cli import main
from lmlang.errors import ProgramError
from lmlang.runtime.local import Runtime
from tests.runtime.adapters import write_lora
from tests.server.served import served
from tests.tiny import tiny_model, write_tiny_gguf

MODULES = {f"model.layers.{layer}.mlp.up_proj": (32, 64) for layer in range(2)}


@lm.function
def tale(s: lm.ProgramState) -> None:
    s += "the user " + lm.gen("more", max_tokens=6, temperature=0, ignore_eos=True)
    s += " and " + lm.select("pick", ["world", "hello"])


def test_what_is_served_is_what_the_runtime_gives(tmp_path: Path) -> None:
    write_lora(tmp_path, MODULES, strength=2)
    made = Runtime.over(*tiny_model(), lora={"mine": tmp_path}, kv_tokens=2_000)
    with made as rt, served(rt) as url, lm.connect(url) as there:
        wanted = {lora: tale(backend=rt, lora=lora).text() for lora in (None, "mine")}
        assert wanted[None] != wanted["mine"]
        for lora, text in wanted.items():
            for ship in (False, True):
                assert tale(backend=there, lora=lora, ship=ship).text() == text
        with pytest.raises(ProgramError, match="lora='other' is no adapter of this runtime"):
            tale(backend=there, lora="other")
        body = {
            "text": ["the user "] * 2, "lora_path": ["mine", None],
            "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True},
        }  # fmt: skip
        found = httpx.post(f"{url}/generate", json=body, timeout=30).json()
        for answer, lora in zip(found, ("mine", None), strict=True):
            assert wanted[lora].startswith("the user " + answer["text"])


def test_openai_s_clients_choose_an_adapter_as_their_model(tmp_path: Path) -> None:
    write_lora(tmp_path, MODULES, strength=2)
    made = Runtime.over(*tiny_model(), lora={"mine": tmp_path, "a": tmp_path}, kv_tokens=2_000)
    with made as rt, served(rt) as url, httpx.Client(base_url=url, timeout=30) as client:
        cards = client.get("/v1/models").json()["data"]
        (own,) = (card["id"] for card in cards if card["parent"] is None)
        assert [(card["id"], card["parent"]) for card in cards[1:]] == [("a", own), ("mine", own)]
        assert client.get("/v1/models/mine").json() == cards[2]
        assert client.get("/v1/models/default").json() == cards[0]

        fields = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
        for name, lora in (("default", None), (own, None), ("mine", "mine")):
            wanted = tale(backend=rt, lora=lora)["more"]
            body = {"model": name, "prompt": "the user ", **fields}
            found = client.post("/v1/completions", json=body).json()
            assert (found["choices"][0]["text"], found["model"]) == (wanted, lora or own)
            chat = {"model": name, "messages": [{"role": "user", "content": "a"}], **fields}
            told = client.post("/v1/chat/completions", json=chat).json()
            assert told["choices"][0]["message"]["content"] == chatted(rt, lora)
            assert told["model"] == (lora or own)
        assert chatted(rt, None) != chatted(rt, "mine")

        refused = client.post("/v1/completions", json={"model": "other", "prompt": "a"})
        assert refused.status_code == 404
        assert "this server has" in refused.json()["error"]["message"]
        assert "'a', 'mine'." in refused.json()["error"]["message"]


def chatted(rt: Runtime, lora: str | None) -> str:
    """What a chat is answered that says "a"."""
    return str(chat(backend=rt, lora=lora)["answer"])


@lm.function
def chat(s: lm.ProgramState) -> None:
    s += lm.user("a")
    s += lm.assistant(lm.gen("answer", max_tokens=6, temperature=0, ignore_eos=True))


def test_the_command_line_takes_adapters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LMLANG_API_KEYS", raising=False)
    model = write_tiny_gguf(tmp_path / "m.gguf")
    arguments = ["--model", str(model), "--port", "0", "--lora", f"mine={tmp_path}"]
    assert main(["serve", *arguments]) == 1
    assert "given for the adapter 'mine', has no adapter_config.json" in capsys.readouterr().err
