"""Keywords of `gen` that say what its output must be: as a spec, and what reads values of it."""

from __future__ import annotations

import contextvars
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from lmlang import limits
from lmlang.errors import ConstraintError, ProgramError, ProgramTypeError, an, quote
from lmlang.frontend import ir
from lmlang.grammar.spec import Ebnf, JsonSchema, Regex, Spec
from lmlang.protocol import LogitsProcessor

SOURCES = ("type", "dtype", "regex", "json_schema", "ebnf")
"""Keywords of which each alone says what the output must be."""
KEYWORDS = (
    *SOURCES, "json_style", "on_budget", "think", "tries", "logits_processor", "provenance"
)  # fmt: skip
"""All keywords of this page."""
TRIES, MAX_TRIES = 3, 100
"""How many values a generation offers to validators, unless it says otherwise, and at most."""
_CONTRADICTORY = ("min_tokens", "ignore_eos", "stop_regex", "include_stop", "heal")
"""Sampling parameters that a constraint leaves no room for."""


_WRAPPED = (
    ("function", "parameters"),
    ("json_schema", "schema"),
    ("parameters",),
    ("input_schema",),
    ("inputSchema",),
    ("schema",),
)
"""Where tools and formats of answers of LLM APIs hold a schema."""
_SAYING = frozenset(
    ("$ref", "properties", "required", "additionalProperties", "items", "enum", "const")
) | {"anyOf", "allOf", "oneOf", "not", "if"}
"""Keywords of which a schema has one that says more than its type."""


@dataclass(frozen=True, slots=True)
class Living:
    """What a generation has that is no data, and so lies beside its node.

    Args:
        read: The value of its text; None: the text itself.
        processor: A function of the program's own that changes logits.
        is_text: Whether the value is a string in any case.
        tries: How many values validators of the program's own may be offered; 0: there are none.
        asked: The type that ``read`` makes values of.
    """

    read: Callable[[str], Any] | None = None
    processor: LogitsProcessor | None = None
    is_text: bool = False
    tries: int = 0
    asked: Any = None


def constrained(given: Mapping[str, Any]) -> tuple[dict[str, Any], Living | None]:
    """Fields of a generation's node by these keywords, and what lies beside it.

    Raises:
        ProgramError: Two contradict each other, or one cannot act.
        ConstraintError: A constraint cannot be used.
    """
    spec, read = _spec(given)
    found: dict[str, Any] = {} if spec is None else {"constraint": spec}
    on_budget, think, processor = given["on_budget"], given["think"], given["logits_processor"]
    if on_budget is not None:
        if on_budget not in ("close", "raise"):
            raise ProgramError(
                f'gen: on_budget={quote(repr(on_budget))[1:-1]}: give "close" or "raise".'
            )
        found["on_budget"] = on_budget
    if think is not None and limits.integer("think", think, 0, limits.MAX_TOKENS):
        found["think"] = think
    if given["provenance"] is not None:
        found["provenance"] = limits.boolean("provenance", given["provenance"])
    if processor is not None:
        if not callable(processor):
            raise ProgramTypeError(
                f"gen: logits_processor is {an(type(processor).__name__)}: give a function of the "
                "output's token ids and a row of logits."
            )
        name = getattr(processor, "__name__", None) or type(processor).__name__
        found["processor"] = str(name)
    asked = given["dtype"] if given["type"] is None else given["type"]
    tries = _tries(given["tries"], asked)
    if read is None and processor is None:
        return found, None
    is_text = asked is str or (isinstance(asked, str) and asked == "str")
    if read is not None and tries:
        read = partial(_read_as_here, contextvars.copy_context(), read)
    return found, Living(read, processor, is_text, tries, asked)


def _read_as_here(context: contextvars.Context, read: Callable[[str], Any], text: str) -> Any:
    """The value of a text by validators that may run programs, as where the type was given."""
    return context.copy().run(read, text)


def _tries(tries: object, asked: Any) -> int:
    """How many values of a type validators may be offered."""
    if asked is None:
        if tries is not None:
            raise ProgramError(
                "gen: tries cannot act without type, whose validators alone refuse values: leave "
                "it out."
            )
        return 0
    from lmlang.grammar.types import is_validated

    most = TRIES if tries is None else limits.integer("tries", tries, 1, MAX_TRIES)
    return most if is_validated(asked) else 0


def check_combination(node: ir.Gen) -> None:
    """Raise ProgramError where parts of a generation contradict each other."""
    if node.on_budget is not None and node.on_budget not in ("close", "raise"):
        raise ProgramError(f'on_budget={quote(node.on_budget)}: give "close" or "raise".')
    if node.constraint is None:
        if node.on_budget is not None:
            raise ProgramError(
                "on_budget cannot act without a constraint, whose outputs alone can be completed: "
                "give type=…, regex=…, json_schema=… or ebnf=…, or leave it out."
            )
    else:
        for name in _CONTRADICTORY:
            if getattr(node, name):
                raise ProgramError(
                    f"{name} cannot act beside a constraint, which says where the output begins "
                    "and ends: leave one of them out."
                )
    if node.reasoning is not None and (node.constraint is not None or node.think):
        what = "think" if node.constraint is None else "a constraint"
        raise ProgramError(
            f"separate_reasoning cannot act beside {what}: the output has no reasoning to cut "
            "out. think=N of gen lets the model reason before it, hidden."
        )


def _spec(given: Mapping[str, Any]) -> tuple[Spec | None, Callable[[str], Any] | None]:
    named = [name for name in SOURCES if given[name] is not None]
    if len(named) > 1:
        raise ProgramError(
            f"gen: {named[1]} cannot act beside {named[0]}: each says all that the output must "
            "be; leave one of them out."
        )
    style = given["json_style"]
    source = named[0] if named else None
    if style is not None and source not in ("type", "dtype", "json_schema"):
        raise ProgramError(
            f"gen: json_style={quote(repr(style))[1:-1]} cannot act without type, dtype or "
            "json_schema: leave it out."
        )
    if source is None:
        return None, None
    value = given[source]
    if isinstance(value, Mapping):
        _check_unwrapped(source, value)
    if source in ("type", "dtype"):
        from lmlang.grammar.types import reader_of, spec_of  # which loads pydantic

        return spec_of(value, json_style="line" if style is None else style), reader_of(value)
    if source == "json_schema":
        return _schema(value, "line" if style is None else style), None
    if not isinstance(value, str):
        hint = (
            ": give its .pattern, with its flags written into it, as in (?i)yes."
            if isinstance(value, re.Pattern)
            else "."
        )
        raise ProgramTypeError(
            f"gen: {source} is a text, and this is {an(type(value).__name__)}{hint}"
        )
    return (_regex if source == "regex" else _ebnf)(value), None


@lru_cache(maxsize=256)
def _regex(pattern: str) -> Regex:
    """A pattern that has been looked at, so that what cannot be compiled is refused here."""
    from lmlang.grammar.language import matching

    spec = Regex(pattern)
    matching(pattern)
    return spec


@lru_cache(maxsize=256)
def _ebnf(text: str) -> Ebnf:
    """A grammar that has been looked at."""
    from lmlang.grammar.ebnf import parse_grammar

    spec = Ebnf(text)
    parse_grammar(text)
    return spec


def _check_unwrapped(source: str, schema: Mapping[str, Any]) -> None:
    """Refuse what only holds a schema, as tools of LLM APIs do: itself it would allow anything."""
    if not _SAYING.isdisjoint(schema) or schema.get("type") not in (
        None,
        "function",
        "json_schema",
    ):
        return
    for path in _WRAPPED:
        found: object = schema
        for step in path:
            found = found.get(step) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            place = "".join([f"[{quote(step)}]" for step in path])
            raise ProgramError(
                f"gen: {source} is no schema but holds one: give that part, {source}=…{place}."
            )


def _schema(value: Any, style: Any) -> JsonSchema:
    try:
        return JsonSchema.of(value, style)
    except ConstraintError as error:
        if not isinstance(value, type):
            raise
        raise ProgramTypeError(
            f"gen: json_schema={quote(value.__name__)[1:-1]} is a class: write "
            f"type={quote(value.__name__)[1:-1]}, whose values are its instances."
        ) from error
