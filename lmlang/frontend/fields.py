"""The fields of one node by themselves: their types, which the node's class states, and ranges."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError, an, quote
from lmlang.frontend import ir
from lmlang.frontend.constraints import check_combination
from lmlang.frontend.layout import NODES
from lmlang.grammar.spec import is_spec
from lmlang.protocol import SamplingParams

MAX_ID = 10**15 - 1
"""The largest state."""
ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""A chat template puts a role between its control tokens, so it is one plain word."""

_SAMPLING = {field.name for field in fields(SamplingParams)} & {
    field.name for field in fields(ir.Gen)
}


def check_program(program: object) -> None:
    """Raise a ProgramError if this is no program; its nodes are not looked at."""
    if not isinstance(program, ir.Program):
        raise ProgramTypeError(f"{an(type(program).__name__)} is no program of IR.")
    if not isinstance(program.name, str):
        raise ProgramTypeError(f"the program's name is {an(type(program.name).__name__)}.")
    for what, value in (("nodes", program.nodes), ("parameters", program.parameters)):
        if not isinstance(value, tuple):
            raise ProgramTypeError(
                f"the program's {what} are {an(type(value).__name__)}: give a tuple."
            )
    for parameter in program.parameters:
        known = isinstance(parameter, ir.Parameter)
        if not known or not _is_string(parameter.name) or not _is_string(parameter.annotation):
            raise ProgramTypeError(
                f"{quote(repr(parameter))[1:-1]} is no parameter: it has a name and a type, both "
                "texts."
            )


def check_fields(node: object) -> None:
    """Raise a ProgramError that names the field, if the node cannot stand in a program."""
    if type(node) not in NODES:
        raise ProgramError(f"{an(type(node).__name__)} is no node.")
    for f in fields(node):  # type: ignore[arg-type]
        value = getattr(node, f.name)
        if not _TYPES[str(f.type)](value):
            raise ProgramError(
                f"{f.name}={quote(repr(value))[1:-1]} is no value of the type {f.type}."
            )
    check = _RANGES.get(type(node))
    if check is not None:
        check(node)


# ------------------------------------------------------------------------------------- types


def _is_id(value: object) -> bool:
    return _is_integer(value) and 0 <= value <= MAX_ID  # type: ignore[operator]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float)


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_datum(value: object) -> bool:
    if isinstance(value, (ir.Arg, ir.Ref)):
        placed = value.state != ir.UNPLACED or value.made != ir.UNPLACED
        index = () if isinstance(value, ir.Arg) else value.index
        of = None if isinstance(value, ir.Arg) else value.of
        return not placed and of is None and _is_string(value.name) and _INDEX(index)
    if isinstance(value, ir.Opaque):
        return _is_string(value.kind)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (bool, int, str))


def _pair(first: Callable[[Any], bool], second: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, tuple) and len(x) == 2 and first(x[0]) and second(x[1])


def _many(item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, tuple) and all(map(item, x))


def _optional(item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: x is None or item(x)


_INDEX = _many(_is_id)
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "str": _is_string,
    "str | None": _optional(_is_string),
    "int | None": _optional(_is_integer),
    "float | None": _optional(_is_number),
    "bool | None": _optional(lambda x: isinstance(x, bool)),
    "tuple[str, ...]": _many(_is_string),
    "tuple[str, ...] | None": _optional(_many(_is_string)),
    "tuple[int, ...] | None": _optional(_many(_is_integer)),
    "tuple[tuple[int, float], ...] | None": _optional(_many(_pair(_is_integer, _is_number))),
    "tuple[tuple[str, Datum], ...]": _many(_pair(_is_string, _is_datum)),
    "int": _is_id,
    "tuple[int, ...]": _INDEX,
    "StateId | None": _optional(_is_id),
    "JoinMode": lambda x: x in ("gather_variable", "concate_and_append"),
    "Datum": _is_datum,
    "Spec | None": _optional(is_spec),
}
"""By the type of the field as ir.py writes it; a bare int is a state or an index."""

# ------------------------------------------------------------------------------------ ranges


def _check_text(node: ir.Text) -> None:
    _refuse_surrogates("the text", node.text)


def _check_name(node: ir.Ref | ir.Arg | ir.SetVar | ir.Scope | ir.EndScope) -> None:
    if not node.name:
        raise ProgramError("its name is empty.")


def _check_role(node: ir.Role | ir.EndRole) -> None:
    if not ROLE.fullmatch(node.role):
        raise ProgramError(
            f"the role {quote(node.role)} is no plain word of at most 64 letters, digits, _ and -."
        )


def _check_fork(node: ir.Fork) -> None:
    limits.integer("the number of children", len(node.made), 1, limits.MAX_FORKS)


def _check_join(node: ir.Join) -> None:
    limits.integer("the number of children", len(node.children), 1, limits.MAX_FORKS)


def _check_select(node: ir.Select) -> None:
    if not node.name:
        raise ProgramError("its name is empty.")
    limits.integer("the number of choices", len(node.choices), 1, limits.MAX_CHOICES)
    if "" in node.choices or len(set(node.choices)) != len(node.choices):
        raise ProgramError("a choice is empty or stands twice.")
    for choice in node.choices:
        _refuse_surrogates("a choice", choice)
    if node.temperature is not None:
        limits.number("temperature", node.temperature, 0.0, limits.MAX_TEMPERATURE)


def _check_gen(node: ir.Gen) -> None:
    if not node.name:
        raise ProgramError("its name is empty.")
    given = {name: getattr(node, name) for name in _SAMPLING if getattr(node, name) is not None}
    SamplingParams(**{"max_tokens": limits.MAX_TOKENS, **given})
    for name, low, high in (
        ("n", 1, limits.MAX_SAMPLES),
        ("logprob_start_len", -1, limits.MAX_TOKENS),
        ("top_logprobs_num", 0, limits.MAX_TOP_LOGPROBS),
        ("seed", 0, limits.MAX_SEED),
        ("think", 0, limits.MAX_TOKENS),
    ):
        if getattr(node, name) is not None:
            limits.integer(name, getattr(node, name), low, high)
    check_combination(node)


def _refuse_surrogates(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ProgramError(f"{what} has a lone surrogate, which no tokenizer can read.") from None


_RANGES: Mapping[type, Callable[[Any], None]] = {
    ir.Text: _check_text,
    ir.Arg: _check_name,
    ir.Ref: _check_name,
    ir.Role: _check_role,
    ir.EndRole: _check_role,
    ir.Gen: _check_gen,
    ir.Select: _check_select,
    ir.SetVar: _check_name,
    ir.Scope: _check_name,
    ir.EndScope: _check_name,
    ir.Fork: _check_fork,
    ir.Join: _check_join,
}
