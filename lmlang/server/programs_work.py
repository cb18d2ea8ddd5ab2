"""A program's run for one HTTP request: by the interpreter, on the server's backend.

pool thread ── replay ──> interpreter ── generate, score ──> Telling ──> backend
engine thread ── events ──> Operation ── bell ──> ProgramWork.told (event loop) ──> client
client gone, time out, abort, drain ──> the run is aborted, and with it all that is under way
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from lmlang.errors import (
    BackendError,
    Cancelled,
    DeadlineExceeded,
    LMLangError,
    ProgramError,
    fresh,
)
from lmlang.frontend import ir
from lmlang.frontend.options import GenDefaults, Report
from lmlang.frontend.replay import replay
from lmlang.frontend.run import Run, State
from lmlang.protocol import (
    BackendInfo,
    Generation,
    Output,
    Prompt,
    Request,
    RunAware,
    ScoreRequest,
    Scores,
)
from lmlang.server.caller import Caller
from lmlang.server.context import Server
from lmlang.server.desk import owned, owned_tag, within
from lmlang.server.metrics import Timing
from lmlang.server.stream import LAST_WORDS
from lmlang.wire.programs import AskedProgram, AskedRun, Told


class Operation:
    """One generation or select under way, and how much of it has been told."""

    def __init__(self, path: str, key: int, handle: Generation | Future[Scores]) -> None:
        self.path = path
        self.key = key
        self.handle = handle
        self.moved = False
        self.timing = Timing(1)
        self._position = 0
        self._ended = False

    def take(self) -> Iterator[Told]:
        """What has not been told yet; for the event loop."""
        ended = self.handle.done()  # asked first: what came before it is then there
        if isinstance(self.handle, Generation):
            for event in self.handle.events_from(self._position):
                self._position += 1
                yield Told(self.path, event, self.key)
        if ended and not self._ended:
            self._ended = True
            yield Told(self.path, _outcome(self.handle), self.key)


class Telling:
    """The backend of one program's run: what it begins is told, what is known is not begun.

    Args:
        work: The run.
        known: What has been told before.
    """

    def __init__(self, work: ProgramWork, known: Sequence[Told]) -> None:
        self._work = work
        self._known = {(told.op, told.draw_key): told.item for told in known}

    def generate(self, request: Request) -> Generation:
        """Start one generation, or answer it from what is known."""
        path, key = request.tag.op_path, request.draw_key
        known = self._known.get((path, key)) or self._known.get((path, 0))
        if known is None:
            generation = self._work.begin(request)
        else:
            generation = Generation(request)
            if isinstance(known, Output):
                generation.complete(known)
            else:
                generation.fail(known if isinstance(known, LMLangError) else _not_of(path))
        return generation

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """Start scoring, or answer it from what is known."""
        known = self._known.get((request.tag.op_path, 0))
        if known is None:
            return self._work.begin_score(request)
        future: Future[Scores] = Future()
        if isinstance(known, Scores):
            future.set_result(known)
        else:
            error = known if isinstance(known, LMLangError) else _not_of(request.tag.op_path)
            future.set_exception(error)
        return future

    def render(self, prompt: Prompt) -> str:
        """As the server's backend does."""
        return self._work.server.backend.render(prompt)

    def encode(self, prompt: Prompt) -> list[int]:
        """As the server's backend does."""
        return self._work.server.backend.encode(prompt)

    def decode(self, ids: Sequence[int]) -> str:
        """As the server's backend does."""
        return self._work.server.backend.decode(ids)

    def info(self) -> BackendInfo:
        """What the server's backend says of itself."""
        return self._work.server.info()

    def flush_cache(self) -> None:
        """Nothing: no program can ask for it."""

    def close(self) -> None:
        """Nothing: the backend is the server's."""


class ProgramWork:
    """A program's run; the event loop's own, but for what the interpreter calls.

    Args:
        server: Where it runs.
        caller: Who asks.
        asked: What is asked for.
        program: Its program, checked.
        at_once: Generations and scores that may be under way at a time.
    """

    def __init__(
        self, server: Server, caller: Caller, asked: AskedProgram, program: ir.Program, at_once: int
    ) -> None:
        self.server = server
        self.name, self.tenant = caller.request_id, caller.tenant
        self._caller = caller
        self._program = program
        self._asked = asked.run
        self._places = at_once
        self._operations: list[Operation] = []
        self._news: deque[Operation] = deque()
        self._moved = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []
        self._task: asyncio.Task[Any] | None = None
        self._walk: asyncio.Task[None] | None = None
        self.run = _run_of(program.name, Telling(self, asked.known), asked.run)
        self._known = {told.op for told in asked.known}

    async def __aenter__(self) -> ProgramWork:
        desk, loop = self.server.desk, asyncio.get_running_loop()
        desk.bell.hang()
        desk.enter(self, self._places)
        self._task = asyncio.current_task()
        longest = desk.config.request_timeout
        seconds = min(longest, longest if self._asked.deadline is None else self._asked.deadline)
        self._timers.append(loop.call_later(seconds, self._expire, seconds))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.run.abort(Cancelled("whoever asked for the program is gone."))
        if self._walk is not None:
            self._walk.cancel()
        for timer in self._timers:
            timer.cancel()
        desk = self.server.desk
        for operation in list(self._operations):
            operation.handle.cancel()
            if isinstance(operation.handle, Generation):
                desk.metrics.ended(operation.timing, self._caller, [operation.handle])
        desk.leave(self, self._places)
        backend = self.server.backend
        if self._asked.run_id and not self._asked.goes_on and isinstance(backend, RunAware):
            backend.end_run(within(self.tenant, self._asked.run_id))

    async def told(self) -> AsyncIterator[Told]:
        """What is to be told of the program, to its end.

        Raises:
            LMLangError: What has ended the whole program before its end.
        """
        self._walk = asyncio.create_task(self._go())
        self._walk.add_done_callback(lambda _: self._moved.set())
        ended = False
        while not ended:
            self._moved.clear()
            ended = self._walk.done()
            while self._news:
                operation = self._news.popleft()
                operation.moved = False  # first: whatever moves from now on rings again
                for told in operation.take():
                    if isinstance(operation.handle, Generation) and not _is_end(told):
                        self.server.metrics.event(operation.timing, 0, told.item)  # type: ignore[arg-type]
                    yield told
            if not ended:
                await self._moved.wait()
        self._walk.result()
        if self.run.ended is not None:
            raise fresh(self.run.ended)
        begun = {operation.path for operation in self._operations}
        for record in self.run.records:  # what failed before a backend was asked
            if record.error is not None and record.path and record.path not in begun | self._known:
                yield Told(record.path, _plain(record.error))

    def end(self, reason: LMLangError) -> None:
        """End it from outside; whoever reads gets the reason."""
        if self.run.ended is None and self._task is not None:
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(LAST_WORDS, self._task.cancel))
        self.run.abort(reason)

    def _expire(self, seconds: float) -> None:
        self.end(
            DeadlineExceeded(
                f"the program did not end within {seconds:g} s: give it more, or less to generate."
            )
        )

    async def _go(self) -> None:
        """Append all nodes, waiting where a join does, and wait for what they began."""
        steps = replay(self.run, self._program)
        try:
            while (states := await self.server.pooled(_next, steps)) is not None:
                for state in states:
                    await self.run.wait_async(state.settled)
        except LMLangError as error:
            self.run.abort(error)
        with suppress(LMLangError):  # of one operation, which has been told
            await self.run.finish_async()

    # ------------------------------------------------------------------ any thread

    def begin(self, request: Request) -> Generation:
        """Start a generation of the program, of which all is told."""
        path, key = request.tag.op_path, request.draw_key
        request = owned(request, self._caller)
        try:
            self.server.config.check(request)
            generation = self.server.desk.offer(request)
        except LMLangError as refusal:
            generation = Generation(request)
            generation.fail(refusal)
        operation = self._noted(Operation(path, key, generation))
        generation.watch(partial(self._ring, operation))
        generation.add_done_callback(lambda _: self._ring(operation))
        return generation

    def begin_score(self, request: ScoreRequest) -> Future[Scores]:
        """Start scoring for the program, which is told."""
        path, caller = request.tag.op_path, self._caller
        namespace = within(caller.tenant, request.namespace)
        tag = owned_tag(request.tag, caller)
        future = self.server.desk.offer_score(replace(request, namespace=namespace, tag=tag))
        operation = self._noted(Operation(path, 0, future))
        future.add_done_callback(lambda _: self._ring(operation))
        return future

    def _noted(self, operation: Operation) -> Operation:
        self._operations.append(operation)
        return operation

    def _ring(self, operation: Operation) -> None:
        if not operation.moved:
            operation.moved = True
            self._news.append(operation)
            self.server.desk.bell.ring(self._moved)


def _run_of(name: str, backend: Telling, asked: AskedRun) -> Run:
    report = Report(asked.return_logprob, asked.logprob_start_len, asked.top_logprobs_num)
    run = Run(
        name,
        backend,
        GenDefaults(asked.params, asked.n, report, asked.lora),
        asked.seed,
        asked.row_key,
        asked.max_program_tokens,
        asked.priority,
    )
    run.id = asked.run_id or run.id
    return run


def _next(steps: Iterator[tuple[State, ...]]) -> tuple[State, ...] | None:
    return next(steps, None)


def _is_end(told: Told) -> bool:
    return isinstance(told.item, (Output, Scores, LMLangError))


def _outcome(handle: Generation | Future[Scores]) -> Output | Scores | LMLangError:
    """What a handle that is done came to."""
    if isinstance(handle, Generation):
        found: Any = handle.outcome()
    elif handle.cancelled():
        found = Cancelled("the scoring of choices was cancelled.")
    else:
        found = handle.exception() or handle.result()
    return _plain(found) if isinstance(found, BaseException) else found


def _plain(error: BaseException) -> LMLangError:
    """An error without its place, which the client knows better."""
    if not isinstance(error, LMLangError):
        return BackendError(f"the server's backend failed ({type(error).__name__}).")
    copied = fresh(error)
    copied.context = None
    return copied


def _not_of(path: str) -> ProgramError:
    return ProgramError(f"known: what is told of {path!r} is not of an operation of its kind.")
