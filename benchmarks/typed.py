"""The workload of typed records: the extractions, each of which has to be JSON of one schema."""

from __future__ import annotations

import report

# isort: split
import json
from dataclasses import dataclass
from typing import Annotated, Literal

from by_hand import Peer
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from reviews import records
from writings import Extractions

import lmlang as lm
from lmlang.grammar.spec import JsonSchema
from lmlang.grammar.types import spec_of
from lmlang.runtime.tokenizer import Tokenizer

Texts = tuple[float, list[str]]
"""Seconds, and what was written in place of each record."""


class Record(BaseModel):
    """What a review says."""

    model_config = ConfigDict(extra="forbid")

    day: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    meal: Literal["breakfast", "lunch", "dinner"]
    place: Annotated[str, Field(max_length=24)]
    dish: Annotated[str, Field(max_length=16)]


@lm.function
def extract(s: lm.ProgramState, instruction: str, review: str, tokens: int) -> None:
    """One review into a record."""
    s += instruction
    s += review
    s += lm.gen("record", max_tokens=tokens, temperature=0, type=Record)


@dataclass(frozen=True, slots=True)
class Typed:
    """Records behind one instruction, by a type.

    Args:
        instruction: The same for all.
        reviews: What stands before each record.
        ids: Of instruction and review.
        tokens: Of each record at most; the longest record has fewer.
        schema: JSON, of `Record`.
        right: The records as they should be.
        ends: The tokens that hold a line's end.
    """

    instruction: str
    reviews: list[str]
    ids: list[list[int]]
    tokens: int
    schema: str
    right: list[dict[str, str]]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, runtime: lm.Runtime, length: int, count: int, tokens: int) -> Typed:
        """An instruction of about ``length`` tokens and so many reviews."""
        encode = runtime.tokenizer.encode
        shots = "Write each review down as a line of JSON.\n\n"
        for text, record in records(4, 1_000):
            more = f"{shots}{asked(text)}{json.dumps(record)}\n\n"
            if len(encode(more)) > length:
                break
            shots = more
        made = records(5, count)
        texts = [asked(text) for text, _ in made]
        ids = [encode(shots + text) for text in texts]
        vocabulary = range(runtime.tokenizer.vocab_size)
        ends = tuple(token for token in vocabulary if "\n" in runtime.decode([token]))
        spec = spec_of(Record)
        assert isinstance(spec, JsonSchema)
        return cls(shots, texts, ids, tokens, spec.text, [record for _, record in made], ends)

    def ours(self, runtime: lm.Runtime) -> Texts:
        """All reviews as one batch of runs."""
        rows = [
            {"instruction": self.instruction, "review": review, "tokens": self.tokens}
            for review in self.reviews
        ]
        seconds, states = report.timed(lambda: extract.run_batch(rows, backend=runtime))
        return seconds, [state["record"].model_dump_json() for state in states]

    def by_hand(self, peer: Peer, tokenizer: Tokenizer) -> Texts:
        """As `Extractions.by_hand`: nothing holds the model to the schema."""
        plain = Extractions(self.instruction, self.reviews, [], self.tokens, self.ids, self.ends)
        seconds, rows = plain.by_hand(peer)
        pairs = zip(rows, self.ids, strict=True)
        return seconds, [tokenizer.decode(row[len(ids) :]) for row, ids in pairs]


def asked(review: str) -> str:
    """What stands before a record, on a line of its own, so that no token crosses the border."""
    return f"Review: {review}\nRecord:\n"


def read(text: str) -> dict[str, str] | None:
    """The record that a text is; None where it is none."""
    try:
        return Record.model_validate_json(text.strip()).model_dump()
    except ValidationError:
        return None
