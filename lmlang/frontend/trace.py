"""Symbolic tracing: a program's body runs once, on values that only a run or a caller will know.

    s += "On " + topic + ": " + lm.gen("tip")      text, arg, text, gen
    s += s["tip"]                                  ref
    if s["tip"] == "none": …                       ends the static part, with line and reason

The recorder is the one of runs. Only what executes differs: a state of a trace settles variables
with `SymbolicText` at once, so nothing waits, and asks no backend. What a trace cannot see: `is`,
`isinstance`, input and output, randomness in a body. It feeds display and checks, never results.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from lmlang.errors import ProgramTypeError, quote
from lmlang.frontend import ir
from lmlang.frontend.call import Call
from lmlang.frontend.constraints import Living
from lmlang.frontend.defaults import use
from lmlang.frontend.expression import Leaf
from lmlang.frontend.options import GenDefaults
from lmlang.frontend.passes import own_refs
from lmlang.frontend.recording import Recording
from lmlang.frontend.run import Operation, Phase, Run, State, Variable
from lmlang.frontend.source import line_of, users_line
from lmlang.frontend.symbolic import SymbolicText, SymbolicValue, Unknown
from lmlang.protocol import Prompt


class TraceEnded(BaseException):
    """Leaves a body whose static part has ended; no ``except Exception`` of it may stop this."""


def trace(
    name: str,
    body: Callable[..., Any],
    signature: inspect.Signature,
    known: Mapping[str, object],
) -> ir.Program:
    """What a body records when it runs on what is known; ``stopped`` says where that ended.

    Args:
        name: The program's name.
        body: Takes a state, then the arguments.
        signature: Of the arguments.
        known: Arguments by parameter; defaults are known too, all others become holes.

    Raises:
        ProgramTypeError: An argument of no parameter.
        Exception: What the body raises by itself.
    """
    tracing = _Tracing(name, parameters_of(signature))
    args, kwargs = _arguments(name, signature, known, tracing)
    call = Call(_TraceRun(name, tracing), _boxed(body), args, kwargs)
    try:
        with use(_NoBackend(tracing)):  # runs of other programs inside this one
            call.execute()
    except TraceEnded:
        pass
    except TypeError as error:
        tracing.see(error)
        if tracing.stopped is None:
            raise
    finally:
        tracing.over = True
    program = tracing.recording.program()
    return own_refs(replace(program, stopped=tracing.stopped, tries=dict(tracing.tries)))


def parameters_of(signature: inspect.Signature) -> tuple[ir.Parameter, ...]:
    """A signature as data."""
    found = []
    for parameter in signature.parameters.values():
        several = parameter.kind is parameter.VAR_POSITIONAL
        stars = "*" if several else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        annotation = parameter.annotation
        if annotation is parameter.empty:
            annotation = ""
        elif not isinstance(annotation, str):
            annotation = inspect.formatannotation(annotation)
        found.append(ir.Parameter(stars + parameter.name, annotation))
    return tuple(found)


def _arguments(
    name: str, signature: inspect.Signature, known: Mapping[str, object], tracing: _Tracing
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    left: dict[str, Any] = dict(known)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += left.pop(parameter.name, ())
            continue
        hole = Leaf(ir.Arg(ir.UNPLACED, ir.UNPLACED, parameter.name))
        value: Any = SymbolicText((hole,), tracing)
        if parameter.name in left or parameter.default is not parameter.empty:
            value = left.pop(parameter.name, parameter.default)
        if parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    if left and not takes_any:
        raise ProgramTypeError(
            f"{name}{signature} has no parameter {quote(next(iter(left)))}: give arguments by name."
        )
    return tuple(args), {**kwargs, **left}


def _boxed(body: Callable[..., Any]) -> Callable[..., Any]:
    """An ``async def`` body whose value is in a box: event loops show the values of their tasks."""
    if not inspect.iscoroutinefunction(body):
        return body

    async def boxed(*args: Any, **kwargs: Any) -> _Box:
        return _Box(await body(*args, **kwargs))

    return boxed


@dataclass(frozen=True, slots=True, repr=False)
class _Box:
    value: object

    def as_datum(self) -> ir.Datum:
        return ir.as_datum(self.value)


class _Tracing:
    """One trace: what it records until it stops. Thread-safe."""

    def __init__(self, name: str, parameters: tuple[ir.Parameter, ...]) -> None:
        self.recording = _TraceRecording(name, parameters, self)
        self.stopped: ir.Stop | None = None
        self.tries: dict[int, int] = {}
        self.over = False
        self._lock = threading.Lock()

    def end(self, source: str, reason: str) -> None:
        """Record nothing more; the first end counts."""
        with self._lock:
            if self.stopped is None:
                self.stopped = ir.Stop(source, reason)
                self.recording.close()

    def leave(self, reason: str) -> NoReturn:
        """End the static part at the user's line and leave the body."""
        self.end(users_line(), reason)
        raise TraceEnded(reason)

    def see(self, error: BaseException | None) -> None:
        """End where a function that wants a string has refused a value of the trace.

        Python's own functions look at the type of what they get, and ask nothing of it.
        """
        refused = (
            SymbolicText.__name__,
            SymbolicValue.__name__,
            "expected string or bytes-like object",  # Python 3.10: re
        )
        if isinstance(error, TypeError) and any(words in str(error) for words in refused):
            why = f"a value that only a run knows is used there: {error.args[0]}"
            self.end(line_of(error), why)


class _TraceRecording(Recording):
    """Stays without what a body records on its way out of a refusal."""

    def __init__(self, name: str, parameters: tuple[ir.Parameter, ...], tracing: _Tracing) -> None:
        super().__init__(name, parameters)
        self._tracing = tracing

    def add(self, node: ir.Node, source: str) -> None:
        """Add a node whose states are in place; nothing, once the trace has ended."""
        self._tracing.see(sys.exc_info()[1])
        super().add(node, source)


# ---------------------------------------------------------------------- in place of execution


class _TraceRun(Run):
    """A run whose states settle everything at once."""

    def __init__(self, name: str, tracing: _Tracing) -> None:
        super().__init__(name, _NoBackend(tracing), GenDefaults(), 0, b"")
        self.recording = tracing.recording
        self.tracing = tracing
        unknown: Any = Unknown(tracing, "counts of tokens")
        self.usage = unknown
        self.root = _TraceState(self, None, "", Phase.IDLE)
        self.states = [self.root]

    def depends(self, what: str) -> None:
        """End the static part."""
        self.tracing.leave(f"{what} is known only in a run.")

    def tool_form(self) -> None:
        """A trace knows no model."""


class _TraceState(State):
    """A state that executes nothing: its variables are settled when they are appended."""

    __slots__ = ()

    def __init__(self, run: Run, branch: int | None, prefix: str, phase: Phase) -> None:
        super().__init__(run, branch, prefix, Phase.IDLE)
        assert isinstance(run, _TraceRun)
        self.origin = self.prompt = _UnknownPrompt(run.tracing)

    def push(self, operations: list[Operation]) -> bool:
        """Settle what operations define; there is nothing to execute."""
        assert isinstance(self.run, _TraceRun)
        for operation in operations:
            _settle(operation, self.run.tracing)
        return False


class _UnknownPrompt(Prompt):
    """Stands for the prompt of a trace's state."""

    __slots__ = ("tracing",)

    def __init__(self, tracing: _Tracing) -> None:
        super().__init__()
        self.tracing = tracing

    def nodes(self) -> list[Prompt]:
        """Ends the static part."""
        self.tracing.leave("the text of the prompt is known only in a run, and it is asked.")


class _NoBackend:
    """Where a backend would be: asking it ends the static part."""

    def __init__(self, tracing: _Tracing) -> None:
        self._tracing = tracing

    def _leave(self, *_: object) -> NoReturn:
        self._tracing.leave("a backend is asked, which a trace has not.")

    generate = score = render = encode = decode = info = flush_cache = close = _leave


def _settle(operation: Operation, tracing: _Tracing) -> None:
    """Give the variables of an operation the values that they have in a trace."""
    node, variable = operation.node, operation.variable
    if isinstance(node, (ir.Scope, ir.Return)):
        return
    if variable is not None:
        living = operation.value
        if isinstance(node, ir.Gen) and isinstance(living, Living) and living.tries:
            tracing.tries[node.made] = living.tries
        typed = isinstance(living, Living) and living.read is not None and not living.is_text
        if isinstance(node, ir.SetVar):
            value = operation.value
        elif isinstance(node, ir.Gen) and node.n is not None and node.n > 1:
            value = [_value(variable, node, (i,), tracing, typed) for i in range(node.n)]
        else:
            value = _value(variable, node, (), tracing, typed)
        _set(variable, value, None if isinstance(node, ir.SetVar) else tracing)
    for gathered, values in operation.gathered:
        if isinstance(node, ir.Join):
            _set(gathered, _items(gathered, node, (), values, tracing), None)
        else:
            _set(gathered, _ref(gathered, node, (), tracing), None)


def _set(variable: Variable, value: object, tracing: _Tracing | None) -> None:
    variable.value, variable.settled = value, True
    if isinstance(value, (SymbolicText, SymbolicValue)):
        text = value._text if isinstance(value, SymbolicValue) else value
        variable.text = text  # type: ignore[assignment]
    if tracing is not None:
        variable.meta = Unknown(tracing, "metadata")  # type: ignore[assignment]


def _ref(
    variable: Variable, node: ir.Node, index: tuple[int, ...], tracing: _Tracing
) -> SymbolicText:
    (made,) = ir.made_by(node)
    ref = ir.Ref(ir.UNPLACED, ir.UNPLACED, variable.name, index, made)
    return SymbolicText((Leaf(ref),), tracing)


def _value(
    variable: Variable, node: ir.Node, index: tuple[int, ...], tracing: _Tracing, typed: bool
) -> SymbolicText | SymbolicValue:
    text = _ref(variable, node, index, tracing)
    return SymbolicValue(text) if typed else text


def _items(
    variable: Variable, node: ir.Node, index: tuple[int, ...], value: object, tracing: _Tracing
) -> object:
    """What a join gathered: lists stay lists, and what is unknown in them is the join's."""
    if isinstance(value, list):
        return [
            _items(variable, node, (*index, number), item, tracing)
            for number, item in enumerate(value)
        ]
    if not isinstance(value, (SymbolicText, SymbolicValue)):
        return value
    return _value(variable, node, index, tracing, isinstance(value, SymbolicValue))
