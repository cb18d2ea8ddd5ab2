"""A server of OpenAI's interface, asked through the ``openai`` package; its errors as ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import Any

import openai

from lmlang.backends.addresses import is_local
from lmlang.backends.pace import Pace
from lmlang.backends.retries import STATUSES, Again, seconds_of
from lmlang.errors import BackendError, LMLangError, ProgramError, quote

HTTP_PACKAGES = ("httpx", "httpcore", "httpx2", "httpcore2")
"""Whose errors older versions of ``openai`` let through while a stream is read."""
MOST_WORDS = 8
"""Parts of an error's body that a message tells."""


class OpenAIClient:
    """What asks the server; the loop thread's own.

    Args:
        base_url: Its address; None: the package's own.
        api_key: None: the package's own, from the environment, where there is no ``base_url``.
        timeout: Seconds without a byte after which it is given up.
        max_retries: How often in a row a request is sent again.
        max_concurrency: Places of ``pace.place``.
        requests_per_minute: Requests that begin in any minute; None: any number.

    Raises:
        ProgramError: There is no key.
    """

    def __init__(
        self,
        base_url: str | None,
        *,
        api_key: str | None,
        timeout: float,
        max_retries: int,
        max_concurrency: int,
        requests_per_minute: int | None,
    ) -> None:
        if api_key is None and base_url is not None:
            api_key = "none"  # the environment's key is not for just any server
        own: dict[str, Any] = {}
        if base_url is not None and is_local(base_url):  # proxies lead away from this machine
            own["http_client"] = openai.DefaultAsyncHttpxClient(trust_env=False)
        try:
            self._client = openai.AsyncOpenAI(
                api_key=api_key, base_url=base_url, timeout=timeout, max_retries=0, **own
            )
        except openai.OpenAIError:
            raise ProgramError(
                "there is no key for OpenAI: give api_key=…, set OPENAI_API_KEY, or give the "
                "base_url=… of a server that asks for none."
            ) from None
        self.url = str(self._client.base_url).rstrip("/")
        self._secret = None if api_key == "none" else self._client.api_key
        self._timeout = timeout
        self.pace = Pace(max_retries, timeout, max_concurrency, requests_per_minute)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def chunks(
        self, chat: bool, fields: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The parts of a streamed answer; once, from the request's sending on.

        Raises:
            Again: The server is busy, or the connection was lost.
            LMLangError: The server refuses.
        """
        await self.pace.begin()
        options, empty = {"include_usage": True}, True
        try:
            create = self._endpoint(chat).with_raw_response.create
            answer: Any = await create(**fields, stream=True, stream_options=options)
            async with answer.parse() as stream:
                async for chunk in stream:
                    empty = False
                    yield chunk.model_dump(exclude_unset=True, warnings=False)
            if empty:
                self._check_media(answer.headers.get("content-type", ""))
        except Exception as error:
            raise self._translated(error) from None

    async def completion(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer of the completion endpoint."""

        async def attempt(_: object) -> dict[str, Any]:
            await self.pace.begin()
            try:
                answer: Any = await self._endpoint(False).create(**fields)
                found: dict[str, Any] = answer.model_dump(exclude_unset=True, warnings=False)
            except Exception as error:
                raise self._translated(error) from None
            return found

        return await self.pace.retrying(attempt)

    def _endpoint(self, chat: bool) -> Any:
        return self._client.chat.completions if chat else self._client.completions

    def _check_media(self, content_type: str) -> None:
        """Refuse what is no stream, such as a proxy's page."""
        media = content_type.partition(";")[0].strip().lower()
        if media and media != "text/event-stream":
            raise BackendError(
                f"{self.url} answered with {quote(media)} and no stream: check base_url, which "
                "mostly ends with /v1, and that the server streams."
            )

    def _translated(self, error: Exception) -> Exception:
        """Our error for one of the package's; others as they are."""
        if isinstance(error, openai.APIStatusError):
            return self._refused(error)
        if isinstance(error, openai.APITimeoutError):
            return BackendError(
                f"{self.url} sent nothing for {self._timeout:g} s (timeout={self._timeout:g}): "
                "it hangs, or needs longer; give a larger timeout.",
                retryable=True,
            )
        if isinstance(error, openai.APIConnectionError) or _of_http(error):
            return Again(self.lost("it cannot be reached, or broke off"))
        if isinstance(error, openai.APIError):
            return BackendError(
                f"{self.url} failed while it answered: {self._said(error)}", retryable=True
            )
        if isinstance(error, (ValueError, AttributeError)) and not isinstance(error, LMLangError):
            return BackendError(
                f"{self.url} answered with what is not OpenAI's interface "
                f"({type(error).__name__}): check base_url, which mostly ends with /v1."
            )
        return error

    def _refused(self, error: openai.APIStatusError) -> Exception:
        status, mend = error.status_code, ""
        if status == HTTPStatus.NOT_FOUND and not self.url.endswith("/v1"):
            mend = " (base_url mostly ends with /v1)"
        told = BackendError(
            f"{self.url} answered with the status {status}: {self._said(error)}{mend}",
            retryable=status in STATUSES,
            status=status,
        )
        if status in STATUSES and error.code != "insufficient_quota":
            return Again(told, seconds_of(error.response.headers.get("retry-after")))
        return told

    def lost(self, reason: str) -> BackendError:
        """What to raise where the connection is no more."""
        return BackendError(
            f"the connection to {self.url} failed ({reason}): check the address, or try again.",
            retryable=True,
        )

    def _said(self, error: openai.APIError) -> str:
        """The server's own words, without the key."""
        text = _words(error.body) or "it does not say why"
        return quote(text.replace(self._secret, "…") if self._secret else text)


def _words(body: object, depth: int = 3) -> str:
    """What an error's body says, whatever its shape; "" where it says nothing."""
    if isinstance(body, str):
        return body.strip()
    if isinstance(body, dict) and depth:
        named = [body[name] for name in ("message", "error", "detail", "msg") if body.get(name)]
        return _words(named[0], depth - 1) if named else ""
    if isinstance(body, list) and depth:
        return "; ".join(filter(None, [_words(part, depth - 1) for part in body[:MOST_WORDS]]))
    return ""


def _of_http(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in HTTP_PACKAGES
