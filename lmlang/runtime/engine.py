"""The engine thread: the one owner of an EngineLoop, reached by an inbox; nothing is ever lost.

    any thread --submit / cancel / call--> inbox --> engine thread: drain, step, drain, step, ...
                     |                                    | beats
                     +--> answers under way <--fails-- watchdog: it stalled, or is gone

Whatever enters the inbox before the end is answered; whatever comes later is refused at the door.
Answers under way are known here beside the loop, so that they can be failed without touching what
a stalled thread may still be using. At the interpreter's exit nothing is failed: whoever waits then
is a daemon thread, which ends without a word.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from lmlang.errors import BackendError, Cancelled, LMLangError
from lmlang.protocol import Generation, Scores
from lmlang.runtime.loop import EngineLoop
from lmlang.runtime.sequence import Sequence
from lmlang.runtime.waiting_room import WaitingRoom

T = TypeVar("T")
Waited = Generation | Future[Any]
IDLE_SECONDS = 1.0
"""Without work for so long, the engine is idle and checks itself."""
HEARTBEAT = 120.0
MAX_QUEUED = 65_536
log = logging.getLogger("lmlang")


class Engine:
    """A thread that runs a loop until `stop`. All methods are thread-safe.

    Args:
        loop: The engine thread's own from here on.
        heartbeat: Seconds that one step, or one function of `call`, may take. After that, and
            where the thread is gone, all that is under way fails with `BackendError` and the
            engine is closed.
        max_queued: Sequences that may wait to run.
    """

    def __init__(
        self, loop: EngineLoop, *, heartbeat: float = HEARTBEAT, max_queued: int = MAX_QUEUED
    ) -> None:
        self._loop = loop
        self._heartbeat = heartbeat
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._room = WaitingRoom(max_queued)
        # Of the fields below. Reentrant: a garbage collection under it may call `stop`. Taken by
        # itself: entering a condition is Python, where a Ctrl-C would leave it taken for ever.
        self._lock = threading.RLock()
        self._door = threading.Condition(self._lock)
        self._answers: dict[Waited, None] = {}
        self._closed: LMLangError | None = None
        self._ended = False
        self._owing_since: float | None = None
        """Since when the thread has owed a sign of life; None while there is nothing to do."""
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="lmlang-engine", daemon=True)
        self._watchdog = threading.Thread(target=self._watch, name="lmlang-heartbeat", daemon=True)
        self._thread.start()
        self._watchdog.start()

    def submit(self, sequence: Sequence, *, wait: bool = True) -> LMLangError | None:
        """Start a sequence, once fewer than ``max_queued`` wait; the first to come goes first.

        On the engine thread itself it never waits: nobody else makes room.

        Args:
            sequence: The first of its answer.
            wait: Whether to wait; else `QueueFull` comes back where there is no room.

        Returns:
            The reason where the engine does not take it.
        """
        if self._process != os.getpid():
            return _forked()
        own = threading.current_thread() is self._thread
        refusal = self._room.enter(wait=wait, beyond=own)
        return refusal or self._enqueue(lambda: self._add(sequence), sequence.task.answer)

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

    def tell(self, function: Callable[[EngineLoop], object]) -> None:
        """Run a function between two steps, if the engine still runs by then; does not wait."""
        self._enqueue(lambda: function(self._loop))

    def call(self, function: Callable[[EngineLoop], T]) -> T:
        """Run a function between two steps and return what it returns."""
        if threading.current_thread() is self._thread:
            return function(self._loop)
        answer: Future[T] = Future()

        def run() -> None:
            try:
                result = function(self._loop)
            except Exception as error:
                _fail(answer, error)
            else:
                with suppress(InvalidStateError):  # it came too late
                    answer.set_result(result)

        refusal = self._enqueue(run, answer)
        if refusal is not None:
            raise refusal
        return answer.result()

    def silence(self) -> float:
        """Seconds for which the thread has owed a sign of life; 0 while there is nothing to do.

        Raises:
            LMLangError: The engine has ended; the error says why.
        """
        if self._process != os.getpid():
            raise _forked()
        with self._lock:
            if self._closed is not None:
                raise self._closed
            since = self._owing_since
        return 0.0 if since is None else max(0.0, time.monotonic() - since)

    def stop(self) -> None:
        """End the thread; what has not ended fails. A second call does nothing.

        Returns within the heartbeat, also where the thread is stuck in a step.
        """
        if self._process != os.getpid():
            return
        with self._lock:
            if self._closed is None:
                self._closed = BackendError("the runtime is closed: make a new one.")
                self._send(self._end)
        current = threading.current_thread()
        if current in (self._thread, self._watchdog):
            return
        self._watchdog.join()  # it ends with the thread, or gives it up
        if self._ended:
            self._thread.join()

    def _add(self, sequence: Sequence) -> None:
        self._room.arrive()
        if not sequence.task.answer.done():  # else it was cancelled on its way
            self._loop.add(sequence)

    def _enqueue(
        self, message: Callable[[], object], answer: Waited | None = None
    ) -> LMLangError | None:
        """Put a message into the inbox, or say why it cannot be.

        ``answer`` is what the message is to end: it is failed where the engine ends before it.
        """
        if self._process != os.getpid():
            return _forked()
        with self._lock:
            if self._closed is not None:
                return None if ends_here() else self._closed
            if answer is not None:
                self._answers[answer] = None
            self._send(message)
        if answer is not None:
            answer.add_done_callback(self._answered)
        return None

    def _send(self, message: Callable[[], object]) -> None:
        """Into the inbox, and a sign of life is owed from now on; holds the door."""
        self._inbox.put(message)
        if self._owing_since is None:
            self._owing_since = time.monotonic()
            self._door.notify_all()

    def _answered(self, answer: Waited) -> None:
        if self._process == os.getpid():  # in a child the lock may be held for ever
            with self._lock:
                self._answers.pop(answer, None)

    # ------------------------------------------------------------------ the engine thread

    def _run(self) -> None:
        """The thread: drain the inbox, then step while there is work."""
        error: LMLangError = BackendError("the runtime's engine died. Make a new Runtime.")
        try:
            self._work()
        except _Ended:
            error = BackendError("the runtime was closed before this had ended.")
        except BaseException as died:
            error = BackendError(
                f"the runtime's engine died: {type(died).__name__}: {died}. Make a new Runtime."
            )
            error.__cause__ = died
            log.error("the engine thread died", exc_info=died)
        finally:
            with self._lock:
                self._ended = True
            self._close(error)

    def _work(self) -> None:
        while True:
            if not self._loop.has_work():
                self._next()()
            while not self._inbox.empty():
                self._beat()
                self._inbox.get()()
            self._room.update(len(self._loop.scheduler.waiting))
            if self._loop.has_work():
                self._beat()
                self._loop.step(self._room.update)

    def _beat(self) -> None:
        """A sign of life."""
        self._owing_since = time.monotonic()

    def _next(self) -> Callable[[], object]:
        """Wait for the next message; where none comes for a while, prove the cache's invariants."""
        with self._lock:
            if self._inbox.empty():
                self._owing_since = None
        try:
            return self._inbox.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            # Not at every pause between two requests: it takes a walk over the whole pool.
            self._loop.cache.check()
            return self._inbox.get()

    def _end(self) -> None:
        raise _Ended

    # ------------------------------------------------------------------ its end

    def _watch(self) -> None:
        """The watchdog: sleeps until the thread ends, or fails all answers where it must have."""
        with self._lock:
            while not self._ended:
                left = None
                if self._owing_since is not None:
                    left = self._owing_since + self._heartbeat - time.monotonic()
                    left = min(left, threading.TIMEOUT_MAX)
                    if left <= 0 or not self._thread.is_alive():
                        break
                self._door.wait(left)
            if self._ended:
                return
            self._inbox.put(self._end)  # for a thread that wakes up after all
        seconds = self._heartbeat
        error = BackendError(
            f"the runtime's engine gave no sign of life for {seconds:g} s (heartbeat={seconds:g}): "
            "its thread is stuck or gone. Make a new Runtime, with a larger heartbeat if single "
            "steps may take so long."
        )
        log.error("%s", error)
        self._close(error)

    def _close(self, error: LMLangError) -> None:
        """Refuse whatever comes from now on, and fail what is under way; from either thread."""
        with self._lock:
            self._closed = self._closed or error
            closed, answers = self._closed, list(self._answers)
            self._door.notify_all()
        if exits():
            return
        self._room.close(closed)
        for answer in answers:
            try:
                _fail(answer, error)
            except BaseException:  # of a callback: it keeps no other answer from its reader
                log.exception("an answer could not be delivered")


def _fail(answer: Waited, error: BaseException) -> None:
    """End an answer with an error, unless it has ended."""
    if isinstance(answer, Generation):
        answer.fail(error)
        return
    with suppress(InvalidStateError):
        answer.set_exception(error)


def exits() -> bool:
    """Whether the interpreter exits: daemon threads alone still wait, and end with it.

    An error would have them print a traceback.
    """
    return not threading.main_thread().is_alive()


def ends_here() -> bool:
    """Whether this thread is one of these; the main one still runs what ``atexit`` has."""
    return exits() and threading.current_thread() is not threading.main_thread()


def _forked() -> BackendError:
    return BackendError(
        "this runtime was made before os.fork and has no engine in the child process: "
        "make a new Runtime there."
    )


class _Ended(BaseException):
    """Raised on the engine thread to leave its loop."""
