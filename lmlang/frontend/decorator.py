"""``@lm.function``: makes a program of a Python function whose first parameter is its state."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from lmlang.errors import ProgramError, ProgramTypeError
from lmlang.frontend.program import Function

P = ParamSpec("P")
R = TypeVar("R")


@overload
def function(body: Callable[Concatenate[Any, P], R], /) -> Function[P, R]: ...
@overload
def function(
    **options: Any,
) -> Callable[[Callable[Concatenate[Any, P], R]], Function[P, R]]: ...
def function(body: Any = None, /, **options: Any) -> Any:
    """Make a program of a function whose first parameter is its state.

    Use it as ``@lm.function`` or ``@lm.function(temperature=0)``; the options are keywords of
    its runs.

    Raises:
        ProgramError: Not a plain function with a first parameter, or an unknown option.
    """
    if body is None:
        return functools.partial(_decorate, options)
    return _decorate(options, body)


def _decorate(options: Mapping[str, Any], body: Any) -> Function[..., Any]:
    if isinstance(body, (staticmethod, classmethod)):
        kind = type(body).__name__
        mend = (
            "write @staticmethod above @lm.function"
            if isinstance(body, staticmethod)
            else "leave @classmethod out, so that it is a method, which has its object as self"
        )
        raise ProgramTypeError(f"@lm.function stands above a {kind}: {mend}.")
    if not callable(body) or isinstance(body, (type, Function)):
        raise ProgramTypeError(
            f"@lm.function decorates a function, and this is {type(body).__name__}; "
            "options have names: @lm.function(temperature=0)."
        )
    name = getattr(body, "__name__", type(body).__name__)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise ProgramError(
            f"{name}() is a generator (it has a yield), whose body would not run: "
            "return a value instead."
        )
    made: Function[..., Any] = Function(body, {})
    return made.options(**options) if options else made
