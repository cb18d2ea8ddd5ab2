"""One server, and the thread with an event loop that talks to it.

    any thread --start / cancel / wait_for--> Connection: one task each --Client--> server
                                                  | ends, or fails, what it was started for

Whatever was started ends: with its answer, a typed error, or the closing of the connection; at the
interpreter's exit without a word.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from lmlang.errors import BackendError, Cancelled, LMLangError, ProgramError

CLOSE_SECONDS = 5.0
"""For connections to be closed."""


class Asks(Protocol):
    """What asks a server, on the thread."""

    url: str

    async def close(self) -> None:
        """Close all connections."""
        ...


T = TypeVar("T")
C = TypeVar("C", bound=Asks)


class Connection(Generic[C]):
    """A server, and the thread that talks to it. All methods are thread-safe.

    The thread begins with the first request, and belongs to the process in which it does.

    Args:
        client: What asks the server; the thread's own from here on.
    """

    def __init__(self, client: C) -> None:
        self._client = client
        # Reentrant: a garbage collection under it may call `stop`.
        self._door = threading.RLock()
        self._process: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        # The loop thread's own.
        self._work: dict[object, tuple[asyncio.Task[None], Callable[[BaseException], object]]] = {}

    # ------------------------------------------------------------------ any thread

    def start(
        self,
        waited: object,
        work: Callable[[C], Coroutine[Any, Any, None]],
        fail: Callable[[BaseException], object],
    ) -> None:
        """Do some work on the thread.

        Args:
            waited: What it is to end; `cancel` knows it by this.
            work: Makes the coroutine.
            fail: Called with what it ends with, unless it ends well: on the thread, or at once
                where the connection is closed. Where it is called twice, the first call counts.
        """

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(work(self._client))
            self._work[waited] = (task, fail)
            # Not in the coroutine: one that is cancelled before it begins never runs.
            task.add_done_callback(ended)

        def ended(task: asyncio.Task[None]) -> None:
            del self._work[waited]
            error = self._end() if task.cancelled() else task.exception()
            if error is not None and not self._exits():
                fail(error)

        refusal = self._post(begin)
        if refusal is not None:
            fail(refusal)

    def cancel(self, waited: object) -> None:
        """End work that was started, with `Cancelled`; its stream is closed."""

        def drop() -> None:
            if waited in self._work:
                task, fail = self._work[waited]
                fail(self._end())  # at once: to close a connection may take its time
                task.cancel()

        self._post(drop)

    def wait_for(self, ask: Callable[[C], Awaitable[T]]) -> T:
        """Ask and wait for the answer.

        Raises:
            ProgramError: This is the connection's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread and self._process == os.getpid():
            raise ProgramError(
                "a callback of a generation waits for the server, on the thread that would bring "
                "the answer: hand the work to another thread."
            )
        answer: Future[T] = Future()

        async def work(client: C) -> None:
            answer.set_result(await ask(client))

        def fail(error: BaseException) -> None:
            if not answer.done():
                answer.set_exception(error)

        self.start(answer, work, fail)
        try:
            return answer.result()
        finally:
            if not answer.done():  # whoever waits was interrupted
                self.cancel(answer)

    def stop(self) -> None:
        """End the thread; what has not ended fails. A second call does nothing."""
        if self._process not in (None, os.getpid()):
            return
        with self._door:
            self._closed, was = True, self._closed
            loop, thread = self._loop, self._thread
            if loop is not None and not was:
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(3 * CLOSE_SECONDS)

    def _post(self, message: Callable[[], object]) -> LMLangError | None:
        """Have the thread do something next; why it cannot, where it cannot."""
        if self._process not in (None, os.getpid()):
            return BackendError(
                "this connection was made before os.fork and has no thread in the child process: "
                "make a new one there."
            )
        with self._door:
            if self._closed:
                return BackendError(
                    f"the connection to {self._client.url} is closed: make a new one."
                )
            if self._loop is None:
                self._process = os.getpid()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="lmlang-remote", daemon=True
                )
                self._thread.start()
            self._loop.call_soon_threadsafe(message)
        return None

    # ------------------------------------------------------------------ the loop thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(self._close())
        except BaseException:  # an exit, which no loop survives: nobody is to wait for it
            with self._door:
                self._closed = True
            loop.run_until_complete(self._close())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _close(self) -> None:
        """End all work, then the connections; each in bounded time."""
        tasks = []
        for task, fail in list(self._work.values()):
            if not self._exits():
                fail(self._end())
            task.cancel()
            tasks.append(task)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        with suppress(Exception):
            await asyncio.wait_for(self._client.close(), CLOSE_SECONDS)

    def _exits(self) -> bool:
        """Whether the interpreter's exit closes it: daemons alone wait then, and end with it.

        An error would have them say so on the error stream.
        """
        return self._closed and not threading.main_thread().is_alive()

    def _end(self) -> LMLangError:
        """What work ends with that was cancelled."""
        if not self._closed:
            return Cancelled("the generation was cancelled.")
        return BackendError(
            f"the connection to {self._client.url} was closed before this had ended."
        )
