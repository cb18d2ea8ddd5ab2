"""Many connections to one server, a few to a pool: a pool looks at all of its own at every step.

lane 0: 8 connections, always busy    lane 1: 8 more    …    the last: unused, closed after a while
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

import httpx

WIDTH = 8
"""Requests of one lane. httpx compares every connection of a pool with every other one."""


@dataclass(slots=True, eq=False)
class _Lane:
    http: httpx.AsyncClient
    used: int = 0
    left: float = 0.0


class Lanes:
    """HTTP clients that are made as they are needed; the loop thread's own.

    Args:
        make: Makes one.
        seconds: For one to be kept that nobody uses.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._lanes: list[_Lane] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client for one request."""
        lane = next((lane for lane in self._lanes if lane.used < WIDTH), None)
        if lane is None:
            lane = _Lane(self._make())
            self._lanes.append(lane)
        lane.used += 1
        try:
            await self._close_unused()
            yield lane.http
        finally:
            lane.used -= 1
            lane.left = monotonic()

    async def close(self) -> None:
        """Close all connections."""
        for lane in self._lanes:
            await lane.http.aclose()

    async def _close_unused(self) -> None:
        while self._lanes[-1].used == 0 and monotonic() - self._lanes[-1].left > self._seconds:
            await self._lanes.pop().http.aclose()
