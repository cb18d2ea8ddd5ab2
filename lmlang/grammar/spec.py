"""Constraints as data: what an output must be, before anything is compiled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, Union

from lmlang.errors import ConstraintError, GrammarSyntaxError, an, quote

Style: TypeAlias = str | int
"""White space of JSON text: "line" (one line, as ``json.dumps`` writes it), "compact" (none), or
the number of spaces by which each level is indented, 1 to 8."""
MAX_VALUES = 10_000_000
"""Of a schema, once every part is written out wherever it stands."""


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that a regular expression in Python's syntax matches in full.

    Args:
        pattern: The expression; not empty.
    """

    pattern: str

    def __post_init__(self) -> None:
        _text("a regular expression", self.pattern)


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON text that a JSON Schema accepts; of draft 2020-12, or as its ``$schema`` says.

    Args:
        text: The schema as JSON; its properties keep their order. `of` makes it from a dict.
        style: White space of the output.
    """

    text: str
    style: Style = "line"

    def __post_init__(self) -> None:
        _text("a JSON schema", self.text)
        style = self.style
        indent = isinstance(style, int) and not isinstance(style, bool) and 1 <= style <= 8
        if style not in ("line", "compact") and not indent:
            raise ConstraintError(
                f'json_style={quote(repr(style))[1:-1]}: give "line", "compact" or an indent of 1 '
                "to 8 spaces."
            )

    @classmethod
    def of(cls, schema: Mapping[str, object] | bool | str, style: Style = "line") -> JsonSchema:
        """The spec of a schema that is a dict, a bool or JSON text.

        Raises:
            ConstraintError: It holds what JSON has not, or its parts repeat too often.
        """
        if isinstance(schema, str):
            return cls(schema, style)
        if not isinstance(schema, (Mapping, bool)):
            raise ConstraintError(
                f"a JSON schema is a dict, a bool or JSON text, not {an(type(schema).__name__)}."
            )
        try:
            values = _values(schema, {})
            if values > MAX_VALUES:
                raise ConstraintError(
                    f"this schema comes to {values:,} values, as parts of it stand there often, "
                    f"and at most {MAX_VALUES:,} are written out: put what repeats into $defs, "
                    "and refer to it by $ref."
                )
            return cls(json.dumps(schema, ensure_ascii=False, allow_nan=False), style)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConstraintError(f"this schema is no JSON: {error}.") from None


def _values(value: object, known: dict[int, int]) -> int:
    """How many values there are in one, each as often as it stands there."""
    if not isinstance(value, (Mapping, list, tuple)):
        return 1
    found = known.get(id(value))
    if found is None:
        known[id(value)] = 0  # of one that holds itself, which is refused later
        parts = value.values() if isinstance(value, Mapping) else value
        found = known[id(value)] = 1 + sum(_values(part, known) for part in parts)
    return found


@dataclass(frozen=True, slots=True)
class Ebnf:
    """Text that a context-free grammar in the GBNF dialect derives.

    Args:
        text: The rules, as in ``root ::= "yes" | "no"``.
        root: The rule that the output is.
    """

    text: str
    root: str = "root"

    def __post_init__(self) -> None:
        _text("a grammar", self.text)
        _text("the name of a rule", self.root)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some texts.

    Args:
        texts: Distinct and not empty.
    """

    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.texts, list):
            object.__setattr__(self, "texts", tuple(self.texts))
        if not isinstance(self.texts, tuple):
            raise ConstraintError(
                f"choices are {an(type(self.texts).__name__)}: give a tuple of texts."
            )
        if not self.texts:
            raise ConstraintError("choices=[]: there is nothing to choose from; give at least one.")
        for text in self.texts:
            _text("a choice", text)
        twice = next((text for text, count in Counter(self.texts).items() if count > 1), None)
        if twice is not None:
            raise ConstraintError(f"the choice {quote(twice)} stands twice: choices must differ.")


@dataclass(frozen=True, slots=True)
class Either:
    """Text that one of some constraints allows.

    Args:
        specs: At least one; alternatives of alternatives stand among them.
    """

    specs: tuple[Spec, ...]

    def __post_init__(self) -> None:
        if isinstance(self.specs, list):
            object.__setattr__(self, "specs", tuple(self.specs))
        if not isinstance(self.specs, tuple) or not all(isinstance(s, _KINDS) for s in self.specs):
            raise ConstraintError("alternatives are constraints: give a tuple of specs.")
        if not self.specs:
            raise ConstraintError("a constraint without alternatives allows nothing.")
        flat: list[Spec] = []
        for spec in self.specs:
            flat += spec.specs if isinstance(spec, Either) else (spec,)
        object.__setattr__(self, "specs", tuple(flat))


@dataclass(frozen=True, slots=True)
class Hole:
    """What may stand in JSON text between two others; for who writes a part of it anew.

    Args:
        schema: Of the whole text.
        before: What stands before the output.
        lead: How the output begins: the rest of what leads to the value.
        after: What stands behind the value, which then is all of the output; None: the output
            goes on to the end of the whole.
    """

    schema: JsonSchema
    before: str
    lead: str = ""
    after: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.schema, JsonSchema):
            raise ConstraintError(
                f"a hole is of a JSON schema, not {an(type(self.schema).__name__)}."
            )
        texts = (self.before, self.lead, "" if self.after is None else self.after)
        if not all(isinstance(text, str) for text in texts):
            raise ConstraintError("the texts around a hole are strings.")


_KINDS = (Regex, JsonSchema, Ebnf, Choice, Either)
Spec: TypeAlias = Union[Regex, JsonSchema, Ebnf, Choice, Either, Hole]  # noqa: UP007 - forward name


def is_spec(value: object) -> bool:
    """Whether a value is a spec that a program may have; it has been checked when it was made."""
    return isinstance(value, _KINDS)


def _text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConstraintError(f"{what} must be a text, not {an(type(value).__name__)}.")
    if not value:
        raise GrammarSyntaxError(f"{what} is empty: there is nothing that it could allow.")
