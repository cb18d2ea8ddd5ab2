"""A program's parameters as options and as columns: text from outside becomes typed values."""

from __future__ import annotations

import argparse
import collections.abc
import enum
import inspect
import json
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmlang.cli import target
from lmlang.cli.command import Misused
from lmlang.errors import ProgramError, quote
from lmlang.frontend.arguments import told
from lmlang.frontend.program import Function

_EMPTY = inspect.Parameter.empty
_PREFIX = "argument "
"""Before the name under which argparse keeps a program's option: never one of the command's own."""
_SEVERAL = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a program, and how text becomes a value of it.

    Args:
        name: Its name.
        annotation: Its type as text; empty where it has none.
        kind: The type itself, `inspect.Parameter.empty` where it has none or none is known.
        required: Whether a run needs it.
        default: Where it has one.
    """

    name: str
    annotation: str
    kind: Any
    required: bool
    default: Any

    @property
    def takes_text(self) -> bool:
        """Whether any text is a value of it, as it stands."""
        return self.kind in (_EMPTY, str, Any)

    @property
    def several(self) -> bool:
        """Whether its option may be repeated."""
        return (typing.get_origin(self.kind) or self.kind) in _SEVERAL

    def of_text(self, text: str) -> Any:
        """The value of a text: itself where the type takes it, else what it is as JSON.

        Raises:
            ValueError: It is neither.
        """
        if self.takes_text:
            return text
        try:
            return self.of_value(text)
        except ValueError as error:
            try:
                value = json.loads(text)
            except ValueError:
                raise error from None
            if isinstance(value, str):
                raise
            return self.of_value(value)

    def of_value(self, value: object) -> Any:
        """The value of what JSON holds.

        Raises:
            ValueError: It is none of the type.
        """
        if self.kind is _EMPTY:
            return value
        from pydantic import PydanticUserError, TypeAdapter, ValidationError

        try:
            adapter = TypeAdapter(self.kind)
        except PydanticUserError:  # a type of the program's own, which no text can be
            return value
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            at = "".join(f"[{step!r}]" for step in first["loc"])
            given = first.get("input")
            told = quote(given) if isinstance(given, str) else quote(str(given))[1:-1]
            raise ValueError(
                f"{self.name}{at}={told} is no {self.annotation}: {first['msg']}"
            ) from None


def parameters_of(program: Function[Any, Any]) -> list[Parameter]:
    """The parameters behind the state that can be named, bound ones as optional."""
    hints: dict[str, Any] = {}
    try:
        hints = typing.get_type_hints(program._body, include_extras=True)
    except Exception:  # names that only a type checker knows
        hints = {}
    found = []
    bound = program._arguments.bound
    for parameter in program._arguments.signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ProgramError(
                f"{program.__name__}{program._arguments.signature}: {quote(parameter.name)} has "
                "no name that an option could have: write a wrapper without the /."
            )
        kind = hints.get(parameter.name, parameter.annotation)
        text = "" if parameter.annotation is _EMPTY else parameter.annotation
        if not isinstance(text, str):
            text = inspect.formatannotation(text)
        if isinstance(kind, str):
            kind = _EMPTY
        default = bound.get(parameter.name, parameter.default)
        if parameter.annotation is _EMPTY:
            text, kind = _like(default)
        found.append(Parameter(parameter.name, text, kind, default is _EMPTY, default))
    return found


def _like(default: object) -> tuple[str, Any]:
    """The type of a parameter without one, by its default: its name, and it."""
    if isinstance(default, (bool, int, float, enum.Enum)):
        return type(default).__name__, type(default)
    return "", _EMPTY


def signature_of(program: Function[Any, Any]) -> str:
    """As people read it: the name and the parameters behind the state."""
    return f"{program.__name__}{told(program._arguments.signature)}"


# ---------------------------------------------------------------------------- as options


def add_target(parser: argparse.ArgumentParser) -> None:
    """The positional argument that names a program, and ``--arg``."""
    parser.add_argument("target", metavar=target.METAVAR, help=target.HELP)
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the program by its name; may be repeated. Each parameter is also an "
        "option of its own, which FILE:FUNC --help shows",
    )


def extend(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Add an option for each parameter of the program that stands first in ``arguments``."""
    if not arguments or arguments[0].startswith("-"):
        return
    program = target.load(arguments[0])
    taken = parser._option_string_actions
    named = [("--" + each.name.replace("_", "-"), each) for each in parameters_of(program)]
    about = [(inspect.getdoc(program) or "").partition("\n\n")[0]]
    about += [f"--arg {p.name}=…: {_told(p)}" for option, p in named if option in taken]
    group = parser.add_argument_group(
        f"parameters of {program.__name__}", "\n".join(filter(None, about)).replace("%", "%%")
    )
    for option, parameter in named:
        if option not in taken:
            _add_option(group, option, parameter)


def _add_option(group: argparse._ArgumentGroup, option: str, parameter: Parameter) -> None:
    told = _told(parameter).replace("%", "%%")
    destination = _PREFIX + parameter.name
    if parameter.kind is bool:
        group.add_argument(
            option,
            dest=destination,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=told,
        )
        return
    metavar = option.lstrip("-").replace("-", "_").upper()
    if parameter.several:
        group.add_argument(
            option,
            dest=destination,
            action="append",
            default=argparse.SUPPRESS,
            metavar=metavar,
            help=f"{told}; may be repeated",
        )
    else:
        group.add_argument(
            option, dest=destination, default=argparse.SUPPRESS, metavar=metavar, help=told
        )


def _told(parameter: Parameter) -> str:
    """What help says of a parameter: its type, or the few words that it may be; its default."""
    kind = parameter.kind
    told = parameter.annotation or "text"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        told = f"one of {', '.join(str(member.value) for member in kind)}"
    elif typing.get_origin(kind) is typing.Literal:
        told = f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if parameter.required:
        return f"{told} (required)"
    return f"{told}; {_short(parameter.default)} without it"


def _short(value: object) -> str:
    text = str(value.value) if isinstance(value, enum.Enum) else repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def given(program: Function[Any, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The arguments that the command line gives, as typed values.

    Raises:
        Misused: One is of no parameter, or no value of its type, or there are two.
    """
    known = {parameter.name: parameter for parameter in parameters_of(program)}
    texts: dict[str, Any] = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(options).items()
        if name.startswith(_PREFIX)
    }
    for pair in options.arg:
        name, equals, text = pair.partition("=")
        if not equals:
            raise Misused(f"--arg {quote(pair)} has no '=': write --arg NAME=VALUE.")
        if name in known and known[name].several:
            texts.setdefault(name, []).append(text)
        elif name in texts:
            raise Misused(f"{quote(name)} is given twice: it takes one value.")
        else:
            texts[name] = text
    values = {}
    for name, text in texts.items():
        if name not in known:
            if any(
                p.kind is p.VAR_KEYWORD for p in program._arguments.signature.parameters.values()
            ):
                values[name] = text
                continue
            raise Misused(
                f"--arg {quote(name)} is no parameter of {signature_of(program)}: its parameters "
                f"are {', '.join(known) or 'none'}."
            )
        try:
            values[name] = _value(known[name], text)
        except ValueError as error:
            raise Misused(f"{signature_of(program)}: {error}.") from None
    return values


def _value(parameter: Parameter, given: object) -> Any:
    if isinstance(given, bool):
        return given
    if isinstance(given, list):
        if len(given) == 1 and given[0].lstrip().startswith("["):
            return parameter.of_text(given[0])
        return parameter.of_value(given)
    assert isinstance(given, str)
    return parameter.of_text(given)


def missing(program: Function[Any, Any], known: Iterable[str]) -> list[str]:
    """The required parameters that are not among the known ones."""
    there = set(known)
    return [
        each.name for each in parameters_of(program) if each.required and each.name not in there
    ]


def check_complete(program: Function[Any, Any], values: Mapping[str, object]) -> None:
    """Refuse to run without an argument that is required.

    Raises:
        Misused: It names what is missing, with the signature.
    """
    lacking = missing(program, values)
    if lacking:
        option = "--" + lacking[0].replace("_", "-")
        raise Misused(
            f"{signature_of(program)} needs {', '.join(map(quote, lacking))}: give {option} …"
        )
