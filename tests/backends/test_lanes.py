"""Connections are spread over pools, found again, and closed when nobody uses them."""

import asyncio
from contextlib import AsyncExitStack

import httpx
import pytest

from lmlang.backends.lanes import WIDTH, Lanes


class Made:
    """Counts clients, and keeps them."""

    def __init__(self):
        self.clients = []

    def __call__(self):
        self.clients.append(httpx.AsyncClient())
        return self.clients[-1]

    def open(self):
        return [client for client in self.clients if not client.is_closed]


@pytest.fixture
def made():
    return Made()


def test_no_pool_has_more_than_its_width_and_the_first_are_used_again(made):
    async def program():
        lanes = Lanes(made, seconds=60)
        for _ in range(2):
            async with AsyncExitStack() as stack:
                taken = [await stack.enter_async_context(lanes.one()) for _ in range(3 * WIDTH)]
            assert {taken.count(client) for client in made.clients} == {WIDTH}
        async with lanes.one() as one:
            assert one is made.clients[0]
        await lanes.close()

    asyncio.run(program())
    assert len(made.clients) == 3
    assert made.open() == []


def test_pools_that_nobody_uses_are_closed_and_those_in_use_are_not(made):
    async def program():
        lanes = Lanes(made, seconds=0)
        async with AsyncExitStack() as stack:
            for _ in range(WIDTH):
                await stack.enter_async_context(lanes.one())
            async with lanes.one(), lanes.one():
                assert len(made.open()) == 2
            async with lanes.one() as again:
                assert not again.is_closed
                assert made.open()[0] is made.clients[0]
        async with lanes.one():
            assert len(made.open()) == 1
        await lanes.close()

    asyncio.run(program())
    assert made.open() == []
