"""What the printer and the parser of IR agree on: words, patterns, and the options in brackets.

An option is a field of a node that has a default. Its type says how its value stands in a text, so
a new field needs no new line here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from lmlang.errors import ProgramError, an
from lmlang.frontend import ir
from lmlang.frontend.literals import Scanner, float_text, integer_text, quoted
from lmlang.frontend.spec_text import read_spec, write_spec

NODES: tuple[type[ir.Node], ...] = (
    ir.Start, ir.Text, ir.Arg, ir.Ref, ir.Role, ir.EndRole, ir.Gen, ir.Select, ir.Image, ir.SetVar,
    ir.Scope, ir.EndScope, ir.Fork, ir.Join, ir.Call, ir.Return,
)  # fmt: skip
"""All kinds of nodes."""

_PLAIN_TYPE = r"[A-Za-z_][\w.]*(?:\[[\w., |]*\])?"
ANNOTATION = re.compile(rf"{_PLAIN_TYPE}(?: \| {_PLAIN_TYPE})*", re.ASCII)
"""Annotations that stand without quotes."""
PARAMETER = re.compile(r"\*{0,2}[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""Parameters that stand without quotes."""
_STATE = re.compile(r"%(?:0|[1-9][0-9]{0,14})(?![0-9])")

_ELSEWHERE = {
    ir.Ref: ("index",),
    ir.SetVar: ("value",),
    ir.Call: ("arguments",),
    ir.Return: ("value",),
}
"""Fields with defaults that have a place of their own."""


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one type stand in a text.

    Args:
        write: A value's text.
        read: The value that comes next.
    """

    write: Callable[[Any], str]
    read: Callable[[Scanner], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """A field that is printed where it differs from its default."""

    default: object
    form: Form


def read_list(scanner: Scanner, read: Callable[[Scanner], Any], close: str = "]") -> list[Any]:
    """What stands behind an opening bracket: values, commas between them, the closing one."""
    found: list[Any] = []
    if scanner.taken(close):
        return found
    while True:
        found.append(read(scanner))
        if not scanner.taken(","):
            scanner.take(close)
            return found


def _read_integer(scanner: Scanner) -> int:
    scanner.spaces()
    start = scanner.position
    value = scanner.number("an integer")
    if isinstance(value, float):
        scanner.refuse("an integer", start)
    return value


def _read_float(scanner: Scanner) -> float:
    scanner.spaces()
    start = scanner.position
    try:
        return float(scanner.number())
    except OverflowError:
        scanner.refuse("a number that a float can hold", start)


def _read_boolean(scanner: Scanner) -> bool:
    scanner.spaces()
    start = scanner.position
    word = scanner.word("True or False")
    if word not in ("True", "False"):
        scanner.refuse("True or False", start)
    return word == "True"


def _one_or_many(item: Form) -> Form:
    """A tuple; a single item stands alone, others in brackets."""

    def write(values: tuple[Any, ...]) -> str:
        texts = [item.write(value) for value in values]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"

    def read(scanner: Scanner) -> tuple[Any, ...]:
        if scanner.taken("["):
            return tuple(read_list(scanner, item.read))
        return (item.read(scanner),)

    return Form(write, read)


def _write_bias(pairs: tuple[tuple[int, float], ...]) -> str:
    return f"{{{', '.join(f'{integer_text(t)}: {float_text(bias)}' for t, bias in pairs)}}}"


def _read_bias(scanner: Scanner) -> tuple[tuple[int, float], ...]:
    def pair(scanner: Scanner) -> tuple[int, float]:
        token = _read_integer(scanner)
        scanner.take(":")
        return token, _read_float(scanner)

    scanner.take("{")
    return tuple(read_list(scanner, pair, "}"))


def _read_mode(scanner: Scanner) -> str:
    scanner.spaces()
    start = scanner.position
    mode = scanner.string()
    if mode not in ("gather_variable", "concate_and_append"):
        scanner.refuse('"gather_variable" or "concate_and_append"', start)
    return mode


def state_text(state: int) -> str:
    """A state's name."""
    if not 0 <= state < 10**15:
        raise ProgramError(f"%{state} is no state of a program: ids are from 0 to 10^15 - 1.")
    return f"%{state}"


def read_state(scanner: Scanner) -> int:
    """The state that comes next."""
    return int(scanner.matched(_STATE, "a state such as %1")[1:])


_STRING = Form(quoted, Scanner.string)
_INTEGER = Form(integer_text, _read_integer)
_FORMS = {
    "int | None": _INTEGER,
    "float | None": Form(float_text, _read_float),
    "bool | None": Form(str, _read_boolean),
    "str | None": _STRING,
    "tuple[str, ...] | None": _one_or_many(_STRING),
    "tuple[int, ...] | None": _one_or_many(_INTEGER),
    "tuple[tuple[int, float], ...] | None": Form(_write_bias, _read_bias),
    "StateId | None": Form(state_text, read_state),
    "JoinMode": Form(quoted, _read_mode),
    "Spec | None": Form(write_spec, read_spec),
}
"""By the type of the field as ir.py writes it."""

_WORDS: Mapping[type, str] = {
    kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower() for kind in NODES
}
_OPTIONS: Mapping[type, Mapping[str, Option]] = {
    kind: {
        f.name: Option(f.default, _FORMS[str(f.type)])
        for f in fields(kind)
        if f.default is not MISSING and f.name not in ("made", *_ELSEWHERE.get(kind, ()))
    }
    for kind in NODES
}


def word_of(kind: type[ir.Node]) -> str:
    """The word that stands for a kind of node, as ``set_var`` for SetVar."""
    if kind not in _WORDS:
        raise ProgramError(f"{an(kind.__name__)} is no node of a program.")
    return _WORDS[kind]


def options_of(kind: type[ir.Node]) -> Mapping[str, Option]:
    """The options of a kind of node by name, in their order."""
    return _OPTIONS[kind]
