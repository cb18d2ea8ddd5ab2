"""transformers as a subject, with a DynamicCache of whatever is shared, kept by hand."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import report

# isort: split
import time
from collections.abc import Callable
from typing import Any

import torch
from by_hand import Peer
from of_lmlang import typed, workload

from lmlang.runtime.models.loader import load_gguf
from lmlang.runtime.tokenizer import Tokenizer


def made(
    model: str, folder: str, *, dtype: str
) -> Callable[[str, dict[str, Any]], tuple[float, Any]]:
    """A model of transformers on the weights of a GGUF file that runs works.

    Args:
        model: The file.
        folder: Not needed.
        dtype: "bfloat16" or "float32".
    """
    loaded = load_gguf(Path(model))
    peer, tokenizer = Peer(loaded, getattr(torch, dtype)), Tokenizer.from_gguf(loaded.metadata)

    def run(name: str, work: dict[str, Any]) -> tuple[float, Any]:
        if name == "raw":
            began = time.perf_counter()
            more = peer.generate(work["ids"], work["tokens"]).tokens
            seconds = time.perf_counter() - began
            return seconds, [[*row, *new] for row, new in zip(work["ids"], more, strict=True)]
        if name == "typed":
            return typed(work).by_hand(peer, tokenizer)
        seconds, answer = workload(name, work).by_hand(peer)
        return seconds, answer if name != "choose" else answer.chosen

    assert report  # which sets OpenMP up before torch is loaded
    return run
