"""``s``, the state that a program's function sees: it records nodes; reading alone waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import (
    Any,
    Concatenate,
    Literal,
    NoReturn,
    ParamSpec,
    SupportsIndex,
    TypeVar,
    overload,
)

from lmlang import markup
from lmlang.errors import Cancelled, CaptureError, ProgramError, ProgramTypeError, an, fresh, quote
from lmlang.frontend import ir
from lmlang.frontend.blocks import Block
from lmlang.frontend.confidence import Alternative
from lmlang.frontend.cursor import Cursor
from lmlang.frontend.expression import Expression, turn
from lmlang.frontend.forks import Forks
from lmlang.frontend.meta import Meta
from lmlang.frontend.metainfo import meta_info
from lmlang.frontend.partial import Partial
from lmlang.frontend.reading import Reader, messages_of
from lmlang.frontend.run import State
from lmlang.frontend.runlog import RunLog
from lmlang.frontend.snapshot import run_log
from lmlang.frontend.stream import (
    events,
    events_async,
    partials,
    partials_async,
    texts,
    texts_async,
    texts_with_info,
)
from lmlang.frontend.tools import Toolbox, offer
from lmlang.protocol import Usage

P = ParamSpec("P")
R = TypeVar("R")
MAX_SHOWN = 200
"""Characters of its variables' names that the ``repr`` of a state shows."""


_OPEN: Any = object()
"""In the place of a turn's text: there is none, the turn is a ``with`` block. (None is no text.)"""


class ProgramState:
    """One growing prompt with its variables; the first parameter of a program.

    Appending is for one thread at a time; everything else is thread-safe. To a run with
    stream=True others may append when it has ended.
    """

    def __init__(self, cursor: Cursor, outside: bool = False) -> None:
        self._cursor = cursor
        self._reader = Reader(cursor, outside)

    @property
    def _state(self) -> State:
        return self._cursor.state

    @property
    def _recording(self) -> Cursor:
        """The cursor, to append with: only the body does that while it runs elsewhere."""
        if self._reader.outside and not self._cursor.run.over:
            raise self._cursor.here.tell(
                ProgramError(
                    "the program of this state still runs on another thread, which alone may "
                    "append, set and fork meanwhile: s.sync() waits for its end."
                )
            )
        return self._cursor

    # ---------------------------------------------------------------- appending

    def __iadd__(self, other: object) -> ProgramState:
        self._recording.append(other)
        return self

    def __add__(self, other: object) -> NoReturn:
        raise self._cursor.here.tell(
            ProgramTypeError(
                "a state is appended to in place, and + would make another one: write s += …, or "
                "s.text() + … for its text."
            )
        )

    __radd__ = __add__

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise self._cursor.here.tell(
            ProgramTypeError(
                "a state is part of its run, so it can be neither copied nor pickled: fork it with "
                's.fork() or with s.copy(), and keep s["x"], s.text() or s.messages() of it.'
            )
        )

    def __setitem__(self, name: str, value: object) -> None:
        self._recording.set(name, value)

    def set_var(self, name: str, value: object) -> None:
        """``s[name] = value``."""
        self._recording.set(name, value)

    @overload
    def system(self) -> Block[ProgramState]: ...
    @overload
    def system(self, expr: str | Expression) -> None: ...
    def system(self, expr: str | Expression = _OPEN) -> Block[ProgramState] | None:
        """``with s.system():`` is a system turn; ``s.system(expr)`` appends one."""
        return self._turn("system", expr)

    @overload
    def user(self) -> Block[ProgramState]: ...
    @overload
    def user(self, expr: str | Expression) -> None: ...
    def user(self, expr: str | Expression = _OPEN) -> Block[ProgramState] | None:
        """``with s.user():`` is a user turn; ``s.user(expr)`` appends one."""
        return self._turn("user", expr)

    @overload
    def assistant(self) -> Block[ProgramState]: ...
    @overload
    def assistant(self, expr: str | Expression) -> None: ...
    def assistant(self, expr: str | Expression = _OPEN) -> Block[ProgramState] | None:
        """``with s.assistant():`` is an assistant turn; ``s.assistant(expr)`` appends one."""
        return self._turn("assistant", expr)

    def _turn(self, role: str, expr: str | Expression) -> Block[ProgramState] | None:
        if expr is not _OPEN:
            with self._cursor.here:
                self._recording.append(turn(role, expr))
            return None
        cursor = self._recording
        return Block(
            self, lambda: cursor.begin_turn(role), lambda error: cursor.end_turn(role, error)
        )

    def tools(self, functions: Sequence[Callable[..., Any]]) -> Toolbox:
        """Tell the model of functions that it may call, as its chat template does.

        Args:
            functions: Plain functions, whose parameters have types; what their docstrings say of
                them is told.

        Returns:
            What writes calls of them and their results.
        """
        with self._cursor.here:
            expression, box = offer(functions, self._cursor.run.tool_form())
        self._recording.append(expression)
        return box

    def var_scope(self, name: str) -> Block[ProgramState]:
        """``with s.var_scope("v"):`` makes the text that the block appends the variable "v".

        It is the text as the backend renders it, the chat template's included. Inside the block
        the name means what it meant before.
        """
        cursor = self._recording
        return Block(self, lambda: cursor.begin_scope(name), lambda _: cursor.end_scope())

    def fork(self, size: int = 1, position_ids_offset: None = None) -> Forks[ProgramState]:
        """Children that begin with this state's prompt, variables and open turn as they are here.

        Waits for nothing. ``size`` is from 1 to 100,000; ``position_ids_offset`` must be None.
        """
        if position_ids_offset is not None:
            raise self._cursor.here.tell(
                ProgramError(
                    "fork: position_ids_offset would move tokens against each other, which no "
                    "backend here does: leave it out."
                )
            )
        cursors = self._recording.fork(size)
        return Forks(self._cursor, [ProgramState(cursor) for cursor in cursors], cursors)

    def copy(self) -> Block[ProgramState]:
        """``with s.copy() as c:`` is a child that begins as this state is; its text is dropped."""
        child = ProgramState(self._recording.fork(1)[0])
        return Block(child, lambda: None, lambda _: None)

    def call(
        self,
        program: Callable[Concatenate[ProgramState, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a program or a plain function of a state on a child, and return its value.

        What it generates is dropped with the child; an error of the child that its value does
        not show is raised when this program ends. Of an ``async def`` program: await it.
        """
        if not callable(program):
            raise self._cursor.here.tell(
                ProgramTypeError(
                    f"call: {an(type(program).__name__)} is no program: give one, or a function of "
                    "a state, and its arguments behind it."
                )
            )
        return program(ProgramState(self._recording.fork(1)[0]), *args, **kwargs)

    # ---------------------------------------------------------------- reading

    @property
    def ret_value(self) -> Any:
        """What the program's function returned; of a run with stream=True, waits for it."""
        run = self._cursor.run
        if self._reader.outside:
            run.wait(lambda: run.over, outside=True)
        if run.ended is not None:
            raise fresh(run.ended)
        return run.value

    def __getitem__(self, name: str) -> Any:
        """The value of a variable; waits for it.

        Raises:
            CaptureError: Nothing that has been appended defines it.
        """
        return self._reader.variable(name).value

    async def aget(self, name: str) -> Any:
        """``s[name]`` in an ``async def`` program."""
        return (await self._reader.variable_async(name)).value

    def get_var(self, name: str) -> Any:
        """``s[name]``."""
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._cursor.variables

    def text_of(self, name: str) -> str:
        """The raw text of a variable; waits for it.

        Of a generation with n above 1 it is the first sample's; ``str()`` of a value that was set.
        """
        variable = self._reader.variable(name)
        return str(variable.value) if variable.text is None else variable.text

    def meta(self, name: str) -> Meta:
        """Tokens, log-probabilities and more of a generation or select; waits for it.

        Raises:
            CaptureError: The variable is undefined, or was set and not generated.
        """
        found = self._reader.variable(name).meta
        if found is None:
            raise self._cursor.here.tell(
                CaptureError(
                    f"{quote(name)} was set by the program or a join, is a scope, or is of a row "
                    "that a journal had whole, so it has no metadata: ask the state that generated "
                    "it, as in forks[0].meta(name), or the run log."
                )
            )
        return found

    def alternatives(self, name: str) -> dict[str, tuple[Alternative, ...]]:
        """The tokens of a typed or constrained output where others were possible, by its parts.

        Parts are named as in ``s.meta(name).confidence``; a token's likeliest alternatives are
        there where ``top_logprobs_num`` asked for them.
        """
        return self.meta(name).alternatives(self._cursor.run.backend.decode)

    def get_meta_info(self, name: str) -> dict[str, Any] | list[dict[str, Any]]:
        """As `meta`, with SGLang's keys; a list where the generation has several samples.

        Raises:
            CaptureError: The variable is undefined, or was set and not generated.
        """
        return meta_info(self.meta(name), self._state.run.backend.decode)

    def text(self) -> str:
        """The whole prompt as the backend renders it, once everything appended has run."""
        return self._cursor.run.backend.render(self._reader.prompt())

    def token_ids(self) -> list[int]:
        """The whole prompt as token ids, once everything appended has run."""
        return self._cursor.run.backend.encode(self._reader.prompt())

    def messages(self) -> list[dict[str, str]]:
        """The turns so far as ``{"role": …, "content": …}``; text in no turn is left out."""
        return messages_of(self._reader.prompt())

    def sync(self) -> None:
        """Wait until everything appended has run; raises what failed."""
        self._reader.prompt()

    async def adone(self) -> None:
        """`sync` in an ``async def`` program."""
        await self._reader.prompt_async()

    def text_iter(self, var_name: str | None = None) -> Generator[str]:
        """The text of this state, or of a variable, as it comes; joined it is the whole.

        Ends when everything appended has run, for a run with stream=True when that has ended.
        What failed is raised in the iterator. Leaving it early cancels what is under way, unless
        others read it too.
        """
        return texts(events(self._reader, var_name))

    @overload
    def text_async_iter(self, var_name: str | None = None) -> AsyncGenerator[str]: ...
    @overload
    def text_async_iter(
        self, var_name: str | None = None, *, return_meta_data: Literal[True]
    ) -> AsyncGenerator[tuple[str, dict[str, Any] | list[dict[str, Any]]]]: ...
    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncGenerator[Any]:
        """As `text_iter`, for ``async for``.

        With return_meta_data each text comes with what is known of its variable by then, under
        the keys of `get_meta_info`.
        """
        found = events_async(self._reader, var_name)
        decode = self._cursor.run.backend.decode
        return texts_with_info(found, decode) if return_meta_data else texts_async(found)

    def partial_iter(self, var_name: str) -> Generator[Partial]:
        """The value of a variable as it comes: what is complete has its type, the rest grows.

        The last one is the value itself (`Partial.done`). A type with validators of your own
        comes when these have accepted it, and so at once. Ends and raises as `text_iter` does.
        """
        return partials(events(self._reader, var_name))

    def partial_async_iter(self, var_name: str) -> AsyncGenerator[Partial]:
        """As `partial_iter`, for ``async for``."""
        return partials_async(events_async(self._reader, var_name))

    def error(self) -> BaseException | None:
        """What this state failed with, once everything appended has run; None if nothing did."""
        failure = self._reader.failure()
        return None if failure is None else fresh(failure)

    def cancel(self) -> None:
        """End what is under way here and in the forks of this state; of the root: the run.

        Whoever waits for it gets `Cancelled`; what was finished stays readable.
        """
        self._cursor.run.cancel([self._state], Cancelled("the program was cancelled."))

    def usage(self) -> Usage:
        """Tokens of all operations of this run that have ended, those of forks included."""
        return self._cursor.run.usage

    def run_log(self) -> RunLog:
        """The record of this run so far, of its forks too; never waits, also after a failure."""
        return run_log(self._cursor.run)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.run_log().transcript(self._state.prefix[:-1])._repr_mimebundle_()

    def program(self) -> ir.Program:
        """What this run has recorded so far, in its forks too."""
        return self._cursor.run.recording.program()

    def __repr__(self) -> str:
        names = markup.line(", ".join(list(self._cursor.variables)))
        if len(names) > MAX_SHOWN:
            names = f"{names[: MAX_SHOWN - 1]}…"
        return f"<ProgramState of {self._cursor.run.name}: {names or 'no variables'}>"
