"""The decorated function: binds arguments, makes runs and executes them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError
from lmlang.frontend import batch, defaults, draws, ir, waiting
from lmlang.frontend.call import Call
from lmlang.frontend.options import LATER_IN_RUN, RUN_KEYWORDS, RunOptions
from lmlang.frontend.passes import prefix
from lmlang.frontend.preview import Preview, preview
from lmlang.frontend.progress import Progress
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.rows import (
    BatchResult,
    OnError,
    RowKeys,
    checked_rows,
    row_arguments,
    threads,
)
from lmlang.frontend.run import Run
from lmlang.frontend.stream import AsyncStream, Stream
from lmlang.frontend.trace import parameters_of, trace
from lmlang.protocol import Backend, Prompt, Request, SamplingParams

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
        self._bound = dict(bound or {})
        parameters = list(inspect.signature(body).parameters.values())
        skipped = len(receiver) + 1
        if sum(1 for p in parameters[:skipped] if p.kind in _POSITIONAL) < skipped:
            raise ProgramError(
                f"{self.__name__}() needs a first parameter for its state: "
                f"def {self.__name__}(s, …)."
            )
        if parameters[skipped - 1].kind is not inspect.Parameter.VAR_POSITIONAL:
            parameters = parameters[skipped:]
        self._signature = inspect.Signature(parameters)
        self._parameters = parameters_of(self._signature)
        self._own = {p.name for p in parameters if p.kind in _NAMED}

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
                max_program_tokens=None (generated ones). A parameter of the program of the same
                name wins; the run's is then set with `options`.

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
        if args and isinstance(args[0], ProgramState):
            raise ProgramError(
                f"a run begins with a state of its own: on a state write {self.__name__}(s, …)."
            )
        own, given = self._split(kwargs)
        options = RunOptions.of(self._with(given))
        bound = self._bind(args, own, "")
        backend = defaults.resolve(options.backend)
        seed = draws.fresh_seed() if options.seed is None else options.seed
        key = RowKeys().next(None, bound.arguments)
        return self._call(bound, backend, options, seed, key), options.stream

    def _inline(self, state: ProgramState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own, given = self._split(kwargs)
        with state._cursor.here:
            if given:
                raise ProgramError(
                    f"{self.__name__}(s, {next(iter(given))}=…): on a state the run's keywords "
                    "are those of the run that the state is of: give them there, or to lm.gen."
                )
            bound = self._bind(args, own, "")
        state._cursor.begin_call(self.__name__, list(bound.arguments.items()))
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
        journal: object = None,
        **given: Any,
    ) -> BatchResult | Generator[ProgramState]:
        """Run the program once for each row, many at a time.

        Args:
            rows: Dicts of arguments or tuples of them.
            num_threads: Rows in flight; "auto" is 64 at most.
            progress_bar: Show one on the standard error stream (needs tqdm).
            generator_style: Return an iterator of states that takes rows as states are taken
                from it, so that there may be any number; leaving it cancels what runs.
            on_error: "raise": the first error ends the batch, the finished rows being its
                ``.partial``. "return": it stays in its row's state (``.error()``).
            key: What a row's draws depend on; by default its arguments and, among equal rows,
                its number.
            journal: Not available in this version.
            **given: Keywords of the runs, as in `run`.

        Returns:
            The states in the order of the rows.

        Raises:
            ProgramError: An argument is wrong or not available in this version.
            BatchInterrupted: Ctrl-C; the finished rows are its ``.partial``.
            Exception: With on_error="raise", the error of a row.
        """
        options = self._batch_options(on_error, journal, given)
        backend = defaults.resolve(options.backend)  # here, where `use` holds
        calls = self._row_calls(checked_rows(rows), backend, options, key)
        if limits.boolean("generator_style", generator_style):
            workers, progress = threads(num_threads, None), Progress(progress_bar, None)
            return batch.lazily(calls, workers, on_error, progress)
        listed = list(calls)
        workers = threads(num_threads, len(listed))
        return batch.execute(listed, workers, on_error, Progress(progress_bar, len(listed)))

    def _batch_options(
        self, on_error: object, journal: object, given: dict[str, Any]
    ) -> RunOptions:
        if journal:
            raise ProgramError(
                "run_batch: journal is not available in this version of lmlang: leave it out."
            )
        if on_error not in ("raise", "return"):
            raise ProgramError(f'run_batch: on_error={on_error!r} must be "raise" or "return".')
        unknown = [name for name in given if name not in RUN_KEYWORDS and name not in LATER_IN_RUN]
        if unknown:
            raise ProgramTypeError(
                f"run_batch: unknown keyword {unknown[0]!r}: arguments of the program stand in "
                "the rows."
            )
        options = RunOptions.of(self._with(given))
        if options.stream:
            raise ProgramError(
                "run_batch: stream=True: a batch returns finished states; with "
                "generator_style=True each as soon as its turn is."
            )
        return options

    def _row_calls(
        self,
        rows: Iterable[object],
        backend: Backend,
        options: RunOptions,
        key: Callable[[Any], object] | None,
    ) -> Iterator[Call]:
        seed = draws.fresh_seed() if options.seed is None else options.seed
        keys = RowKeys(key)
        for index, row in enumerate(rows):
            bound = self._bind(*row_arguments(index, row), f"row {index}: ")
            yield self._call(bound, backend, options, seed, keys.next(row, bound.arguments))

    def options(self, **given: Any) -> Function[P, R]:
        """The same program with other keywords for its runs, as in ``f.options(temperature=0)``.

        Raises:
            ProgramError: A value is out of range or not available in this version.
        """
        for name in given:
            if name not in RUN_KEYWORDS and name not in LATER_IN_RUN:
                raise ProgramTypeError(
                    f"{self.__name__}: {name!r} is no keyword of a run; these are: "
                    f"{', '.join(RUN_KEYWORDS)}."
                )
        merged = self._with(given)
        RunOptions.of(merged)
        return Function(self._body, merged, self._receiver, self._bound)

    def bind(self, **arguments: Any) -> Function[..., R]:
        """The same program with some of its arguments given; one given at the call wins.

        Raises:
            ProgramTypeError: The program has no parameter of such a name.
        """
        try:
            self._signature.bind_partial(**arguments)
        except TypeError as error:
            hint = next(
                (
                    f" (a keyword of runs is set with {self.__name__}.options({name}=…))"
                    for name in arguments
                    if name in RUN_KEYWORDS and name not in self._own
                ),
                "",
            )
            raise ProgramTypeError(
                f"{self.__name__}.bind: {error}{hint}: its signature is {self._signature}."
            ) from None
        return Function(self._body, self._options, self._receiver, {**self._bound, **arguments})

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
        return trace(self.__name__, self._whole_body(), self._signature, {**self._bound, **known})

    def preview(self, **known: Any) -> Preview:
        """The exact prompt and its tokens up to the first generation, and what follows as IR.

        Nothing is run on a model. ``backend=None`` is the one in use; arguments are as in `trace`.
        """
        own, given = self._split(known)
        backend = defaults.resolve(RunOptions.of(self._with(given)).backend)
        return preview(self.trace(**own), backend)

    def cache(self, backend: Backend | None = None, **known: Any) -> int:
        """Have the backend compute the prompt up to what only a run knows, ahead of the runs.

        Args:
            backend: None: the one in use.
            **known: Arguments of the program that are known by then, as in `trace`.

        Returns:
            How many tokens that prompt has; where there is none, nothing is asked.
        """
        waiting.refuse_in_async_body()
        chosen = defaults.resolve(self._with({"backend": backend}).get("backend"))
        segments = prefix(self.trace(**known))
        if not segments:
            return 0
        request = Request(Prompt.of(*segments), SamplingParams(max_tokens=0))
        return chosen.generate(request).result().usage.prompt_tokens

    @overload
    def __get__(self, instance: None, owner: type) -> Function[P, R]: ...
    @overload
    def __get__(
        self: Function[Concatenate[Any, Q], R], instance: object, owner: type | None = None
    ) -> Function[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Function[Any, R]:
        if instance is None:
            return self
        return Function(self._body, self._options, (instance,), self._bound)

    def __repr__(self) -> str:
        return f"<program {self.__name__}{inspect.signature(self._body)}>"

    def _with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._options, **{k: v for k, v in given.items() if v is not None}}

    def _split(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Keyword arguments of the program, and of the run."""
        run_names = {
            name
            for name in kwargs
            if name not in self._own and (name in RUN_KEYWORDS or name in LATER_IN_RUN)
        }
        own = {name: value for name, value in kwargs.items() if name not in run_names}
        return own, {name: kwargs[name] for name in run_names}

    def _bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], where: str
    ) -> inspect.BoundArguments:
        try:
            taken = self._signature.bind_partial(*args).arguments if self._bound else {}
            given = {name: value for name, value in self._bound.items() if name not in taken}
            bound = self._signature.bind(*args, **{**given, **kwargs})
        except TypeError as error:
            raise ProgramTypeError(f"{where}{self.__name__}{self._signature}: {error}.") from None
        bound.apply_defaults()
        return bound

    def _call(
        self,
        bound: inspect.BoundArguments,
        backend: Backend,
        options: RunOptions,
        seed: int,
        row_key: bytes,
    ) -> Call:
        run = Run(self.__name__, backend, options.gen, seed, row_key, options.max_program_tokens)
        run.recording = ir.Recording(self.__name__, self._parameters)
        return Call(run, self._whole_body(), bound.args, bound.kwargs, options.deadline)

    def _whole_body(self) -> Callable[..., R]:
        """The function from its state on."""
        return functools.partial(self._body, *self._receiver) if self._receiver else self._body


_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
