"""Streams for readers: events and texts of a state or a variable, for ``for`` and ``async for``.

Leaving a stream before its end cancels what it reads, unless others still read it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Any, Generic, TypeVar

from lmlang.errors import Cancelled
from lmlang.frontend import waiting
from lmlang.frontend.cursor import check_name
from lmlang.frontend.feed import Feed, StreamEvent, feed_of
from lmlang.frontend.metainfo import Decode, meta_info
from lmlang.frontend.partial import Partial
from lmlang.frontend.reading import Reader

T = TypeVar("T")


class Stream(Generic[T]):
    """The events of one run, for ``for`` and ``with``. For one thread.

    Attributes:
        state: The run's state; any thread may read it at any time.
    """

    _ended = True  # until there is something to end: a Ctrl-C may come while it is made

    def __init__(self, state: T, reader: Reader) -> None:
        self.state = state
        self._reader = reader
        self._events = events(reader, None)
        self._ended = False

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> StreamEvent:
        try:
            return next(self._events)
        except BaseException:
            self._ended = True
            raise

    def close(self) -> None:
        """Leave; a run that has not ended is cancelled."""
        if not self._ended:
            self._events.close()
            self._ended = True
            _leave(self._reader)

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncStream(Generic[T]):
    """The events of one run, for ``async for`` and ``async with``. For one task.

    Attributes:
        state: The run's state; read it with ``await state.aget(name)``.
    """

    _ended = True

    def __init__(self, state: T, reader: Reader) -> None:
        self.state = state
        self._reader = reader
        self._events = events_async(reader, None)
        self._ended = False

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> StreamEvent:
        try:
            return await self._events.__anext__()
        except BaseException:
            self._ended = True
            raise

    async def aclose(self) -> None:
        """Leave; a run that has not ended is cancelled."""
        await self._events.aclose()
        self.__del__()

    async def __aenter__(self) -> AsyncStream[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not self._ended:
            self._ended = True
            _leave(self._reader)


def texts(found: Generator[StreamEvent]) -> Generator[str]:
    """The texts of events that have some."""
    with contextlib.closing(found):
        for event in found:
            if event.text:
                yield event.text


async def texts_async(found: AsyncGenerator[StreamEvent]) -> AsyncGenerator[str]:
    """As `texts`."""
    async with contextlib.aclosing(found):
        async for event in found:
            if event.text:
                yield event.text


def partials(found: Generator[StreamEvent]) -> Generator[Partial]:
    """The partial values of a variable, by its events."""
    with contextlib.closing(found):
        for event in found:
            if event.partial is not None:
                yield event.partial


async def partials_async(found: AsyncGenerator[StreamEvent]) -> AsyncGenerator[Partial]:
    """As `partials`."""
    async with contextlib.aclosing(found):
        async for event in found:
            if event.partial is not None:
                yield event.partial


async def texts_with_info(
    found: AsyncGenerator[StreamEvent], decode: Decode
) -> AsyncGenerator[tuple[str, dict[str, Any] | list[dict[str, Any]]]]:
    """Each text with what is known of its variable so far, under SGLang's names: one record."""
    tokens: dict[str | None, int] = {}
    async with contextlib.aclosing(found):
        async for event in found:
            tokens[event.variable] = tokens.get(event.variable, 0) + len(event.tokens)
            if event.meta is not None:
                yield event.text, meta_info(event.meta, decode)
            elif event.text:
                count = tokens[event.variable]
                yield event.text, {"finish_reason": None, "completion_tokens": count}


def events(reader: Reader, name: str | None) -> Generator[StreamEvent]:
    """The events of a state or of one variable; leaving early cancels what is under way."""
    _check(reader, name)
    return _events(reader, name)


def events_async(reader: Reader, name: str | None) -> AsyncGenerator[StreamEvent]:
    """As `events`, on the running event loop."""
    _check(reader, name)
    return _events_async(reader, name)


def _check(reader: Reader, name: str | None) -> None:
    if name is not None:
        check_name(name)
        if not reader.outside:
            reader.defined(name)


def _events(reader: Reader, name: str | None) -> Generator[StreamEvent]:
    bell, run = waiting.Bell(), reader.run
    feed = feed_of(reader, name, bell.ring)
    with _Reading(reader, feed), run.ringing(bell.ring):
        while not feed.ended:
            found = feed.take()
            yield from found
            if not found and not feed.ended:
                waiting.refuse_to_wait(run)
                run.need(reader.outside)
                bell.wait()


async def _events_async(reader: Reader, name: str | None) -> AsyncGenerator[StreamEvent]:
    bell, run = waiting.LoopBell(), reader.run
    feed = feed_of(reader, name, bell.ring)
    with _Reading(reader, feed), run.ringing(bell.ring):
        while not feed.ended:
            found = feed.take()
            for event in found:
                yield event
            if not found and not feed.ended:
                run.need(reader.outside)
                await bell.wait()


class _Reading:
    """Around the reading of a stream. The last reader to leave early cancels what it read."""

    def __init__(self, reader: Reader, feed: Feed) -> None:
        self._reader = reader
        self._feed = feed

    def __enter__(self) -> None:
        with self._reader.run.lock:
            self._reader.cursor.state.readers += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if sys.is_finalizing():  # a thread that is no more may hold the lock
            return
        self._feed.close()
        run, state = self._reader.run, self._reader.cursor.state
        with run.lock:
            state.readers -= 1
            last = state.readers == 0
            settled = self._feed.settled()
        # No Exception: the iterator was closed, its task cancelled, its thread interrupted.
        left_early = error is not None and not isinstance(error, Exception)
        if left_early and last and not settled:
            _cancel(self._reader)


def _leave(reader: Reader) -> None:
    """End a run that has not ended; what was appended to its state since is none of it."""
    if not sys.is_finalizing() and not reader.run.over:
        _cancel(reader)


def _cancel(reader: Reader) -> None:
    left = Cancelled("the reader of its stream left before the end.")
    reader.run.cancel([reader.cursor.state], left)
