"""Folders of tiny models of transformers, with a tokenizer of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.models import zoo
from tests.runtime.folders import byte_level_json, write
from tests.tiny import CHATML

VOCAB = 320
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|endoftext|>",
    "eos_token": "<|im_end|>",
    "chat_template": CHATML,
}


def save(folder: Path, kind: str, **changes: Any) -> Any:
    """Write a random model of a type as transformers does, and give it."""
    own = (zoo.RUNS | zoo.MORE).get(kind, {})
    vocab = {name: VOCAB for name in ("vocab_size", "vocab_size_per_layer_input") if
             name == "vocab_size" or name in own}  # fmt: skip
    config = zoo.tiny_config(kind, **(own | vocab | changes))
    model = zoo.tiny_transformer(config)
    model.save_pretrained(folder)
    write(folder, byte_level_json(), tokenizer_config=CONFIG)
    return model


def said(folder: Path, **changes: Any) -> None:
    """Change the config of a folder; None takes a key out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: config[key] for key in config if config[key] is not None}))
