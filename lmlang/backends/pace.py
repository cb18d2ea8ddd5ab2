"""How fast one server is asked: places, requests a minute, tries. An event loop's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lmlang.backends.retries import Again, Rate, Retries

T = TypeVar("T")


class Pace:
    """What all requests to a server share.

    Args:
        max_retries: How often in a row a request is sent again.
        patience: Seconds at most that the server may ask to be waited for.
        max_concurrency: Places of `place`.
        requests_per_minute: Requests that begin in any minute; None: any number.
    """

    def __init__(
        self,
        max_retries: int,
        patience: float,
        max_concurrency: int,
        requests_per_minute: int | None,
    ) -> None:
        self._max_retries = max_retries
        self._patience = patience
        self._rate = Rate(requests_per_minute)
        self._turn = asyncio.Lock()
        self.place = asyncio.Semaphore(max_concurrency)
        """To be held by what takes long."""

    async def retrying(self, attempt: Callable[[Retries], Awaitable[T]]) -> T:
        """What an attempt returns, made again after `Again` as often as that is allowed."""
        retries = Retries(self._max_retries, self._patience)
        while True:
            try:
                return await attempt(retries)
            except Again as again:
                pause = retries.pause(again)
            await asyncio.sleep(pause)

    async def begin(self) -> None:
        """Wait until one more request may begin; the first to come goes first."""
        async with self._turn:
            clock = asyncio.get_running_loop().time
            while (delay := self._rate.delay(clock())) > 0:
                await asyncio.sleep(delay)
