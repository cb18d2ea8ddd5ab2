"""One server over HTTP, asked once and again: answers, streams of events, typed refusals."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import httpx

from lmlang import wire
from lmlang.backends.addresses import is_local
from lmlang.backends.lanes import Lanes
from lmlang.backends.pace import Pace
from lmlang.backends.retries import STATUSES, Again, Retries, seconds_of
from lmlang.errors import BackendError, LMLangError, WireError, quote
from lmlang.wire.sse import EventReader

T = TypeVar("T")
CONNECT_SECONDS = 10.0
"""For a connection to be there."""
KEPT_SECONDS = 20.0
"""For a connection to be kept without use: lmlang's servers close theirs after 30."""
REST_SECONDS = 1.0
"""For an answer to end behind the last that it has to say."""
_PLAIN = "no HTTPS is spoken there: begin the address with http://."
TLS_MENDS = {
    "WRONG_VERSION_NUMBER": _PLAIN,
    "RECORD_LAYER_FAILURE": _PLAIN,
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not known here: name the authority's file in "
    "the variable SSL_CERT_FILE.",
}
"""What to do about the failures of TLS, which do not pass."""
DONE = b"[DONE]"
MAX_ANSWER = 256 << 20
"""Bytes of an answer that is no stream."""
MAX_REFUSAL = 1 << 20
"""Bytes of a refusal."""


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
        limit = httpx.Limits(max_connections=None, keepalive_expiry=KEPT_SECONDS)
        connect = min(timeout, CONNECT_SECONDS)

        def make() -> httpx.AsyncClient:
            return httpx.AsyncClient(
                headers=headers,
                verify=_trusted(),
                timeout=httpx.Timeout(timeout, connect=connect, pool=None),
                limits=limit,
                trust_env=not is_local(url),  # whose proxies lead away from this machine
            )

        self._lanes = Lanes(make, KEPT_SECONDS)
        self._pace = Pace(max_retries, timeout, max_concurrency, requests_per_minute)
        self.place = self._pace.place
        """To be held by what takes long."""

    async def close(self) -> None:
        """Close all connections."""
        await self._lanes.close()

    async def retrying(self, attempt: Callable[[Retries], Awaitable[T]]) -> T:
        """What an attempt returns, made again after `Again` as often as that is allowed."""
        return await self._pace.retrying(attempt)

    async def ask(self, method: str, path: str, message: object = None) -> Any:
        """The JSON that the server answers with.

        Args:
            method: Of HTTP.
            path: The route.
            message: Sent as JSON; None: nothing.
        """

        async def attempt(_: Retries) -> Any:
            async with self.answer(method, path, message) as response:
                self._check_media(path, response, "application/json", "JSON")
                return wire.loads(await _body(response, MAX_ANSWER))

        return await self.retrying(attempt)

    async def events(self, path: str, message: object) -> AsyncGenerator[bytes, None]:
        """The data of the events that the server streams; once, from a request's sending on.

        Raises:
            Again: The stream broke before ``[DONE]``, or the server is busy.
        """
        async with self.answer("POST", path, message) as response:
            self._check_media(path, response, "text/event-stream", "stream of events")
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
        await self._pace.begin()
        content = None if message is None else wire.dumps(message).encode()
        url = self.url + path
        try:
            async with (
                self._lanes.one() as http,
                http.stream(method, url, content=content) as response,
            ):
                if response.status_code != 200:
                    await self._refuse(path, response)
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            found = self._unreachable(error)
            raise (Again(found) if found.retryable else found) from None
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

    def _check_media(self, path: str, response: httpx.Response, media: str, name: str) -> None:
        """Refuse an answer of another kind, as a proxy's page is."""
        found = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        coding = response.headers.get("content-encoding", "identity").lower()
        if found != media or coding != "identity":
            said = found if found != media else f"{media} in {coding}"
            raise WireError(
                f"{self.url}{path} answered with {quote(said)}, which is no {name}: check the "
                "address, and that an lmlang server listens there, with no proxy that changes it."
            )

    async def _refuse(self, path: str, response: httpx.Response) -> None:
        """Raise what an answer other than 200 says: our own error, or its status."""
        status = response.status_code
        try:
            error = _error_of(path, wire.loads(await _body(response, MAX_REFUSAL)))
        except WireError:  # it is not of ours, or a proxy has answered
            error = self._foreign(path, response)
        if isinstance(error, BackendError):
            error.status = status
        if status in STATUSES:
            raise Again(error, seconds_of(response.headers.get("retry-after")))
        raise error

    def _foreign(self, path: str, response: httpx.Response) -> BackendError:
        """What an answer that is not lmlang's comes to."""
        status, target = response.status_code, response.headers.get("location")
        mend = "check the address, and that an lmlang server listens there."
        if response.is_redirect and target is not None:
            mend = f"it leads to {quote(target)}, and keys are not sent on: give the address there."
        elif self.url.endswith("/v1"):
            mend = "leave out the /v1 at its end, which is for clients of OpenAI's interface."
        return BackendError(
            f"{self.url}{path} answered with the status {status}: {mend}",
            retryable=status in STATUSES,
        )

    def _unreachable(self, error: httpx.HTTPError) -> BackendError:
        reason = _reason(error)
        mend = next((mend for part, mend in TLS_MENDS.items() if part in reason), None)
        return BackendError(
            f"{self.url} cannot be reached ({reason}): "
            f"{mend or 'check the address, and that the server runs.'}",
            retryable=mend is None,
        )

    def _lost(self, reason: str) -> BackendError:
        return BackendError(
            f"the connection to {self.url} was lost ({reason}): try again.",
            retryable=True,
        )


@cache
def _trusted() -> ssl.SSLContext:
    """The authorities that every client trusts, read once: that takes a tenth of a second."""
    return httpx.create_ssl_context()


async def _rest(pieces: AsyncIterator[bytes]) -> None:
    """Read to the end of an answer, so that its connection can be kept."""
    async for _ in pieces:
        pass


def _error_of(path: str, message: object) -> LMLangError:
    """The error of a refusal: of our wire, or as the server's other routes write it.

    Raises:
        WireError: It is not of lmlang.
    """
    match message:
        case {"v": int()}:
            try:
                return wire.error_from_wire(message)
            except WireError as newer:
                return newer
        case {"error": {"message": str(said)}} if not path.startswith("/lm/"):
            return BackendError(said)
        case _:
            raise WireError("this is no error of lmlang.")


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
