"""Tools of a program: plain functions that a model may call, with arguments typed as theirs.

    ToolCall[add, look_up]     a type of generations; its values name a function and its arguments
    call.run()                 calls it              call.observe()    … errors being observations
    s.tools([add, look_up])    tells the model of them, and gives what writes calls and results

What a tool raises is for the model to see, and not for the program to end by.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from lmlang.errors import (
    Cancelled,
    ConstraintError,
    DeadlineExceeded,
    ProgramError,
    ProgramTypeError,
    an,
    quote,
)
from lmlang.frontend.dsl import gen
from lmlang.frontend.expression import Expression, as_expression, turn
from lmlang.frontend.observing import ObservedCall
from lmlang.protocol import ToolForm
from lmlang.protocol.tools import FORMS, RESULT, TOOLS

if TYPE_CHECKING:
    from lmlang.grammar.signatures import Signature

MAX_TOOLS = 64
"""That a prompt offers."""
Function = Callable[..., Any]


class _Of(type):
    """Makes ``ToolCall[add, look_up]`` a class of calls of these functions."""

    def __getitem__(cls, functions: Function | tuple[Function, ...]) -> Any:
        return _calls_of(functions if isinstance(functions, tuple) else (functions,), "arguments")


@dataclass(frozen=True, slots=True)
class ToolCall(metaclass=_Of):
    """The call of a function that a model has written; ``ToolCall[f, g]`` is a type of such.

    Args:
        name: The function's.
        arguments: What it is called with, by parameter, each of the parameter's type.
        function: The function.
    """

    name: str
    arguments: Mapping[str, Any]
    function: Function = field(repr=False)
    positional: tuple[str, ...] = field(default=(), repr=False)

    def run(self) -> Any:
        """What the function returns.

        Raises:
            ProgramTypeError: It is an ``async def`` one.
            Exception: What the function raises.
        """
        with ObservedCall(self.name):
            value = self._called()
        if inspect.iscoroutine(value):
            value.close()
            raise ProgramTypeError(
                f"{self.name} is an async function: write await call.arun(), or "
                "await call.aobserve()."
            )
        return value

    async def arun(self) -> Any:
        """As `run`, also of an ``async def`` function."""
        with ObservedCall(self.name):
            value = self._called()
            return await value if isinstance(value, Awaitable) else value

    def observe(self) -> Observation:
        """What comes of the call, an exception included."""
        try:
            return Observation(self, self.run())
        except (Cancelled, DeadlineExceeded, ProgramTypeError):
            raise
        except Exception as error:
            return Observation(self, None, error)

    async def aobserve(self) -> Observation:
        """As `observe`, also of an ``async def`` function."""
        try:
            return Observation(self, await self.arun())
        except (Cancelled, DeadlineExceeded):
            raise
        except Exception as error:
            return Observation(self, None, error)

    def _called(self) -> Any:
        named = dict(self.arguments)
        placed = [named.pop(name) for name in self.positional if name in named]
        return self.function(*placed, **named)


@dataclass(frozen=True, slots=True)
class Observation:
    """What came of a call.

    Args:
        call: The call.
        value: What the function returned.
        error: What it raised; None: nothing.
    """

    call: ToolCall
    value: Any
    error: Exception | None = None

    @property
    def text(self) -> str:
        """For the model: a text as it is, another value as JSON, an error by type and message."""
        from lmlang.grammar.signatures import as_text, told_error

        return as_text(self.value) if self.error is None else told_error(self.error)


class Toolbox:
    """The tools that a state offers its model. Thread-safe.

    Args:
        functions: The functions.
        form: How the model's chat template has calls written; None: it knows of no tools.

    Attributes:
        type: The type of calls of these functions, for ``lm.gen(type=…)``.
    """

    def __init__(self, functions: Sequence[Function], form: ToolForm | None) -> None:
        self._told = form is not None
        self._form = FORMS[form or "tagged"]
        self.type = _calls_of(tuple(functions), self._form.key)

    def definitions(self) -> list[dict[str, Any]]:
        """The tools as OpenAI's clients send them."""
        return [each.definition() for each in self.type.signatures]

    def call(self, name: str | None = None, **keywords: Any) -> Expression:
        """A call of one of the tools, in the form of the model's chat template.

        Args:
            name: The variable, whose value is a `ToolCall`.
            **keywords: As of `gen`, but for what says what the output is.
        """
        written = gen(name, type=self.type, **keywords)
        return as_expression(self._form.opening) + written + self._form.closing

    def result(self, observation: Observation | str) -> Expression:
        """The turn that tells the model what came of a call."""
        text = observation.text if isinstance(observation, Observation) else observation
        if not isinstance(text, str):
            raise ProgramTypeError(
                f"result: {an(type(text).__name__)} is no text: give call.observe(), or a string."
            )
        return turn("tool", text) if self._told else turn("user", RESULT.format(result=text))

    def __repr__(self) -> str:
        names = ", ".join([each.name for each in self.type.signatures])
        return f"<Toolbox: {names}>"


def offer(functions: object, form: ToolForm | None) -> tuple[Expression, Toolbox]:
    """What tells a model of functions, and their toolbox.

    Raises:
        ProgramError: There are none, too many, or two of one name.
        ConstraintError: One cannot be a tool.
    """
    if not isinstance(functions, Sequence) or isinstance(functions, str):
        raise ProgramTypeError(
            f"tools: {an(type(functions).__name__)} is no list: give a list of functions."
        )
    box = Toolbox(functions, form)
    return turn(TOOLS, json.dumps(box.definitions(), ensure_ascii=False)), box


def _calls_of(functions: tuple[Function, ...], key: str) -> Any:
    """The class of calls of these functions, written with this key of their arguments."""
    try:
        hash(functions)
    except TypeError:  # of objects that are called; their class is made anew each time
        return _made_of.__wrapped__(functions, key)
    return _made_of(functions, key)


@lru_cache(maxsize=256)
def _made_of(functions: tuple[Function, ...], key: str) -> Any:
    from lmlang.grammar.signatures import calls_schema, signature_of

    if not functions:
        raise ProgramError("there is no tool: give at least one function.")
    if len(functions) > MAX_TOOLS:
        raise ProgramError(f"{len(functions):,} tools: at most {MAX_TOOLS} are allowed.")
    for function in functions:
        if hasattr(function, "run_batch"):
            raise ProgramTypeError(
                f"the tool {getattr(function, '__name__', '')} is a program, which would need a "
                "state: give a function that runs it and returns what the model is told."
            )
    signatures = tuple([signature_of(function) for function in functions])
    by_name = {each.name: (each, f) for each, f in zip(signatures, functions, strict=True)}
    if len(by_name) < len(functions):
        names = [each.name for each in signatures]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConstraintError(
            f"two tools are called {quote(twice)}: a call could not say which; rename one."
        )

    def made(read: Mapping[str, Any]) -> ToolCall:
        found, function = by_name[read["name"]]
        return ToolCall(found.name, read[key], function, found.positional)

    class Calls(ToolCall):
        """Calls of some functions."""

        __slots__ = ()
        signatures: ClassVar[tuple[Signature, ...]]

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return calls_schema(signatures, key, made, handler.generate_schema)

    Calls.signatures = signatures
    Calls.__name__ = Calls.__qualname__ = f"ToolCall[{', '.join(by_name)}]"
    return Calls
