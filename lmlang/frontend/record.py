"""What a run keeps of one operation for its log: written as it runs, read when somebody asks.

    queued ──> submitted ──> first token ──> finished        only for what a backend answers
    queued ──────────────────────────────> finished          for all the rest

Nothing is copied or formatted here: a record holds what the run holds anyway, and clock readings.
"""

from __future__ import annotations

from time import perf_counter

from lmlang.frontend import ir
from lmlang.frontend.meta import Meta
from lmlang.protocol import Usage


class Record:
    """One operation. Written by the thread that owns its state; final once it is ``finished``.

    Attributes:
        node: What was to be done.
        path: The operation's place in the run, empty for what makes no draws.
        source: The user's line.
        prefix: Of the paths of its state.
        branch: Its state's index in the fork that made it.
        queued: When it was appended; this and all times by `time.perf_counter`.
        submitted: When the backend was asked.
        first: When the backend told of the first token.
        finished: When it had been done, or had failed.
        abandoned: Whether something else has kept it from being done.
        error: What it failed with.
        usage: What it was charged with.
        meta: What is known of its answer.
        text: What it wrote.
        value: What a generation or select came to.
        handle: What the backend is asked, while it is under way.
    """

    __slots__ = (
        "abandoned",
        "branch",
        "error",
        "finished",
        "first",
        "handle",
        "meta",
        "node",
        "path",
        "prefix",
        "queued",
        "source",
        "submitted",
        "text",
        "usage",
        "value",
    )

    def __init__(
        self, node: ir.Node, path: str, source: str, prefix: str, branch: int | None
    ) -> None:
        self.node = node
        self.path = path
        self.source = source
        self.prefix = prefix
        self.branch = branch
        self.queued = perf_counter()
        self.submitted: float | None = None
        self.first: float | None = None
        self.finished: float | None = None
        self.abandoned = False
        self.error: BaseException | None = None
        self.usage: Usage | None = None
        self.meta: Meta | None = None
        self.text: str | None = None
        self.value: object = None
        self.handle: object = None

    def answer(self, text: str, value: object, meta: Meta) -> None:
        """The backend has answered."""
        self.text, self.value, self.meta = text, value, meta
        self.handle = None

    def finish(self) -> None:
        """It has been done; of several calls the first counts."""
        if self.finished is None:
            self.finished = perf_counter()

    def fail(self, error: BaseException) -> None:
        """It has failed by itself; an interrupt after it has been done changes nothing."""
        if self.finished is None:
            self.error = error
            self.handle = None
            self.finished = perf_counter()
