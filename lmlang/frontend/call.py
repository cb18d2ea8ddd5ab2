"""One run of a program's body, from bound arguments to a finished state.

execute         on this thread, to the end
start           on a thread of its own; the state is there at once
execute_async   on the running event loop (a plain body: on a thread of its own)
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from lmlang.errors import Cancelled, raisable
from lmlang.frontend import ir
from lmlang.frontend.cursor import Cursor
from lmlang.frontend.ending import Ending, until_ended
from lmlang.frontend.live import Live
from lmlang.frontend.options import RunOptions
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.recording import Recording
from lmlang.frontend.run import Run
from lmlang.frontend.waiting import refuse_in_async_body, stretch
from lmlang.protocol import Backend


class Call:
    """A body with its arguments and the run that it will make; executed once.

    Args:
        run: The run, with nothing recorded yet.
        body: Takes the state, then the arguments.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        deadline: Seconds after its start at which the run is ended.
        arguments: By their names, for readers.
        live: Whether the run is shown as it goes on.

    Attributes:
        before_end: Called when the body has returned, before the run ends; what it raises fails
            the run. None: nothing is.
    """

    def __init__(
        self,
        run: Run,
        body: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        deadline: float | None = None,
        arguments: Mapping[str, object] | None = None,
        live: bool = False,
    ) -> None:
        self.run = run
        self._cursor = Cursor(run.root)
        self.state = ProgramState(self._cursor)
        self._body = body
        self._args = args
        self._kwargs = kwargs
        self._deadline = deadline
        self._live = live
        self.arguments: Mapping[str, object] = {} if arguments is None else arguments
        self.before_end: Callable[[], None] | None = None

    def execute(self) -> ProgramState:
        """Run the body on this thread, wait for all it has begun; raises what failed."""
        with self._shown(), Ending(self.run, self._deadline, self.state):
            value = self._body(self.state, *self._args, **self._kwargs)
            if inspect.iscoroutine(value):
                value = self._drive(value)
            self._cursor.returned(value)
            self.run.value = value
            if self.before_end is not None:
                self.before_end()
            self.run.finish()
        return self.state

    async def execute_async(self) -> ProgramState:
        """As `execute`, awaited; cancelling the task cancels the run."""
        if not inspect.iscoroutinefunction(self._body):
            return await self._execute_on_a_thread()
        with self._shown(), Ending(self.run, self._deadline, self.state):
            body = self._body(self.state, *self._args, **self._kwargs)
            value = await until_ended(self.run, body)
            self._cursor.returned(value)
            self.run.value = value
            await self.run.finish_async()
        return self.state

    def start(self) -> ProgramState:
        """Run the body on a thread of its own; the state that readers elsewhere take."""
        self._on_a_thread(self._execute_silently)
        return ProgramState(self._cursor, outside=True)

    def cancel(self) -> None:
        """End the run; whoever waits for it gets `Cancelled`. From any thread."""
        self.run.abort(Cancelled("the run was cancelled."))

    def _shown(self) -> contextlib.AbstractContextManager[object]:
        return Live(self.run) if self._live else contextlib.nullcontext()

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine of an ``async def`` body on an event loop of its own."""
        try:
            refuse_in_async_body()
        except BaseException:
            coroutine.close()
            raise
        if not _loop_is_running():
            return asyncio.run(until_ended(self.run, coroutine))
        # In Jupyter this thread has a running loop, on which nothing else can be waited for.
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(asyncio.run(until_ended(self.run, coroutine)))
            except BaseException as error:
                outcome.append(_Raised(error))

        try:
            thread = self._on_a_thread(work)
            while thread.is_alive():
                thread.join(stretch())
        except BaseException:
            self.cancel()  # wakes the body, whose thread then ends
            raise
        (value,) = outcome
        if isinstance(value, _Raised):
            raise value.error
        return value

    async def _execute_on_a_thread(self) -> ProgramState:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()

        def end(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                self.execute()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits
                loop.call_soon_threadsafe(end, error)

        self._on_a_thread(work)
        try:
            error = await ended
        except BaseException:
            self.cancel()
            raise
        if error is not None:
            raise raisable(error)
        return self.state

    def _execute_silently(self) -> None:
        # What failed has ended the run, and is raised wherever the state is read.
        with contextlib.suppress(BaseException):
            self.execute()

    def _on_a_thread(self, work: Callable[[], None]) -> threading.Thread:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(work,), name="lmlang-run", daemon=True)
        thread.start()
        return thread


def call_of(
    name: str,
    parameters: tuple[ir.Parameter, ...],
    body: Callable[..., Any],
    bound: inspect.BoundArguments,
    backend: Backend,
    options: RunOptions,
    seed: int,
    row_key: bytes,
) -> Call:
    """The call of a program, with a run of its own.

    Args:
        name: Of the program.
        parameters: Of it, for the recording.
        body: Takes the state, then the arguments.
        bound: The arguments.
        backend: Who is asked.
        options: Of the run.
        seed: Of its draws.
        row_key: What these depend on besides.
    """
    most, priority = options.max_program_tokens, options.priority
    run = Run(name, backend, options.gen, seed, row_key, most, priority)
    run.recording = Recording(name, parameters)
    if options.ship:
        from lmlang.frontend.ship import ship  # which loads the wire

        ship(run, options.deadline)
    live = options.show is not None
    return Call(run, body, bound.args, bound.kwargs, options.deadline, bound.arguments, live)


class _Raised:
    """What a thread raised, on its way to another."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _loop_is_running() -> bool:
    """Whether an event loop runs on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
