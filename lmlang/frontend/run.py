"""A run and its states: queues, prompts and variables, and who may touch them when.

    Run ── State (root) ── queue of operations, prompt, pending call, log of generations
        └─ State (child) …

A state is owned by one thread at a time (`Phase`). One lock per run guards what states and
variables share, and one condition of it wakes whoever waits for them.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from time import perf_counter, time
from typing import Any

from lmlang.errors import BudgetExceeded, fresh
from lmlang.frontend import ir, waiting
from lmlang.frontend.budget import Budget
from lmlang.frontend.meta import Meta
from lmlang.frontend.options import GenDefaults
from lmlang.frontend.record import Record
from lmlang.frontend.recording import Recording
from lmlang.frontend.reuse import Reused
from lmlang.frontend.ringing import Ringing
from lmlang.frontend.runlog import RunLog
from lmlang.frontend.samples import Samples
from lmlang.frontend.source import stored
from lmlang.protocol import (
    Backend,
    Generation,
    Prompt,
    SamplingParams,
    Scores,
    Segment,
    ToolForm,
    Usage,
)

Handle = Generation | Samples | Future[Scores]


class Phase(Enum):
    """Who may touch a state's prompt."""

    UNBORN = "its parent has not reached the fork"
    IDLE = "nobody; the queue is empty"
    RUNNING = "the thread that drains it"
    WAITING = "nobody until the backend answers"


class Variable:
    """One variable of one state: a place that is settled once, with a value or an error.

    ``text`` is what a generation, select or scope wrote, None where the program set the value.
    ``handle`` is what is under way for it, ``span`` where a scope lies, ``asked`` the type of its
    value (None: it has none); they are for streams.
    """

    __slots__ = (
        "asked", "error", "handle", "meta", "name", "scope", "settled", "span", "text", "value"
    )  # fmt: skip

    def __init__(self, name: str, scope: bool = False) -> None:
        self.name = name
        self.scope = scope
        self.settled = False
        self.value: object = None
        self.text: str | None = None
        self.meta: Meta | None = None
        self.error: BaseException | None = None
        self.handle: Handle | None = None
        self.span: Span | None = None
        self.asked: Any = None


@dataclass(slots=True, eq=False)
class Entry:
    """A generation or select in a state's log: what it settles, where it began and ended."""

    variable: Variable
    before: Prompt
    after: Prompt | None = None


@dataclass(slots=True, eq=False)
class Span:
    """A scope's part of a state: its prompt where it began, and which entries of its log."""

    state: State
    prompt: Prompt
    entry: int
    end: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """A node on its way through a queue, with the living things that it acts on.

    Args:
        node: What to do.
        path: The operation's place in the run, as in ``"3/fork1.2/0"``.
        source: The user's line.
        variable: What a generation, select, scope or set_var settles.
        members: The values of a select's choices.
        value: What set_var sets; a choices method of the program's own; the segment of an image.
        children: The states that a fork starts.
        gathered: The variables that a join settles, with their values, and that of the reasoning
            of a generation.
        segments: What a join appends to the prompt.
        record: What the run log will tell of it; None for text and turns.
    """

    node: ir.Node
    path: str
    source: str
    variable: Variable | None = None
    members: tuple[object, ...] = ()
    value: object = None
    children: tuple[State, ...] = ()
    gathered: tuple[tuple[Variable, object], ...] = ()
    segments: tuple[Segment, ...] = ()
    record: Record | None = None


class State:
    """A queue of operations, the prompt they have made so far, and what streams read of it.

    ``joined`` says that a join has seen what became of it, ``inherited`` that its error is that
    of the state it was forked from.
    """

    __slots__ = (
        "branch",
        "error",
        "inherited",
        "joined",
        "log",
        "origin",
        "pending",
        "phase",
        "prefix",
        "prompt",
        "queue",
        "readers",
        "run",
    )

    def __init__(self, run: Run, branch: int | None, prefix: str, phase: Phase) -> None:
        self.run = run
        self.branch = branch
        self.prefix = prefix
        self.phase = phase
        self.origin = self.prompt = Prompt()
        self.queue: deque[Operation] = deque()
        self.log: list[Entry] = []
        self.pending: Handle | None = None
        self.error: BaseException | None = None
        self.inherited = False
        self.joined = False
        self.readers = 0

    def push(self, operations: list[Operation]) -> bool:
        """Queue operations; True: the state was idle, and the caller now owns it."""
        with self.run.lock:
            self.queue.extend(operations)
            self.joined = self.joined and self.error is not None  # nothing can follow that error
            if self.phase is not Phase.IDLE:
                return False
            self.phase = Phase.RUNNING
            return True

    def child(self, branch: int, prefix: str) -> State:
        """A state that begins when this one reaches its fork."""
        return type(self)(self.run, branch, prefix, Phase.UNBORN)

    def settled(self) -> bool:
        """Whether everything appended has run or failed."""
        return self.phase is Phase.IDLE

    def wait(self) -> None:
        """Wait until everything appended has run or failed, or the run was aborted."""
        self.run.wait(self.settled)

    def failure(self) -> BaseException | None:
        """What the state failed with, or its run."""
        return self.run.ended if self.error is None else self.error


class Run:
    """One run of a program: its states, and the lock and signal that they share. Thread-safe.

    Attributes:
        lock: Guards what states and variables share.
        changed: Notified at every change; the condition of ``lock``.
        ended: What has ended the run before its end.
        finished: Whether it has come to its end.
        value: What its function returned.
        usage: Tokens of what has ended.
        reused: What of it came from a journal.
        kept_log: The log of the run that a journal has kept, where this one is taken from it.
        records: What the run log tells of, in program order.
        began: When it began, by the wall clock; ``started`` by `perf_counter`.
        stopped: When it ended, by `perf_counter`.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        gen: GenDefaults,
        seed: int,
        row_key: bytes,
        max_program_tokens: int | None = None,
        priority: int = 0,
    ) -> None:
        self.name = name
        self.backend = backend
        self.gen = gen
        self.seed = seed
        self.row_key = row_key
        self.budget = Budget(max_program_tokens)
        self.priority = priority
        self.id = secrets.token_hex(8)
        self.recording = Recording(name)
        # Taken by itself: entering or leaving a condition is Python, where a Ctrl-C would leave the
        # lock taken for ever.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.ended: BaseException | None = None
        self.finished = False
        self.value: object = None
        self.usage = Usage()
        self.reused = Reused()
        self.kept_log: RunLog | None = None
        self.root = State(self, None, "", Phase.IDLE)
        self.states = [self.root]
        self.records: list[Record] = []
        self.began, self.started = time(), perf_counter()
        self.stopped: float | None = None
        self._rings: list[Callable[[], None]] = []
        self.send: Callable[[], None] | None = None
        """Sends what has been recorded to where it runs; None: it runs as it is recorded."""

    def start(self) -> None:
        """The run begins now, and not when it was made."""
        self.began, self.started = time(), perf_counter()

    # ---------------------------------------------------------------- waiting

    def notify(self) -> None:
        """Wake all who wait for a change; the caller holds ``lock``."""
        self.changed.notify_all()
        for ring in self._rings:
            ring()

    def ringing(self, ring: Callable[[], None]) -> Ringing:
        """Have ``ring()`` called at every change; it must neither wait nor raise."""
        return Ringing(self.lock, self._rings, ring)

    @property
    def over(self) -> bool:
        """Whether the program has ended, well or not."""
        return self.finished or self.ended is not None

    def wait(self, ready: Callable[[], bool], outside: bool = False) -> None:
        """Wait until ``ready()`` holds or the run was aborted.

        Args:
            ready: Asked under ``lock``.
            outside: Whether the program goes on while this waits, on a thread of its own.

        Raises:
            ProgramError: This thread would have to wait, and must not (`waiting`).
        """
        with self.lock:
            if ready() or self.ended is not None:
                return
            waiting.refuse_to_wait(self)
        self.need(outside)
        stretch = waiting.stretch()
        with self.lock:
            while not ready() and self.ended is None:
                self.changed.wait(stretch)

    async def wait_async(self, ready: Callable[[], bool], outside: bool = False) -> None:
        """As `wait`, on the running event loop."""
        bell = waiting.LoopBell()
        with self.ringing(bell.ring):
            while True:
                with self.lock:
                    if ready() or self.ended is not None:
                        return
                self.need(outside)
                await bell.wait()

    def need(self, outside: bool = False) -> None:
        """Somebody waits for what has been recorded; outside, its program will ask for it."""
        if self.send is not None and (self.over or not outside):
            self.send()

    # ---------------------------------------------------------------- ending

    def finish(self) -> None:
        """Wait for all states that were not joined; raises the first error in program order."""
        position = 0
        while position < len(self.states):
            self.states[position].wait()
            position += 1
        self._finish()

    async def finish_async(self) -> None:
        """As `finish`, on the running event loop."""
        position = 0
        while position < len(self.states):
            await self.wait_async(self.states[position].settled)
            position += 1
        self._finish()

    def _finish(self) -> None:
        with self.lock:
            own = (s.error for s in self.states if not s.joined and not s.inherited)
            error = self.ended or next((each for each in own if each is not None), None)
            self.finished = error is None
            self.stopped = perf_counter() if self.stopped is None else self.stopped
            self.notify()
        if error is not None:
            raise fresh(error)

    def abort(self, error: BaseException) -> None:
        """End the run: cancel what is under way, fail what is pending, wake all who wait.

        Only the first call counts, and none after the run has finished.
        """
        with self.lock:
            if self.over:
                return
            self.ended = stored(error)
            self.stopped = perf_counter()
            under_way = [s.pending for s in self.states if s.pending is not None]
            self.notify()
        for handle in under_way:
            handle.cancel()

    def cancel(self, states: Sequence[State], error: BaseException) -> None:
        """End what is under way in states and in the forks below them; the root's is the run."""
        if self.root in states and not self.finished:
            self.abort(error)
            return
        above = {state.prefix for state in states}
        with self.lock:
            busy = [
                s
                for s in self.states
                if s.error is None and not s.settled() and not above.isdisjoint(_line_of(s.prefix))
            ]
            for each in busy:
                each.error, each.joined = stored(error), True
            under_way = [s.pending for s in busy if s.pending is not None]
            self.notify()
        for handle in under_way:
            handle.cancel()

    def depends(self, what: str) -> None:
        """The program goes on by what only a run knows; in a trace that ends it."""

    def tool_form(self) -> ToolForm | None:
        """How the model has calls of tools written; None: its template knows of none."""
        return self.backend.info().tools

    # ---------------------------------------------------------------- max_program_tokens

    def within_budget(self, path: str, params: SamplingParams) -> SamplingParams:
        """The parameters of the generation at ``path``, within what the run has left."""
        with self.lock:
            return self.budget.within(path, params, self.usage.generated_tokens)

    def beyond_budget(self, path: str) -> BudgetExceeded | None:
        """What a refusal of the generation at ``path`` for its length is, if ours has cut that."""
        with self.lock:
            return self.budget.refused(path, self.usage.generated_tokens)

    def charge(self, operation: Operation, usage: Usage, finish: str | None) -> None:
        """Count what an operation took; BudgetExceeded where that is more than there was."""
        with self.lock:
            self.usage += usage
            if operation.record is not None:
                operation.record.usage = usage
            self.budget.check(operation.path, finish, self.usage.generated_tokens)


def _line_of(prefix: str) -> list[str]:
    """The prefixes of a state and of those it was forked from, the root's last."""
    found = [prefix]
    while prefix:
        prefix = prefix[: prefix.rindex("/fork")]
        prefix = prefix[: prefix.rfind("/") + 1]
        found.append(prefix)
    return found
