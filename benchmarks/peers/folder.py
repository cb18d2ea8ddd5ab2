"""The model as a folder of Hugging Face's, for peers that read no GGUF: folder.py MODEL FOLDER.

Weights are those that the file's blocks stand for, in bfloat16; the tokenizer is the file's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from by_hand import llama_of
from transformers import AutoTokenizer

from lmlang.runtime.models.loader import load_gguf


def main() -> None:
    """Write it."""
    model, folder = map(Path, sys.argv[1:])
    loaded = load_gguf(model)
    made = llama_of(loaded.shape, loaded.weights).to(torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    made.config.eos_token_id = tokenizer.eos_token_id
    made.config.bos_token_id = tokenizer.bos_token_id
    made.generation_config.eos_token_id = tokenizer.eos_token_id
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # In the words of transformers 4 too, which some peers still ask for.
    _add(folder / "config.json", {"rope_theta": made.config.rope_parameters["rope_theta"]})
    _add(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def _add(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields, indent=2))


if __name__ == "__main__":
    main()
