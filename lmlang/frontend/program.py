"""The decorated function: binds arguments, makes runs and executes them."""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

from lmlang.errors import ProgramError, ProgramTypeError, with_context
from lmlang.frontend import defaults, draws, ir, waiting
from lmlang.frontend.arguments import Arguments, meant, of_a_run, told
from lmlang.frontend.batch_result import BatchResult
from lmlang.frontend.batches import check_keywords, run_batch
from lmlang.frontend.call import Call, call_of
from lmlang.frontend.estimate import Estimate, estimate, traces_of
from lmlang.frontend.finding import Finding
from lmlang.frontend.options import RUN_KEYWORDS, RunOptions
from lmlang.frontend.preview import Preview, compute_ahead, preview
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.rows import OnError, Row, RowKeys, checked_rows, rows_of, threads
from lmlang.frontend.stream import AsyncStream, Stream
from lmlang.frontend.trace import parameters_of, trace
from lmlang.protocol import Backend

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
Rows: TypeAlias = Iterable[Mapping[str, Any] | tuple[Any, ...]]


class Function(Generic[P, R]):
    """A program: a function whose first parameter is its state. Thread-safe.

    Calling it is `run`. Type checkers check the arguments of a call, but not where it has keywords
    of a run; of these a call may have the most used ones, and `run` and `options` have all.
    """

    def __init__(
        self,
        body: Callable[..., R],
        options: Mapping[str, object],
        receiver: tuple[Any, ...] = (),
        bound: Mapping[str, object] | None = None,
    ) -> None:
        functools.update_wrapper(self, body)
        self.__name__: str = getattr(body, "__name__", type(body).__name__)
        self._body = body
        self._options = dict(options)
        self._receiver = receiver
        self._class: type | None = None
        self._arguments = Arguments(self.__name__, body, len(receiver), bound or {})
        self._parameters = parameters_of(self._arguments.signature)

    @overload
    def __call__(self, state: ProgramState, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ProgramState: ...
    @overload
    def __call__(self, *args: Any, temperature: float, **kwargs: Any) -> ProgramState: ...
    @overload
    def __call__(self, *args: Any, max_new_tokens: int, **kwargs: Any) -> ProgramState: ...
    @overload
    def __call__(self, *args: Any, stop: str | Sequence[str], **kwargs: Any) -> ProgramState: ...
    @overload
    def __call__(self, *args: Any, seed: int, **kwargs: Any) -> ProgramState: ...
    @overload
    def __call__(self, *args: Any, backend: Backend, **kwargs: Any) -> ProgramState: ...
    @overload
    def __call__(self, *args: Any, stream: bool, **kwargs: Any) -> ProgramState: ...
    def __call__(  # type: ignore[misc]  # P may be anything, Any is
        self, *args: Any, **kwargs: Any
    ) -> Any:
        """Run to the end; as `run`. With a state first: run on that state, return the value.

        On a state the sampling keywords of the state's own run hold.
        """
        if self._has_object(args):
            return self.__get__(args[0])(*args[1:], **kwargs)
        if args and isinstance(args[0], ProgramState):
            return self._inline(args[0], args[1:], kwargs)
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the program to its end, unjoined forks included.

        Args:
            *args: The program's own arguments.
            **kwargs: The program's own, and the run's: max_new_tokens=128, temperature=1.0,
                top_p=1.0, top_k=-1, min_p=0.0, stop=(), ignore_eos=False, seed=None (a fresh
                one), backend=None (the one in use), stream=False, deadline=None (seconds),
                max_program_tokens=None (generated ones), priority=0, lora=None (an adapter of
                the backend, by its name), ship=False (True: the backend's server runs the program,
                a stretch between two values that the body reads in one round trip), show=None
                ("live": show the run as it goes on, in a notebook's cell or on one line of the
                standard error stream). A parameter
                of the program of the same name wins; the run's is then set with `options`.

        At its deadline an ``async def`` body is cancelled; a plain one that is in code of its own,
        as in `time.sleep`, runs on until it next touches its state.

        Returns:
            The final state; ``.ret_value`` is what the function returned. With stream=True at
            once a state that others may read while the program runs on a thread of its own.

        Raises:
            ProgramError: An argument is wrong or not available in this version.
            LMLangError: What failed in the program.
        """
        call, stream = self._prepared(args, kwargs)
        return call.start() if stream else call.execute()

    async def arun(self, *args: Any, **kwargs: Any) -> ProgramState:
        """As `run`, awaited: an ``async def`` body runs here, another on a thread of its own.

        Cancelling the task cancels the run.
        """
        call, stream = self._prepared(args, kwargs)
        if stream:
            raise ProgramError(
                f"arun: stream=True: iterate async for event in {self.__name__}.astream(…)."
            )
        return await call.execute_async()

    def stream(self, *args: Any, **kwargs: Any) -> Stream[ProgramState]:
        """Run the program on a thread of its own and iterate over what it says as it says it.

        The events are those of the program's own state; their texts joined are its text. Leaving
        before the end cancels the run.
        """
        state = self._prepared(args, kwargs)[0].start()
        return Stream(state, state._reader)

    def astream(self, *args: Any, **kwargs: Any) -> AsyncStream[ProgramState]:
        """As `stream`, for ``async for``."""
        state = self._prepared(args, kwargs)[0].start()
        return AsyncStream(state, state._reader)

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, bool]:
        """A call that can be executed, and whether stream=True was asked for."""
        if self._has_object(args):
            return self.__get__(args[0])._prepared(args[1:], kwargs)
        if args and isinstance(args[0], ProgramState):
            raise ProgramError(
                f"a run begins with a state of its own: on a state write {self.__name__}(s, …)."
            )
        own, given = self._arguments.split(kwargs)
        options = RunOptions.of(self._with(given))
        bound = self._arguments.bind(args, own)
        backend = defaults.resolve(options.backend)
        seed = draws.fresh_seed() if options.seed is None else options.seed
        key = RowKeys().next(0, None, bound.arguments)
        return self._call(bound, backend, options, seed, key), options.stream

    def _inline(self, state: ProgramState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._has_object(args):
            return self.__get__(args[0])._inline(state, args[1:], kwargs)
        own, given = self._arguments.split(kwargs)
        with state._cursor.here:
            if given:
                raise ProgramError(
                    f"{self.__name__}(s, {next(iter(given))}=…): on a state the run's keywords "
                    "are those of the run that the state is of: give them there, or to lm.gen."
                )
            bound = self._arguments.bind(args, own)
        state._recording.begin_call(self.__name__, list(bound.arguments.items()))
        return self._body(*self._receiver, state, *bound.args, **bound.kwargs)

    @overload
    def run_batch(
        self, rows: Rows, *, generator_style: Literal[True], **keywords: Any
    ) -> Generator[ProgramState]: ...
    @overload
    def run_batch(
        self, rows: Rows, *, generator_style: Literal[False] = False, **keywords: Any
    ) -> BatchResult: ...
    def run_batch(
        self,
        rows: Rows,
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        on_error: OnError = "raise",
        key: Callable[[Any], object] | None = None,
        journal: str | os.PathLike[str] | None = None,
        version: str | None = None,
        **given: Any,
    ) -> BatchResult | Generator[ProgramState]:
        """Run the program once for each row, many at a time.

        Args:
            rows: Dicts of arguments or tuples of them.
            num_threads: Rows in flight; "auto" is 64 at most.
            progress_bar: Show one on the standard error stream, by tqdm in a terminal, where that
                is installed.
            generator_style: Return an iterator of states that takes rows as states are taken
                from it, so that there may be any number; leaving it cancels what runs.
            on_error: "raise": the first error ends the batch, the finished rows being its
                ``.partial``. "return": it stays in its row's state (``.error()``), also that of
                a row with wrong arguments.
            key: What a row's draws depend on; by default its arguments and, among equal rows,
                its number.
            journal: The path of a file, made where there is none, that keeps every generation and
                select as it ends: a batch that is run again with it, after whatever has ended the
                one before, asks the model for what is new alone. Without ``seed`` its seed holds.
            version: With a journal: rows that have ended under this version of the program are
                taken from it whole, and the body is not run. A text of your own, another one
                whenever the program has changed.
            **given: Keywords of the runs, as in `run`.

        Returns:
            The states in the order of the rows.

        Raises:
            ProgramError: An argument is wrong or not available in this version.
            JournalError: The journal is none, is in use by another process, of another version, or
                cannot be read or written; whatever ``on_error`` is, it ends the batch.
            BatchInterrupted: Ctrl-C; the finished rows are its ``.partial``. What runs on the
                backend is cancelled; a row that is in code of its own, as in `time.sleep`, is
                waited for until it next touches its state or returns, or until a second Ctrl-C.
            Exception: With on_error="raise", the error of a row.
        """
        waiting.refuse_in_async_body()
        check_keywords(given)
        options = RunOptions.of(self._with(given))
        return run_batch(
            rows,
            self._arguments.bind,
            functools.partial(self._row_call, options),
            options,
            num_threads=num_threads,
            progress_bar=progress_bar,
            generator_style=generator_style,
            on_error=on_error,
            key=key,
            journal=journal,
            version=version,
        )

    def _row_call(self, options: RunOptions, backend: Backend, row: Row, seed: int) -> Call:
        nothing = inspect.BoundArguments(self._arguments.signature, OrderedDict())
        call = self._call(row.arguments or nothing, backend, options, seed, row.key)
        if row.error is not None:
            call.run.abort(with_context(row.error, program=self.__name__))
        return call

    def options(self, **given: Any) -> Function[P, R]:
        """The same program with other keywords for its runs, as in ``f.options(temperature=0)``.

        Raises:
            ProgramError: A value is out of range or not available in this version.
        """
        for name in given:
            if not of_a_run(name):
                raise ProgramTypeError(
                    f"{self.__name__}: {name!r} is no keyword of a run{meant(name)}; these are: "
                    f"{', '.join(RUN_KEYWORDS)}."
                )
        merged = self._with(given)
        RunOptions.of(merged)
        return Function(self._body, merged, self._receiver, self._arguments.bound)

    def bind(self, **arguments: Any) -> Function[..., R]:
        """The same program with some of its arguments given; one given at the call wins.

        Raises:
            ProgramTypeError: The program has no parameter of such a name.
        """
        bound = self._arguments.with_bound(arguments)
        return Function(self._body, self._options, self._receiver, bound)

    def trace(self, **known: Any) -> ir.Program:
        """What the program records on arguments of which only some are known; nothing is run.

        Args:
            **known: The program's own; defaults are known too, all others become holes.

        Returns:
            The recording as IR. Where the body depends on what only a run knows, it ends:
            ``.stopped`` says at which line, and why.

        Raises:
            ProgramTypeError: An argument that the program has not.
            Exception: What the body raises by itself.
        """
        known = {**self._arguments.bound, **known}
        return trace(self.__name__, self._whole_body(), self._arguments.signature, known)

    def preview(self, **known: Any) -> Preview:
        """The exact prompt and its tokens up to the first generation, and what follows as IR.

        Nothing is run on a model. ``backend=None`` is the one in use; arguments are as in `trace`.
        """
        own, given = self._arguments.split(known)
        options, traced = RunOptions.of(self._with(given)), self.trace(**own)
        return preview(traced, defaults.resolve(options.backend))

    def check(self, **known: Any) -> tuple[Finding, ...]:
        """What is likely wrong in the program, with codes and lines; nothing is run on a model.

        Arguments are as in `trace`; the fewer are known, the more rows the findings are about.
        """
        from lmlang.frontend.check import check

        options = RunOptions.of(self._with({}))
        body, receiver = self._body, len(self._receiver)
        return check(lambda: self.trace(**known), body, receiver, options.gen)

    def estimate(
        self,
        rows: Rows,
        *,
        num_threads: int | Literal["auto"] = "auto",
        on_error: OnError = "raise",
        **given: Any,
    ) -> Estimate:
        """What `run_batch` of these rows would cost; nothing is run on a model.

        Args:
            rows: As in `run_batch`, as are all others; the backend counts tokens.
            num_threads: Rows in flight.
            on_error: "return": of a row whose arguments are wrong, or in which the body raises,
                what stands before that counts.
            **given: Keywords of the runs.
        """
        options = RunOptions.of(self.options(**given)._options)
        listed = list(rows_of(checked_rows(rows), self._arguments.bind, on_error, None))
        traces = traces_of(self.__name__, listed, self.trace, on_error)
        backend, most = defaults.resolve(options.backend), options.max_program_tokens
        return estimate(traces, backend, options.gen, most, threads(num_threads, len(listed)))

    def cache(self, backend: Backend | None = None, **known: Any) -> int:
        """Have the backend compute the prompt up to what only a run knows, ahead of the runs.

        Args:
            backend: None: the one in use.
            **known: Arguments of the program that are known by then, as in `trace`.

        Returns:
            How many tokens that prompt has; where there is none, nothing is asked.
        """
        waiting.refuse_in_async_body()
        traced, given = self.trace(**known), self._with({"backend": backend})
        return compute_ahead(traced, defaults.resolve(given.get("backend")), given.get("lora"))

    @overload
    def __get__(self, instance: None, owner: type) -> Function[P, R]: ...
    @overload
    def __get__(
        self: Function[Concatenate[Any, Q], R], instance: object, owner: type | None = None
    ) -> Function[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Function[Any, R]:
        if instance is None:
            taken = copy.copy(self)
            taken._class = owner
            return taken
        return Function(self._body, self._options, (instance,), self._arguments.bound)

    def _has_object(self, args: tuple[Any, ...]) -> bool:
        """Whether this is a method as its class has it, called with the object first."""
        return self._class is not None and bool(args) and isinstance(args[0], self._class)

    def __repr__(self) -> str:
        return f"<program {self.__name__}{told(inspect.signature(self._body))}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from lmlang.frontend.view_program import function_page

        shown = function_page(self._body, {**self._options, **self._arguments.bound})
        return {"text/plain": repr(self), "text/html": shown}

    def _with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._options, **{k: v for k, v in given.items() if v is not None}}

    def _call(
        self,
        bound: inspect.BoundArguments,
        backend: Backend,
        options: RunOptions,
        seed: int,
        row_key: bytes,
    ) -> Call:
        body, parameters = self._whole_body(), self._parameters
        return call_of(self.__name__, parameters, body, bound, backend, options, seed, row_key)

    def _whole_body(self) -> Callable[..., R]:
        """The function from its state on."""
        return functools.partial(self._body, *self._receiver) if self._receiver else self._body
