"""What programs and words are called with: arguments and keywords, those that are none named."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from lmlang.errors import ProgramError, ProgramTypeError, quote
from lmlang.frontend.options import RUN_KEYWORDS

CLOSE = 0.75
"""How like a keyword must be to one that exists, to be taken for it in a message."""

_ELSEWHERE = {
    "grammar": "ebnf",
    "max_new_tokens": "max_tokens",
    "options": "choices",
    "output_type": "type",
    "pattern": "regex",
    "response_format": "json_schema",
    "response_model": "type",
    "schema": "json_schema",
}
"""Keywords of words by the names that runs, and other libraries of this field, have for them."""

P = ParamSpec("P")
T = TypeVar("T")


class Arguments:
    """The parameters of a program behind its state, and the arguments it was bound to.

    Args:
        name: The program's name, for messages.
        body: Its function.
        receiver: Parameters before the state: the object of a method.
        bound: Arguments already given; one given at the call wins.

    Raises:
        ProgramError: The function has no parameter for its state.
    """

    def __init__(
        self, name: str, body: Callable[..., Any], receiver: int, bound: Mapping[str, object]
    ) -> None:
        parameters = list(inspect.signature(body).parameters.values())
        skipped = receiver + 1
        if sum(1 for p in parameters[:skipped] if p.kind in _POSITIONAL) < skipped:
            raise ProgramError(f"{name}() needs a first parameter for its state: def {name}(s, …).")
        if parameters[skipped - 1].kind is not inspect.Parameter.VAR_POSITIONAL:
            parameters = parameters[skipped:]
        self.signature = inspect.Signature(parameters)
        self.bound = dict(bound)
        self._name = name
        self._own = {p.name for p in parameters if p.kind in _NAMED}

    def split(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Keyword arguments of the program, and of the run."""
        run_names = {name for name in kwargs if name not in self._own and of_a_run(name)}
        own = {name: value for name, value in kwargs.items() if name not in run_names}
        return own, {name: kwargs[name] for name in run_names}

    def bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str = ""
    ) -> inspect.BoundArguments:
        """The arguments of one call, defaults included; ``where`` begins the message.

        Raises:
            ProgramTypeError: One is missing, or is of no parameter.
        """
        try:
            taken = self.signature.bind_partial(*args).arguments if self.bound else {}
            given = {name: value for name, value in self.bound.items() if name not in taken}
            bound = self.signature.bind(*args, **{**given, **kwargs})
        except TypeError as error:
            said = self._unexpected(kwargs) or str(error)
            raise ProgramTypeError(f"{where}{self._name}{told(self.signature)}: {said}.") from None
        bound.apply_defaults()
        return bound

    def with_bound(self, given: Mapping[str, object]) -> dict[str, object]:
        """What is bound, with more; one given now wins.

        Raises:
            ProgramTypeError: One is of no parameter.
        """
        try:
            self.signature.bind_partial(**given)
        except TypeError as error:
            hint = next(
                (
                    f" (a keyword of runs is set with {self._name}.options({name}=…))"
                    for name in given
                    if name in RUN_KEYWORDS and name not in self._own
                ),
                "",
            )
            raise ProgramTypeError(
                f"{self._name}.bind: {error}{hint}: its signature is {told(self.signature)}."
            ) from None
        return {**self.bound, **given}

    def _unexpected(self, kwargs: Iterable[str]) -> str:
        """That a keyword is of no parameter, which says more than what is missing for it."""
        if any(p.kind is p.VAR_KEYWORD for p in self.signature.parameters.values()):
            return ""
        wrong = next((name for name in kwargs if name not in self._own), None)
        if wrong is None:
            return ""
        hint = meant(wrong, (*self._own, *RUN_KEYWORDS))
        if of_a_run(wrong):  # which a row cannot have
            hint = f" (a keyword of runs stands behind the rows: run_batch(rows, {wrong}=…))"
        return f"got an unexpected keyword argument {quote(wrong)}{hint}"


def named(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Bound arguments as `trace` takes them: by name, those of ``**keywords`` by their own."""
    known = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            known |= known.pop(parameter.name, {})
    return known


def told(signature: inspect.Signature) -> str:
    """A signature as it was written: without quotes around what Python keeps as a text."""

    def bare(annotation: object) -> object:
        return _Bare(annotation) if isinstance(annotation, str) else annotation

    parameters = [p.replace(annotation=bare(p.annotation)) for p in signature.parameters.values()]
    returns = bare(signature.return_annotation)
    return str(signature.replace(parameters=parameters, return_annotation=returns))


class _Bare(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def of_a_run(name: str) -> bool:
    """Whether a keyword is one of runs."""
    return name in RUN_KEYWORDS


def meant(name: str, known: Iterable[str] = RUN_KEYWORDS) -> str:
    """A hint at the keyword that is most like one that there is not; "" where none is."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=CLOSE)
    return f" (did you mean {near[0]}?)" if near else ""


def hinting(word: Callable[P, T]) -> Callable[P, T]:
    """A word of the language that hints at the keyword which an unknown one was meant to be."""
    known = frozenset(inspect.signature(word).parameters)

    @wraps(word)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if not known.issuperset(kwargs):
            wrong = next(name for name in kwargs if name not in known)
            ours = _ELSEWHERE.get(wrong)
            hint = f" (did you mean {ours}?)" if ours in known else meant(wrong, known)
            raise ProgramTypeError(
                f"{word.__name__}(): got an unexpected keyword argument {quote(wrong)}{hint}."
            )
        return word(*args, **kwargs)

    return checked


_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
