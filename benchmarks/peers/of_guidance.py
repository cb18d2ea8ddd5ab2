"""guidance as a subject, over transformers: one row at a time, on whatever it has in its cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from guidance import gen, models, select
from guidance import json as json_of
from plays import Ids, Work, common, play
from tokenizers import Tokenizer


class Guidance:
    """A model in bfloat16.

    Args:
        folder: Weights and tokenizer as Hugging Face has them.
    """

    def __init__(self, folder: str) -> None:
        self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self._folder = folder
        self.fresh()

    def fresh(self) -> None:
        """A new model, as its cache cannot be emptied; its time is nobody's."""
        self._model = models.Transformers(self._folder, dtype=torch.bfloat16, echo=False)

    def complete(self, rows: Ids, tokens: int, ends: Sequence[int] = ()) -> Ids:
        """See `plays.Engine`; ids are those of the text that came."""
        found = []
        for row in rows:
            lm = self._model + self._text(row)
            lm += gen("x", max_tokens=tokens, temperature=0, stop="\n" if ends else None)
            found.append(self._tokenizer.encode(lm["x"], add_special_tokens=False).ids)
        return found

    def choose(self, prefix: list[int], questions: list[Work]) -> list[int]:
        """See `plays.Engine`: greedy among the choices, token by token."""
        found = []
        for question in questions:
            ids = question["ids"]
            lm = self._model + self._text(ids[0][: common(ids)])
            lm += select(question["choices"], name="x")
            found.append(question["choices"].index(lm["x"]))
        return found

    def written(self, rows: Ids, schema: str, tokens: int) -> list[str]:
        """See `plays.Engine`."""
        found = []
        for row in rows:
            lm = self._model + self._text(row)
            lm += json_of("x", schema=json.loads(schema), temperature=0, max_tokens=tokens)
            found.append(str(lm["x"]))
        return found

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def made(model: str, folder: str) -> Callable[[str, Work], tuple[float, Any]]:
    """A model that plays works."""
    engine = Guidance(folder)
    return lambda name, work: play(engine, name, work)
