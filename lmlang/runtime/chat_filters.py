"""Jinja's filters and names as chat templates know them, each bounded and keeping parts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as JINJA
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.utils import Namespace
from markupsafe import escape

from lmlang.runtime.chat_budget import Budget, current, foresee, foresee_format
from lmlang.runtime.chat_trace import MarkedText, marked_join, parts_of, rewritten

FILTERS = (
    "abs", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "first", "float",
    "format", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower",
    "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "select",
    "selectattr", "slice", "sort", "string", "sum", "title", "trim", "unique", "upper",
    "urlencode", "wordcount",
)  # fmt: skip
TRANSPARENT = frozenset(
    {"count", "d", "default", "first", "last", "length", "list", "map", "reverse", "string", "trim"}
)
"""Filters that read a content by its own methods only, which notice it themselves."""


class Refused(Exception):
    """``raise_exception`` of a template, with its words."""


def marks(value: Any) -> bool:
    """Whether a value holds text of a content."""
    if isinstance(value, (list, tuple)):
        return any(map(marks, value))
    if isinstance(value, dict):
        return any(map(marks, value)) or any(map(marks, value.values()))
    return isinstance(value, MarkedText)


def traced(
    budget: Budget,
    function: Callable[..., Any],
    owner: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """A call of a pure function of texts; contents that it copies keep their parts.

    Where they went is found by calling once more with stand-ins.
    """
    kwargs = kwargs or {}
    made = function(*args, **kwargs)
    if isinstance(owner, MarkedText) or not marks((args, kwargs)):
        return made
    trace = budget.trace
    if not isinstance(made, str):
        trace.reusable = False
        return made
    texts: list[MarkedText] = []

    def stand_in(value: Any) -> Any:
        if isinstance(value, MarkedText):
            texts.append(value)
            return f"\x00{len(texts) - 1}\x01"
        if isinstance(value, (list, tuple)):
            return type(value)([stand_in(item) for item in value])
        if isinstance(value, dict):
            return {key: stand_in(item) for key, item in value.items()}
        return value

    try:
        shape = function(*stand_in(args), **stand_in(dict(kwargs)))
        pieces = re.split("\x00(\\d+)\x01", str(shape))
        copied = [texts[int(piece)] if index % 2 else piece for index, piece in enumerate(pieces)]
    except Exception:  # a stand-in may be no number, no key, ...
        return rewritten(trace, made)
    found = marked_join(trace, (), copied)
    return found if str.__eq__(found, made) else rewritten(trace, made)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose result is foreseen and weighed."""
    shift = 1 if hasattr(function, "jinja_pass_arg") else 0

    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = current.get()
        first, rest = args[:shift], args[shift:]
        rest = tuple([budget.settled(argument) for argument in rest])
        budget.spend(1 + budget.weight(rest) // 64)
        foresee(budget, name, rest[0], (*rest[1:], *kwargs.values()))
        if name == "format":
            foresee_format(budget, str(rest[0]), "%", (*rest[1:], kwargs))
        made = budget.admit(function(*first, *rest, **kwargs))
        if name in TRANSPARENT or not marks((rest, kwargs)):
            return made
        budget.trace.reusable = False
        plain = isinstance(made, str) and not isinstance(made, MarkedText)
        return rewritten(budget.trace, made) if plain else made

    bounded.__dict__.update(getattr(function, "__dict__", {}))
    return bounded


def _pass(_: None) -> bool:
    current.get().spend(1)
    return True


def _admit(value: Any) -> Any:
    return current.get().admit(value)


def seen(value: Any) -> Any:
    """Note that the template looks a value up elsewhere; returns it."""
    if isinstance(value, MarkedText):
        current.get().trace.reusable = False
    return value


def is_in(value: Any, values: Any) -> bool:
    """The test ``in``."""
    return seen(value) in values


def written(value: Any) -> str:
    """What a value is printed as."""
    if isinstance(value, str):
        return value
    budget = current.get()
    budget.allow(4 * budget.weight(value))
    if marks(value):
        return rewritten(budget.trace, str(value))
    return str(value)


@jinja2.pass_context  # so that nothing is printed, and made, when a template is compiled
def finalize(context: Context, value: Any) -> str:
    """What ``{{ value }}`` writes."""
    return written(value)


def concat(texts: Iterable[str]) -> str:
    """Texts one behind another, their parts kept: a block, a macro's output, ``~``."""
    budget = current.get()
    pieces = list(texts)
    budget.allow(sum([str.__len__(piece) for piece in pieces]))
    return str(budget.admit(marked_join(budget.trace, (), pieces)))


def _concatenated(values: list[Any]) -> str:
    return concat([written(value) for value in values])


@jinja2.pass_environment
def _joined(
    environment: jinja2.Environment,
    value: Any,
    between: Any = "",
    attribute: str | int | None = None,
) -> str:
    budget = current.get()
    items = budget.listed(value)
    if attribute is not None:
        items = list(map(make_attrgetter(environment, attribute), items))
    texts = [written(item) for item in items]
    separator = written(between)
    size = sum([str.__len__(text) for text in texts])
    budget.allow(size + str.__len__(separator) * len(texts))
    return str(budget.admit(marked_join(budget.trace, parts_of(separator), texts)))


# ---------------------------------------------------------------------------- names


class TemplateNamespace(Namespace):
    """Jinja's, without names that begin with an underscore, as transformers has it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the name {name!r} of a namespace begins with an underscore")


def make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """``dict`` of templates: no class that could be asked for more."""
    return dict(*args, **kwargs)


def raise_exception(message: object = "") -> NoReturn:
    """How a template refuses a conversation."""
    raise Refused(written(message))


def strftime_now(form: str) -> str:
    """The local time, as transformers has it."""
    return current.get().trace.read_clock(written(form))


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # Jinja's own escapes HTML, which no model was trained on
    options = {"ensure_ascii": False} | options
    budget = current.get()
    if budget.weight(list(options.values())) > 200 or (indent or 0) > 64:
        raise jinja2.TemplateRuntimeError("tojson with a too large value")
    if indent is None:
        budget.allow(6 * budget.weight(value))
        return json.dumps(value, **options)
    parts: list[str] = []
    size = 0
    for part in json.JSONEncoder(indent=indent, **options).iterencode(value):
        size += len(part)
        budget.allow(size)
        parts.append(part)
    return "".join(parts)


def _as_it_is(value: Any) -> str:
    return written(value)


def _escaped(value: Any) -> str:
    return "".join(escape("".join(written(value))))


def bounded_filters() -> dict[str, Callable[..., Any]]:
    """All filters by name; those that begin with an underscore are the sandbox's own."""
    own = {"tojson": _to_json, "safe": _as_it_is, "e": _escaped, "escape": _escaped}
    chosen = {name: JINJA[name] for name in FILTERS} | own
    return {
        **{name: _bounded(name, function) for name, function in chosen.items()},
        "join": _joined,
        "_pass": _pass,
        "_concat": _concatenated,
        "_admit": _admit,
        "_seen": seen,
    }
