"""One server over HTTP: a thread with an event loop, kept connections, retries, typed refusals.

    any thread --start / cancel / wait_for--> Connection: one task each --Client--> server
                                                  | ends, or fails, what it was started for

Whatever was started ends: with its answer, a typed error, or the closing of the connection.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import httpx

from lmlang import wire
from lmlang.backends.retries import STATUSES, Again, Rate, Retries, seconds_of
from lmlang.errors import BackendError, Cancelled, LMLangError, ProgramError, WireError, quote
from lmlang.wire.sse import EventReader

T = TypeVar("T")
CONNECT_SECONDS = 10.0
"""For a connection to be there."""
KEPT_SECONDS = 20.0
"""For a connection to be kept without use: lmlang's servers close theirs after 30."""
CLOSE_SECONDS = 5.0
"""For connections to be closed."""
REST_SECONDS = 1.0
"""For an answer to end behind the last that it has to say."""
DONE = b"[DONE]"
MAX_ANSWER = 256 << 20
"""Bytes of an answer that is no stream."""
MAX_REFUSAL = 1 << 20
"""Bytes of a refusal."""


class Connection:
    """A server, and the thread that talks to it. All methods are thread-safe.

    The thread begins with the first request, and belongs to the process in which it does.

    Args:
        client: What asks the server; the thread's own from here on.
    """

    def __init__(self, client: Client) -> None:
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
        work: Callable[[Client], Coroutine[Any, Any, None]],
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
            if error is not None:
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

    def wait_for(self, ask: Callable[[Client], Awaitable[T]]) -> T:
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

        async def work(client: Client) -> None:
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
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _close(self) -> None:
        """End all work, then the connections; each in bounded time."""
        tasks = []
        for task, fail in list(self._work.values()):
            fail(self._end())
            task.cancel()
            tasks.append(task)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        with suppress(Exception):
            await asyncio.wait_for(self._client.close(), CLOSE_SECONDS)

    def _end(self) -> LMLangError:
        """What work ends with that was cancelled."""
        if not self._closed:
            return Cancelled("the generation was cancelled.")
        return BackendError(
            f"the connection to {self._client.url} was closed before this had ended."
        )


class Client:
    """What asks the server; the loop thread's own.

    Args:
        url: Its address.
        api_key: Sent with every request; None: none.
        timeout: Seconds without a byte after which it is given up.
        max_retries: How often in a row a request is sent again.
        max_concurrency: Places of `place`.
        requests_per_minute: Requests that begin in any minute; None: any number.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        timeout: float,
        max_retries: int,
        max_concurrency: int,
        requests_per_minute: int | None,
    ) -> None:
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        headers["user-agent"] = "lmlang"
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        self.url = url
        self._timeout = timeout
        self._max_retries = max_retries
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS), pool=None),
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=max_concurrency,
                keepalive_expiry=KEPT_SECONDS,
            ),
        )
        self._rate = Rate(requests_per_minute)
        self._turn = asyncio.Lock()
        self.place = asyncio.Semaphore(max_concurrency)
        """To be held by what takes long."""

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def retrying(self, attempt: Callable[[Retries], Awaitable[T]]) -> T:
        """What an attempt returns, made again after `Again` as often as that is allowed."""
        retries = Retries(self._max_retries, self._timeout)
        while True:
            try:
                return await attempt(retries)
            except Again as again:
                pause = retries.pause(again)
            await asyncio.sleep(pause)

    async def ask(self, method: str, path: str, message: object = None) -> Any:
        """The JSON that the server answers with.

        Args:
            method: Of HTTP.
            path: The route.
            message: Sent as JSON; None: nothing.
        """

        async def attempt(_: Retries) -> Any:
            async with self.answer(method, path, message) as response:
                return wire.loads(await _body(response, MAX_ANSWER))

        return await self.retrying(attempt)

    async def events(self, path: str, message: object) -> AsyncGenerator[bytes, None]:
        """The data of the events that the server streams; once, from a request's sending on.

        Raises:
            Again: The stream broke before ``[DONE]``, or the server is busy.
        """
        async with self.answer("POST", path, message) as response:
            media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if media != "text/event-stream":
                raise WireError(
                    f"{self.url}{path} answered with {quote(media)}, which is no stream of events: "
                    "check the address, and that an lmlang server listens there."
                )
            reader, pieces = EventReader(), response.aiter_raw()
            async for piece in pieces:
                for data in reader.feed(piece):
                    if data == DONE:
                        with suppress(asyncio.TimeoutError):  # it is closed then, and not kept
                            await asyncio.wait_for(_rest(pieces), REST_SECONDS)
                        return
                    yield data
            raise Again(self._lost("the stream broke off"))

    @asynccontextmanager
    async def answer(
        self, method: str, path: str, message: object = None
    ) -> AsyncIterator[httpx.Response]:
        """Send a request once; inside the block its answer can be read.

        Raises:
            Again: The connection was lost, in the block too, or the server is busy.
            LMLangError: The server refuses.
        """
        await self._begin()
        content = None if message is None else wire.dumps(message).encode()
        url = self.url + path
        try:
            async with self._http.stream(method, url, content=content) as response:
                if response.status_code != 200:
                    await self._refuse(path, response)
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Again(self._unreachable(error)) from None
        except (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError) as error:
            raise Again(self._lost(_reason(error))) from None
        except httpx.TimeoutException:
            raise BackendError(
                f"{self.url} sent nothing for {self._timeout:g} s (timeout={self._timeout:g}): "
                "it hangs, or needs longer; give a larger timeout.",
                retryable=True,
            ) from None
        except httpx.HTTPError as error:
            kind = type(error).__name__
            raise BackendError(f"{self.url} could not be asked ({kind}): check it.") from None

    async def _begin(self) -> None:
        """Wait until one more request may begin; the first to come goes first."""
        async with self._turn:
            clock = asyncio.get_running_loop().time
            while (delay := self._rate.delay(clock())) > 0:
                await asyncio.sleep(delay)

    async def _refuse(self, path: str, response: httpx.Response) -> None:
        """Raise what an answer other than 200 says: our own error, or its status."""
        status = response.status_code
        try:
            error = wire.error_from_wire(wire.loads(await _body(response, MAX_REFUSAL)))
        except WireError:  # it is not of ours, or a proxy has answered
            error = BackendError(
                f"{self.url}{path} answered with the status {status}: check the address, and "
                "that an lmlang server listens there.",
                retryable=status in STATUSES,
            )
        if isinstance(error, BackendError):
            error.status = status
        if status in STATUSES:
            raise Again(error, seconds_of(response.headers.get("retry-after")))
        raise error

    def _unreachable(self, error: httpx.HTTPError) -> BackendError:
        return BackendError(
            f"{self.url} cannot be reached ({_reason(error)}): check the address, and that the "
            "server runs.",
            retryable=True,
        )

    def _lost(self, reason: str) -> BackendError:
        return BackendError(
            f"the connection to {self.url} was lost ({reason}): try again.",
            retryable=True,
        )


async def _rest(pieces: AsyncIterator[bytes]) -> None:
    """Read to the end of an answer, so that its connection can be kept."""
    async for _ in pieces:
        pass


async def _body(response: httpx.Response, most: int) -> bytes:
    """All of an answer; WireError where it is too much."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > most:
            raise WireError(f"the server answered with more than {most:,} bytes.")
    return bytes(body)


def _reason(error: httpx.HTTPError) -> str:
    return quote(str(error) or type(error).__name__)[1:-1]
