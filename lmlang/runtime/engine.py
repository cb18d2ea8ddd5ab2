"""The engine thread: the one owner of an EngineLoop, reached by an inbox; nothing is ever lost.

    any thread --submit / cancel / call--> inbox --> engine thread: drain, step, drain, step, ...

Whatever enters the inbox before the end is answered; whatever comes later is refused at the door.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from lmlang.errors import BackendError, Cancelled, LMLangError
from lmlang.protocol import Generation, Scores
from lmlang.runtime.loop import EngineLoop
from lmlang.runtime.sequence import Sequence

T = TypeVar("T")
IDLE_SECONDS = 1.0
"""Without work for so long, the engine is idle and checks itself."""
log = logging.getLogger("lmlang")


class Engine:
    """A thread that runs a loop until `stop`. All methods are thread-safe."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._door = threading.Lock()
        self._closed: LMLangError | None = None
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="lmlang-engine", daemon=True)
        self._thread.start()

    def submit(self, sequence: Sequence) -> LMLangError | None:
        """Start a sequence; returns the reason where the engine takes no more."""
        return self._enqueue(lambda: self._loop.add(sequence))

    def cancel(self, generation: Generation) -> None:
        """End one generation with `Cancelled`, if it has not ended."""

        def drop() -> None:
            self._loop.drop(generation)
            generation.fail(error)

        error = Cancelled("the generation was cancelled.")
        if self._enqueue(drop) is not None:
            generation.fail(error)

    def forget(self, scores: Future[Scores]) -> None:
        """Drop the sequences of scores that nobody waits for any more."""
        self._enqueue(lambda: self._loop.drop(scores))

    def call(self, function: Callable[[EngineLoop], T]) -> T:
        """Run a function between two steps and return what it returns."""
        if threading.current_thread() is self._thread:
            return function(self._loop)
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(function(self._loop))
            except Exception as error:
                answer.set_exception(error)

        refusal = self._enqueue(run)
        if refusal is not None:
            raise refusal
        return answer.result()

    def stop(self) -> None:
        """End the thread; what has not ended fails. A second call does nothing."""
        if self._process != os.getpid():
            return
        with self._door:
            if self._closed is None:
                self._closed = BackendError("the runtime is closed: make a new one.")
                self._inbox.put(self._end)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _enqueue(self, message: Callable[[], object]) -> LMLangError | None:
        """Put a message into the inbox, or say why it cannot be."""
        if self._process != os.getpid():
            return BackendError(
                "this runtime was made before os.fork and has no engine in the child process: "
                "make a new Runtime there."
            )
        with self._door:
            if self._closed is None:
                self._inbox.put(message)
            return self._closed

    def _run(self) -> None:
        """The thread: drain the inbox, then step while there is work."""
        try:
            while True:
                if not self._loop.has_work():
                    self._next()()
                while not self._inbox.empty():
                    self._inbox.get()()
                if self._loop.has_work():
                    self._loop.step()
        except _Ended:
            error: LMLangError = BackendError("the runtime was closed before this had ended.")
        except BaseException as died:
            log.exception("the engine thread died")
            error = BackendError(
                f"the runtime's engine died: {type(died).__name__}: {died}. Make a new Runtime."
            )
            error.__cause__ = died
        with self._door:
            self._closed = self._closed or error
        self._loop.fail_all(error)
        while not self._inbox.empty():
            self._drain_one()
        self._loop.fail_all(error)

    def _next(self) -> Callable[[], object]:
        """Wait for the next message; where none comes for a while, prove the cache's invariants."""
        try:
            return self._inbox.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            # Not at every pause between two requests: it takes a walk over the whole pool.
            self._loop.cache.check()
            return self._inbox.get()

    def _drain_one(self) -> None:
        """Let a message that came before the end take effect, so that it can be failed."""
        try:
            self._inbox.get()()
        except _Ended:
            return

    def _end(self) -> None:
        raise _Ended


class _Ended(BaseException):
    """Raised on the engine thread to leave its loop."""
