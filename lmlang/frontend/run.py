"""A run and its states: queues, prompts and variables, and who may touch them when.

    Run ── State (root) ── queue of operations, prompt, pending call
        └─ State (child) …

A state is owned by one thread at a time (`Phase`). One condition per run guards what states and
variables share, and wakes whoever waits for them.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum

from lmlang.errors import ProgramError, fresh
from lmlang.frontend import ir
from lmlang.frontend.dispatcher import dispatcher
from lmlang.frontend.meta import Meta
from lmlang.frontend.options import GenDefaults
from lmlang.frontend.samples import Samples
from lmlang.protocol import Backend, Generation, Prompt, Scores, Segment, Usage

Handle = Generation | Samples | Future[Scores]


class Phase(Enum):
    """Who may touch a state's prompt."""

    UNBORN = "its parent has not reached the fork"
    IDLE = "nobody; the queue is empty"
    RUNNING = "the thread that drains it"
    WAITING = "nobody until the backend answers"


class Variable:
    """One variable of one state: a place that is settled once, with a value or an error.

    ``text`` is what a generation or select wrote, None where the program set the value.
    """

    __slots__ = ("error", "meta", "name", "settled", "text", "value")

    def __init__(self, name: str) -> None:
        self.name = name
        self.settled = False
        self.value: object = None
        self.text: str | None = None
        self.meta: Meta | None = None
        self.error: BaseException | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """A node on its way through a queue, with the living things that it acts on.

    Args:
        node: What to do.
        path: The operation's place in the run, as in ``"3/fork1.2/0"``.
        source: The user's line.
        variable: What a generation, select or set_var settles.
        members: The values of a select's choices.
        value: What set_var sets.
        children: The states that a fork starts.
        gathered: The variables that a join settles, with their values.
        segments: What a join appends to the prompt.
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


class State:
    """A queue of operations and the prompt they have made so far."""

    __slots__ = (
        "branch",
        "error",
        "joined",
        "origin",
        "pending",
        "phase",
        "prefix",
        "prompt",
        "queue",
        "run",
    )

    def __init__(self, run: Run, branch: int | None, prefix: str, phase: Phase) -> None:
        self.run = run
        self.branch = branch
        self.prefix = prefix
        self.phase = phase
        self.origin = self.prompt = Prompt()
        self.queue: deque[Operation] = deque()
        self.pending: Handle | None = None
        self.error: BaseException | None = None
        self.joined = False

    def push(self, operations: list[Operation]) -> bool:
        """Queue operations; True: the state was idle, and the caller now owns it."""
        with self.run.changed:
            self.queue.extend(operations)
            self.joined = False
            if self.phase is not Phase.IDLE:
                return False
            self.phase = Phase.RUNNING
            return True

    def wait(self) -> None:
        """Wait until everything appended has run or failed, or the run was aborted."""
        self.run.wait(lambda: self.phase is Phase.IDLE)

    def failure(self) -> BaseException | None:
        """What the state failed with, or its run."""
        return self.run.ended if self.error is None else self.error


class Run:
    """One run of a program: its states, and the lock and signal that they share.

    Thread-safe.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        gen: GenDefaults,
        seed: int,
        row_key: bytes,
    ) -> None:
        self.name = name
        self.backend = backend
        self.gen = gen
        self.seed = seed
        self.row_key = row_key
        self.id = secrets.token_hex(8)
        self.recording = ir.Recording(name)
        self.changed = threading.Condition(threading.Lock())
        self.ended: BaseException | None = None
        self.finished = False
        self.usage = Usage()
        self.root = State(self, None, "", Phase.IDLE)
        self.states = [self.root]

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()`` holds or the run was aborted.

        Raises:
            ProgramError: It would have to wait on the dispatcher thread, which nothing else
                could then bring on.
        """
        with self.changed:
            if ready() or self.ended is not None:
                return
            if dispatcher().is_current():
                raise ProgramError(
                    "a value was read on lmlang's dispatcher thread, which brings the program "
                    "on and would wait for itself: read it on a thread of your own."
                )
            while not ready() and self.ended is None:
                self.changed.wait()

    def finish(self) -> None:
        """Wait for all states that were not joined; raises the first error in program order."""
        position = 0
        while position < len(self.states):
            self.states[position].wait()
            position += 1
        with self.changed:
            failures = (state.failure() for state in self.states if not state.joined)
            error = next((failure for failure in failures if failure is not None), None)
            self.finished = error is None
        if error is not None:
            raise fresh(error)

    def abort(self, error: BaseException) -> None:
        """End the run: cancel what is under way, fail what is pending, wake all who wait.

        Only the first call counts, and none after the run has finished.
        """
        with self.changed:
            if self.ended is not None or self.finished:
                return
            self.ended = fresh(error)
            under_way = [s.pending for s in self.states if s.pending is not None]
            self.changed.notify_all()
        for handle in under_way:
            handle.cancel()
