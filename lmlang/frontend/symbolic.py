"""Values of a trace that only a run or a caller will know: texts, typed values and the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from lmlang.errors import quote
from lmlang.frontend import ir
from lmlang.frontend.expression import Expression, as_expression


class Tracing(Protocol):
    """What a value tells its trace; ``over``: there is nothing to be told any more."""

    over: bool

    def leave(self, reason: str) -> NoReturn:
        """End the static part and leave the body."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SymbolicText(Expression):
    """A text of which some parts are not known. It can be appended and added to texts, no more."""

    tracing: Tracing

    def __add__(self, other: object) -> Expression:
        if isinstance(other, (str, SymbolicText)):
            return SymbolicText(self.leaves + as_expression(other).leaves, self.tracing)
        return Expression(self.leaves + as_expression(other).leaves)

    def __radd__(self, other: object) -> Expression:
        if isinstance(other, str):
            return SymbolicText(as_expression(other).leaves + self.leaves, self.tracing)
        return Expression(as_expression(other).leaves + self.leaves)

    def as_datum(self) -> ir.Datum:
        """The hole, where it is one by itself."""
        node = self.leaves[0].node
        alone = len(self.leaves) == 1 and isinstance(node, (ir.Arg, ir.Ref))
        return node if alone else ir.Opaque("str")  # type: ignore[return-value]

    def __str__(self) -> NoReturn:
        _leave(self, "its text is asked, as in an f-string (append it, or add it with +)")

    def __format__(self, spec: str) -> NoReturn:
        self.__str__()

    def __repr__(self) -> str:
        return f"<{_shown(self)}>" if self.tracing.over else self.__str__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _leave(self, f".{name} is asked of it")


class SymbolicValue:
    """The value of a typed generation, which is no text: any use of it ends the static part."""

    def __init__(self, text: SymbolicText) -> None:
        self._text = text

    def as_datum(self) -> ir.Datum:
        """The hole."""
        return self._text.as_datum()

    def __str__(self) -> NoReturn:
        _leave(self, "its text is asked (append it with s.text_of)")

    def __format__(self, spec: str) -> NoReturn:
        self.__str__()

    def __repr__(self) -> str:
        return repr(self._text) if self._text.tracing.over else self.__str__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _leave(self, f".{name} is asked of it")


def _leave(unknown: SymbolicText | SymbolicValue, how: str) -> NoReturn:
    text = unknown._text if isinstance(unknown, SymbolicValue) else unknown
    text.tracing.leave(f"{_shown(text)} is not known before a run, and {how}.")


def _shown(unknown: SymbolicText) -> str:
    parts = [leaf.node for leaf in unknown.leaves]
    names = [f"the argument {quote(part.name)}" for part in parts if isinstance(part, ir.Arg)]
    names += [f"the variable {quote(part.name)}" for part in parts if isinstance(part, ir.Ref)]
    return names[0]


def _refusing(how: str) -> Callable[..., NoReturn]:
    def refuse(self: SymbolicText | SymbolicValue, *_: object, **__: object) -> NoReturn:
        _leave(self, how)

    return refuse


_USES = {
    "its truth is asked": "bool",
    "it is compared": "eq ne lt le gt ge hash",
    "it is read as a number": "int float complex index round abs neg pos invert",
    "it is computed with": "mod rmod mul rmul sub rsub divmod rdivmod truediv rtruediv floordiv "
    "rfloordiv pow rpow and rand or ror xor rxor lshift rlshift rshift rrshift matmul rmatmul",
    "its parts are asked": "len iter contains getitem reversed bytes buffer",
    "it is called": "call",
    "it is changed": "setitem delitem iadd",
    "it is copied": "copy deepcopy reduce_ex",
    "it is used in a with block": "enter exit",
    "it is awaited": "await aiter",
    "it is a path": "fspath",
}
for _how, _names in _USES.items():
    for _name in _names.split():
        setattr(SymbolicText, f"__{_name}__", _refusing(_how))
        setattr(SymbolicValue, f"__{_name}__", _refusing(_how))
for _name in ("add", "radd"):
    setattr(SymbolicValue, f"__{_name}__", _refusing("it is computed with"))


class Unknown:
    """Something else of a run, such as metadata: anything asked of it ends the static part."""

    def __init__(self, tracing: Tracing, what: str) -> None:
        self._tracing = tracing
        self._what = what

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._tracing.leave(f"{self._what} are known only in a run, and .{name} is asked of them.")
