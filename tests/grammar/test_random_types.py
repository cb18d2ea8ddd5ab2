"""Types made at random: whatever their constraints allow is read, and is written so again."""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import pathlib
import random
import uuid
from collections.abc import Callable
from dataclasses import make_dataclass
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import pydantic
import pytest
import typing_extensions
from pydantic import ConfigDict, Field, create_model

from lmlang.backends.constrained import sample
from lmlang.errors import SchemaUnsupported, Unsatisfiable
from lmlang.grammar.type_text import written
from lmlang.grammar.types import reader_of, spec_of

MADE = 50
"""Types of each seed."""


class Color(enum.Enum):
    RED = "red"
    ONE = 1
    NONE = None


class Size(enum.IntEnum):
    SMALL = 1


SCALARS: list[Any] = [
    int, float, bool, str, Decimal, dt.date, dt.datetime, dt.time, dt.timedelta, uuid.UUID, Color,
    Size, type(None), Any, IPv4Address, IPv6Address, pathlib.Path, pydantic.SecretStr,
    pydantic.HttpUrl, pydantic.AwareDatetime, Literal["a", 1, None], Literal["1", True],
    Annotated[int, Field(gt=1, le=9, multiple_of=3)], Annotated[float, Field(gt=0, lt=0.5)],
    Annotated[str, Field(min_length=1, max_length=3)], Annotated[str, Field(pattern=r"^\S+@\w+$")],
    Annotated[Decimal, Field(max_digits=3, decimal_places=2)],
    Annotated[dt.date, Field(ge=dt.date(2020, 2, 28), lt=dt.date(2021, 1, 1))],
    Annotated[dt.timedelta, Field(ge=dt.timedelta(0))],
]  # fmt: skip


class Maker:
    """Makes types of at most three levels."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)

    def type(self, depth: int = 0) -> Any:
        """One."""
        if depth > 2 or self.draws.random() < 0.35:
            return self.draws.choice(SCALARS)
        kinds: list[Callable[[Callable[[], Any]], Any]]
        kinds = [
            self.some,
            self.some,
            self.mapping,
            self.tuple,
            self.union,
            self.model,
            self.others,
        ]
        return self.draws.choice(kinds)(lambda: self.type(depth + 1))

    def some(self, inner: Callable[[], Any]) -> Any:
        """A sequence or a set."""
        kind = self.draws.choice([list, set, frozenset])
        return Annotated[kind[inner()], Field(min_length=self.draws.randrange(3))]

    def mapping(self, inner: Callable[[], Any]) -> Any:
        """A dict."""
        keys = self.draws.choice([str, int, dt.date, dt.datetime, Size, uuid.UUID])
        return Annotated[dict[keys, inner()], Field(min_length=self.draws.randrange(3))]

    def tuple(self, inner: Callable[[], Any]) -> Any:
        """A tuple."""
        return tuple[inner(), ...] if self.draws.random() < 0.3 else tuple[inner(), inner()]

    def union(self, inner: Callable[[], Any]) -> Any:
        """One of two types."""
        if self.draws.random() < 0.4:
            return Optional[inner()]  # noqa: UP045
        return Union[inner(), inner()]  # noqa: UP007

    def model(self, inner: Callable[[], Any]) -> Any:
        """A pydantic model."""
        extra, frozen = self.draws.choice(["ignore", "allow"]), self.draws.random() < 0.5
        fields: dict[str, Any] = {
            "a": (inner(), ...),
            "b_c": (Optional[inner()], None),  # noqa: UP045
            "d": (inner(), Field(alias="Dé")),
        }
        chosen = self.draws.sample(sorted(fields), 2)
        config = ConfigDict(extra=extra, frozen=frozen)
        return create_model("Model", __config__=config, **{name: fields[name] for name in chosen})

    def others(self, inner: Callable[[], Any]) -> Any:
        """A TypedDict, a named tuple or a dataclass."""
        kind, fields = self.draws.randrange(3), [("a", inner()), ("b", inner())]
        if kind == 0:
            left_out = typing_extensions.NotRequired[inner()]
            return typing_extensions.TypedDict("Keyed", {**dict(fields), "c": left_out})
        if kind == 1:
            return NamedTuple("Tupled", fields)
        return make_dataclass("Data", fields, frozen=self.draws.random() < 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_allowed_is_read_and_written_again(seed: int) -> None:
    maker, kept = Maker(seed), 0
    for _ in range(MADE):
        tp = maker.type()
        try:
            spec, read = spec_of(tp), reader_of(tp)
            texts = []
            for start in range(3):
                drawn = random.Random(start)
                texts.append(sample(spec, (drawn.randrange(256) for _ in itertools.count())))
        except (SchemaUnsupported, Unsatisfiable):
            continue
        kept += 1
        for text in texts:
            value = read(text)
            again = read(written(value, tp))
            assert again == value, (tp, text)
            assert type(again) is type(value), (tp, text)
    assert kept > 0.7 * MADE
