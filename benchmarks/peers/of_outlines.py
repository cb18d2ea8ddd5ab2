"""outlines as a subject, over transformers: it has no cache of prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import outlines
import torch
from plays import Ids, Work, common, play
from transformers import AutoModelForCausalLM, AutoTokenizer


class Outlines:
    """A model in bfloat16.

    Args:
        folder: Weights and tokenizer as Hugging Face has them.
    """

    def __init__(self, folder: str) -> None:
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._tokenizer.pad_token = self._tokenizer.pad_token or self._tokenizer.eos_token
        self._tokenizer.padding_side = "left"
        self._tokenizer.chat_template = None  # which would be put around every text
        self._model = outlines.from_transformers(loaded, self._tokenizer)

    def fresh(self) -> None:
        """Nothing is ever cached."""

    def complete(self, rows: Ids, tokens: int, ends: Sequence[int] = ()) -> Ids:
        """See `plays.Engine`; ids are those of the texts that came."""
        given: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False}
        if ends:
            given |= {"stop_strings": ["\n"], "tokenizer": self._tokenizer}
        else:
            given["min_new_tokens"] = tokens
        texts = self._model.batch([self._text(row) for row in rows], None, **given)
        return [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def choose(self, prefix: list[int], questions: list[Work]) -> list[int]:
        """See `plays.Engine`: greedy among the choices, token by token."""
        found = []
        for question in questions:
            ids, choices = question["ids"], question["choices"]
            either: Any = Literal[tuple(choices)]
            text = self._model(
                self._text(ids[0][: common(ids)]), either, max_new_tokens=16, do_sample=False
            )
            found.append(choices.index(text) if text in choices else -1)
        return found

    def written(self, rows: Ids, schema: str, tokens: int) -> list[str]:
        """See `plays.Engine`: one row at a time, as a batch takes no output type."""
        kind = outlines.json_schema(schema)
        given: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False}
        return [str(self._model(self._text(row), kind, **given)) for row in rows]

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def made(model: str, folder: str) -> Callable[[str, Work], tuple[float, Any]]:
    """A model that plays works."""
    engine = Outlines(folder)
    return lambda name, work: play(engine, name, work)
